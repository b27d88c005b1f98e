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

MAX_LISTED = 1000
"""Maximum number of pods, backoff keys and gangs that a message names."""


def recent_message(message: LeaderStateMessage | None, now: Millis) -> LeaderStateMessage | None:
    """Return the last message if it is so recent that a controller leads, else None."""
    return message if message is not None and now - message.at <= OLD_MS else None


class LeaderState:
    """Applies leader state. `last_message` is None until the first message was received."""

    def __init__(self, registry: PodRegistry, growth: AutoscalingBackoff) -> None:
        self.last_message: LeaderStateMessage | None = None
        self._registry = registry
        self._growth = growth
        self._reserved_by_pool: dict[tuple[PoolName, Uid], ReservedCapacity] = {}

    def apply(self, leader_message: LeaderStateMessage) -> None:
        """Apply a message. It replaces the state of the previous one."""
        before, self.last_message = self.last_message, leader_message
        self._reserved_by_pool.clear()
        self._registry.set_banned(leader_message.banned_keys)
        self._registry.gangs.set_deferred(leader_message.deferred_gangs)
        self._growth.apply_leader_state(
            leader_message.growth_closed_until, leader_message.growth_barred_until
        )
        for uid in (
            before.refusal_counts.keys() - leader_message.refusal_counts.keys() if before else ()
        ):
            self._set_backing_off(uid, 0)
        for uid, times in leader_message.refusal_counts.items():
            self._set_backing_off(uid, times)
        for uid in sorted(before.postponed_pods - leader_message.postponed_pods) if before else ():
            self._set_postponed(uid, False)
        for uid in sorted(leader_message.postponed_pods):
            self._set_postponed(uid, True)

    def reserved_for_others(
        self, pool: PoolName, uid: Uid
    ) -> tuple[TenantName, ReservedCapacity] | None:
        """Return a tenant and the capacity reserved in a pool for other workloads, or None."""
        reserved = self.last_message.reservations if self.last_message is not None else ()
        those = [each for each in reserved if each.pool == pool]
        others = [each for each in those if each.uid != uid]
        if not others:
            return None
        key = (pool, uid if len(others) < len(those) else Uid(""))
        if key not in self._reserved_by_pool:
            rooms: dict[NodeName, dict[Resource, int]] = {}
            for each in others:
                for node, amounts in each.capacity_by_node.items():
                    add_to(rooms.setdefault(node, {}), amounts, 1)
            self._reserved_by_pool[key] = ReservedCapacity(rooms)
        return others[0].tenant, self._reserved_by_pool[key]

    def _set_backing_off(self, uid: Uid, times: int) -> None:
        tracked = self._registry.pods.get(uid)
        if tracked is not None and not tracked.counts_as_used:
            tracked.release_refusals = times
            if tracked.is_backing_off != bool(times):
                self._registry.set_backing_off(tracked, bool(times))

    def _set_postponed(self, uid: Uid, rests: bool) -> None:
        tracked = self._registry.pods.get(uid)
        if tracked is not None and not tracked.counts_as_used and tracked.is_postponed is not rests:
            tracked.is_postponed = rests
            self._registry.set_backing_off(tracked, rests)

    @property
    def reservation_owners(self) -> frozenset[Uid]:
        """The workloads with reserved capacity."""
        return (
            frozenset(each.uid for each in self.last_message.reservations)
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
    rest = [uid for uid in resting.pods_in_backoff() if uid in registry.pods]
    refused = [uid for uid in rest if not registry.pods[uid].is_postponed]
    postponed = [uid for uid in rest if registry.pods[uid].is_postponed]
    return LeaderStateMessage(
        at,
        epoch,
        round(drift, 4),
        tuple(
            PublishedReservation(
                each.pool, each.owner.uid, each.leaf.tenant, _without_zeros(each.capacity_by_node)
            )
            for each in reservations.exclusive_and_active()
        ),
        {uid: registry.pods[uid].release_refusals for uid in refused[:MAX_LISTED]},
        frozenset(sorted(registry.banned_backoff_keys, key=_sort_key)[:MAX_LISTED]),
        dict(growth.closed_pools),
        dict(growth.barred_accounts()[:MAX_LISTED]),
        dict(sorted(registry.gangs.deferred.items())[:MAX_LISTED]),
        frozenset(postponed[:MAX_LISTED]),
    )


def _sort_key(kind: BackoffKey) -> tuple[str, str, list[tuple[Resource, int]]]:
    tenant, user, amounts = kind
    return tenant, user, sorted(amounts)


def _without_zeros(rooms: Mapping[NodeName, Amounts]) -> dict[NodeName, dict[Resource, int]]:
    return {node: {r: v for r, v in amounts.items() if v} for node, amounts in rooms.items()}
