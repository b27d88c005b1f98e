"""The demo in virtual time, for machines without a cluster: same workloads, same engine."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction

from app.core.model import Millis, Node, NodeName, Resource, Tenant, TenantName
from app.core.quantities import PODS, ManagedResources
from app.devcluster.demo import (
    GREEDY_PODS,
    MODEST_PODS,
    RESOURCE,
    RUNTIME_SECONDS,
    URGENT_VALUE,
    Count,
    DemoMoment,
    DemoResult,
    Show,
)
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod

MODEST_COMES = Millis(5_000)
STEP = Millis(1_000)
STAGGER = 40
"""Milliseconds between two submissions."""


def play_simulated(show: Show, nodes: int, gpus: int) -> DemoResult:
    """Play both rounds with the simulator; return the GPUs that each team used."""
    began = time.monotonic()
    # The default scheduler orders by priority and age: one queue for both teams.
    everybody = [_tenant("everybody", "greedy", "modest")]
    teams = [_tenant("greedy", "greedy"), _tenant("modest", "modest")]
    without = _round("without Fairgate (simulated)", everybody, show, nodes, gpus)
    fair = _round("with Fairgate (simulated)", teams, show, nodes, gpus)
    return DemoResult(without, fair, time.monotonic() - began)


def _round(title: str, tenants: list[Tenant], show: Show, nodes: int, gpus: int) -> dict[str, int]:
    room = {Resource(RESOURCE): gpus, PODS: 110}
    cluster = [Node(NodeName(f"node-{i}"), {}, room, True) for i in range(nodes)]
    world = VirtualCluster(ManagedResources([RESOURCE]), cluster, tenants)
    for i in range(GREEDY_PODS):
        at = Millis(i * STAGGER // 4)
        pod = held_pod(f"urgent-{i:03}", "greedy", priority=URGENT_VALUE, since=at)
        world.submit(pod, at, RUNTIME_SECONDS * 1000)
    for i in range(MODEST_PODS):
        at = Millis(MODEST_COMES + i * STAGGER // 4)
        pod = held_pod(f"ordinary-{i:03}", "modest", since=at)
        world.submit(pod, at, RUNTIME_SECONDS * 1000)
    ends = Millis(MODEST_COMES + RUNTIME_SECONDS * 1000)
    for now in range(0, ends + 1, STEP):
        world.advance_to(Millis(now))
        show(_moment(title, world, Millis(now)))
    using = Counter(pod.namespace for pod in world.released_pods.values())
    return {"greedy": using["greedy"], "modest": using["modest"]}


def _moment(title: str, world: VirtualCluster, now: Millis) -> DemoMoment:
    using = Counter(pod.namespace for pod in world.released_pods.values())
    started = Counter(start.pod.namespace for start in world.started)
    came = {"greedy": min(GREEDY_PODS, 1 + 4 * now // STAGGER), "modest": 0}
    if now >= MODEST_COMES:
        came["modest"] = min(MODEST_PODS, 1 + 4 * (now - MODEST_COMES) // STAGGER)
    counts = {
        team: Count(using[team], came[team] - started[team], started[team] - using[team])
        for team in ("greedy", "modest")
    }
    note = "modest came" if now >= MODEST_COMES else "greedy fills the cluster"
    return DemoMoment(title, now / 1000, counts["greedy"], counts["modest"], note)


def _tenant(name: str, *namespaces: str) -> Tenant:
    return Tenant(TenantName(name), Millis(0), Fraction(1), namespaces=namespaces)
