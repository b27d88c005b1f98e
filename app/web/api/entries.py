"""Walks over the audit chain, bit by bit: where to begin, and when an entry happened."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from app.audit_ports import Lines
from app.core.audit import REPORTED
from app.core.model import Millis

PAGE = 500
LOOKED_AT = 50
SKEW = Millis(600_000)
"""How far the clocks of two leaders may be apart."""

_HEADING = re.compile(
    r'\{"audit":true,"number":\d{1,18},"epoch":\d{1,18},"at":(\d{1,18}),"deed":"([a-z]{1,20})"'
)
_REPORTED = {deed.value for deed in REPORTED}


async def walk(chain: Lines, after: int, last: int) -> AsyncIterator[tuple[int, str]]:
    """Return the entries above `after`, up to `last`, as they stand there."""
    while after < last:
        rows = await chain.lines(after, PAGE)
        if not rows:
            return
        for number, text in rows:
            if number <= last:
                yield number, text
        after = max(after + 1, rows[-1][0])  # always on, whatever somebody put there


async def beginning(chain: Lines, at: Millis, last: int) -> int:
    """Return after which number everything stands that happened at this time, or later.

    Leaders write in order, but for what their clocks differ; what others report comes late.
    """
    low, high = 0, last
    while high - low > PAGE:
        middle = (low + high) // 2
        found = await _time_after(chain, middle)
        if found is not None and found < at - SKEW:
            low = middle
        else:
            high = middle
    return low


async def _time_after(chain: Lines, number: int) -> int | None:
    """Return when the next entry above a number was written by a leader."""
    for _, text in await chain.lines(number, LOOKED_AT):
        found = _HEADING.match(text)
        if found and found[2] not in _REPORTED:
            return int(found[1])
    return None


def time_of(text: str) -> Millis | None:
    """Return when what a line tells happened; None: it is not legible."""
    found = _HEADING.match(text)
    return Millis(int(found[1])) if found else None
