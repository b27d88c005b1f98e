"""Parser of durations in custom resources and pod annotations: 90s, 5m, 1h30m."""

from __future__ import annotations

import re

from app.core.errors import InvalidInput
from app.core.model import Millis

DAY = Millis(24 * 3600 * 1000)

_GRAMMAR = re.compile(
    r"(?=.)((?P<h>\d{1,6})h)?((?P<m>\d{1,6})m)?((?P<s>\d{1,6})s)?", re.ASCII | re.DOTALL
)


def parse_duration(text: str) -> Millis:
    """Return the duration in milliseconds. Raises InvalidInput. Grammar: see the Policy schema."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:40]!r} is not a duration such as 90s, 5m or 1h30m.")
    hours, minutes, seconds = (int(match[unit] or 0) for unit in "hms")
    return Millis(((hours * 60 + minutes) * 60 + seconds) * 1000)
