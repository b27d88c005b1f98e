"""History and totals survive the loss of all controllers and Redis, in Tenants and a ConfigMap."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from typing import Any
from zlib import crc32

import redis

from app.controller.checkpoint_writer import PERIOD
from app.devcluster.fairgate_install import NAMESPACE
from app.kube.checkpoint_store import KEY, NAME
from tests.support.cluster_driver import Stage, pod, until

LIMIT = 150.0
"""Seconds to wait for a checkpoint. Each tenant is written once a minute."""

GPU = "nvidia.com/gpu"
BOUND = 60.0
"""Seconds of usage that may be lost or charged twice."""

Checkpoint = dict[str, Any]


EARLY = min((f"kept-{i}" for i in range(1000)), key=lambda name: crc32(name.encode()) % PERIOD)
"""A tenant with a checkpoint early in the minute, to shorten the test."""


def of_tenant(stage: Stage, name: str) -> Checkpoint:
    found: Checkpoint = stage.get("tenant", name).get("status", {}).get("checkpoint", {})
    return found


def of_namespace(stage: Stage, name: str) -> Checkpoint:
    maps = stage.get("configmaps", "-n", NAMESPACE)["items"]
    texts = [each["data"][KEY] for each in maps if each["metadata"]["name"] == NAME]
    found: Checkpoint = json.loads(texts[0]).get(f"ns.{name}", {}) if texts else {}
    return found


def time_of(checkpoint: Checkpoint) -> float:
    return datetime.fromisoformat(checkpoint["time"]).timestamp()


def seconds(checkpoint: Checkpoint) -> float:
    return sum(float(pool[GPU]) for user in checkpoint["users"] for pool in user["spent"].values())


def test_total_loss_costs_at_most_a_minute_of_history_and_totals(stage: Stage) -> None:
    ours, free = stage.namespace("kept"), stage.namespace("free")
    stage.tenant(EARLY, "1", ours)
    stage.apply(ours, *(pod(f"work-{i}") for i in range(16)))
    stage.apply(free, *(pod(f"work-{i}") for i in range(8)))
    until("all run", lambda: len(stage.running(ours) + stage.running(free)) == 24)
    sources = {"kept": (of_tenant, EARLY, 16), "free": (of_namespace, free, 8)}
    for what, (find, name, _) in sources.items():
        until(f"{what} is kept", lambda f=find, n=name: bool(f(stage, n)), LIMIT)  # type: ignore[misc]
    stage.cluster.stop_fairgate("controller", signal.SIGKILL)
    server = redis.Redis.from_url(stage.cluster.details().redis)
    server.flushall()
    server.close()
    before = {what: find(stage, name) for what, (find, name, _) in sources.items()}
    stage.cluster.start_fairgate("controller")
    for what, (find, name, gpus) in sources.items():
        old = before[what]
        until(
            f"{what} is kept by the next leader",
            lambda f=find, n=name, o=old: f(stage, n).get("epoch", 0) > o["epoch"],  # type: ignore[misc]
            LIMIT,
        )
        new = find(stage, name)
        passed = time_of(new) - time_of(old)
        charged = seconds(new) - seconds(old)
        print(f"{what}: {passed:.1f} s later, {charged:.1f} GPU-seconds more for {gpus} GPUs")
        assert abs(charged - gpus * passed) <= gpus * BOUND
        part = gpus / 64
        faded = 0.5 ** (passed / (4 * 3600))
        expected = part + (float(old["history"][GPU]) - part) * faded
        assert abs(float(new["history"][GPU]) - expected) <= part * (1 - 0.5 ** (BOUND / 14400))
        assert float(new["history"][GPU]) > float(old["history"][GPU]) > 0
