"""Reservations: capacity for a workload that was next for long enough and still does not fit.

An active reservation is withheld from workloads after its owner in the order. An exclusive one is
withheld from all others, for example because of its evictions. The order itself does not change.
The module has more than 500 lines because all kinds of reservations share their owners and timers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from weakref import WeakKeyDictionary

from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import Gang, PodRecord, Workload
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.placement.allocations import NO_RESERVATION, Allocations, ReservedCapacity
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.placement.autoscaling_capacity import FUTURE_NODE, AmountsByNode
from app.core.placement.node_filter import filter_allowed
from app.core.placement.pod_affinity import (
    Chance,
    TentativePeers,
    choose_nodes,
    constraints_of_part,
)
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import fits, is_device

NEVER_MS = Millis(2**62)

START = Millis(0)

NO_CAPACITY: AmountsByNode = {}

MAX_AVOIDED_NODES = 500
"""Maximum number of reserved nodes that a release names, so that the scheduler avoids them."""

OVERDUE_FACTOR = 48
"""Multiple of `reserveAfter` after which a reservation is overdue, usually four hours. On real logs
a smaller value cost other workloads more than it gained. The limit prevents starvation."""

CLOSED_OUT_MS = Millis(60_000)
"""Time for which freed capacity stays reserved for a user who is closed out. Most are for seconds
only, until the scheduler has bound their pods."""

MAX_CACHED_TOTALS = 64
"""Number of combinations of reservations to cache."""


TimerKey = Uid | Gang
"""A pod, or a gang: its timer and reservation outlast a replacement of its first pod."""


def timer_key_of(workload: Workload) -> TimerKey:
    """Return the key of a workload that stays the same while it waits."""
    return workload if isinstance(workload, Gang) else workload.pod.uid


@dataclass(slots=True, eq=False)
class Reservation:
    """Reserved capacity on nodes for one workload, or for several of a reclaim.

    `is_exclusive`: no other workload may use it, because pods of others were evicted for it, or
    because it `completes_gang` a gang that already runs in part. `victims` are the pods that are
    being evicted for it, of the tenants `losing_tenants`. `only_awaits`: they terminated before, so
    no pod is evicted. `active_since` is when it became active; with a reclaim notice, the end of
    the notice. Exclusive reservations have no `timer_key`.
    `closed_out_since`: its capacity was freed, but its user is closed out, its claims change, or a
    distance rule does not allow that it starts there.

    `followers`: equal workloads of the user, for which the same reclaim makes room. The first one
    becomes the owner when the owner starts. `first_owner` is the owner at the start of the reclaim.
    """

    owner: QueueKey
    leaf: UserNode
    equivalence_class: EquivalenceClass
    pool: PoolName
    capacity_by_node: dict[NodeName, Amounts]
    pools_version: tuple[int, int]
    is_exclusive: bool = False
    completes_gang: bool = False
    victims: set[Uid] = field(default_factory=set)
    only_awaits: bool = False
    active_since: Millis = START
    losing_tenants: frozenset[TenantName] = frozenset()
    timer_key: TimerKey | None = None
    closed_out_since: Millis | None = None
    followers: tuple[QueueKey, ...] = ()
    first_owner: Uid | None = None

    @property
    def workloads(self) -> tuple[QueueKey, ...]:
        """Return the owner and its followers."""
        return (self.owner, *self.followers)

    def is_for(self, uid: Uid) -> bool:
        """Return whether a waiting workload is the owner or a follower."""
        return any(each.uid == uid for each in self.workloads)


class Reservations:
    """Timers of heads that were next and did not fit, and the resulting reservations."""

    def __init__(self, placement: Allocations) -> None:
        self.timers: dict[TimerKey, Millis] = {}
        self._owed_times: dict[TimerKey, int] = {}
        self.active: dict[PoolName, Reservation] = {}
        self.exclusive: dict[PoolName, Reservation] = {}
        """Capacity that evictions free. A pool has one such reservation: one reclaim at a time."""
        self.gangs: dict[PoolName, Reservation] = {}
        """Exclusive capacity for the rest of a gang that runs in part. Reclaims go on beside it."""
        self.overdue: dict[PoolName, Reservation] = {}
        self._could_hold_cache: WeakKeyDictionary[
            EquivalenceClass, dict[tuple[PoolName, bool], tuple[tuple[int, int], bool]]
        ] = WeakKeyDictionary()
        self._placement = placement
        self._planned: dict[Uid, Reservation] = {}
        self._last_active: dict[PoolName, Reservation] = {}
        self._total_capacity_cache: dict[tuple[Reservation | None, ...], ReservedCapacity] = {}

    def start_timer(self, workload: Workload, now: Millis) -> None:
        """Start the timer of a workload that is next and does not fit. It runs until `drop`."""
        self.timers.setdefault(timer_key_of(workload), now)

    def add_owed_time(self, key: TimerKey, span: int) -> int:
        """Add to the time in which the user of a workload borrowed least. Return all of it."""
        total = self._owed_times[key] = self._owed_times.get(key, 0) + span
        return total

    def drop(self, workload: Workload, uid: Uid, nodes: Sequence[NodeName | None] = ()) -> None:
        """Remove a workload that waited under `uid` and is being released, to these nodes.

        Its owed time is kept, because its release may be refused. After a first refusal it is not:
        what refuses it may refuse it for ever.
        """
        self._drop(timer_key_of(workload), uid, nodes)
        if any(tracked.release_refusals for tracked in workload.members):
            self._forget_owed_time(timer_key_of(workload))

    def forget_pod(self, uid: Uid) -> None:
        """Remove a pod that is gone. The timer of its gang runs while the gang has pods."""
        self._drop(uid, uid)
        self._forget_owed_time(uid)

    def forget_released(self, tracked: PodRecord) -> None:
        """Forget how long a pod and its gang waited, because its release succeeded."""
        self._forget_owed_time(tracked.pod.uid)
        if tracked.gang is not None:
            self._forget_owed_time(tracked.gang)

    def _forget_owed_time(self, key: TimerKey) -> None:
        self._owed_times.pop(key, None)
        for pool in [p for p, r in self._last_active.items() if r.timer_key == key]:
            del self._last_active[pool]

    def _drop(self, key: TimerKey, uid: Uid, nodes: Sequence[NodeName | None] = ()) -> None:
        self.timers.pop(key, None)
        self._planned.pop(uid, None)
        for held in (self.active, self.overdue):
            for pool in [p for p, r in held.items() if r.timer_key == key]:
                del held[pool]
        for pool in [p for p, r in self.gangs.items() if r.is_for(uid)]:
            del self.gangs[pool]
        for reservation in [r for r in self.exclusive.values() if r.is_for(uid)]:
            rest = [each for each in reservation.workloads if each.uid != uid]
            self.reduce_to(reservation, rest, nodes)

    def reduce_to(
        self,
        reservation: Reservation,
        workloads: Sequence[QueueKey],
        nodes: Sequence[NodeName | None] = (),
    ) -> Reservation | None:
        """Keep an exclusive reservation for some of its workloads only. Return the new one, if any.

        The capacity of the others is no longer reserved: on `nodes` first, where they start.
        """
        if not workloads:
            del self.exclusive[reservation.pool]
            return None
        [(demand, _)] = reservation.equivalence_class.request_counts  # followers are single pods
        surplus = len(reservation.workloads) - len(workloads)
        rooms = {node: dict(amounts) for node, amounts in reservation.capacity_by_node.items()}
        first = [node or FUTURE_NODE for node in nodes]
        for node in (*(each for each in first if each in rooms), *rooms):
            while surplus and fits(demand, rooms[node]):
                add_to(rooms[node], demand, -1)
                surplus -= 1
        kept = replace(
            reservation,
            owner=workloads[0],
            followers=tuple(workloads[1:]),
            capacity_by_node={node: left for node, left in rooms.items() if any(left.values())},
        )
        self.exclusive[reservation.pool] = kept
        return kept

    def update_workloads(
        self, reservation: Reservation, find_workload: Callable[[Uid], Workload | None]
    ) -> Reservation:
        """Keep the workloads of an exclusive reservation that still wait and are equal.

        A workload that its user changed loses its place to the others. A single one keeps it.
        """
        shape = reservation.equivalence_class
        found = [(key, find_workload(key.uid)) for key in reservation.workloads]
        waiting = [
            (key, (workload.leaf, workload.equivalence_class))
            for key, workload in found
            if workload is not None and workload.leaf and workload.equivalence_class
        ]
        kind = next((each for _, each in waiting if each[1] is shape), None)
        if kind is None and waiting:  # a change of the pools may give all a new class
            kind = waiting[0][1]
        kept = [key for key, each in waiting if each == kind] or [reservation.owner]
        if kind is not None and kind[1].request_counts != shape.request_counts:
            del kept[1:]
        if len(kept) < len(reservation.workloads):
            reservation = self.reduce_to(reservation, kept) or reservation
        if kind is not None:
            reservation.leaf = kind[0]
            if not reservation.completes_gang:  # `reserve_for_gang` plans a changed rest again
                reservation.equivalence_class = kind[1]
        return reservation

    def reset_for_new_tree(self) -> None:
        """Reset for a new share tree. Timers, exclusive and overdue reservations stay.

        `refresh_overdue` replaces the overdue ones after the active ones are planned again.
        """
        self.active.clear()
        self._planned.clear()
        self._could_hold_cache.clear()
        self._total_capacity_cache.clear()

    def drop_unneeded_exclusive(
        self,
        find_workload: Callable[[Uid], Workload | None],
        is_due: Callable[[Reservation], bool],
    ) -> None:
        """Drop exclusive reservations of workloads that no longer wait for them."""
        for held in (self.exclusive, self.gangs):
            for pool, reservation in list(held.items()):
                if not is_due(self.update_workloads(reservation, find_workload)):
                    del held[pool]

    def drop_closed_out(self, now: Millis, is_closed_out: Callable[[Reservation], bool]) -> None:
        """Drop reservations of owners that stay closed out, if all victims are gone."""
        for pool, reservation in list(self.exclusive.items()):
            if reservation.victims or not is_closed_out(reservation):
                reservation.closed_out_since = None
            elif reservation.closed_out_since is None:
                reservation.closed_out_since = now
            elif now - reservation.closed_out_since >= CLOSED_OUT_MS:
                del self.exclusive[pool]

    def due(self) -> Millis | None:
        """Return the next time at which `drop_closed_out` has work without a new event."""
        since = (r.closed_out_since for r in self.exclusive.values())
        return min((Millis(at + CLOSED_OUT_MS) for at in since if at is not None), default=None)

    def expired_timers(self, now: Millis, after: Millis) -> list[TimerKey]:
        """Return the workloads with expired timers, the oldest first."""
        return list(takewhile(lambda key: now - self.timers[key] >= after, self.timers))

    def drop_timers_of_gone_gangs(self) -> None:
        """Drop the timers of gangs without pods."""
        gone = {k for k in (*self.timers, *self._owed_times) if isinstance(k, Gang) and not k.pods}
        for key in gone:
            self.timers.pop(key, None)
            self._owed_times.pop(key, None)

    def reserve(self, workload: Workload, pool: PoolName) -> bool:
        """Reserve capacity in a pool without a reservation; False if it could never fit there.

        The chosen nodes stay the same while their layout is the same. Capacity on future nodes
        stays reserved while the pool is expected to grow.
        """
        owner, leaf, shape = workload.queue_key, workload.leaf, workload.equivalence_class
        assert owner is not None
        assert leaf is not None
        assert shape is not None
        seen = self._placement.version_for(shape)
        grows = self._placement.autoscaling_capacity.is_scale_up_reliable(pool, leaf.account)
        plan = self._planned.get(owner.uid)
        known = plan is not None and (plan.pools_version, plan.pool) == (seen, pool)
        if plan is not None and FUTURE_NODE in plan.capacity_by_node and not grows:
            known = False
        if (
            plan is None
            or not known
            or plan.leaf is not leaf
            or plan.equivalence_class is not shape
        ):
            if self._could_hold_cache.get(shape, {}).get((pool, grows)) == (seen, False):
                return False
            beside = self._exclusive_capacity(pool)
            rooms = self._choose_soonest_nodes(shape, pool, grows, beside)
            if rooms is None:
                if not beside:
                    self._could_hold_cache.setdefault(shape, {})[pool, grows] = seen, False
                return False
            plan = Reservation(
                owner, leaf, shape, pool, rooms, seen, timer_key=timer_key_of(workload)
            )
            self._planned[owner.uid] = plan
        self.active[pool] = plan
        return True

    def reserve_for_gang(
        self,
        owner: QueueKey,
        leaf: UserNode,
        shape: EquivalenceClass,
        allowed: Iterable[PoolName],
        mates: AmountsByNode,
    ) -> None:
        """Reserve capacity exclusively for the rest of a gang, in a pool that could hold it.

        `allowed`: the pools where it may start. `mates`: capacity of its running pods, which they
        keep.
        """
        seen = self._placement.pools_version
        for pool in allowed:
            grows = self._placement.autoscaling_capacity.is_scale_up_reliable(pool, leaf.account)
            known = self.gangs.get(pool)
            if known is not None and known.owner.uid != owner.uid:
                continue
            doubtful = known is not None and FUTURE_NODE in known.capacity_by_node and not grows
            if (
                known is None
                or doubtful
                or known.pools_version != seen
                or known.equivalence_class is not shape
            ):
                self.gangs.pop(pool, None)
                beside = {node: dict(amounts) for node, amounts in mates.items()}
                for node, amounts in self._exclusive_capacity(pool).items():
                    add_to(beside.setdefault(node, {}), amounts, 1)
                rooms = self._choose_soonest_nodes(shape, pool, grows, beside)
                if rooms is None:
                    continue
                self.gangs[pool] = Reservation(
                    owner, leaf, shape, pool, rooms, seen, is_exclusive=True, completes_gang=True
                )
            self.gangs = {
                p: each
                for p, each in self.gangs.items()
                if p == pool or each.owner.uid != owner.uid
            }
            return

    def promote_overdue(
        self, now: Millis, after: int, is_owed: Callable[[Reservation], bool]
    ) -> None:
        """Make reservations overdue that were active for too long without result.

        Workloads before an owner may refill its capacity as fast as it is freed. Then only an
        overdue reservation lets it start. `is_owed`: its user must use least, because others have
        to wait for it, and must not be closed out of the pool. Call it at the end of a cycle,
        because reservations change their owners within a cycle.

        A reservation that is planned again, for example after a change of a node, stays active
        since the same time. This is also true if no other workload had one in the pool meanwhile.
        """
        for pool, reservation in self.active.items():
            last = self._last_active.get(pool)
            if last is None or last.timer_key != reservation.timer_key:
                reservation.active_since = now
            else:
                reservation.active_since = last.active_since
            waited = max(now - reservation.active_since, self._owed_time(reservation))
            if waited >= OVERDUE_FACTOR * after and is_owed(reservation):
                self.overdue[pool] = reservation
            else:
                self.overdue.pop(pool, None)
        self._last_active.update(self.active)

    def _owed_time(self, reservation: Reservation) -> int:
        key = reservation.timer_key
        return 0 if key is None else self._owed_times.get(key, 0)

    def reserve_overdue(self, workload: Workload, pools: Iterable[PoolName]) -> None:
        """Give a workload an overdue reservation in the first pool where another has none."""
        key, queue_key = timer_key_of(workload), workload.queue_key
        assert queue_key is not None
        if any(r.timer_key == key for r in self.overdue.values()) or (
            self.has_exclusive_reservation(queue_key.uid)
        ):
            return
        for pool in pools:
            if pool not in self.overdue and self.reserve(workload, pool):
                self.overdue[pool] = self.active[pool]
                return

    def refresh_overdue(self) -> None:
        """Drop overdue reservations that are no longer active, and follow those on other nodes."""
        for pool, reservation in list(self.overdue.items()):
            standing = self.active.get(pool)
            if standing is None or standing.timer_key != reservation.timer_key:
                del self.overdue[pool]
            else:
                self.overdue[pool] = standing

    def all_binding(self) -> list[Reservation]:
        """Return the reservations that every other workload must respect: all but the active."""
        kinds = (self.exclusive, self.gangs, self.overdue)
        return [each for held in kinds for each in held.values()]

    def exclusive_and_active(self) -> Iterator[Reservation]:
        """Yield every exclusive and every active reservation."""
        yield from self.exclusive.values()
        yield from self.gangs.values()
        yield from self.active.values()

    def could_hold(
        self, shape: EquivalenceClass, pool: PoolName, account: AutoscalingAccount | None = None
    ) -> bool:
        """Return whether a pool could hold a workload if no other workload ran there.

        Pods at a required distance stay where they are. Future nodes count if the user may get
        them.
        """
        seen = self._placement.version_for(shape)
        grows = account is not None and self._placement.autoscaling_capacity.is_scale_up_reliable(
            pool, account
        )
        known = self._could_hold_cache.get(shape, {}).get((pool, grows))
        if known is None or known[0] != seen:
            known = seen, self._choose_soonest_nodes(shape, pool, grows) is not None
            self._could_hold_cache.setdefault(shape, {})[pool, grows] = known
        return known[1]

    def has_exclusive_reservation(self, uid: Uid) -> bool:
        """Return whether a waiting workload has an exclusive reservation."""
        return self.exclusive_reservation_of(uid) is not None

    def exclusive_reservation_of(self, uid: Uid) -> Reservation | None:
        """Return the exclusive reservation of a workload, also as a follower, or None."""
        held = (*self.exclusive.values(), *self.gangs.values())
        return next((r for r in held if r.is_for(uid)), None)

    def reservation_of_victim(self, uid: Uid) -> Reservation | None:
        """Return the reservation for which a pod is being evicted, or None."""
        return next((r for r in self.exclusive.values() if uid in r.victims), None)

    def reserved_nodes(self, pool: PoolName, uid: Uid) -> list[NodeName]:
        """Return the nodes of a pool reserved for other workloads. Empty if there are too many."""
        kinds = (self.active, self.exclusive, self.gangs, self.overdue)
        found = (held.get(pool) for held in kinds)
        nodes = {
            n for r in found if r is not None and not r.is_for(uid) for n in r.capacity_by_node
        }
        return sorted(nodes) if len(nodes) <= MAX_AVOIDED_NODES else []

    def _exclusive_capacity(self, pool: PoolName) -> dict[NodeName, dict[Resource, int]]:
        """Return the capacity of a pool that is reserved exclusively."""
        rooms: dict[NodeName, dict[Resource, int]] = {}
        for held in (self.exclusive, self.gangs):
            if pool in held:
                for node, amounts in held[pool].capacity_by_node.items():
                    add_to(rooms.setdefault(node, {}), amounts, 1)
        return rooms

    def total_capacity(
        self, against: Iterable[Reservation], owned: Reservation | None = None
    ) -> ReservedCapacity:
        """Return the total capacity of some reservations of one pool.

        Nodes of `owned` are left out. They are reserved for the workload that asks.
        """
        others = tuple(against)
        if not others:
            return NO_RESERVATION
        key = (*others, owned)
        if key not in self._total_capacity_cache:
            if len(self._total_capacity_cache) > MAX_CACHED_TOTALS:
                self._total_capacity_cache.clear()
            rooms: dict[NodeName, dict[Resource, int]] = {}
            for reservation in others:
                for node, amounts in reservation.capacity_by_node.items():
                    if owned is not None and node in owned.capacity_by_node:
                        continue
                    add_to(rooms.setdefault(node, {}), amounts, 1)
            self._total_capacity_cache[key] = ReservedCapacity(rooms)
        return self._total_capacity_cache[key]

    def expected_start(self, reservation: Reservation) -> Millis | None:
        """Return when its capacity is free by declared run times; None if unknown."""
        pool, latest = reservation.pool, Millis(0)
        for node, wanted in reservation.capacity_by_node.items():
            at = self._free_at(pool, node, wanted)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def _choose_soonest_nodes(
        self,
        shape: EquivalenceClass,
        pool: PoolName,
        grows: bool,
        beside: AmountsByNode = NO_CAPACITY,
    ) -> dict[NodeName, Amounts] | None:
        """Choose the nodes that can be free soonest: by declared ends, then by devices in use.

        Capacity `beside` stays occupied. Pods that must stay in one domain get capacity in one
        domain. If the pool `grows`, requests beyond its nodes are reserved on future nodes.
        """
        grounds = self._placement.domain_nodes(shape, pool)
        if grounds is None:
            grows = grows and self._placement.autoscaling_capacity.could_hold(shape, pool)
            return self._choose_soonest_among(shape, pool, beside, None, grows)
        found = [self._choose_soonest_among(shape, pool, beside, among) for among in grounds]
        chances = [rooms for rooms in found if rooms is not None]
        return min(
            chances, key=lambda rooms: self._free_time_and_missing(pool, rooms), default=None
        )

    def _free_time_and_missing(self, pool: PoolName, rooms: AmountsByNode) -> tuple[Millis, int]:
        """Return when this capacity is free, and how many of its devices are still in use."""
        times = [self._free_at(pool, node, amounts) for node, amounts in rooms.items()]
        latest = max([NEVER_MS if at is None else at for at in times], default=Millis(0))
        return latest, sum(
            self._missing_devices(pool, node, amounts) for node, amounts in rooms.items()
        )

    def _choose_soonest_among(
        self,
        shape: EquivalenceClass,
        pool: PoolName,
        beside: AmountsByNode,
        among: Collection[NodeName] | None,
        grows: bool = False,
    ) -> dict[NodeName, Amounts] | None:
        """Do the same as `_choose_soonest_nodes` on the nodes `among`; None means any node."""
        rooms = {node: dict(amounts) for node, amounts in beside.items()}
        pins = self._placement.allowed_nodes_by_part(shape, pool) or (None,) * len(
            shape.request_counts
        )
        trial = TentativePeers(self._placement.pod_peers, pool)
        for number in sorted(range(len(pins)), key=lambda number: pins[number] is None):
            demand, count = shape.request_counts[number]
            chances: list[Chance] = []
            pin = pins[number] if among is None else filter_allowed(pins[number], among)
            for node in self._placement.ready_nodes(pool, pin):
                chances += self._candidates_on_node(pool, node, demand, count, rooms.get(node, {}))
            there = min(count, len(chances)) if grows else count
            nodes = choose_nodes(sorted(chances), there, *constraints_of_part(shape, number), trial)
            if nodes is None:
                return None
            for node in (*nodes, *[FUTURE_NODE] * (count - there)):
                add_to(rooms.setdefault(node, {}), demand, 1)
        if not self._placement.autoscaling_capacity.could_provide(pool, rooms.get(FUTURE_NODE, {})):
            return None
        for node, amounts in beside.items():
            add_to(rooms[node], amounts, -1)
        return {node: amounts for node, amounts in rooms.items() if any(amounts.values())}

    def _candidates_on_node(
        self, pool: PoolName, node: NodeName, demand: Amounts, count: int, rest: Amounts
    ) -> Iterator[Chance]:
        """Yield when a node could hold each of up to `count` pods beside `rest`."""
        taken = dict(rest)
        for _ in range(count):
            add_to(taken, demand, 1)
            if not self._could_node_hold(pool, node, taken):
                return
            by = self._free_at(pool, node, taken)
            yield NEVER_MS if by is None else by, self._missing_devices(pool, node, taken), node

    def _could_node_hold(self, pool: PoolName, node: NodeName, wanted: Amounts) -> bool:
        room = dict(self._placement.free_on(pool, node))
        for allocation in self._placement.allocations_by_node.get(node, ()):
            add_to(room, allocation.demand, 1)
        return fits(wanted, room)

    def _free_at(self, pool: PoolName, node: NodeName, wanted: Amounts) -> Millis | None:
        """Return when a node has this capacity by declared run times, or None."""
        room = dict(self._placement.free_on(pool, node))
        if fits(wanted, room):
            return Millis(0)
        stays = self._placement.allocations_by_node.get(node, ())
        for ends, allocation in sorted(
            (
                (allocation.declared_end, allocation)
                for allocation in stays
                if allocation.declared_end is not None
            ),
            key=lambda pair: pair[0],
        ):
            add_to(room, allocation.demand, 1)
            if fits(wanted, room):
                return ends
        return None

    def _missing_devices(self, pool: PoolName, node: NodeName, wanted: Amounts) -> int:
        """Return how many of the requested devices are still in use on a node."""
        free = self._placement.free_on(pool, node)
        return sum(max(0, v - free.get(r, 0)) for r, v in wanted.items() if is_device(r))
