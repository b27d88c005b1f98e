"""F6: the leader is killed at every point of a release; the next leader settles open releases."""

from __future__ import annotations

import pytest

from tests.faults.fault_cluster import GPUS, Rig
from tests.faults.points import POINTS
from tests.support.cluster_driver import pod, stamp


@pytest.mark.parametrize("point", POINTS)
def test_f06_open_releases_of_a_killed_leader_are_settled_by_the_next(rig: Rig, point: str) -> None:
    """Two leaders in a row die: one with many releases under way, one at its first release."""
    first = rig.start("controller", crash_at=f"{point}:9")
    rig.until("the first leads", lambda: rig.leader() is first)
    second = rig.start("controller", crash_at=point)
    teams = [rig.stage.namespace(f"f06-{team}") for team in "abc"]
    for team in teams:
        rig.stage.apply(team, *(pod(f"work-{n}", 1 + n % 2) for n in range(12)))
    rig.until("the first has killed itself", lambda: not first.alive)
    rig.until("the second has killed itself", lambda: not second.alive)
    third = rig.start("controller")
    rig.took("the third leads", rig.until("the third leads", lambda: rig.leader() is third))
    rig.took("the pool is full", rig.until("the pool is full", lambda: rig.used() == GPUS))
    released = [item for team in teams for item in rig.stage.using(team)]
    assert len({stamp(item) for item in released}) == len(released)
