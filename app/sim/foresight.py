"""What will become of a live cluster: its snapshot, run forward in virtual time.

The World drives the same engine as the leader does, so what it releases is what the leader would.
How long work runs, and who comes meanwhile, is told by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from app.core import events as ev
from app.core.model import Millis, Pod, Tenant, Uid
from app.core.telling.snapshot import Snapshot
from app.sim.world import World


class Lasting(Protocol):
    """Knows how long work runs."""

    def left(self, pod: Pod, ran: Millis) -> Millis | None:
        """Return how much longer a pod runs that has run so long; None: for ever."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that comes later. Its `since` is when."""

    pod: Pod
    lasts: Millis | None


@dataclass(frozen=True, slots=True)
class Foresight:
    """When each of the pods that were held starts; one that is not named did not until `until`."""

    starts: Mapping[Uid, Millis]
    until: Millis


def stage(
    snapshot: Snapshot,
    lasting: Lasting,
    arrivals: Iterable[Arrival] = (),
    tenants: Iterable[Tenant] | None = None,
    *,
    evicts: bool = True,
) -> World:
    """Return a World that stands as the snapshot does, before anything happens.

    `tenants` in place of those of the snapshot.
    """
    world = World(
        snapshot.managed,
        snapshot.nodes,
        snapshot.tenants if tenants is None else tenants,
        snapshot.pools,
        snapshot.policy,
        start=snapshot.at,
        epoch=snapshot.epoch + 1,
        evicts=evicts,
        witnesses=0,
        turns=snapshot.turns,
        sample=snapshot.sample,
    )
    world.hear(*(ev.BystanderObserved(snapshot.at, each) for each in snapshot.bystanders))
    for pod in snapshot.running:
        ran = Millis(snapshot.at - (pod.started or snapshot.at))
        left = Millis(0) if pod.terminating else lasting.left(pod, ran)
        world.adopt(pod, None if left is None else Millis(snapshot.at + left))
    for pod in snapshot.held:
        world.submit(pod, snapshot.at, lasting.left(pod, Millis(0)))
    for arrival in arrivals:
        world.submit(arrival.pod, arrival.pod.since, arrival.lasts)
    return world


def foresee(
    snapshot: Snapshot,
    lasting: Lasting,
    until: Millis,
    arrivals: Iterable[Arrival] = (),
) -> Foresight:
    """Run a snapshot forward until every pod that is held now has started, or until that time."""
    world = stage(snapshot, lasting, arrivals)
    waiting = {pod.uid for pod in snapshot.held}
    starts: dict[Uid, Millis] = {}
    seen = 0
    while len(starts) < len(waiting) and world.next_due is not None and world.next_due <= until:
        world.run(world.next_due)
        for started in world.started[seen:]:
            if started.pod.uid in waiting:
                starts[started.pod.uid] = started.at
        seen = len(world.started)
    return Foresight(starts, until)
