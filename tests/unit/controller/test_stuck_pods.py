"""A pod that can be read but not changed does not block leadership, and its state is not lost."""

from __future__ import annotations

import logging

import pytest

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, PodUnyielding
from app.core.model import Millis, Node, NodeName, ReleaseOutcome, Resource
from app.core.quantities import PODS, ManagedResources
from app.kube.pod_releaser import PodReleaser
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.controller_rig import Rig, running, until
from tests.support.releaser_cases import order_for

GPU = Resource("nvidia.com/gpu")
HELD_POD = b"""{"metadata": {"uid": "u", "name": "p", "annotations": {"fairgate.io/release": "0"}},
"spec": {"schedulingGates": [{"name": "fairgate.io/queue"}]}, "status": {}}"""


class Unchanging:
    """An API server with a held pod that answers every patch of the pod with an error."""

    def __init__(self, error: ClusterError) -> None:
        self.error = error
        self.patches = 0

    async def request(self, method: str, path: str, **more: object) -> bytes:
        if method == "GET":
            return HELD_POD
        self.patches += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailable("500 failed calling webhook of somebody"),
        ClusterRefused("422 metadata.annotations: Too long", 422),
        ClusterRefused("403 a policy of somebody", 403),
    ],
)
async def test_unchangeable_pod_is_distinguished_from_a_silent_server(
    error: ClusterError,
) -> None:
    releaser = PodReleaser(Unchanging(error))  # type: ignore[arg-type]
    order = order_for("p", "u")
    with pytest.raises(PodUnyielding, match="default/p can be read, but not changed"):
        await releaser.fence(order.intent.ref, 9)
    with pytest.raises(PodUnyielding, match="delete it"):
        await releaser.read_outcome(order)


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailable("500 etcdserver: request is too large"),
        ClusterRefused("413 Request entity too large: limit is 3145728", 413),
        ClusterRefused(
            "422 metadata.annotations: Too long: may not be more than 262144 bytes", 422
        ),
    ],
)
async def test_a_release_that_is_too_large_is_certain_and_blames_no_other_webhook(
    error: ClusterError, caplog: pytest.LogCaptureFixture
) -> None:
    server = Unchanging(error)
    releaser = PodReleaser(server)  # type: ignore[arg-type]
    assert await releaser.release(order_for("p", "u")) is ReleaseOutcome.HELD
    assert server.patches == 1
    [record] = caplog.records
    assert "too large" in record.__dict__["advice"]
    assert "webhook" not in record.__dict__["advice"]


async def test_unchangeable_pod_does_not_block_later_leaders(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Rig(), gpus=2) as rig:
        rig.releaser.stubborn = {"fat"}
        await rig.create(held_pod("fat", "a"))
        rig.lead.free.set()
        await until(lambda: bool(rig.memory.contents and rig.memory.contents.intents()))
        rig.lead.free.clear()
        rig.leader.end_term()
        await until(lambda: not rig.leader.is_leading)
        for name in ("p0", "p1"):
            await rig.create(held_pod(name, "b"))
        with caplog.at_level(logging.ERROR, "fairgate.control"):
            rig.lead.free.set()
            await until(lambda: rig.released() == 1)
        assert [record.__dict__["pod"] for record in caplog.records] == ["fat"]
        # It counts as used, also for the next leader.
        assert rig.memory.contents is not None
        await until(lambda: [i.ref.name for i in rig.memory.contents.intents()] == ["fat"])
        assert rig.released() == 1

        rig.releaser.stubborn.clear()
        await until(lambda: rig.released() == 2 and rig.is_settled())
        assert rig.memory.contents.intents() == ()


async def test_a_pod_that_cannot_be_read_does_not_block_the_next_leader() -> None:
    async with running(Rig(), gpus=2) as rig:
        rig.releaser.stubborn = {"lost"}
        await rig.create(held_pod("lost", "a"))
        rig.lead.free.set()
        await until(lambda: bool(rig.memory.contents and rig.memory.contents.intents()))
        rig.lead.free.clear()
        rig.leader.end_term()
        await until(lambda: not rig.leader.is_leading)
        rig.releaser.unreadable = {"lost"}
        for name in ("p0", "p1"):
            await rig.create(held_pod(name, "b"))
        rig.lead.free.set()
        await until(lambda: rig.released() == 1)  # the pod that cannot be read counts as used
        rig.releaser.unreadable.clear()
        rig.releaser.stubborn.clear()
        await until(lambda: rig.released() == 2 and rig.is_settled())


async def test_late_release_of_an_old_leader_was_counted_from_the_start() -> None:
    async with running(Rig(), gpus=1) as rig:
        rig.releaser.late = []
        await rig.create(held_pod("late", "a"))
        rig.lead.free.set()
        await until(lambda: bool(rig.releaser.late))
        (late,) = rig.releaser.late
        rig.releaser.late, rig.releaser.stubborn = None, {"late"}
        rig.lead.free.clear()
        rig.leader.end_term()
        await until(lambda: not rig.leader.is_leading)
        await rig.create(held_pod("other", "b"))
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        assert rig.releaser.apply(late)
        await until(lambda: rig.is_copy() and rig.engine.highest_epoch(fences=False) > 0)
        assert rig.released() == 1


def test_stuck_release_keeps_its_charge_and_frees_its_in_flight_slot() -> None:
    engine = Engine(ManagedResources([GPU]), EngineOptions(max_in_flight=1))
    at = Millis(1000)

    def hear(*events: ev.NewsEvent) -> list[str]:
        effects = [effect for event in events for effect in engine.handle(event)]
        effects += engine.handle(ev.Pass(at))
        return [each.intent.ref.name for each in effects if isinstance(each, Release)]

    pods = [held_pod(f"p{n}", "a", since=n) for n in range(4)]
    hear(
        ev.NodeObserved(at, Node(NodeName("n"), {}, {GPU: 2, PODS: 110}, True)),
        *(ev.PodObserved(at, pod) for pod in pods),
        *(ev.SourceFresh(at, source) for source in ev.WatchedSource),
        ev.LeadershipGained(at, 8),
    )
    assert hear(ev.StoreReady(at)) == ["p0"]
    assert hear(ev.ReleaseStuck(at, pods[0].uid)) == ["p1"]
    assert hear(ev.ReleaseAnswered(at, pods[1].uid, ReleaseOutcome.RELEASED)) == []
    assert hear(ev.ReleaseAnswered(at, pods[0].uid, ReleaseOutcome.GONE)) == ["p2"]
