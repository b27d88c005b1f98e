"""The work that an eviction loses."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.core.lifecycle.lost_work import lost_device_time, lost_time
from app.core.model import Millis, Resource
from app.core.podspec.device_fractions import estimate_devices

NOW = Millis(100_000)


@pytest.mark.parametrize(
    ("released", "checkpoint", "expected"),
    [
        (40_000, None, 60_000),
        (40_000, 10_000, 10_000),
        (95_000, 10_000, 5_000),
        (None, None, 0),
        (120_000, None, 0),  # the clock of its node is ahead
    ],
)
def test_lost_time_counts_from_the_start_up_to_one_checkpoint_interval(
    released: int | None, checkpoint: int | None, expected: int
) -> None:
    start = None if released is None else Millis(released)
    interval = None if checkpoint is None else Millis(checkpoint)
    assert lost_time(start, interval, NOW) == expected


@pytest.mark.parametrize(
    ("demand", "devices"),
    [
        ({"nvidia.com/gpu": 2, "cpu": 8000, "memory": 2**30, "pods": 1}, Fraction(2)),
        ({"nvidia.com/mig-1g.5gb": 2}, Fraction(2, 7)),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50, "nvidia.com/gpumem": 8000},
            Fraction(1, 2),
        ),
    ],
)
def test_only_devices_and_device_fractions_count_as_lost_work(
    demand: dict[str, int], devices: Fraction
) -> None:
    amounts = {Resource(r): value for r, value in demand.items()}
    assert estimate_devices(amounts) == devices
    assert lost_device_time(amounts, Millis(7_000)) == int(devices * 7_000)
