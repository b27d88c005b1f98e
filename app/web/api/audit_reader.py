"""Finds the entries of the audit chain from a given time on."""

from __future__ import annotations

import re

from app.core.audit_entry import REPORTED
from app.core.model import Millis
from app.ports.audit import PAGE, AuditReader

LINES_TO_SEARCH = 50
SKEW = Millis(600_000)
"""Largest assumed difference between the clocks of two leaders."""

_HEADING = re.compile(
    r'\{"audit":true,"number":\d{1,18},"epoch":\d{1,18},"at":(\d{1,18}),"deed":"([a-z-]{1,20})"'
)
_REPORTED = {entry_type.value for entry_type in REPORTED}


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
