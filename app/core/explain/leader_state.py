"""Leader-only state, applied on an engine that follows.

The follower then gives the answers of its leader. A leading engine receives no such state.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.explain.views import LeaderStateMessage, PublishedReservation
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    Amounts,
    BackoffKey,
    Millis,
    NodeName,
    PoolName,
    Resource,
    TenantName,
    Uid,
)
from app.core.placement.allocations import ReservedCapacity
from app.core.placement.autoscaling_backoff import AutoscalingBackoff
from app.core.placement.pools import add_to
from app.core.scheduling.release_backoff import ReleaseBackoff
from app.core.scheduling.reservation import Reservations

OLD_MS = 30_000
"""Age of a message from which no controller leads. A leader publishes one every 10 s at least."""

MOST = 1000
"""Maximum number of pods, backoff keys and gangs that a message names."""


def current(message: LeaderStateMessage | None, now: Millis) -> LeaderStateMessage | None:
    """Return the last message if it is so recent that a controller leads, else None."""
    return message if message is not None and now - message.at <= OLD_MS else None


class LeaderState:
    """Applies leader state. `last_message` is None until the first message was received."""

    def __init__(self, registry: PodRegistry, growth: AutoscalingBackoff) -> None:
        self.last_message: LeaderStateMessage | None = None
        self._registry = registry
        self._growth = growth
        self._rooms: dict[tuple[PoolName, Uid], ReservedCapacity] = {}

    def apply(self, leader_message: LeaderStateMessage) -> None:
        """Apply a message. It replaces the state of the previous one."""
        before, self.last_message = self.last_message, leader_message
        self._rooms.clear()
        self._registry.ban(leader_message.banned)
        self._registry.gangs.defer(leader_message.deferred)
        self._growth.apply_leader_state(leader_message.closed, leader_message.barred)
        for uid in before.refused.keys() - leader_message.refused.keys() if before else ():
            self._rest(uid, 0)
        for uid, times in leader_message.refused.items():
            self._rest(uid, times)
        for uid in sorted(before.postponed - leader_message.postponed) if before else ():
            self._postpone(uid, False)
        for uid in sorted(leader_message.postponed):
            self._postpone(uid, True)

    def kept(self, pool: PoolName, uid: Uid) -> tuple[TenantName, ReservedCapacity] | None:
        """Return a tenant and the capacity reserved in a pool for other workloads, or None."""
        reserved = self.last_message.reserved if self.last_message is not None else ()
        those = [each for each in reserved if each.pool == pool]
        others = [each for each in those if each.uid != uid]
        if not others:
            return None
        key = (pool, uid if len(others) < len(those) else Uid(""))
        if key not in self._rooms:
            rooms: dict[NodeName, dict[Resource, int]] = {}
            for each in others:
                for node, amounts in each.rooms.items():
                    add_to(rooms.setdefault(node, {}), amounts, 1)
            self._rooms[key] = ReservedCapacity(rooms)
        return others[0].tenant, self._rooms[key]

    def _rest(self, uid: Uid, times: int) -> None:
        tracked = self._registry.pods.get(uid)
        if tracked is not None and not tracked.uses:
            tracked.refusals = times
            if tracked.rests != bool(times):
                self._registry.rest(tracked, bool(times))

    def _postpone(self, uid: Uid, rests: bool) -> None:
        tracked = self._registry.pods.get(uid)
        if tracked is not None and not tracked.uses and tracked.is_postponed is not rests:
            tracked.is_postponed = rests
            self._registry.rest(tracked, rests)

    @property
    def owners(self) -> frozenset[Uid]:
        """The workloads with reserved capacity."""
        return (
            frozenset(each.uid for each in self.last_message.reserved)
            if self.last_message
            else frozenset()
        )


def leader_message(
    at: Millis,
    epoch: int,
    drift: float,
    registry: PodRegistry,
    reservations: Reservations,
    resting: ReleaseBackoff,
    growth: AutoscalingBackoff,
) -> LeaderStateMessage:
    """Return the state that only a leading engine has."""
    rest = [uid for uid in resting.resting() if uid in registry.pods]
    refused = [uid for uid in rest if not registry.pods[uid].is_postponed]
    postponed = [uid for uid in rest if registry.pods[uid].is_postponed]
    return LeaderStateMessage(
        at,
        epoch,
        round(drift, 4),
        tuple(
            PublishedReservation(each.pool, each.owner.uid, each.leaf.tenant, _whole(each.rooms))
            for each in reservations.owners()
        ),
        {uid: registry.pods[uid].refusals for uid in refused[:MOST]},
        frozenset(sorted(registry.banned, key=_text)[:MOST]),
        dict(growth.closed),
        dict(growth.all_barred()[:MOST]),
        dict(sorted(registry.gangs.deferred.items())[:MOST]),
        frozenset(postponed[:MOST]),
    )


def _text(kind: BackoffKey) -> tuple[str, str, list[tuple[Resource, int]]]:
    tenant, user, amounts = kind
    return tenant, user, sorted(amounts)


def _whole(rooms: Mapping[NodeName, Amounts]) -> dict[NodeName, dict[Resource, int]]:
    return {node: {r: v for r, v in amounts.items() if v} for node, amounts in rooms.items()}
