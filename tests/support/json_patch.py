"""Applies a JSON Patch (RFC 6902) like the API server: completely or not at all."""

from __future__ import annotations

import copy
from typing import Any


class PatchFailed(Exception):
    """A test failed, or a path does not exist."""


def apply(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Return the patched document; the argument is unchanged."""
    changed = copy.deepcopy(document)
    for step in patch:
        *parents, last = [_unescape(part) for part in step["path"].split("/")[1:]]
        place = changed
        for part in parents:
            place = _child(place, part)
        _step(place, last, step)
    return changed


def _step(place: Any, last: str, step: dict[str, Any]) -> None:
    match step["op"]:
        case "test":
            if _child(place, last) != step["value"]:
                raise PatchFailed(f"test of {step['path']}")
        case "add" if isinstance(place, list):
            place.insert(len(place) if last == "-" else int(last), step["value"])
        case "add" if isinstance(place, dict):
            place[last] = step["value"]
        case "replace":
            _child(place, last)
            place[last if isinstance(place, dict) else int(last)] = step["value"]
        case "remove":
            _child(place, last)
            del place[last if isinstance(place, dict) else int(last)]
        case _:
            raise PatchFailed(f"{step['op']} at {step['path']}")


def _child(place: Any, part: str) -> Any:
    try:
        return place[int(part)] if isinstance(place, list) else place[part]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PatchFailed(f"no {part!r}") from error


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
