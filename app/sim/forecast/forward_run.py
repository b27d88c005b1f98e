"""Runs a snapshot of the engine forward in virtual time, and takes medians of several runs."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

from app.core import events as ev
from app.core.explain.snapshot import Snapshot
from app.core.fairshare.tenants import TenantDirectory
from app.core.model import Millis, Pod, Tenant, Uid
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.forecast.run_times import RunTimes, SampledRunTimes

SAMPLES = 3
HORIZON = Millis(96 * 3_600_000)
LATER = 2 * HORIZON


def simulate_waits(
    snapshot: Snapshot, runs: RunTimes, seed: int, pods: Collection[Uid] | None = None
) -> Mapping[Uid, float]:
    """Return the remaining waits of held pods in seconds, the median of `SAMPLES` runs.

    `pods`: only these held pods; None: all of them. Pods that do not start within `HORIZON` in
    most runs are left out.
    """
    waiting = [pod.uid for pod in snapshot.held] if pods is None else pods
    tenancy = TenantDirectory()
    for tenant in snapshot.tenants:
        tenancy.add_tenant(tenant)
    until = Millis(snapshot.at + HORIZON)
    found: list[Mapping[Uid, Millis]] = []
    for number in range(SAMPLES):
        lasting = SampledRunTimes(snapshot, runs, tenancy, seed * SAMPLES + number)
        found.append(simulate_starts(snapshot, lasting, until, waiting).starts)
        gc.collect()  # a World has reference cycles: several at once would waste memory
    waits: dict[Uid, float] = {}
    for uid in waiting:
        start = median_low([starts.get(uid, snapshot.at + LATER) for starts in found])
        if start <= until:
            waits[uid] = (start - snapshot.at) / 1000
    return waits


class RunTimeSource(Protocol):
    """Source of run times."""

    def remaining_time(self, pod: Pod, ran: Millis) -> Millis | None:
        """Return how much longer a pod runs that has run for `ran`; None means forever."""


@dataclass(frozen=True, slots=True)
class SimulatedStarts:
    """Start of each awaited pod. A pod that does not start before `until` is left out."""

    starts: Mapping[Uid, Millis]
    until: Millis


def cluster_from_snapshot(
    snapshot: Snapshot,
    lasting: RunTimeSource,
    tenants: Iterable[Tenant] | None = None,
    *,
    evicts: bool = True,
) -> VirtualCluster:
    """Return a World in the state of the snapshot, before the first release.

    `tenants` replaces the tenants of the snapshot.
    """
    world = VirtualCluster(
        snapshot.managed,
        snapshot.nodes,
        snapshot.tenants if tenants is None else tenants,
        snapshot.pools,
        snapshot.policy,
        start=snapshot.at,
        epoch=snapshot.epoch + 1,
        evicts=evicts,
        witnesses=0,
        turns=snapshot.fairness_states,
        sample=snapshot.pod_mix,
    )
    world.send_events(
        *(ev.UnmanagedPodObserved(snapshot.at, each) for each in snapshot.unmanaged_pods)
    )
    for pod in snapshot.running:
        ran = Millis(snapshot.at - (pod.started_at or snapshot.at))
        left = Millis(0) if pod.terminating else lasting.remaining_time(pod, ran)
        world.adopt(pod, None if left is None else Millis(snapshot.at + left))
    for pod in snapshot.held:
        world.submit(pod, snapshot.at, lasting.remaining_time(pod, Millis(0)))
    return world


def simulate_starts(
    snapshot: Snapshot,
    lasting: RunTimeSource,
    until: Millis,
    pods: Collection[Uid],
) -> SimulatedStarts:
    """Run a snapshot forward until these held pods have started, or until `until`."""
    world = cluster_from_snapshot(snapshot, lasting)
    waiting = frozenset(pods)
    starts: dict[Uid, Millis] = {}
    seen = 0
    while (
        len(starts) < len(waiting)
        and world.next_event_at is not None
        and world.next_event_at <= until
    ):
        world.advance_to(world.next_event_at)
        for started in world.started[seen:]:
            if started.pod.uid in waiting:
                starts[started.pod.uid] = started.at
        seen = len(world.started)
    return SimulatedStarts(starts, until)
