"""F6: the leader is killed at every point of a release; the next one settles what it left."""

from __future__ import annotations

import pytest

from tests.e2e.stage import pod, stamp
from tests.faults.points import POINTS
from tests.faults.rig import GPUS, Rig


@pytest.mark.parametrize("point", [f"{name}:{nth}" for name in POINTS for nth in (1, 9)])
def test_f06_killed_leader_leaves_nothing_lost_and_nothing_twice(rig: Rig, point: str) -> None:
    first = rig.start("controller", crash_at=point)
    rig.start("controller")
    teams = [rig.stage.namespace(f"f06-{team}") for team in "abc"]
    rig.took("the first leads", rig.until("the first leads", lambda: leads(first)))
    for team in teams:
        rig.stage.apply(team, *(pod(f"work-{n}", 1 + n % 2) for n in range(12)))
    rig.until("it has killed itself", lambda: not first.alive)
    rig.took("another leads", rig.until("another leads", lambda: rig.leader() is not first))
    full = rig.until("the pool is full", lambda: used(rig, teams) == GPUS)
    rig.took("the pool is full", full)
    released = [p for team in teams for p in rig.stage.using(team)]
    assert len({stamp(p) for p in released}) == len(released)


def leads(program: object) -> bool:
    return program.metric("fairgate_leader") == 1  # type: ignore[attr-defined]


def used(rig: Rig, teams: list[str]) -> int:
    return sum(
        int(p["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        for team in teams
        for p in rig.stage.using(team)
    )
