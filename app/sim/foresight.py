"""What will become of a live cluster: its scene, run forward in virtual time.

The World drives the same engine as the leader does, so what it releases is what the leader would.
How long work runs, and who comes meanwhile, is told by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from app.core import events as ev
from app.core.model import Millis, Pod, Tenant, Uid
from app.core.scene import Scene
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
    scene: Scene,
    lasting: Lasting,
    arrivals: Iterable[Arrival] = (),
    tenants: Iterable[Tenant] | None = None,
    *,
    evicts: bool = False,
) -> World:
    """Return a World that stands as the scene does, before anything happens.

    `tenants` in place of those of the scene.
    """
    world = World(
        scene.managed,
        scene.nodes,
        scene.tenants if tenants is None else tenants,
        scene.pools,
        scene.policy,
        start=scene.at,
        epoch=scene.epoch + 1,
        evicts=evicts,
    )
    world.hear(
        ev.CheckpointsRead(scene.at, scene.turns),
        *(ev.BystanderObserved(scene.at, each) for each in scene.bystanders),
    )
    for pod in scene.running:
        ran = Millis(scene.at - (pod.started or scene.at))
        left = Millis(0) if pod.terminating else lasting.left(pod, ran)
        world.adopt(pod, None if left is None else Millis(scene.at + left))
    for pod in scene.held:
        world.submit(pod, scene.at, lasting.left(pod, Millis(0)))
    for arrival in arrivals:
        world.submit(arrival.pod, arrival.pod.since, arrival.lasts)
    return world


def foresee(
    scene: Scene,
    lasting: Lasting,
    until: Millis,
    arrivals: Iterable[Arrival] = (),
) -> Foresight:
    """Run a scene forward until every pod that is held now has started, or until that time."""
    world = stage(scene, lasting, arrivals)
    waiting = {pod.uid for pod in scene.held}
    starts: dict[Uid, Millis] = {}
    seen = 0
    while len(starts) < len(waiting) and world.next_due is not None and world.next_due <= until:
        world.run(world.next_due)
        for started in world.started[seen:]:
            if started.pod.uid in waiting:
                starts[started.pod.uid] = started.at
        seen = len(world.started)
    return Foresight(starts, until)
