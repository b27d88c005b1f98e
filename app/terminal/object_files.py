"""Reads files of Kubernetes objects in YAML or JSON, with bounds, for both command lines.

YAML is read with the rules of kubectl. The memory for a file is bounded by a multiple of its size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.core.errors import InvalidInput
from app.core.safe_text import quote_text

LARGEST_FILE = 4 * 1024 * 1024
LARGEST_EXPANDED = 2 * LARGEST_FILE
"""Maximum number of characters and nodes of a YAML document after its aliases are expanded."""

STDIN = "-"

_TAG = "tag:yaml.org,2002:"

Document = Mapping[str, Any]


class _Loader(yaml.SafeLoader):
    """Reads YAML as kubectl does: dates, and numbers to the base 60 such as 12:30, are text.

    Keys of maps are text, too. Raises InvalidInput for a value that is not as its type demands.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node."""
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        is_number = tag in (_TAG + "int", _TAG + "float")
        return _TAG + "str" if tag == _TAG + "timestamp" or (is_number and ":" in value) else tag

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, KeyError, ValueError) as error:  # of !!int x, and of huge numbers
            place = f"{self.name}, line {node.start_mark.line + 1}"
            kind = node.tag.rpartition(":")[2]
            written = quote_text(str(node.value))
            raise InvalidInput(
                f"{place}: {written} cannot be read as {kind}; write it as text."
            ) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return the map of a node."""
        found = super().construct_mapping(node, deep=deep)
        return {k if isinstance(k, str) else json.dumps(k): value for k, value in found.items()}


def read_text(file: str, most: int = -1) -> str:
    """Return the text of a file, at most `most` characters of it; "-" is standard input.

    Raises InvalidInput.
    """
    try:
        if file == STDIN:
            return sys.stdin.read(most)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(most)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 text; give a text file.") from error


def read_objects(file: str) -> list[Document]:
    """Return the objects of a file; "-" is standard input. Raises InvalidInput.

    The items of a list count as objects.
    """
    name = "standard input" if file == STDIN else file
    return parse_objects(read_text(file, LARGEST_FILE + 1), name)


def parse_objects(text: str, name: str) -> list[Document]:
    """Return the objects of YAML documents. `name` names them in errors. Raises InvalidInput."""
    if len(text) > LARGEST_FILE:
        raise InvalidInput(f"{name} has more than {LARGEST_FILE} characters; split it.")
    try:
        return [each for part in _loaded(text, name) for each in _objects(part, name)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" in line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be parsed")
        raise InvalidInput(f"{name} is not YAML{at}: {why}; correct it.") from error
    except RecursionError as error:
        raise InvalidInput(f"{name} is nested too deeply; write it flatter.") from error


def _loaded(text: str, name: str) -> Iterator[Any]:
    """Yield the documents of YAML. A few lines of nested aliases could expand to gigabytes."""
    loader = _Loader(text)
    loader.name = name
    try:
        while loader.check_node():
            node = loader.get_node()
            if _expanded(node, {}) > LARGEST_EXPANDED:
                raise InvalidInput(f"{name} has too many YAML aliases; write it without them.")
            yield _constructed(loader, node)
    finally:
        loader.dispose()


def _constructed(loader: _Loader, node: Any) -> Any:
    """Return a document that JSON can express. Raises InvalidInput."""
    try:
        document = loader.construct_document(node)
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:  # of explicit tags, and of .nan
        raise InvalidInput(
            f"{loader.name} has a value that JSON cannot express ({error}); write it as text."
        ) from error
    return document


def _expanded(node: Any, known: dict[int, int]) -> int:
    """Return the size of a node as in `LARGEST_EXPANDED`, which a cycle exceeds."""
    if id(node) not in known:
        known[id(node)] = LARGEST_EXPANDED + 1  # until it is computed
        if isinstance(node, yaml.ScalarNode):
            size = 1 + len(node.value)
        elif isinstance(node, yaml.MappingNode):
            size = 1 + sum(_expanded(each, known) for pair in node.value for each in pair)
        else:
            size = 1 + sum(_expanded(each, known) for each in node.value)
        known[id(node)] = size
    return known[id(node)]


def _objects(document: Any, name: str) -> Iterator[Document]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise InvalidInput(f"{name} has a document that is not a Kubernetes object; give objects.")
    items = document.get("items")
    if str(document.get("kind")).endswith("List") and isinstance(items, list):
        for each in items:
            yield from _objects(each, name)
    else:
        yield document
