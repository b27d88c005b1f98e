"""Asks all that an API documents, and looks in the answers for what must not be there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

VERBS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")

Values = Mapping[str, Sequence[str]]
"""What the names in paths and the queries may be."""

Bodies = Mapping[str, Sequence[object]]
"""What to send to which operation."""


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what an OpenAPI document tells of, by method and path."""
    return {
        f"{verb.upper()} {path}": told
        for path, item in document["paths"].items()
        for verb, told in item.items()
        if verb in VERBS
    }


def requests_of(
    operation: str, told: dict[str, Any], values: Values, bodies: Bodies
) -> Iterator[tuple[str, object]]:
    """Return paths with queries, and bodies: every name in the path, and one query at a time.

    A name in a path that has no values is a KeyError: a new route needs some.
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
    """Return where an answer tells of a canary; what its caller wrote is no news to them."""
    for word in sorted(set(_words(written)), key=len, reverse=True):
        if canary in word:
            text = text.replace(word, "")
    at = text.find(canary)
    return text[max(0, at - 100) : at + 100] if at >= 0 else ""


def written(path: str, body: object) -> str:
    """Return all that a caller wrote."""
    return path + " " + json.dumps(body)


def _words(text: str) -> list[str]:
    for stop in '/?&="{}[]:,':
        text = text.replace(stop, " ")
    return text.replace("%40", "@").split()
