"""Delays one step of the engine, in a test build of Fairgate."""

from __future__ import annotations

import time

from app.core import events as ev
from app.core.effects import Effect
from app.core.engine import Engine

BLOCK = "FAIRGATE_TEST_BLOCK"
"""`NAME:SECONDS` delays the first event of the pod with this name by that time."""

STALL = "FAIRGATE_TEST_STALL"
"""Seconds without a finished step after which a process counts as stalled."""


def block(plan: str | None) -> None:
    """Apply a delay to the engine of this process; None for no delay."""
    if not plan:
        return
    name, _, seconds = plan.partition(":")
    handle, left = Engine.handle, [float(seconds)]

    def slow(self: Engine, event: ev.Event) -> tuple[Effect, ...]:
        if left and isinstance(event, ev.PodObserved) and event.pod.name == name:
            ends = time.monotonic() + left.pop()
            while time.monotonic() < ends:
                pass  # a busy loop, because real work also holds the interpreter lock
        return handle(self, event)

    Engine.handle = slow  # type: ignore[method-assign]
