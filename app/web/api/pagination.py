"""Pagination: `continue` encodes the key of the last returned item.

Changes between two pages therefore do not skip other items. The token is opaque to callers. It is
not trusted: it only selects the position.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from app.web.api.refused import Refused

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
PageKey = list[Any]


def page_token(*key: str | int) -> str:
    """Return the token for the key of an item."""
    text = json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode(errors="surrogatepass")).decode().rstrip("=")


def read_page_token(more: str | None, kinds: Sequence[type] = (str,)) -> PageKey | None:
    """Return the key of a token; None if there is no token. Raises Refused (400)."""
    if more is None:
        return None
    found = None
    with contextlib.suppress(ValueError, RecursionError):
        found = _decode(more)
    if not isinstance(found, list) or [type(each) for each in found] != [*kinds]:
        raise Refused(
            400, "continue: this is not a token of this list; omit it to start at the beginning."
        )
    return found


def _decode(token: str) -> Any:
    """Return the contents of a token. Raises ValueError, also if UTF-8 cannot encode a string."""
    found = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True))
    json.dumps(found, ensure_ascii=False).encode()  # Redis cannot be asked for other strings
    return found


def slice_page(
    items: Iterable[T],
    limit: int,
    more: str | None,
    key: Callable[[T], tuple[str, ...]],
    parts: int = 1,
) -> tuple[list[T], str | None]:
    """Return one page of `items`, and the token of the next page, None on the last one.

    `items` are sorted by `key`, which has `parts` elements. Raises Refused (400).
    """
    after = read_page_token(more, [str] * parts)
    shown: list[T] = []
    for item in items:
        if after is not None and [*key(item)] <= after:
            continue
        if len(shown) == limit:
            return shown, page_token(*key(shown[-1]))
        shown.append(item)
    return shown, None
