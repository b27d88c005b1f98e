"""Calls every operation of an OpenAPI document and searches the answers for secret markers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

VERBS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")

Values = Mapping[str, Sequence[str]]
"""Values for the path parameters and the query parameters, by name."""

Bodies = Mapping[str, Sequence[object]]
"""Bodies to send, by operation."""


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations of an OpenAPI document, by method and path."""
    return {
        f"{verb.upper()} {path}": told
        for path, item in document["paths"].items()
        for verb, told in item.items()
        if verb in VERBS
    }


def requests_of(
    operation: str, told: dict[str, Any], values: Values, bodies: Bodies
) -> Iterator[tuple[str, object]]:
    """Return the requests of an operation: each path value, one query at a time, and each body.

    Raises KeyError for a path parameter without values. Add values for each new route.
    """
    path = operation.partition(" ")[2]
    known = told.get("parameters", [])
    names = [each["name"] for each in known if each["in"] == "path"]
    queries = [each["name"] for each in known if each["in"] == "query"]
    asked = [""] + [
        f"?{name}={quote(value, safe=',:')}" for name in queries for value in values.get(name, ())
    ]
    if "tenant" in queries:
        asked += [
            f"?tenant={tenant}&{each[1:]}"
            for tenant in values["tenant"]
            for each in asked[1:]
            if not each.startswith("?tenant")
        ]
    for each in itertools.product(*(values[name] for name in names)):
        where = path.format(**dict(zip(names, each, strict=True)))
        for query, body in itertools.product(asked, bodies.get(operation, (None,))):
            yield where + query, body


def leak(text: str, canary: str, written: str = "") -> str:
    """Return the text around a canary, empty if absent. Words that the caller sent are ignored."""
    for word in sorted(set(_words(written)), key=len, reverse=True):
        if canary in word:
            text = text.replace(word, "")
    at = text.find(canary)
    return text[max(0, at - 100) : at + 100] if at >= 0 else ""


def written(path: str, body: object) -> str:
    """Return every word that the caller sent."""
    return path + " " + json.dumps(body)


def _words(text: str) -> list[str]:
    for stop in '/?&="{}[]:,':
        text = text.replace(stop, " ")
    return text.replace("%40", "@").split()
