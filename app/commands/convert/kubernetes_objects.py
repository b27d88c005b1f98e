"""Kubernetes objects to convert, from YAML or JSON files as `kubectl get -o yaml` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.core.errors import InvalidInput
from app.terminal import object_files
from app.terminal.object_files import Document


def read_objects(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the objects of all files; `-` is standard input. Raises InvalidInput."""
    return [_checked(path, each) for path in paths for each in object_files.read_objects(str(path))]


def _checked(path: Path, item: Document) -> dict[str, Any]:
    """Return an object that has a kind and a name. Raises InvalidInput."""
    kind, meta = item.get("kind"), item.get("metadata")
    if not isinstance(kind, str):
        raise InvalidInput(f"{path} has a document without kind; give Kubernetes objects.")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise InvalidInput(f"{path} has a {kind} without a name; add metadata.name.")
    return dict(item)


@contextmanager
def expect_api_types(system: str) -> Iterator[None]:
    """Translate the errors of a conversion that finds a value of another type than in the API.

    Raises InvalidInput.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"An object has a field of another type than in the API of {system} ({error}); "
            "give objects as kubectl get -o yaml prints them."
        ) from error


def name_of(item: dict[str, Any]) -> str:
    """Return the name of an object."""
    return str(item["metadata"]["name"])


def spec_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of an object; empty if there is none."""
    return item.get("spec") or {}
