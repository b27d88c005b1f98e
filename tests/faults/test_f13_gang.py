"""F13: the leader dies while it releases a gang. The next leader completes the gang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.core.well_known import ANNOTATION_GANG, ANNOTATION_GANG_SIZE
from app.devcluster.nodes import NodeGroup, gpu_nodes
from tests.faults.fault_cluster import Rig
from tests.support.cluster_driver import Object, pod

SIZE = 64
PATCHES = 20


@pytest.fixture(scope="module", autouse=True)
def nodes(add_nodes: Callable[[NodeGroup], None]) -> None:
    """Let the cluster just fit a gang."""
    add_nodes(gpu_nodes(SIZE // 8, 8))


def member(name: str) -> Object:
    made = pod(name)
    made["metadata"]["annotations"] = {ANNOTATION_GANG: "train", ANNOTATION_GANG_SIZE: str(SIZE)}
    return made


def die_half_way(rig: Rig, ours: str) -> int:
    """Kill a leader in the middle of a gang; return the number of released pods."""
    leader = rig.start("controller", crash_at=f"after_patch:{PATCHES}")
    rig.until("it leads", lambda: rig.leader() is leader)
    rig.stage.apply(ours, *(member(f"m-{number}") for number in range(SIZE)))
    rig.until("it has killed itself", lambda: not leader.alive)
    half = rig.used(ours)
    assert PATCHES <= half < SIZE
    return half


def test_f13_gang_is_completed_before_other_pods_are_released(rig: Rig) -> None:
    ours, others = rig.stage.namespace("f13-gang"), rig.stage.namespace("f13-others")
    die_half_way(rig, ours)
    rig.stage.apply(others, *(pod(f"other-{number}") for number in range(SIZE)))
    rig.start("controller")
    took = rig.until("the gang is whole", lambda: rig.used(ours) == SIZE)
    rig.took("the gang is whole", took)
    assert rig.used(others) == 0


def test_f13_gang_with_a_member_deleted_half_way_is_completed(rig: Rig) -> None:
    """The held pods are released next to the running ones, and so is the replacement."""
    ours = rig.stage.namespace("f13-deleted")
    half = die_half_way(rig, ours)
    rig.stage.delete(ours, rig.stage.held(ours)[0])
    rig.start("controller")
    rest = rig.until("all others run", lambda: rig.used(ours) == SIZE - 1)
    rig.took(f"the rest of {half} released", rest)
    rig.stage.apply(ours, member("replacement"))
    rig.took("replaced", rig.until("the gang is whole", lambda: rig.used(ours) == SIZE))


def test_f13_gang_that_does_not_fit_completely_is_not_started(rig: Rig) -> None:
    """A gang is never released in part, even if half the gang would fit."""
    ours, others = rig.stage.namespace("f13-large"), rig.stage.namespace("f13-small")
    leader = rig.start("controller")
    rig.until("it leads", lambda: rig.leader() is leader)
    rig.stage.apply(others, pod("one"))
    rig.until("one runs", lambda: rig.used(others) == 1)
    rig.stage.apply(ours, *(member(f"m-{number}") for number in range(SIZE)))
    rig.until("all wait", lambda: len(rig.stage.held(ours)) == SIZE)
    rig.stage.delete(others, "one")
    rig.took("begun", rig.until("the gang is whole", lambda: rig.used(ours) == SIZE))
