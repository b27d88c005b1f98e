"""Each figure of a timeline, compared with a small example computed by hand."""

from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model import Millis, Resource, TenantName, UserName
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep, rigid_entry
from app.sim.metrics.fairness_error import FairnessErrors
from app.sim.metrics.waits import nearest_rank, size_class, summarize_waits
from app.sim.metrics.window import Measures, jain, measure

GPU = Resource("gpu")
CPU = Resource("cpu")
HOUR = 3600


def work(
    tenant: str = "a", gpus: int = 1, at: int = 0, user: str = "", pods: int = 1, cpus: int = 0
) -> SimulatedWorkload:
    return SimulatedWorkload(
        name="w",
        tenant=TenantName(tenant),
        user=UserName(user or tenant),
        at=Millis(at * 1000),
        demand={GPU: gpus, CPU: cpus},
        pods=pods,
    )


def story(*steps: tuple[int, TimelineStep, SimulatedWorkload]) -> list[TimelineEntry]:
    return [rigid_entry(Millis(at * 1000), step, what) for at, step, what in steps]


def ran(
    what: SimulatedWorkload, start: int, end: int | None = None
) -> list[tuple[int, TimelineStep, SimulatedWorkload]]:
    steps = [(what.at // 1000, TimelineStep.SUBMITTED, what), (start, TimelineStep.RELEASED, what)]
    return steps if end is None else [*steps, (end, TimelineStep.ENDED, what)]


def told(
    steps: Iterable[tuple[int, TimelineStep, SimulatedWorkload]],
    start: int = 0,
    end: int = 10,
    gpus: int = 10,
    weights: str | dict[str, Fraction] = "ab",
    **more: int,
) -> Measures:
    timeline = story(*sorted(steps, key=lambda step: step[0]))
    known = weights if isinstance(weights, dict) else dict.fromkeys(weights, Fraction(1))
    return measure(
        timeline,
        {GPU: gpus},
        Millis(start * 1000),
        Millis(end * 1000),
        weights={TenantName(name): weight for name, weight in known.items()},
        device=GPU,
        **more,
    )


@pytest.mark.parametrize(
    ("shares", "index"), [((8, 8, 8), 1.0), ((10, 9, 5), 0.932), ((1, 0, 0), 0.333)]
)
def test_jains_index_of_known_shares(shares: tuple[int, ...], index: float) -> None:
    assert jain(shares) == pytest.approx(index, abs=5e-4)


def test_jain_index_without_any_use_is_one() -> None:
    assert jain([0, 0]) == jain([]) == 1.0


def test_jain_counts_every_tenant_with_a_weight_even_without_workloads() -> None:
    assert told(ran(work("a"), 0), weights="abc").jain == pytest.approx(1 / 3)


def test_jain_divides_shares_by_weight_and_omits_weight_zero() -> None:
    steps = [*ran(work("a", 6), 0), *ran(work("b", 3), 0), *ran(work("c", 1), 0)]
    weights = {"a": Fraction(2), "b": Fraction(1), "c": Fraction(0)}
    assert told(steps, weights=weights).jain == pytest.approx(1.0)


def test_jain_uses_the_average_of_the_window_or_the_value_at_an_instant() -> None:
    steps = [*ran(work("a", 4), 0, 5), *ran(work("b", 4, at=5), 5)]
    assert told(steps).jain == pytest.approx(1.0)
    assert told(steps, start=5, end=5).jain == pytest.approx(0.5)


def test_a_dominant_share_is_the_largest_over_the_resources() -> None:
    one, two = work("a", gpus=1, cpus=50), work("b", gpus=5, cpus=10)
    timeline = story(*sorted(ran(one, 0) + ran(two, 0), key=lambda step: step[0]))
    found = measure(
        timeline,
        {GPU: 10, CPU: 100},
        Millis(0),
        Millis(1000),
        weights={TenantName("a"): Fraction(1), TenantName("b"): Fraction(1)},
        device=GPU,
    )
    assert found.jain == pytest.approx(1.0)
    assert found.utilisation == {GPU: pytest.approx(0.6), CPU: pytest.approx(0.6)}


def test_use_before_and_after_the_window_does_not_count() -> None:
    assert told(ran(work(gpus=5), 0, 20), start=10, end=30).utilisation[GPU] == 0.25


def test_workload_running_at_the_start_counts_as_used_but_not_as_waiting() -> None:
    old = SimulatedWorkload(
        "old", TenantName("a"), UserName("a"), Millis(0), {GPU: 5}, released=Millis(-1000)
    )
    found = told([(-1, TimelineStep.RELEASED, old), *ran(work("b", at=1), 3)])
    assert found.utilisation[GPU] == pytest.approx(0.5 + 0.1 * 0.7)
    assert found.wait_seconds.jobs == 1
    assert found.wait_seconds.mean == 2
    assert found.starved_users == {"1h": 0, "4h": 0, "12h": 0}


def test_percentiles_are_by_nearest_rank() -> None:
    assert [nearest_rank([1, 2, 3, 4], part) for part in (0.25, 0.5, 0.51, 0.95)] == [1, 2, 3, 4]
    assert nearest_rank(list(range(1, 101)), 0.95) == 95
    assert nearest_rank([7], 0.5) == 7
    known = summarize_waits([4, 1, 3, 2])
    assert (known.mean, known.p50, known.p95, known.max, known.jobs) == (2.5, 2, 4, 4, 4)


def test_only_work_submitted_in_the_window_waits_but_however_long() -> None:
    steps = [
        *ran(work(at=4), 9),
        *ran(work(at=5), 25),
        *ran(work(at=10), 12),
        *ran(work(at=11), 30),
    ]
    found = told(steps, start=5, end=10)
    assert (found.wait_seconds.jobs, found.wait_seconds.max, found.wait_seconds.mean) == (2, 20, 11)


def test_wait_of_a_pending_workload_lasts_until_the_end_of_the_data() -> None:
    stuck = (2, TimelineStep.SUBMITTED, work(at=2))
    assert told([stuck], end=10).wait_seconds.max == 8
    assert told([stuck, *ran(work("b", at=3), 3, 50)], end=10).wait_seconds.max == 48


def test_evicted_work_waits_again_and_its_waits_add_up() -> None:
    victim = work(gpus=4, at=1)
    steps = [*ran(victim, 3), (5, TimelineStep.EVICTED, victim), (9, TimelineStep.RELEASED, victim)]
    found = told(steps)
    assert found.wait_seconds.max == 2 + 4
    assert found.evicted_device_seconds == 2 * 4
    assert found.utilisation[GPU] == pytest.approx(0.4 * 0.3)


def test_user_starves_while_workloads_wait_and_none_runs() -> None:
    first, second = work(at=0), work(at=0)
    steps = [*ran(first, 1 * HOUR, 3 * HOUR), *ran(second, 8 * HOUR)]
    assert told(steps, end=20 * HOUR).starved_users == {"1h": 1, "4h": 1, "12h": 0}


def test_user_with_one_running_workload_does_not_starve() -> None:
    steps = [*ran(work(), 0), (1, TimelineStep.SUBMITTED, work(at=1))]
    assert told(steps, end=20 * HOUR).starved_users["1h"] == 0


def test_starvation_is_counted_from_zero_after_a_break() -> None:
    steps = [
        *ran(work(), 3 * HOUR, 3 * HOUR + 1),
        *ran(work(), 6 * HOUR, 6 * HOUR + 1),
    ]
    assert told(steps, end=20 * HOUR).starved_users == {"1h": 1, "4h": 0, "12h": 0}


def test_only_the_part_of_a_stretch_inside_the_window_is_starving() -> None:
    steps = ran(work(), 6 * HOUR)
    assert told(steps, start=3 * HOUR, end=20 * HOUR).starved_users == {"1h": 1, "4h": 0, "12h": 0}
    assert told(steps, start=0, end=HOUR - 1).starved_users["1h"] == 0


def test_user_who_waits_until_the_end_starves_until_the_end() -> None:
    assert told([(0, TimelineStep.SUBMITTED, work())], end=12 * HOUR).starved_users["12h"] == 1


def test_equal_user_names_in_several_tenants_count_as_one_user() -> None:
    steps = [*ran(work("a", user="ann"), 0), (0, TimelineStep.SUBMITTED, work("b", user="ann"))]
    found = told(steps, end=20 * HOUR)
    assert found.starved_users["1h"] == 0
    assert list(found.users) == ["ann"]


def test_users_are_averaged_by_their_own_means() -> None:
    steps = [
        *ran(work("a"), 1),
        *ran(work("a"), 1),
        *ran(work("a"), 1),
        *ran(work("b"), 5),
    ]
    found = told(steps)
    assert (found.user_waits.mean, found.user_waits.p50, found.user_waits.p95) == (3, 1, 5)
    assert found.users[UserName("a")].jobs == 3
    assert found.wait_seconds.mean == 2


def test_fairness_error_is_zero_while_all_requests_are_satisfied() -> None:
    assert told([*ran(work("a", 9), 0), *ran(work("b", 1), 0)]).fairness_error == 0


def test_request_above_the_share_misses_only_the_share() -> None:
    """Ten devices: a has 8 and wants 8 more, b has 2 and wants 8 more. b lacks 3."""
    steps = [
        *ran(work("a", 8), 0),
        (0, TimelineStep.SUBMITTED, work("a", 8)),
        *ran(work("b", 2), 0),
        (0, TimelineStep.SUBMITTED, work("b", 8)),
    ]
    assert told(steps).fairness_error == pytest.approx(3)


def test_request_below_the_share_misses_the_whole_request() -> None:
    """a has all ten devices. b waits for 2 and lacks 2. c waits for 9 and lacks its share of 4."""
    steps = [
        *ran(work("a", 10), 0),
        (0, TimelineStep.SUBMITTED, work("b", 2)),
        (0, TimelineStep.SUBMITTED, work("c", 9)),
    ]
    assert told(steps, weights="abc").fairness_error == pytest.approx(2 + 4)


def test_fairness_error_follows_the_weights() -> None:
    """Twelve devices, weights 1 and 3: b has a share of 9 and uses 0."""
    steps = [*ran(work("a", 12), 0), (0, TimelineStep.SUBMITTED, work("b", 12))]
    weights = {"a": Fraction(1), "b": Fraction(3)}
    assert told(steps, gpus=12, weights=weights).fairness_error == pytest.approx(9)


def test_idle_devices_count_as_missing_for_pending_workloads() -> None:
    steps = [(0, TimelineStep.SUBMITTED, work("a", 4)), *ran(work("b", 1), 0)]
    assert told(steps).fairness_error == pytest.approx(4)


def test_the_fairness_error_is_an_average_over_time() -> None:
    steps = [*ran(work("a", 10), 0, 6), *ran(work("b", 5, at=2), 6)]
    assert told(steps).fairness_error == pytest.approx(5 * 4 / 10)


def test_weight_zero_has_no_fairness_error() -> None:
    steps = [*ran(work("a", 10), 0), (0, TimelineStep.SUBMITTED, work("b", 5))]
    weights = {"a": Fraction(1), "b": Fraction(0)}
    assert told(steps, weights=weights).fairness_error == 0


def owed_by_halving(
    devices: int, asked: dict[TenantName, int], weights: dict[TenantName, Fraction]
) -> dict[TenantName, float]:
    """Return the same shares by bisection of the level at which all devices are assigned."""
    low, high = 0.0, max(asked[t] / float(weights[t]) for t in asked) + 1
    for _ in range(100):
        level = (low + high) / 2
        given_away = sum(min(asked[t], float(weights[t]) * level) for t in asked)
        low, high = (level, high) if given_away < devices else (low, level)
    return {t: min(asked[t], float(weights[t]) * low) for t in asked}


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 12)), min_size=1),
)
def test_fairness_error_equals_a_slow_reference_computation(
    devices: int, parties: list[tuple[int, int, int]]
) -> None:
    names = [TenantName(str(number)) for number in range(len(parties))]
    weights = {n: Fraction(w) for n, (w, _, _) in zip(names, parties, strict=True)}
    owed = FairnessErrors(devices, weights)
    for name, (_, held, queued) in zip(names, parties, strict=True):
        owed.add_devices(name, held + 1, queued)
        owed.add_devices(name, -1, 0)
    asked = {n: held + queued for n, (_, held, queued) in zip(names, parties, strict=True)}
    level = owed_by_halving(devices, asked, weights)
    missing = sum(max(0.0, level[n] - held) for n, (_, held, _) in zip(names, parties, strict=True))
    waiting = any(queued for _, _, queued in parties)
    assert owed.current_error() == pytest.approx(missing if waiting else 0.0, abs=1e-6)


def test_large_gangs_are_counted_separately_with_the_longest_wait() -> None:
    steps = [
        *ran(work("a", 8, pods=2), 7),
        *ran(work("a", 16), 5),
        *ran(work("b", 16), 3),
        *ran(work("b", 15), 9),
    ]
    found = told(steps, gpus=100)
    gangs = found.large_gang_wait_seconds
    assert (gangs.jobs, gangs.mean, gangs.max) == (3, 5, 7)
    assert found.longest is not None
    assert found.longest_of_others is not None
    assert (found.longest.work.user, found.longest.seconds) == ("a", 7)
    assert (found.longest_of_others.work.user, found.longest_of_others.seconds) == ("b", 3)
    assert told(steps, gpus=100, large_gang=17).longest is None


def test_waits_are_grouped_by_size_in_order_of_size() -> None:
    steps = [*ran(work("a", 40), 4), *ran(work("a", 1), 1), *ran(work("b", 3), 2)]
    found = told(steps, gpus=100)
    assert list(found.waits_by_size) == ["1", "2-3", "32-63"]
    assert found.waits_by_size["32-63"].max == 4
    assert found.waits_by_tenant[TenantName("b")].max == 2
    assert [size_class(n) for n in (0, 0.5, 7, 8, 64)] == [
        "none",
        "1",
        "4-7",
        "8-15",
        "64 and more",
    ]


def test_fractions_of_a_device_are_reported_as_devices() -> None:
    steps = [*ran(work("a", 10_000), 0), (0, TimelineStep.SUBMITTED, work("b", 16_000))]
    found = told(steps, gpus=10_000, unit=1000)
    assert found.fairness_error == pytest.approx(5)
    assert found.large_gang_wait_seconds.jobs == 1
    assert list(found.waits_by_size) == ["8-15", "16-31"]


def test_an_empty_timeline_has_figures_too() -> None:
    found = told([])
    assert (found.jain, found.fairness_error, found.utilisation) == (1.0, 0.0, {GPU: 0.0})
    assert (found.wait_seconds.jobs, found.users, found.longest) == (0, {}, None)
