"""Fairgate as it is, but able to break at named points, and to be told a wrong time of day.

`python -m tests.faults.fairgate serve`, settings by variables. The product itself knows none of
FAIRGATE_CRASH_AT, FAIRGATE_STOP_AT, FAIRGATE_TEST_CLOCK and FAIRGATE_TEST_LAYOUT.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.faults import clock

if written := os.environ.get(clock.VARIABLE):
    clock.shift_by(Path(written))  # before anything of the product learns where the clock is

from app import settings, wiring
from app.store import layout
from app.wiring.process import Adapters
from tests.faults.points import LAYOUT, BreakingClient, BreakingStore, Points


def main() -> None:
    """Serve as `fairgate serve` does."""
    # What another version would have written here.
    layout.VERSION = os.environ.get(LAYOUT) or layout.VERSION
    points = Points(os.environ)
    adapters = Adapters(
        store=partial(BreakingStore, points=points),
        patches=partial(BreakingClient, points=points),
    )
    wiring.serve(settings.load(os.environ), adapters)


if __name__ == "__main__":
    main()
