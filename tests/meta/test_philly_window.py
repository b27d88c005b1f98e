"""The Philly window: compression and observation of jobs, and comparison of two plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import ClusterUnavailable
from app.core.model import Millis
from app.core.well_known import ANNOTATION_GANG, ANNOTATION_GANG_SIZE
from app.k8s_types import objects
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep
from tests.faults import philly
from tests.faults.job_replay import LABEL, Diary, bodies
from tests.faults.philly import Account, Result, Window, differences, simulate, sum_up

HEAD = "submit_s,tenant,user,job_id,pods,gpus_per_pod,duration_s"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = (
        "50,lab,ann,too-early,1,1,100",
        "100,lab,ann,first,1,8,1000",
        "300,lab,bob,second,2,4,100",
        "320,other,eve,elsewhere,1,1,100",
        "340,lab,eve,third,1,1,1",
        "1200,lab,bob,too-late,1,1,100",
    )
    path = tmp_path / "log.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    return path


WINDOW = Window(start=100, span=1000, tenant="lab", speed=100, gpus=8)


def test_only_the_tenants_jobs_of_the_window_are_played_in_compressed_time(log: Path) -> None:
    played = [(work.name, work.at, work.duration) for work in WINDOW.works(log)]
    assert played == [("first", 0, 10_000), ("second", 2000, 1000), ("third", 2400, 10)]
    assert WINDOW.until == 10_000


def test_a_short_play_has_fewer_jobs_or_ends_earlier(log: Path) -> None:
    first = Window(100, 1000, "lab", 100, 8, first=2)
    assert [work.name for work in first.works(log)] == ["first", "second"]
    short = Window(100, 1000, "lab", 100, 8, most=2.1)
    assert short.until == 2100
    assert [work.name for work in short.works(log)] == ["first", "second"]


def test_policy_times_are_compressed_to_whole_seconds_of_at_least_one() -> None:
    policy = Window(0, 1, None, 200, 8).policy
    assert (policy.reserve_after, policy.half_life) == (2000, 72_000)
    assert Window(0, 1, None, 10**6, 8).policy.reserve_after == 1000


def test_starving_and_used_devices_are_summed_over_the_whole_simulation(log: Path) -> None:
    window = Window(100, 1000, "lab", 100, 8)
    window_works = window.works(log)
    result = sum_up(window, simulate(window, window_works), 8)
    # ann uses all devices for 1000 s of the log. No user starves for an hour.
    assert result.users["ann"] == Account(1, 80.0, 0.0)
    assert result.users["bob"] == Account(1, 0.0, 8.0)
    assert result.starving == {"bob": 800_000, "eve": 760_000}
    assert result.used == 1.0


def test_user_without_devices_for_an_hour_of_log_time_is_starved(log: Path) -> None:
    fast = Window(100, 500_000, "lab", 1000, 8)
    works = [
        SimulatedWorkload(
            "long", "lab", "ann", Millis(0), {philly.DEVICE: 8}, duration=Millis(5000)
        ),
        SimulatedWorkload(
            "short", "lab", "bob", Millis(100), {philly.DEVICE: 1}, duration=Millis(10)
        ),
    ]
    result = sum_up(fast, simulate(fast, works), 8)
    assert result.starved("1 h") == {"bob"}
    assert result.starved("4 h") == frozenset()


def result(held: float, **starving: int) -> Result:
    return Result({"ann": Account(1, held, 0.0)}, starving, 0.5)


def test_plays_that_agree_within_a_tenth_do_not_differ() -> None:
    assert differences(result(100.0), result(109.0), 1000) == []
    [found] = differences(result(100.0), result(120.0), 1000)
    assert "ann held 100 device-seconds, in the simulator 120" in found


def test_usage_may_differ_by_a_small_part_of_the_cluster() -> None:
    assert differences(result(0.5), result(1.4), 1000) == []
    assert differences(result(0.5), result(1.6), 1000) != []


def test_other_starved_user_is_a_difference_and_longer_starving_is_not() -> None:
    [found] = differences(result(1.0, ann=3_600_000), result(1.0, ann=3_420_000), 1000)
    assert found == "ann starved for 1 h and not in the simulator: 1.00 h, there 0.95 h"
    assert differences(result(1.0, ann=14_000_000), result(1.0, ann=3_600_000), 1000) == []


def test_missing_user_counts_as_zero_usage() -> None:
    nobody = Result({}, {}, 0.0)
    assert len(differences(nobody, result(100.0), 1000)) == 1


def line(pod: str, job: str, *, gates: int = 0, phase: str = "Pending", kind: str = "MODIFIED"):
    return objects.WatchEvent(
        kind,
        objects.PodObject(
            objects.OwnedMetadata(name=pod, labels={LABEL: job}, resource_version="7"),
            objects.PodSpec(scheduling_gates=[objects.Gate("g")] * gates or None),
            objects.PodStatus(phase=phase),
        ),
    )


def test_a_gang_is_released_with_its_last_pod_and_ends_with_its_last_pod() -> None:
    gang = SimulatedWorkload("g", "lab", "ann", Millis(0), {philly.DEVICE: 1}, pods=2)
    diary = Diary([gang])
    told = [
        line("g-0", "g", gates=1, kind="ADDED"),
        line("g-0", "g"),
        line("g-1", "g"),
        line("g-1", "g", phase="Running"),
        line("g-1", "g", phase="Succeeded"),
        line("g-0", "g", phase="Succeeded"),
        line("g-0", "g", phase="Succeeded", kind="DELETED"),
        line("stranger", "of-nobody"),
    ]
    for at, change in enumerate(told):
        assert diary.hear(change, Millis(at)) == "7"
    assert [(m.at, m.step) for m in diary.timeline] == [
        (2, TimelineStep.RELEASED),
        (5, TimelineStep.ENDED),
    ]


def test_a_watch_that_ended_in_an_error_is_no_result() -> None:
    with pytest.raises(ClusterUnavailable):
        Diary([]).hear(line("p", "j", kind="ERROR"), Millis(0))


def test_pods_of_a_gang_name_it_and_all_pods_say_how_long_they_run() -> None:
    alone = SimulatedWorkload("w", "lab", "ann", Millis(0), {philly.DEVICE: 4}, duration=Millis(90))
    [pod] = bodies(alone)
    assert pod["metadata"]["annotations"] == {"kwok.fairgate.dev/runtime": "90ms"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    two = bodies(SimulatedWorkload("g", "lab", "ann", Millis(0), {philly.DEVICE: 1}, pods=2))
    notes = [pod["metadata"]["annotations"] for pod in two]
    assert all((n[ANNOTATION_GANG], n[ANNOTATION_GANG_SIZE]) == ("g", "2") for n in notes)
