"""A wall clock that can be set: what this process is told of the time of day is shifted.

The shift is read from a file, in seconds, each time anyone asks. To be installed before anything
else is imported. The monotonic clocks stay what they are.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

VARIABLE = "FAIRGATE_TEST_CLOCK"


def shift_by(file: Path) -> None:
    """Shift `time.time`, `time.time_ns` and `datetime.now` of this process from now on."""
    real_time, real_ns, real = time.time, time.time_ns, datetime.datetime

    def shift() -> float:
        try:
            return float(file.read_text() or 0)
        except (OSError, ValueError):  # not there, or just being written
            return 0.0

    class Shifted(real):
        def __new__(cls, *args: Any, **named: Any) -> Any:
            return real(*args, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + datetime.timedelta(seconds=shift())

    time.time = lambda: real_time() + shift()
    time.time_ns = lambda: real_ns() + int(shift() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]
