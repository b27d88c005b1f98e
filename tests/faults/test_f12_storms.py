"""F12: the API server answers 429 or 409 to most writes. Releases are retried in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.devcluster.control_plane import ControlPlane
from tests.faults.fault_cluster import Rig
from tests.faults.refusing_proxy import Storm
from tests.support.cluster_driver import Object, gates, name_of, pod

SEED = 12
WEIGHTS = {"a": "1", "b": "2", "c": "4"}
PODS_EACH = 4
SLOTS = 4
STORM = {429: 0.2, 409: 0.2}
"""Probabilities. Higher values may exhaust a pod's retries, so that another pod goes first."""


@pytest.fixture
def storm(rig: Rig) -> Iterator[Storm]:
    plan = ControlPlane.load(rig.cluster.folder, rig.cluster.processes).plan
    with Storm(plan.server, plan.certificates, rig.folder, SEED) as storm:
        yield storm


def test_f12_storms_delay_releases_and_keep_their_order(rig: Rig, storm: Storm) -> None:
    leader = rig.start("controller", lease_seconds=15)
    leader.api.route(("127.0.0.1", storm.port))
    leader.api.drop()
    fair = releases(rig, "calm", storm, {})
    assert len(fair) == PODS_EACH * len(WEIGHTS)
    assert not storm.refused
    epoch = leader.metric("fairgate_leader_epoch")
    stormy = releases(rig, "storm", storm, STORM)
    assert stormy == fair
    assert leader.metric("fairgate_leader_epoch") == epoch, "it stayed the leader all along"
    for status in STORM:
        assert storm.refused[status] > 1
        rig.took(f"refused by {status} (writes)", storm.refused[status])
    leader.kill()  # it waits for the storm, which ends here


def releases(rig: Rig, name: str, storm: Storm, chances: dict[int, float]) -> list[str]:
    """Release the pods of three teams, one node each, in a pool of four nodes.

    Returns the order of releases as team and queue position.

    The first four are released together, so their order is not checked. Afterwards, one pod leaves
    at a time. The storm lasts from the time when all pods wait until all are gone.
    """
    wall = rig.stage.namespace(f"{name}-wall")
    rig.stage.apply(wall, *(pod(f"wall-{n}", 8) for n in range(SLOTS)))
    rig.until("the wall stands", lambda: len(rig.stage.running(wall)) == SLOTS)
    for team, weight in WEIGHTS.items():
        space = rig.stage.namespace(f"{name}-{team}")
        rig.stage.tenant(space, weight, space)
        rig.stage.apply(space, *(pod(f"{team}-{n}", 8) for n in range(PODS_EACH)))
    queued = PODS_EACH * len(WEIGHTS)
    rig.until("the leader knows them all", lambda: all(known(rig, name)))
    ranks = ranked(rig, name)
    storm.blow(chances)
    rig.stage.delete(wall, *(f"wall-{n}" for n in range(SLOTS)))
    order: list[str] = []
    while len(order) < queued:
        new = 1 if order else SLOTS
        rig.until("the slot is taken", lambda: len(past(rig, name) - {*order}) == new)  # noqa: B023
        order += sorted(past(rig, name) - {*order}, key=ranks.__getitem__)
        if len(order) < queued:
            leaves(rig, name, order[len(order) - SLOTS])
    storm.blow({})
    for who in order[-SLOTS:]:
        leaves(rig, name, who)
    return [ranks[who] for who in order]


def ranked(rig: Rig, name: str) -> dict[str, str]:
    """Return the team and queue position of each pod: by age in whole seconds, then by uid."""
    queues: dict[str, list[tuple[str, str, str]]] = {}
    for each in teams_pods(rig, name):
        about = each["metadata"]
        place = about["creationTimestamp"], about["uid"], about["name"]
        queues.setdefault(about["name"].partition("-")[0], []).append(place)
    return {
        who: f"{team}, number {number}"
        for team, places in queues.items()
        for number, (_, _, who) in enumerate(sorted(places), 1)
    }


def known(rig: Rig, name: str) -> Iterator[bool]:
    """Return for each team whether the leader counts all of the team's pods as waiting."""
    leader = rig.leader()
    for team in WEIGHTS:
        label = f'tenant="{name}-{team}"'
        yield leader.metric("fairgate_pending_workloads", label) == PODS_EACH


def past(rig: Rig, name: str) -> set[str]:
    """Return the released pods."""
    return {name_of(p) for p in teams_pods(rig, name) if not gates(p)}


def leaves(rig: Rig, name: str, who: str) -> None:
    """End one pod."""
    space = f"{name}-{who.partition('-')[0]}"
    with rig.admin() as api:
        api.call("DELETE", f"/api/v1/namespaces/{space}/pods/{who}", {"gracePeriodSeconds": 0})


def teams_pods(rig: Rig, name: str) -> list[Object]:
    spaces = {f"{name}-{team}" for team in WEIGHTS}
    return [p for p in rig.pods() if p["metadata"]["namespace"] in spaces]
