"""Reads the audit chain page by page, from a given time on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from app.core.audit_entry import REPORTED
from app.core.model import Millis
from app.ports.audit import AuditReader

PAGE = 500
LINES_TO_SEARCH = 50
SKEW = Millis(600_000)
"""Largest assumed difference between the clocks of two leaders."""

_HEADING = re.compile(
    r'\{"audit":true,"number":\d{1,18},"epoch":\d{1,18},"at":(\d{1,18}),"deed":"([a-z-]{1,20})"'
)
_REPORTED = {entry_type.value for entry_type in REPORTED}


async def iterate_lines(
    chain: AuditReader, after: int, last: int
) -> AsyncIterator[tuple[int, str]]:
    """Yield number and text of the entries above `after`, up to `last`, without parsing them."""
    while after < last:
        rows = await chain.read_lines(after, PAGE)
        if not rows:
            return
        for number, text in rows:
            if number <= last:
                yield number, text
        after = max(after + 1, rows[-1][0])  # always advance, even over forged numbers


async def find_start_number(chain: AuditReader, at: Millis, last: int) -> int:
    """Return a number such that all entries from this time on have higher numbers.

    Leaders write in order, except for the differences of their clocks. Reports of other processes
    arrive later than their time.
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


async def _time_after(chain: AuditReader, number: int) -> int | None:
    """Return the time of the next entry above a number that a leader wrote itself."""
    for _, text in await chain.read_lines(number, LINES_TO_SEARCH):
        found = _HEADING.match(text)
        if found and found[2] not in _REPORTED:
            return int(found[1])
    return None


def entry_time(text: str) -> Millis | None:
    """Return the time of an entry; None if the line is invalid."""
    found = _HEADING.match(text)
    return Millis(int(found[1])) if found else None


def entry_type_of(text: str) -> str | None:
    """Return the type of an entry; None if the line is invalid."""
    found = _HEADING.match(text)
    return found[2] if found else None
