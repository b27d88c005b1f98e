"""The time of events, independent of changes to the wall clock."""

from __future__ import annotations

import time

import pytest

from app.wiring.process import steady_clock

SECOND, HOUR = 10**9, 3600 * 10**9


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_clock_is_not_time_that_passes(step: int) -> None:
    clocks = {"wall": 10**18, "elapsed": 5 * SECOND}
    clock = steady_clock(lambda: clocks["wall"], lambda: clocks["elapsed"])
    assert clock() == 10**12
    clocks["wall"] += step
    clocks["elapsed"] += 3 * SECOND
    assert clock() == 10**12 + 3000


def test_it_begins_with_the_time_on_the_wall() -> None:
    began = time.time()
    clock = steady_clock()
    assert began * 1000 - 1 <= clock() <= time.time() * 1000 + 1
