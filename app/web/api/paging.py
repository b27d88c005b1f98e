"""Parts of lists: `continue` names the last item that was shown, so that no change loses another.

The token is opaque to callers, and believed in nothing: it only says after what to go on.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from app.web.problems import Refused

LONGEST_PAGE = 500
LONGEST_TOKEN = 4096

Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="Items of one answer at most.")]
More = Annotated[
    str | None,
    Query(
        alias="continue",
        max_length=LONGEST_TOKEN,
        description="The `continue` of the part before; absent: from the start.",
    ),
]

T = TypeVar("T")
Key = list[Any]


def token(*key: str | int) -> str:
    """Return what stands for the key of an item."""
    text = json.dumps(key, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def key_of(more: str | None, kinds: Sequence[type] = (str,)) -> Key | None:
    """Return the key that a token stands for; None: there is no token. Raises Refused (400)."""
    if more is None:
        return None
    found = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(base64.b64decode(more + "=" * (-len(more) % 4), b"-_", validate=True))
    if not isinstance(found, list) or [type(each) for each in found] != [*kinds]:
        raise Refused(400, "continue: this is no token of this list; leave it out to start anew.")
    return found


def part(
    items: Iterable[T],
    limit: int,
    more: str | None,
    key: Callable[[T], tuple[str, ...]],
    parts: int = 1,
) -> tuple[list[T], str | None]:
    """Return the part of some items, sorted by their keys, that was asked for, and its token.

    A key has so many `parts`.
    """
    after = key_of(more, [str] * parts)
    shown: list[T] = []
    for item in items:
        if after is not None and [*key(item)] <= after:
            continue
        if len(shown) == limit:
            return shown, token(*key(shown[-1]))
        shown.append(item)
    return shown, None
