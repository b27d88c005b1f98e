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


def test_no_range_is_given_for_too_few_outcomes() -> None:
    calibration = Calibration()
    calibration.update_classes(0)
    assert told(calibration, 0, "w", HOUR) is None
    for number in range(19):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR)
    calibration.update_classes(2 * HOUR)
    assert calibration.range_for(HOUR) is None


def test_outcomes_of_one_workload_alone_give_no_range() -> None:
    calibration = Calibration()
    for number in range(40):
        told(calibration, number * MINUTE, "same", HOUR)
    calibration.record_start("same", 2 * HOUR)
    calibration.update_classes(3 * HOUR)
    assert calibration.range_for(HOUR) is None


def test_forecast_range_is_scaled_by_earlier_outcomes() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        calibration.record_start(f"w{number}", HOUR * (1 + number / 50))
    calibration.update_classes(4 * HOUR)
    found = calibration.range_for(HOUR)
    assert found is not None
    assert found.p50 == pytest.approx(2 * HOUR, rel=0.03)
    assert found.p90 == pytest.approx(2.8 * HOUR, rel=0.03)


def test_pending_workloads_count_with_a_minimum_wait() -> None:
    calibration = Calibration()
    for number in range(100):
        told(calibration, 0, f"w{number}", HOUR)
        if number < 60:
            calibration.record_start(f"w{number}", HOUR)
    calibration.update_classes(2 * HOUR)
    # 40 of 100 still wait, so the 90th percentile is unknown.
    assert calibration.range_for(HOUR) is None


def test_deleted_workloads_do_not_count_in_the_calibration() -> None:
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


def test_range_beyond_the_longest_one_is_withheld() -> None:
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


def test_quantiles_are_exact_if_all_outcomes_are_known() -> None:
    seen = [(float(n), False) for n in range(1, 11)]
    assert quantiles(seen, (0.5, 0.9)) == [5.0, 9.0]


def test_quantile_beyond_the_known_outcomes_is_none() -> None:
    seen = [(1.0, False), (2.0, True)]
    assert quantiles(seen, (0.5, 0.9)) == [1.0, None]
