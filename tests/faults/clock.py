"""Shifts the wall clock of this process.

The shift in seconds is read from a file on each call. Install it before any other import. The
monotonic clocks are unchanged.
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
        except (OSError, ValueError):  # the file is absent or incomplete
            return 0.0

    class Shifted(datetime.datetime):
        def __new__(cls, *args: Any, **named: Any) -> Any:
            return real(*args, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + datetime.timedelta(seconds=shift())

    time.time = lambda: real_time() + shift()
    time.time_ns = lambda: real_ns() + int(shift() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]
