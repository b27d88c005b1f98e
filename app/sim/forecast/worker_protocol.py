"""Protocol between a worker process and its parent: pickled values, each after its length.

Unpickling is safe, because only a process and its own child exchange frames.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

HEAD = struct.Struct(">Q")


def encode_body(value: object) -> bytes:
    """Return a value as the body of a frame, or as an argument that two workers share."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def encode_frame(value: object) -> bytes:
    """Return a value as a frame."""
    body = encode_body(value)
    return HEAD.pack(len(body)) + body


def body_length(head: bytes) -> int:
    """Return the number of bytes that follow a head."""
    found: int = HEAD.unpack(head)[0]
    return found


def decode_body(body: bytes) -> Any:
    """Return the value in the body of a frame."""
    return pickle.loads(body)  # noqa: S301 - our own child or parent wrote it
