"""Kills, restarts and an emptied Redis cause no loss and no double release."""

from __future__ import annotations

import asyncio
import signal

import redis

from app.core.errors import StoreError
from tests.support.cluster_driver import Stage, name_of, pod, stamp, until
from tests.support.usage_differences import differences
from tests.support.workloads import job


def redis_equals_a_recount(stage: Stage) -> bool:
    url = stage.cluster.details().redis
    try:
        found = asyncio.run(differences(stage.cluster, url))
    except StoreError:
        return False  # a rebuild is running
    return not found


def test_killed_leader_causes_no_lost_pod_and_no_double_release(stage: Stage) -> None:
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
