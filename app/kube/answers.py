"""Decodes answers of an API server for commands. The server may be another program."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from app.core.errors import ClusterUnavailable
from app.k8s_types.deep_json import Decoder

T = TypeVar("T")


def decode_answer(body: bytes, kind: type[T]) -> T:
    """Return the answer as a value of a type. Raises ClusterUnavailable if it is something else."""
    try:
        return Decoder(kind).decode(body)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(
            "The API server answered with something else than Kubernetes does; "
            "see whether the kubeconfig names the right server."
        ) from error
