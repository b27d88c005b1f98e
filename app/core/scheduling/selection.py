"""Selects the next workload in fair order, and the workloads that may start if it does not fit.

The next workload blocks no other workload, but its reservation timer runs. If it has a reservation,
the reserved capacity is withheld from later workloads. A selection changes only timers and
reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.core.fairshare.decision import Selection
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import GUARANTEED, SiblingKey
from app.core.fairshare.tree_node import TenantNode, UserNode, path
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import Gang
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, PoolName, Uid
from app.core.placement.allocations import NOTHING, Allocations, ReservedCapacity
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.reservation import Reservation, Reservations

BARRED_MS = 3_600_000
"""Time for which declared run times of a user are ignored after a pod exceeded its own."""


MOST_BARRED = 1000
"""Number of such users from which expired entries are dropped."""


class WorkloadSelector:
    """Selects workloads to release, and waiting heads. Only one search runs at a time."""

    def __init__(
        self,
        registry: PodRegistry,
        placement: Allocations,
        reservations: Reservations,
        considers: Callable[[Uid | None], None],
    ) -> None:
        self._considers = considers
        self._registry = registry
        self._placement = placement
        self._reservations = reservations
        self._barred: dict[tuple[str, str], Millis] = {}
        self._starts: dict[Reservation, Millis | None] = {}
        self._passed: list[Reservation] = []
        self._possible: set[EquivalenceClass] = set()
        self._owners: dict[TenantNode, None] = {}
        self._known: ShareTree | None = None
        self.looks = 0
        """Number of equivalence classes evaluated in this cycle, repeated evaluations included."""
        self._examples: dict[EquivalenceClass, Uid] = {}
        """A waiting workload of each class that was evaluated in the last cycles."""

    @property
    def _tree(self) -> ShareTree:
        return self._registry.usage.tree

    def bar(self, leaf: UserNode, now: Millis) -> None:
        """Record that a pod of a user exceeded its declared run time."""
        if len(self._barred) >= MOST_BARRED:
            self._barred = {who: until for who, until in self._barred.items() if until > now}
        self._barred[leaf.account] = Millis(now + BARRED_MS)

    def start_cycle(self) -> None:
        """Start a scheduling cycle."""
        self.looks = 0
        shapes = self._tree.root.shapes
        self._examples = {s: uid for s, uid in self._examples.items() if s in shapes}

    def next(self) -> UserNode | None:
        """Update order and reservations. Return the user of the head that is next, or None."""
        self._tree.settle()
        self._renew()
        return self._tree.next()

    def start(self, leaf: UserNode) -> Selection | None:
        """Return the head of a user if it fits now in a pool that does not worsen its position."""
        if leaf.head is None:
            return None
        queue_key, shape, pool = leaf.head
        choice = self._try(leaf, queue_key, shape)
        if choice is not None and choice.pool != pool and self._stands_worse(choice):
            return None
        return choice

    def fit(self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass) -> Selection | None:
        """Return a workload if it may start and fits now, wherever it is in the order."""
        return self._try(leaf, queue_key, shape)

    def allowed(self, leaf: UserNode, shape: EquivalenceClass) -> tuple[PoolName, ...]:
        """Return the pools in which the limits of its tenants permit a workload."""
        return tuple(pool for pool in shape.pools if self._tree.allows(leaf, shape, pool))

    def _stands_worse(self, choice: Selection) -> bool:
        """Return whether the pool of a selection gives the workload a later position."""
        return any(
            branch.key is not None
            and self._tree.rank(branch, choice.shape, choice.pool) > branch.key[:3]
            for branch in path(choice.leaf)
        )

    def waiting(self) -> list[UserNode]:
        """Start the reservation timer of every head that is next but does not fit. Return the
        users.

        The next head of a pool is the first in order that the pool could ever hold. Heads within a
        guarantee, one per tenant, are returned too, without a timer.
        """
        found: list[UserNode] = []
        unclaimed = {pool for shape in self._tree.root.shapes for pool in shape.pools}
        self._wait(self._tree.root, unclaimed, found)
        return found

    def _wait(self, branch: TenantNode, unclaimed: set[PoolName], found: list[UserNode]) -> None:
        owed = False
        for child in self._tree.children(branch):
            if child.key is None or child.key.blocked:
                return
            if not (child.guaranteed or unclaimed):
                continue
            if not isinstance(child, UserNode):
                if child.guaranteed or _may_use(child, unclaimed):
                    self._wait(child, unclaimed, found)
            elif child.head is not None:
                queue_key, shape, _ = child.head
                self._considers(queue_key.uid)
                holders = [p for p in shape.pools if self._could_ever(child, shape, p)]
                first = not unclaimed.isdisjoint(holders)
                guaranteed = not owed and self._is_guaranteed(child, shape, holders)
                if not (first or guaranteed):
                    continue
                unclaimed.difference_update(holders)
                owed = owed or guaranteed
                if self._try(child, queue_key, shape) is None:
                    found.append(child)
                    if first:
                        self._reservations.note(queue_key.uid, self._registry.usage.now)

    def _could_ever(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a workload may use a pool, and would fit if the pool were empty."""
        could_hold = self._reservations.could_hold
        return self._tree.allows(leaf, shape, pool) and could_hold(shape, pool, leaf.account)

    def _is_guaranteed(
        self, leaf: UserNode, shape: EquivalenceClass, pools: Sequence[PoolName]
    ) -> bool:
        """Return whether a guarantee of a tenant above covers its usage with this workload.

        `pools` have nodes that could hold it. A pool that grows need not have such nodes yet.
        """
        return leaf.guaranteed and any(
            branch.guarantees and self._tree.rank(branch, shape, pool).band == GUARANTEED
            for pool in shape.pools
            if pool in pools or self._may_grow_for(leaf, shape, pool)
            for branch in path(leaf)
        )

    def _may_grow_for(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        beyond = self._placement.beyond
        return self._tree.allows(leaf, shape, pool) and beyond.could_hold(shape, pool)

    def uses_least(self, reservation: Reservation) -> bool:
        """Return whether no waiting sibling borrows less than the owner, at any level."""
        tree, pool = self._tree, reservation.pool
        for branch in path(reservation.leaf):
            if branch.parent is not None:
                own = tree.standing(branch, pool, (), 0)
                waiting = tree.children(branch.parent)
                if any(tree.standing(other, pool, (), 0) < own for other in waiting):
                    return False
        return True

    def claimed(self) -> Selection | None:
        """Return the first owner of an exclusive or overdue reservation that fits now, or None."""
        reservations = self._reservations
        for reservation in (*reservations.strict.values(), *reservations.overdue.values()):
            choice = self._try(reservation.leaf, reservation.owner, reservation.shape)
            if choice is not None:
                return choice
        return None

    def backfill(self) -> Selection | None:
        """Return the first workload in order that fits and is allowed, if any."""
        self._passed = []
        self._owners = {
            branch: None for r in self._reservations.standing.values() for branch in path(r.leaf)
        }
        for reservation in self._reservations.strict.values():
            self._owners.update(dict.fromkeys(path(reservation.leaf)))
        self._possible = self._fitting_now()
        if not self._possible:
            return None
        return self._search(self._tree.root)

    def could_start(self, branch: TenantNode) -> bool:
        """Return whether an allowed head could certainly start with all reservations withheld."""
        assert branch.head is not None
        queue_key, shape, pool = branch.head
        self._considers(queue_key.uid)
        standing = tuple(self._reservations.standing.values())
        withheld = self._withheld(pool, queue_key, shape, None, standing)
        if branch.source is None or not self._registry.usage.policy.backfill:
            return False  # no backfill: only the next workload starts
        if not self._may_go(branch.source, shape, pool):
            return False
        account = branch.source.account
        return self._placement.plan_for(account, shape, pool, withheld) is not None

    def _search(self, branch: TenantNode) -> Selection | None:
        """Search the children in order. docs/decisions/0008 explains why heads bind backfill.

        A child may offer a workload with a later position than its head. This workload is selected
        only if no sibling offers one with the position of the sibling's head.
        """
        tree, fallback = self._tree, None
        for child in tree.children(branch):
            if child not in self._owners and self._possible.isdisjoint(child.shapes):
                continue
            found = self._within(child) if isinstance(child, UserNode) else self._below(child)
            if found is None:
                continue
            assert child.key is not None
            if tree.rank(child, found.shape, found.pool) <= child.key[:3]:
                return found
            fallback = fallback or found
            self._pass_below(child)
        return fallback

    def _below(self, tenant: TenantNode) -> Selection | None:
        """Return the head of a tenant if it fits, else a selection from its children."""
        assert tenant.head is not None
        assert tenant.source is not None
        queue_key, shape, _ = tenant.head
        return self._try(tenant.source, queue_key, shape, self._passed) or self._search(tenant)

    def _within(self, leaf: UserNode) -> Selection | None:
        standing = self._reservations.standing.values()
        ahead = sorted((r for r in standing if r.leaf is leaf), key=lambda r: r.owner)
        found = None
        for queue_key, shape in self._in_turn(leaf):
            while ahead and ahead[0].owner < queue_key:
                self._pass(ahead.pop(0))
            found = self._try(leaf, queue_key, shape, self._passed)
            if found is not None:
                break
        for reservation in ahead:
            self._pass(reservation)
        return found

    def _in_turn(self, leaf: UserNode) -> Iterable[tuple[QueueKey, EquivalenceClass]]:
        """Return the candidates of a queue in order.

        These are the first workload of every equivalence class, and each owner of a reservation. An
        owner may fit although earlier workloads of its class do not.
        """
        reservations = self._reservations
        kinds = (reservations.strict, reservations.overdue, reservations.standing)
        owners = {r.owner: r.shape for kind in kinds for r in kind.values() if r.leaf is leaf}
        if not owners:
            return leaf.queue.heads()
        return sorted({**owners, **dict(leaf.queue.heads())}.items(), key=lambda pair: pair[0])

    def _pass_below(self, branch: TenantNode) -> None:
        """Pass all reservations below a branch. Workloads after the branch must respect these."""
        for reservation in self._reservations.standing.values():
            if reservation not in self._passed and branch in path(reservation.leaf):
                self._pass(reservation)

    def _pass(self, reservation: Reservation) -> None:
        self._passed.append(reservation)
        self._possible = self._fitting_now()

    def _try(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        passed: Sequence[Reservation] = (),
    ) -> Selection | None:
        self._considers(queue_key.uid)
        pool = shape.pools[0]
        if len(shape.pools) > 1:
            options = self._options(leaf, queue_key, shape, passed)
            if not options:
                return None
            pool = self._tree.target(leaf, shape, options)
            if leaf.head is not None and leaf.head[0] is queue_key and leaf.head[2] in options:
                pool = leaf.head[2]  # the pool of its position in the order
        elif not self._may_go(leaf, shape, pool):
            return None
        withheld = self._withheld(pool, queue_key, shape, leaf, passed)
        plan = self._placement.plan_for(leaf.account, shape, pool, withheld)
        return Selection(leaf, queue_key, shape, pool, plan) if plan is not None else None

    def _may_go(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether limits and release windows permit a workload in a pool now."""
        return self._tree.is_open(leaf, shape, pool) and self._tree.allows(leaf, shape, pool)

    def _options(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        passed: Sequence[Reservation],
    ) -> tuple[PoolName, ...]:
        """Return the pools where a workload is permitted and fits now, the best first."""
        fitting = {}
        for pool in shape.pools:
            withheld = self._withheld(pool, queue_key, shape, leaf, passed)
            plan = self._placement.plan_for(leaf.account, shape, pool, withheld)
            if plan is not None and self._may_go(leaf, shape, pool):
                fitting[pool] = plan
        return self._placement.ranked(shape, fitting)

    def _withheld(
        self,
        pool: PoolName,
        queue_key: QueueKey | None,
        shape: EquivalenceClass,
        leaf: UserNode | None,
        passed: Sequence[Reservation],
    ) -> ReservedCapacity:
        reservations = self._reservations
        if not (passed or reservations.strict or reservations.overdue):
            return NOTHING
        against = [r for r in passed if r.pool == pool]
        for binding in (reservations.strict, reservations.overdue):
            if pool in binding and binding[pool] not in against:
                against.append(binding[pool])
        if queue_key is not None:
            paid = reservations.strict.get(pool)
            if paid is not None and paid.owner.uid == queue_key.uid:
                return NOTHING  # others wait for it, so it must not wait for them
            against = [r for r in against if r.owner.uid != queue_key.uid]
        if shape.lifetime is not None:
            against = [r for r in against if not self._ends_before(shape, leaf, r)]
        return reservations.withheld(against)

    def _ends_before(
        self, shape: EquivalenceClass, leaf: UserNode | None, reservation: Reservation
    ) -> bool:
        """Return whether a trusted declaration says that a workload ends before a reservation."""
        now = self._registry.usage.now
        if reservation.strict or shape.lifetime is None:
            return False
        if leaf is not None and self._is_barred(leaf, now):
            return False
        if reservation not in self._starts:
            self._starts[reservation] = self._reservations.starts(reservation)
        starts = self._starts[reservation]
        return starts is not None and now + shape.lifetime <= starts

    def _is_due(self, reservation: Reservation) -> bool:
        """Return whether the owner of a reservation still waits for it and may use it."""
        workload = self._registry.workload(reservation.owner.uid)
        if workload is None or workload.leaf is None or workload.shape is None:
            return False
        if reservation.completes and not (isinstance(workload, Gang) and workload.half):
            return False  # its released pods have ended: a whole gang waits like any workload
        leaf, shape, pool = workload.leaf, workload.shape, reservation.pool
        if pool not in shape.pools or not self._tree.allows(leaf, shape, pool):
            return False
        reservation.leaf, reservation.shape = leaf, shape
        return True

    def _is_barred(self, leaf: UserNode, now: Millis) -> bool:
        """Return whether the user has, or recently had, a pod beyond its declared run time."""
        if self._barred.get(leaf.account, 0) > now:
            return True
        self._barred.pop(leaf.account, None)
        running = self._registry.running.get(leaf, {}).values()
        return any(t.allocation is not None and t.allocation.overstayed(now) for t in running)

    def _fitting_now(self) -> set[EquivalenceClass]:
        """Return the equivalence classes that fit somewhere in capacity that is not withheld."""
        self.looks += len(self._tree.root.shapes)
        bound = (*self._reservations.strict.values(), *self._reservations.overdue.values())
        owners = [*self._passed, *bound]
        owned = {r.shape for r in owners}
        found = {shape for shape in self._tree.root.shapes if shape in owned or self._fits(shape)}
        self._considers(None)
        return found

    def _fits(self, shape: EquivalenceClass) -> bool:
        """Return whether a class fits somewhere now. The time is attributed to one of its pods."""
        self._considers(self._example(shape))
        return any(
            self._placement.plan(shape, pool, self._withheld(pool, None, shape, None, self._passed))
            for pool in shape.pools
        )

    def _example(self, shape: EquivalenceClass) -> Uid | None:
        """Return a waiting workload of a class, the same one until it waits no more."""
        uid = self._examples.get(shape)
        if uid is not None:
            workload = self._registry.workload(uid)
            if workload is not None and workload.shape is shape:
                return uid
        leaf = self._tree.leaf_with(shape)
        if leaf is None:
            return None
        uid = next(queue_key.uid for queue_key, other in leaf.queue.heads() if other is shape)
        self._examples[shape] = uid
        return uid

    def _renew(self) -> None:
        """Give the reservation of each pool to the first workload that waited long enough."""
        reservations, usage, tree = self._reservations, self._registry.usage, self._tree
        if self._known is not tree:
            self._known = tree
            reservations.rebind()
        reservations.keep_strict(self._is_due)
        self._starts.clear()
        overdue = {r.owner.uid: pool for pool, r in reservations.overdue.items()}
        waiting = []
        for uid in reservations.due(usage.now, usage.policy.reserve_after):
            workload = self._registry.workload(uid)
            if workload is not None and workload.leaf is not None:
                place = (uid not in overdue, _rank_of(workload.leaf), workload.queue_key)
                waiting.append((place, workload))
        reservations.standing.clear()
        for _, workload in sorted(waiting, key=lambda pair: pair[0]):
            leaf, queue_key, shape = workload.leaf, workload.queue_key, workload.shape
            assert leaf is not None
            assert queue_key is not None
            assert shape is not None
            if reservations.paid_for(queue_key.uid):
                continue
            for pool in (
                (overdue[queue_key.uid],)
                if overdue.get(queue_key.uid) in shape.pools
                else shape.pools
            ):
                free = pool not in reservations.standing and tree.allows(leaf, shape, pool)
                if free and reservations.reserve(queue_key, leaf, shape, pool):
                    break
        reservations.soften()


def _rank_of(leaf: UserNode) -> list[SiblingKey]:
    """Return the position of a user in the whole order, comparable between users."""
    return [branch.key for branch in path(leaf) if branch.key is not None][::-1]


def _may_use(branch: TenantNode, pools: set[PoolName]) -> bool:
    return any(not pools.isdisjoint(shape.pools) for shape in branch.shapes)
