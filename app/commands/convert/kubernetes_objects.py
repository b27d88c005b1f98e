"""Reads Kubernetes objects from YAML or JSON files, as `kubectl get -o yaml` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from app.core.errors import InvalidInput

STDIN = Path("-")


def read_text(path: Path) -> str:
    """Return the text of a file; `-` is standard input. Raises InvalidInput."""
    try:
        return sys.stdin.read() if path == STDIN else path.read_text()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text; give a text file.") from error


def read_objects(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the objects of all files. Lists are opened. Raises InvalidInput."""
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            documents = list(yaml.safe_load_all(read_text(path)))
        except yaml.YAMLError as error:
            place = str(error).replace("\n", " ")
            raise InvalidInput(f"{path} is not YAML: {place}; correct that line.") from error
        for document in documents:
            found += _opened(path, document)
    return found


def _opened(path: Path, document: Any) -> Iterator[dict[str, Any]]:
    if document is None:
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InvalidInput(f"{path} has a document without kind; give Kubernetes objects.")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _opened(path, item)
        return
    if not isinstance((document.get("metadata") or {}).get("name"), str):
        raise InvalidInput(f"{path} has a {document['kind']} without a name; add metadata.name.")
    yield document


def name_of(item: dict[str, Any]) -> str:
    """Return the name of an object."""
    return str(item["metadata"]["name"])


def spec_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of an object; empty if there is none."""
    return item.get("spec") or {}
