"""Ranges follow from the errors of earlier forecasts."""

from __future__ import annotations

from random import Random

import pytest

from app.sim.forecast.calibration import (
    LONGEST_RANGE,
    WINDOW,
    Calibration,
    Forecast,
    Range,
    quantiles,
)

MINUTE = 60.0
HOUR = 3600.0


def told(calibration: Calibration, at: float, name: str, said: float) -> Range | None:
    """Add a forecast of a wait at a time, as the service does."""
    found = calibration.range_for(said)
    calibration.add_forecast(Forecast(at, name, name, said, found))
    return found


def test_nothing_is_promised_before_enough_is_known() -> None:
    calibration = Calibration()
    calibration.update_classes(0)
    assert told(calibration, 0, "w", HOUR) is None
    for number in range(19):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR)
    calibration.update_classes(2 * HOUR)
    assert calibration.range_for(HOUR) is None


def test_one_workload_alone_is_not_enough() -> None:
    calibration = Calibration()
    for number in range(40):
        told(calibration, number * MINUTE, "same", HOUR)
    calibration.record_start("same", 2 * HOUR)
    calibration.update_classes(3 * HOUR)
    assert calibration.range_for(HOUR) is None


def test_a_forecast_is_stretched_by_what_came_of_earlier_ones() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR * (1 + number / 50))
    calibration.update_classes(4 * HOUR)
    found = calibration.range_for(HOUR)
    assert found is not None
    assert found.p50 == pytest.approx(2 * HOUR, rel=0.03)
    assert found.p90 == pytest.approx(2.8 * HOUR, rel=0.03)


def test_those_who_still_wait_count_as_having_waited_so_long_at_least() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        if number < 60:
            calibration.record_start(f"w{number}", HOUR)
    calibration.update_classes(2 * HOUR)
    # 40 of 100 still wait, so the 90th percentile is unknown.
    assert calibration.range_for(HOUR) is None


def test_who_is_deleted_says_nothing() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        if number < 60:
            calibration.record_start(f"w{number}", HOUR)
        else:
            calibration.drop_workloads([f"w{number}"])
    calibration.update_classes(2 * HOUR)
    found = calibration.range_for(HOUR)
    assert found is not None
    assert found.p90 == pytest.approx(HOUR)


def test_old_forecasts_are_forgotten() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR)
    calibration.update_classes(WINDOW - 1)
    assert calibration.range_for(HOUR) is not None
    calibration.update_classes(WINDOW + 1)
    assert calibration.range_for(HOUR) is None


def test_a_range_that_reaches_too_far_is_withheld() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR if number < 80 else 2 * LONGEST_RANGE)
    calibration.update_classes(1)
    assert calibration.range_for(HOUR) is None


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.0])
def test_about_nine_of_ten_ranges_hold(spread: float) -> None:
    dice, calibration = Random(3), Calibration()
    held = given = 0
    ends: list[tuple[float, str]] = []
    for number in range(3000):
        now = number * MINUTE
        for at, name in [each for each in ends if each[0] <= now]:
            calibration.record_start(name, at)
        ends = [each for each in ends if each[0] > now]
        if number % 20 == 0:
            calibration.update_classes(now)
        said = dice.choice([10 * MINUTE, HOUR, 5 * HOUR])
        waits = said * dice.lognormvariate(0.3, spread)
        found = told(calibration, now, str(number), said)
        if found is not None:
            given += 1
            held += waits <= found.p90
        ends.append((now + waits, str(number)))
    assert given > 2000
    assert 0.85 <= held / given <= 0.95


def test_quantiles_are_exact_where_nothing_is_open() -> None:
    seen = [(float(n), False) for n in range(1, 11)]
    assert quantiles(seen, (0.5, 0.9)) == [5.0, 9.0]


def test_a_quantile_beyond_what_is_known_is_none() -> None:
    seen = [(1.0, False), (2.0, True)]
    assert quantiles(seen, (0.5, 0.9)) == [1.0, None]
