"""Times in queries: the span of a report, its steps, and single moments."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated

from fastapi import Query

from app.core.durations import parse_duration
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.web.api.formatting import to_millis
from app.web.api.pagination import read_page_token
from app.web.api.refused import Refused
from app.web.api.route_context import NameQuery

HOUR = Millis(3_600_000)
MOST_STEPS = 10_000

Since = Annotated[
    str | None, Query(alias="from", description="RFC 3339; an hour before `to` if absent.")
]
Until = Annotated[str | None, Query(alias="to", description="RFC 3339; now if absent.")]
TenantNames = Annotated[
    list[NameQuery] | None, Query(description="Only these; their child tenants are others.")
]


def read_span(
    since: str | None, until: str | None, more: str | None, now: Millis
) -> tuple[Millis, Millis, int]:
    """Return begin, end and the first row. Later pages have the times of the first page."""
    key = read_page_token(more, (int, int, int))
    if key is not None:
        begin, end, first = key
        if not (0 <= begin < end <= now and first >= 0):
            raise Refused(
                400,
                "continue: this is not a token of this list; omit it to start at the beginning.",
            )
        return Millis(begin), Millis(end), first
    end = now if until is None else min(read_moment("to", until), now)
    begin = Millis(end - HOUR) if since is None else read_moment("from", since)
    if begin >= end:
        raise Refused(400, "from: it must be before to, and in the past.")
    return begin, end, 0


def read_step(written: str | None, begin: Millis, end: Millis) -> Millis | None:
    """Return the step of a report, or None. Raises Refused (400)."""
    if written is None:
        return None
    try:
        plain = written.isascii() and written.isdigit() and len(written) < 10
        step = Millis(int(written) * 1000) if plain else parse_duration(written)
    except InvalidInput as error:
        raise Refused(400, f"step: {error}") from error
    if step <= 0 or (end - begin) / step > MOST_STEPS:
        raise Refused(400, f"step: at least a second, and at most {MOST_STEPS} steps in all.")
    return step


def read_moment(name: str, written: str) -> Millis:
    """Return a time of a query. Raises Refused (400)."""
    with contextlib.suppress(ValueError, OverflowError):
        return Millis(max(0, to_millis(datetime.fromisoformat(written))))
    # The message uses Z, because an unencoded plus in a query is a space.
    raise Refused(400, f"{name}: {written[:40]!r} is no time; write 2026-01-31T08:00:00Z.")
