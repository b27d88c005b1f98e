"""Killed, emptied, restarted, installed late: nothing is lost and nothing happens twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from app.core.engine import Engine
from app.core.errors import StoreError
from app.core.events import ClusterEvent, Pass, Source, SourceFresh
from app.core.model import Millis
from app.core.resources import ManagedResources
from app.dev import folder as folders
from app.dev.cluster import Cluster
from app.dev.fairgate import UNFAIR
from app.dev.options import Options
from app.dev.tools import Tools
from app.kube.client import Client
from app.kube.sources import watches
from app.kube.trials import NAMESPACE as CANARY
from app.settings import EXEMPT, MANAGED
from app.store.connection import Server
from app.store.reader import RedisReader
from tests.e2e.stage import Stage, name_of, pod, stamp, until
from tests.e2e.test_release import job
from tests.recount import compare


async def differences(cluster: Cluster, url: str) -> list[str]:
    """Return how Redis differs from a recount of what the API server holds now."""
    engine = Engine(ManagedResources(MANAGED))
    whole: set[Source] = set()
    heard = asyncio.Event()

    class Ear:
        async def put(self, event: ClusterEvent, /) -> None:
            engine.handle(event)
            if isinstance(event, SourceFresh):
                whole.add(event.source)
                if whole == set(Source):
                    heard.set()
                # Nothing is under way when we end: a connection that is cancelled while it is
                # being made is closed by nobody.
                await asyncio.Event().wait()

    client = await Client.connect(cluster.kubeconfig)
    exempt = (*EXEMPT, *UNFAIR, CANARY)
    tasks = [
        asyncio.create_task(watch.run())
        for watch in watches(client, Ear(), lambda: Millis(0), managed=MANAGED, exempt=exempt)
    ]
    server = Server.connect(url)
    try:
        async with asyncio.timeout(30):
            await heard.wait()
            engine.handle(Pass(Millis(0)))
            return await compare(RedisReader(server, "default"), engine.writes())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()
        await client.close()


def redis_equals_a_recount(stage: Stage) -> bool:
    url = stage.cluster.details().redis
    try:
        found = asyncio.run(differences(stage.cluster, url))
    except StoreError:
        return False  # it is being filled
    return not found


def test_a_killed_leader_loses_nothing_and_releases_nothing_twice(stage: Stage) -> None:
    ours = stage.namespace("killed")
    stage.tenant("killed", "1", ours)
    stage.apply(ours, *(pod(f"work-{i:03}") for i in range(110)))
    until("releases have begun", lambda: len(stage.using(ours)) > 5)
    stage.cluster.stop_fairgate("controller", signal.SIGKILL)
    past = {name_of(p) for p in stage.using(ours)}
    stage.apply(ours, *(pod(f"more-{i:02}") for i in range(30)))
    stage.cluster.start_fairgate("controller")
    until("the pool is full again", lambda: len(stage.using(ours)) == 64)
    assert past <= {name_of(p) for p in stage.using(ours)}
    assert len(stage.held(ours)) == 140 - 64
    until("Redis equals a recount", lambda: redis_equals_a_recount(stage))
    stage.delete(ours, *(name_of(p) for p in stage.using(ours)))
    until("the pool is full again", lambda: len(stage.using(ours)) == 64)
    assert len(stage.held(ours)) == 140 - 128
    assert len({stamp(p) for p in stage.using(ours)}) == 64


def test_flushall_in_mid_work_costs_a_pause_only(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("flushed")
    blockers = stage.block(wall)
    stage.tenant("flushed", "1", ours)
    stage.apply(ours, job("work", 100))
    until("all are held", lambda: len(stage.held(ours)) == 100)
    server = redis.Redis.from_url(stage.cluster.details().redis)
    stage.delete(wall, *blockers[:4])
    server.flushall()
    stage.delete(wall, *blockers[4:])
    server.flushall()
    until("the pool is full", lambda: len(stage.using(ours)) == 64)
    assert len(stage.held(ours)) == 36
    assert len({stamp(p) for p in stage.using(ours)}) == 64
    until("Redis equals a recount", lambda: redis_equals_a_recount(stage))
    server.close()


def test_a_second_controller_takes_over_when_the_leader_stops_politely(stage: Stage) -> None:
    ours = stage.namespace("handover")
    leader = stage.cluster.details().pids["fairgate-controller"][0]
    stage.cluster.start_fairgate("controller")
    stage.cluster.stop_fairgate("controller", signal.SIGTERM, pid=leader)
    stage.apply(ours, pod("p"))
    until("the other leads", lambda: stage.running(ours) == ["p"])


def used(stage: Stage) -> float:
    return stage.metric("controller", "fairgate_used_resources", 'tenant="ns.old"')


@pytest.fixture
def late_cluster(cluster_tools: Tools) -> Iterator[Cluster]:
    """A cluster that has run without Fairgate so far."""
    cluster = Cluster(folders.own_folder("late"))
    try:
        cluster.up(Options(nodes=1, fairgate=False))
        yield cluster
    finally:
        cluster.down()


def test_pods_that_ran_before_fairgate_came_are_counted_and_go_on_running(
    late_cluster: Cluster, tmp_path: Path
) -> None:
    stage = Stage(late_cluster, folder=tmp_path)
    ours = stage.namespace("old")
    stage.apply(ours, *(pod(f"old-{i}") for i in range(6)))
    until("they run", lambda: len(stage.running(ours)) == 6)
    before = {name_of(p): p["metadata"]["uid"] for p in stage.pods(ours)}
    for role in ("webhook", "controller"):
        late_cluster.start_fairgate(role)
    stage.apply(ours, *(pod(f"new-{i}") for i in range(4)))
    until("what fits besides them runs", lambda: len(stage.running(ours)) == 8)
    assert len(stage.held(ours)) == 2
    adopted = lambda: [stamp(p) for p in stage.pods(ours) if name_of(p) in before]  # noqa: E731
    until("they are adopted", lambda: adopted() == ["adopted"] * 6)
    for item in stage.pods(ours):
        if name_of(item) in before:
            assert item["metadata"]["uid"] == before[name_of(item)]
            assert item["status"]["phase"] == "Running"
    until("all eight are counted", lambda: used(stage) == 8)
