"""Child side of the worker process: runs calls within limits until its parent closes the pipe.

Standard input and output carry frames. Printed text goes to standard error.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from typing import BinaryIO

from app.sim.forecast.worker_protocol import HEAD, body_length, decode_body, encode_frame

DONE, BROKE = "done", "broke"


def main() -> None:
    """Serve one call after another. Arguments: bytes of memory, seconds of one call, niceness."""
    memory, seconds, nice = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    os.nice(nice)
    gc.disable()  # all objects of a call are collected together after it
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while (body := _next(calls)) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds + 1, hard))
        answers.write(encode_frame(_call(body)))
        answers.flush()
        gc.collect()


def _next(calls: BinaryIO) -> bytes | None:
    head = calls.read(HEAD.size)
    return calls.read(body_length(head)) if len(head) == HEAD.size else None


def _call(body: bytes) -> tuple[str, object]:
    try:
        function, arguments = decode_body(body)
        return DONE, function(*arguments)
    except MemoryError:
        return BROKE, "it needs too much memory"
    except Exception as error:
        return BROKE, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
