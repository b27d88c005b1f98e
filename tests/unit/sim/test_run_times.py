"""Predicted run times: the records they are learned from, and the samples drawn."""

from __future__ import annotations

from random import Random
from statistics import median

from app.core.model import Millis, TenantName, UserName
from app.sim.forecast.run_times import KEPT, ObservedRunTime, RunTimeClass, RunTimes

HOUR = 3_600_000


def kind(tenant: str = "a", user: str = "ann", size: int = 1) -> RunTimeClass:
    return RunTimeClass(TenantName(tenant), UserName(user), size)


def known(*runs: tuple[RunTimeClass, int, bool]) -> RunTimes:
    return RunTimes(ObservedRunTime(each, Millis(lasted), ended) for each, lasted, ended in runs)


def draws(runs: RunTimes, of: RunTimeClass, ran: int = 0, count: int = 400) -> list[int]:
    dice = Random(1)
    return [runs.sample(of, Millis(ran), dice) for _ in range(count)]


def test_a_user_with_many_runs_is_known_by_those() -> None:
    runs = known(*[(kind(), HOUR, True)] * 100, *[(kind("b", "bob"), 9 * HOUR, True)] * 100)
    assert median(draws(runs, kind())) == HOUR
    assert median(draws(runs, kind("b", "bob"))) == 9 * HOUR


def test_a_new_user_is_taken_to_be_like_others_of_the_tenant() -> None:
    runs = known(*[(kind(), HOUR, True)] * 100, *[(kind("b", "bob"), 9 * HOUR, True)] * 100)
    assert median(draws(runs, kind("b", "eve"))) == 9 * HOUR


def test_a_few_runs_do_not_outweigh_all_others() -> None:
    runs = known(*[(kind(user="bob"), 9 * HOUR, True)] * 100, (kind(), HOUR, True))
    short = sum(draw == HOUR for draw in draws(runs, kind()))
    assert 0 < short < 200


def test_run_time_drawn_for_a_running_workload_exceeds_its_time_so_far() -> None:
    runs = known(*[(kind(), n * HOUR, True) for n in range(1, 11)])
    assert min(draws(runs, kind(), ran=7 * HOUR)) == 8 * HOUR


def test_work_that_still_runs_counts_as_longer_than_it_has_run() -> None:
    ended = [(kind(), HOUR, True)] * 10
    running = [(kind(), 2 * HOUR, False)] * 10
    long = [(kind(), 9 * HOUR, True)] * 2
    runs = known(*ended, *running, *long)
    # 12 of 22 workloads ran longer than two hours. The ended ones among these ran nine hours.
    part = sum(draw == 9 * HOUR for draw in draws(runs, kind(), count=2000)) / 2000
    assert abs(part - 12 / 22) < 0.05


def test_workload_that_outlasts_all_known_run_times_continues() -> None:
    runs = known((kind(), HOUR, True))
    assert min(draws(runs, kind(), ran=5 * HOUR)) > 5 * HOUR


def test_only_the_latest_runs_of_a_kind_count() -> None:
    runs = known(*[(kind(), 9 * HOUR, True)] * KEPT, *[(kind(), HOUR, True)] * KEPT)
    assert draws(runs, kind()).count(HOUR) > 380


def test_a_copy_learns_alone() -> None:
    runs = known((kind(), HOUR, True))
    runs.copy().add_run(ObservedRunTime(kind(), Millis(9 * HOUR)))
    assert set(draws(runs, kind())) == {HOUR}
