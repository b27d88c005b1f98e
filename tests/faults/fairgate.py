"""Fairgate with fault injection at named points and an adjustable wall clock.

Run as `python -m tests.faults.fairgate serve`, configured by variables. The product does not read
FAIRGATE_CRASH_AT, FAIRGATE_STOP_AT or variables that begin with FAIRGATE_TEST_.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.faults import clock

if written := os.environ.get(clock.VARIABLE):
    clock.shift_by(Path(written))  # before product modules import the clock functions

from app.config import settings
from app.ports import liveness
from app.store import schema
from app.wiring import serve
from app.wiring.process import Adapters
from tests.faults.network_block import BLOCK, STALL, block
from tests.faults.points import LAYOUT, BreakingClient, BreakingStore, Points


def main() -> None:
    """Serve as `fairgate serve` does."""
    # The layout version of another release.
    schema.VERSION = os.environ.get(LAYOUT) or schema.VERSION
    liveness.LIMIT_SECONDS = float(os.environ.get(STALL) or liveness.LIMIT_SECONDS)
    block(os.environ.get(BLOCK))
    points = Points(os.environ)
    adapters = Adapters(
        store=partial(BreakingStore, points=points),
        patches=partial(BreakingClient, points=points),
    )
    serve.serve(settings.load(os.environ), adapters)


if __name__ == "__main__":
    main()
