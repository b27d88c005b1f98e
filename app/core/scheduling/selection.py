"""Selects the next workload in fair order, and the workloads that may start if it does not fit.

The next workload blocks no other workload, but its reservation timer runs. If it has a reservation,
the reserved capacity is withheld from later workloads. A selection changes only timers and
reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.core.fairshare.decision import Selection
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import SiblingKey
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import Gang
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, PoolName, Uid
from app.core.placement.allocations import NO_RESERVATION, Allocations, ReservedCapacity
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.reservation import Reservation, Reservations, timer_key_of

DISTRUST_MS = 3_600_000
"""Time for which declared run times of a user are ignored after a pod exceeded its own."""

MAX_DISTRUSTED_USERS = 1000
"""Number of such users from which expired entries are dropped."""


class WorkloadSelector:
    """Selects workloads to release, and waiting heads. Only one search runs at a time."""

    def __init__(
        self,
        registry: PodRegistry,
        placement: Allocations,
        reservations: Reservations,
        on_evaluate: Callable[[Uid | None], None],
    ) -> None:
        self._on_evaluate = on_evaluate
        self._registry = registry
        self._placement = placement
        self._reservations = reservations
        self._distrusted_runtimes: dict[tuple[str, str], Millis] = {}
        self._expected_starts: dict[Reservation, Millis | None] = {}
        self._passed_reservations: list[Reservation] = []
        self._fitting_classes: set[EquivalenceClass] = set()
        self._reservation_owners: dict[TenantNode, None] = {}
        self._last_tree: ShareTree | None = None
        self.evaluations = 0
        """Number of equivalence classes evaluated in this cycle, repeated evaluations included."""
        self._examples: dict[EquivalenceClass, Uid] = {}
        """A waiting workload of each class that was evaluated in the last cycles."""

    @property
    def _tree(self) -> ShareTree:
        return self._registry.usage.tree

    def distrust_runtime(self, leaf: UserNode, now: Millis) -> None:
        """Record that a pod of a user exceeded its declared run time."""
        if len(self._distrusted_runtimes) >= MAX_DISTRUSTED_USERS:
            self._distrusted_runtimes = {
                who: until for who, until in self._distrusted_runtimes.items() if until > now
            }
        self._distrusted_runtimes[leaf.account] = Millis(now + DISTRUST_MS)

    def reset_evaluations(self) -> None:
        """Start a scheduling cycle."""
        self.evaluations = 0
        shapes = self._tree.root.waiting_by_class
        self._examples = {s: uid for s, uid in self._examples.items() if s in shapes}

    def update_and_get_next_user(self) -> UserNode | None:
        """Update order and reservations. Return the user of the head that is next, or None."""
        self._tree.update_order()
        self._update_reservations()
        return self._tree.next_user()

    def select_head(self, leaf: UserNode) -> Selection | None:
        """Return the head of a user if it fits now in a pool that does not worsen its position."""
        if leaf.head is None:
            return None
        queue_key, shape, pool = leaf.head
        choice = self._select_workload(leaf, queue_key, shape)
        if choice is not None and choice.pool != pool and self._worsens_position(choice):
            return None
        return choice

    def fits_now(self, leaf: UserNode) -> bool:
        """Return whether a head fits in capacity that is not reserved for users before it."""
        assert leaf.head is not None
        queue_key, shape, _ = leaf.head
        before = self._reservations_before(leaf)
        return self._select_workload(leaf, queue_key, shape, before) is not None

    def select_if_fits(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass
    ) -> Selection | None:
        """Return a workload if it may start and fits now, wherever it is in the order."""
        return self._select_workload(leaf, queue_key, shape)

    def pools_within_limits(self, leaf: UserNode, shape: EquivalenceClass) -> tuple[PoolName, ...]:
        """Return the pools in which the limits of its tenants permit a workload."""
        return tuple(pool for pool in shape.pools if self._tree.is_within_limits(leaf, shape, pool))

    def _worsens_position(self, choice: Selection) -> bool:
        """Return whether the pool of a selection gives the workload a later position."""
        return any(
            branch.key is not None
            and self._tree.rank(branch, choice.equivalence_class, choice.pool) > branch.key[:3]
            for branch in path_to_root(choice.leaf)
        )

    def select_reservation_owner(self) -> Selection | None:
        """Return the first owner of an exclusive or overdue reservation that fits now, or None."""
        for reservation in self._reservations.all_binding():
            if self._is_queued(reservation):
                choice = self._select_workload(
                    reservation.leaf,
                    reservation.owner,
                    reservation.equivalence_class,
                    self._reservations_before(reservation.leaf),
                )
                if choice is not None:
                    return choice
        return None

    def _is_queued(self, reservation: Reservation) -> bool:
        """Return whether the owner is queued. It is not while its claims are unsettled."""
        return self._registry.find_workload(reservation.owner.uid) is not None

    def select_backfill(self) -> Selection | None:
        """Return the first workload in order that fits and is allowed, if any."""
        self._passed_reservations = []
        self._reservation_owners = {
            branch: None
            for r in self._reservations.active.values()
            for branch in path_to_root(r.leaf)
        }
        for reservation in self._reservations.all_binding():
            self._reservation_owners.update(dict.fromkeys(path_to_root(reservation.leaf)))
        self._fitting_classes = self._find_fitting_classes()
        if not self._fitting_classes:
            return None
        return self._search_children(self._tree.root)

    def could_start(self, branch: TenantNode) -> bool:
        """Return whether an allowed head could certainly start with all reservations withheld."""
        assert branch.head is not None
        queue_key, shape, pool = branch.head
        self._on_evaluate(queue_key.uid)
        standing = tuple(self._reservations.active.values())
        withheld = self._withheld_capacity(pool, queue_key, shape, None, standing)
        if branch.head_user is None or not self._registry.usage.policy.backfill:
            return False  # no backfill: only the next workload starts
        if not self._may_start(branch.head_user, shape, pool):
            return False
        account = branch.head_user.account
        return self._placement.find_assignment_for(account, shape, pool, withheld) is not None

    def _search_children(self, branch: TenantNode) -> Selection | None:
        """Search the children in order. docs/decisions/0008 explains why heads bind backfill.

        A child may offer a workload with a later position than its head. This workload is selected
        only if no sibling offers one with the position of the sibling's head.
        """
        tree, fallback = self._tree, None
        for child in tree.ordered_children(branch):
            if child not in self._reservation_owners and self._fitting_classes.isdisjoint(
                child.waiting_by_class
            ):
                continue
            found = (
                self._select_in_queue(child)
                if isinstance(child, UserNode)
                else self._select_in_tenant(child)
            )
            if found is None:
                continue
            assert child.key is not None
            if tree.rank(child, found.equivalence_class, found.pool) <= child.key[:3]:
                return found
            fallback = fallback or found
            self._pass_reservations_below(child)
        return fallback

    def _select_in_tenant(self, tenant: TenantNode) -> Selection | None:
        """Return the head of a tenant if it fits, else a selection from its children."""
        assert tenant.head is not None
        assert tenant.head_user is not None
        queue_key, shape, _ = tenant.head
        return self._select_workload(
            tenant.head_user, queue_key, shape, self._passed_reservations
        ) or self._search_children(tenant)

    def _select_in_queue(self, leaf: UserNode) -> Selection | None:
        standing = self._reservations.active.values()
        ahead = sorted((r for r in standing if r.leaf is leaf), key=lambda r: r.owner)
        found = None
        for queue_key, shape in self._queue_candidates(leaf):
            while ahead and ahead[0].owner < queue_key:
                self._pass_reservation(ahead.pop(0))
            found = self._select_workload(leaf, queue_key, shape, self._passed_reservations)
            if found is not None:
                break
        for reservation in ahead:
            self._pass_reservation(reservation)
        return found

    def _queue_candidates(self, leaf: UserNode) -> Iterable[tuple[QueueKey, EquivalenceClass]]:
        """Return the candidates of a queue in order.

        These are the first workload of every equivalence class, and each owner of a reservation. An
        owner may fit although earlier workloads of its class do not.
        """
        reservations = self._reservations
        standing = (*reservations.all_binding(), *reservations.active.values())
        owners = {
            r.owner: r.equivalence_class for r in standing if r.leaf is leaf and self._is_queued(r)
        }
        if not owners:
            return leaf.queue.class_heads()
        return sorted(
            {**owners, **dict(leaf.queue.class_heads())}.items(), key=lambda pair: pair[0]
        )

    def _pass_reservations_below(self, branch: TenantNode) -> None:
        """Pass all reservations below a branch. Workloads after the branch must respect these."""
        for reservation in self._reservations.active.values():
            if reservation not in self._passed_reservations and branch in path_to_root(
                reservation.leaf
            ):
                self._pass_reservation(reservation)

    def _pass_reservation(self, reservation: Reservation) -> None:
        self._passed_reservations.append(reservation)
        self._fitting_classes = self._find_fitting_classes()

    def _select_workload(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        passed: Sequence[Reservation] = (),
    ) -> Selection | None:
        self._on_evaluate(queue_key.uid)
        pool = shape.pools[0]
        if len(shape.pools) > 1:
            options = self._fitting_pools(leaf, queue_key, shape, passed)
            if not options:
                return None
            pool = self._tree.choose_pool(leaf, shape, options)
            if leaf.head is not None and leaf.head[0] is queue_key and leaf.head[2] in options:
                pool = leaf.head[2]  # the pool of its position in the order
        elif not self._may_start(leaf, shape, pool):
            return None
        withheld = self._withheld_capacity(pool, queue_key, shape, leaf, passed)
        plan = self._placement.find_assignment_for(leaf.account, shape, pool, withheld)
        return Selection(leaf, queue_key, shape, pool, plan) if plan is not None else None

    def _may_start(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether limits and release windows permit a workload in a pool now."""
        return self._tree.is_open(leaf, shape, pool) and self._tree.is_within_limits(
            leaf, shape, pool
        )

    def _fitting_pools(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        passed: Sequence[Reservation],
    ) -> tuple[PoolName, ...]:
        """Return the pools where a workload is permitted and fits now, the best first."""
        fitting = {}
        for pool in shape.pools:
            withheld = self._withheld_capacity(pool, queue_key, shape, leaf, passed)
            plan = self._placement.find_assignment_for(leaf.account, shape, pool, withheld)
            if plan is not None and self._may_start(leaf, shape, pool):
                fitting[pool] = plan
        return self._placement.rank_pools(shape, fitting)

    def _withheld_capacity(
        self,
        pool: PoolName,
        queue_key: QueueKey | None,
        shape: EquivalenceClass,
        leaf: UserNode | None,
        passed: Sequence[Reservation],
    ) -> ReservedCapacity:
        reservations = self._reservations
        binding = reservations.all_binding()
        if not (passed or binding):
            return NO_RESERVATION
        against = [r for r in passed if r.pool == pool]
        against += [r for r in binding if r.pool == pool and r not in against]
        paid = None
        if queue_key is not None:
            own = [r for r in against if r.is_exclusive and r.owner.uid == queue_key.uid]
            if any(r.completes_gang for r in own):
                # Others wait for it, so it waits for none. What an eviction frees is not for it.
                paid_for = reservations.exclusive.get(pool)
                return reservations.total_capacity([paid_for] if paid_for in against else [])
            paid = next((r for r in own if not r.victims), None)
            against = [r for r in against if r.owner.uid != queue_key.uid]
        if shape.lifetime is not None:
            against = [r for r in against if not self._ends_before(shape, leaf, r)]
        return reservations.total_capacity(against, paid)

    def withheld_from_reclaim(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> ReservedCapacity:
        """Return the capacity of a pool that is reserved for workloads before a blocked head.

        It evicts pods rather than take this capacity.
        """
        before = self._reservations_before(leaf)
        return self._withheld_capacity(pool, queue_key, shape, leaf, before)

    def _reservations_before(self, leaf: UserNode) -> list[Reservation]:
        """Return the active reservations of users that precede a user in the order."""
        active = self._reservations.active.values()
        return [r for r in active if _rank_of(r.leaf) < _rank_of(leaf)]

    def _ends_before(
        self, shape: EquivalenceClass, leaf: UserNode | None, reservation: Reservation
    ) -> bool:
        """Return whether a trusted declaration says that a workload ends before a reservation."""
        now = self._registry.usage.now
        if reservation.is_exclusive or shape.lifetime is None:
            return False
        if leaf is not None and self._is_runtime_distrusted(leaf, now):
            return False
        if reservation not in self._expected_starts:
            self._expected_starts[reservation] = self._reservations.expected_start(reservation)
        starts = self._expected_starts[reservation]
        return starts is not None and now + shape.lifetime <= starts

    def _is_still_needed(self, reservation: Reservation) -> bool:
        """Return whether the owner of a reservation still waits for it and may use it."""
        workload = self._registry.find_workload(reservation.owner.uid)
        if workload is None or workload.leaf is None or workload.equivalence_class is None:
            unsettled = self._registry.are_claims_unsettled(reservation.owner.uid)
            return unsettled and not reservation.completes_gang
        if reservation.completes_gang and not (
            isinstance(workload, Gang) and workload.is_partially_released
        ):
            return False  # its released pods have ended: a whole gang waits like any workload
        leaf, shape, pool = workload.leaf, workload.equivalence_class, reservation.pool
        return pool in shape.pools and self._tree.is_within_limits(leaf, shape, pool)

    def _is_runtime_distrusted(self, leaf: UserNode, now: Millis) -> bool:
        """Return whether the user has, or recently had, a pod beyond its declared run time."""
        if self._distrusted_runtimes.get(leaf.account, 0) > now:
            return True
        self._distrusted_runtimes.pop(leaf.account, None)
        running = self._registry.charged_by_user.get(leaf, {}).values()
        return any(
            t.allocation is not None and t.allocation.is_past_declared_end(now) for t in running
        )

    def _find_fitting_classes(self) -> set[EquivalenceClass]:
        """Return the equivalence classes that fit somewhere in capacity that is not withheld."""
        self.evaluations += len(self._tree.root.waiting_by_class)
        owners = [*self._passed_reservations, *self._reservations.all_binding()]
        owned = {r.equivalence_class for r in owners}
        found = {
            shape
            for shape in self._tree.root.waiting_by_class
            if shape in owned or self._fits_anywhere(shape)
        }
        self._on_evaluate(None)
        return found

    def _fits_anywhere(self, shape: EquivalenceClass) -> bool:
        """Return whether a class fits somewhere now. The time is attributed to one of its pods."""
        self._on_evaluate(self._example_workload(shape))
        return any(
            self._placement.find_assignment(
                shape,
                pool,
                self._withheld_capacity(pool, None, shape, None, self._passed_reservations),
            )
            for pool in shape.pools
        )

    def _example_workload(self, shape: EquivalenceClass) -> Uid | None:
        """Return a waiting workload of a class, the same one until it waits no more."""
        uid = self._examples.get(shape)
        if uid is not None:
            workload = self._registry.find_workload(uid)
            if workload is not None and workload.equivalence_class is shape:
                return uid
        leaf = self._tree.first_user_with_class(shape)
        if leaf is None:
            return None
        uid = next(queue_key.uid for queue_key, other in leaf.queue.class_heads() if other is shape)
        self._examples[shape] = uid
        return uid

    def _update_reservations(self) -> None:
        """Give the reservation of each pool to the first workload that waited long enough."""
        reservations, usage, tree = self._reservations, self._registry.usage, self._tree
        if self._last_tree is not tree:
            self._last_tree = tree
            reservations.reset_for_new_tree()
        reservations.drop_unneeded_exclusive(self._registry.find_workload, self._is_still_needed)
        self._expected_starts.clear()
        overdue = {r.timer_key: p for p, r in reservations.overdue.items() if r.timer_key}
        waiting = []
        expired = reservations.expired_timers(usage.now, usage.policy.reserve_after)
        for key in dict.fromkeys([*overdue, *expired]):
            workload = key if isinstance(key, Gang) else self._registry.pods.get(key)
            if workload is not None and workload.equivalence_class is not None:
                assert workload.leaf is not None
                place = (key not in overdue, _rank_of(workload.leaf), workload.queue_key)
                waiting.append((place, workload))
        reservations.active.clear()
        for _, workload in sorted(waiting, key=lambda pair: pair[0]):
            leaf, queue_key, shape = workload.leaf, workload.queue_key, workload.equivalence_class
            assert leaf is not None
            assert queue_key is not None
            assert shape is not None
            if reservations.has_exclusive_reservation(queue_key.uid):
                continue
            held = overdue.get(timer_key_of(workload))
            for pool in (held,) if held in shape.pools else shape.pools:
                free = pool not in reservations.active and tree.is_within_limits(leaf, shape, pool)
                if free and reservations.reserve(workload, pool):
                    break
        reservations.refresh_overdue()


def _rank_of(leaf: UserNode) -> list[SiblingKey]:
    """Return the position of a user in the whole order, comparable between users."""
    return [branch.key for branch in path_to_root(leaf) if branch.key is not None][::-1]
