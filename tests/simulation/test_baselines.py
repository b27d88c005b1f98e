"""First come first served on the Philly log, with and without backfill: the published table.

Fairgate is compared with these figures, so they must be reproduced to the digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pytest

from app.core.model import Millis, PoolName, TenantName, UserName
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.metrics.window import Measures, measure
from app.sim.replay.baselines import replay
from app.sim.replay.trace_files import DEVICE, read_log, tenants_of
from tests.simulation.logs import log_file

HOUR = 3600
POOL = PoolName("main")


@dataclass(frozen=True)
class Window:
    """A part of the log, the number of devices, and the number of users that submitted."""

    gpus: int
    start: int
    seconds: int
    users: int
    tenant: str | None = None


WINDOWS = {
    "P0": Window(1600, 4_096_619, 880_421, 121),
    "P1": Window(1600, 4_442_219, 48 * HOUR, 73),
    "P3": Window(512, 4_334_219, 96 * HOUR, 25, "vc6214e9"),
    "P4": Window(320, 4_204_619, 96 * HOUR, 6, "vcb436b2"),
}


@cache
def played(gpus: int, tenant: str | None, backfill: bool) -> list[TimelineEntry]:
    log = read_log(log_file("philly_2017.csv.gz"), flat=True, tenant=tenant)
    return replay(log.works, gpus, DEVICE, backfill=backfill, pool=POOL)


def figures_of(window: Window, policy: str) -> Measures:
    timeline = played(window.gpus, window.tenant, policy == "backfill")
    works = [moment.work for moment in timeline]
    return measure(
        timeline,
        {DEVICE: window.gpus},
        Millis(window.start * 1000),
        Millis((window.start + window.seconds) * 1000),
        weights=dict.fromkeys(tenants_of(works), Fraction(1)),
        device=DEVICE,
    )


def hours(seconds: float) -> float:
    return round(seconds / HOUR, 1)


@pytest.mark.parametrize(
    ("name", "policy", "starved", "mean", "median", "p95", "gangs", "used"),
    [
        ("P0", "fifo", (70, 66, 32), 4.8, 4.2, 10.9, (5.1, 18.1), 91.7),
        ("P0", "backfill", (63, 52, 24), 3.5, 2.6, 10.4, (13.6, 65.3), 91.9),
        ("P1", "fifo", (54, 51, 7), 9.0, 9.5, 12.3, (9.0, 12.7), 99.8),
        ("P1", "backfill", (50, 39, 6), 6.2, 5.1, 14.0, (23.3, 65.3), 100.0),
        ("P3", "fifo", (7, 5, 0), 1.1, 27 / 60, 3.7, None, 66),
        ("P4", "fifo", (4, 4, 4), 40.1, 33.9, 52, None, 98),
    ],
)
def test_a_baseline_gives_the_published_figures(
    name: str,
    policy: str,
    starved: tuple[int, int, int],
    mean: float,
    median: float,
    p95: float,
    gangs: tuple[float, float] | None,
    used: float,
) -> None:
    window = WINDOWS[name]
    found = figures_of(window, policy)
    users = found.user_waits
    assert users.users == window.users
    assert tuple(found.starved_users.values()) == starved
    assert hours(users.mean) == mean
    assert shown(users.p50, median) == pytest.approx(median)
    assert shown(users.p95, p95) == p95
    assert shown_percent(found.utilisation[DEVICE], used) == used
    large = found.large_gang_wait_seconds
    if gangs is not None:
        assert (hours(large.mean), hours(large.max)) == gangs


def shown(seconds: float, like: float) -> float:
    """Round like the published figure: to minutes below an hour, else to hours."""
    if like < 1:
        return round(seconds / 60) / 60
    return round(seconds / HOUR) if isinstance(like, int) else hours(seconds)


def shown_percent(part: float, like: float) -> float:
    return round(100 * part) if isinstance(like, int) else round(100 * part, 1)


def work(name: str, at: int, gpus: int, seconds: int | None) -> SimulatedWorkload:
    duration = None if seconds is None else Millis(seconds)
    return SimulatedWorkload(
        name, TenantName("t"), UserName("u"), Millis(at), {DEVICE: gpus}, duration=duration
    )


def starts(*works: SimulatedWorkload, gpus: int = 4, backfill: bool = False) -> dict[str, int]:
    timeline = replay(works, gpus, DEVICE, backfill=backfill, pool=POOL)
    assert [moment.at for moment in timeline] == sorted(moment.at for moment in timeline)
    return {
        moment.work.name: moment.at for moment in timeline if moment.step is TimelineStep.RELEASED
    }


def test_first_come_first_served_delays_a_job_that_would_fit() -> None:
    works = work("a", 0, 3, 10), work("b", 1, 2, 10), work("c", 2, 1, 10)
    assert starts(*works) == {"a": 0, "b": 10, "c": 10}


def test_backfill_starts_the_oldest_that_fits() -> None:
    works = work("a", 0, 3, 10), work("b", 1, 2, 10), work("c", 2, 1, 5), work("d", 2, 1, 5)
    assert starts(*works, backfill=True) == {"a": 0, "b": 10, "c": 2, "d": 7}


def test_job_starts_at_the_instant_at_which_another_job_ends() -> None:
    assert starts(work("a", 0, 4, 5), work("b", 5, 4, 5)) == {"a": 0, "b": 5}


def test_job_larger_than_the_cluster_delays_no_other_job() -> None:
    works = work("huge", 0, 5, 1), work("b", 1, 4, 1)
    assert starts(*works) == {"b": 1}
    assert starts(*works, backfill=True) == {"b": 1}


def test_job_without_an_end_keeps_its_devices() -> None:
    assert starts(work("a", 0, 4, None), work("b", 1, 1, 1)) == {"a": 0}
