"""One pick: who is next, whether that fits, and who may start meanwhile if it does not.

The next in fair order blocks nobody, but its clock runs; once it has a reservation, what is
reserved is withheld from whoever comes after it. Picks change nothing but clocks and
reservations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.core.asks.shape import Shape
from app.core.fair.backlog import Turn
from app.core.fair.branch import Branch, Leaf, path
from app.core.fair.decision import Choice
from app.core.fair.order import GUARANTEED, Key
from app.core.fair.shares import Tree
from app.core.model import Millis, PoolName
from app.core.places.placement import NOTHING, Placement, Withheld
from app.core.pods.roster import Roster
from app.core.pods.tracked import Gang
from app.core.turns.reservation import Reservation, Reservations

BARRED_MS = 3_600_000
"""Whoever overstayed a declared run time is not believed for so long."""


class Picker:
    """Finds who is next, who may start, and who waits with a claim. One walk at a time."""

    def __init__(self, roster: Roster, placement: Placement, reservations: Reservations) -> None:
        self._roster = roster
        self._placement = placement
        self._reservations = reservations
        self._barred: dict[tuple[str, str], Millis] = {}
        self._starts: dict[Reservation, Millis | None] = {}
        self._passed: list[Reservation] = []
        self._possible: set[Shape] = set()
        self._owners: dict[Branch, None] = {}
        self._known: Tree | None = None

    @property
    def _tree(self) -> Tree:
        return self._roster.usage.tree

    def bar(self, leaf: Leaf, now: Millis) -> None:
        """A user's work overstayed its declared run time."""
        self._barred[leaf.account] = Millis(now + BARRED_MS)

    def next(self) -> Leaf | None:
        """Bring order and reservations up to date; return the leaf whose head is next."""
        self._tree.settle()
        self._renew()
        return self._tree.next()

    def start(self, leaf: Leaf) -> Choice | None:
        """Return the head of a leaf, if it fits now where its place in the order was found."""
        if leaf.head is None:
            return None
        turn, shape, pool = leaf.head
        choice = self._try(leaf, turn, shape)
        if choice is not None and choice.pool != pool and self._stands_worse(choice):
            return None
        return choice

    def fit(self, leaf: Leaf, turn: Turn, shape: Shape) -> Choice | None:
        """Return a workload, wherever it stands in the order, if it may start and fits now."""
        return self._try(leaf, turn, shape)

    def allowed(self, leaf: Leaf, shape: Shape) -> tuple[PoolName, ...]:
        """Return the pools where the limits of a workload's tenants let it start."""
        return tuple(pool for pool in shape.pools if self._tree.allows(leaf, shape, pool))

    def _stands_worse(self, choice: Choice) -> bool:
        """Tell whether a workload would come later in the order for the pool it can have."""
        return any(
            branch.key is not None
            and self._tree.rank(branch, choice.shape, choice.pool) > branch.key[:3]
            for branch in path(choice.leaf)
        )

    def waiting(self) -> list[Leaf]:
        """Let the clocks run of those who are next and do not fit; return whose heads these are.

        Next, in each pool, is the first in order whose head the pool could ever hold. The heads
        that lie within a guarantee, one for each tenant, are returned too, without a clock.
        """
        found: list[Leaf] = []
        unclaimed = {pool for shape in self._tree.root.shapes for pool in shape.pools}
        self._wait(self._tree.root, unclaimed, found)
        return found

    def _wait(self, branch: Branch, unclaimed: set[PoolName], found: list[Leaf]) -> None:
        owed = False
        for child in self._tree.children(branch):
            if child.key is None or child.key.blocked:
                return
            if not (child.pledged or unclaimed):
                continue
            if not isinstance(child, Leaf):
                if child.pledged or _may_use(child, unclaimed):
                    self._wait(child, unclaimed, found)
            elif child.head is not None:
                turn, shape, _ = child.head
                holders = [p for p in shape.pools if self._could_ever(child, shape, p)]
                first = not unclaimed.isdisjoint(holders)
                guaranteed = not owed and self._is_guaranteed(child, shape, holders)
                if not (first or guaranteed):
                    continue
                unclaimed.difference_update(holders)
                owed = owed or guaranteed
                if self._try(child, turn, shape) is None:
                    found.append(child)
                    if first:
                        self._reservations.note(turn.uid, self._roster.usage.now)

    def _could_ever(self, leaf: Leaf, shape: Shape, pool: PoolName) -> bool:
        """Tell whether a workload may go to a pool, and would fit if nothing else ran there."""
        could_hold = self._reservations.could_hold
        return self._tree.allows(leaf, shape, pool) and could_hold(shape, pool, leaf.account)

    def _is_guaranteed(self, leaf: Leaf, shape: Shape, pools: Sequence[PoolName]) -> bool:
        """Tell whether a tenant above is guaranteed what it would hold with this workload.

        `pools` are those whose nodes could hold it; one that grows need not have them yet.
        """
        return leaf.pledged and any(
            branch.guarantees and self._tree.rank(branch, shape, pool).band == GUARANTEED
            for pool in shape.pools
            if pool in pools or self._may_grow_for(leaf, shape, pool)
            for branch in path(leaf)
        )

    def _may_grow_for(self, leaf: Leaf, shape: Shape, pool: PoolName) -> bool:
        beyond = self._placement.beyond
        return self._tree.allows(leaf, shape, pool) and beyond.could_hold(shape, pool)

    def uses_least(self, reservation: Reservation) -> bool:
        """Tell whether none of those who wait borrows less than an owner, at any level."""
        tree, pool = self._tree, reservation.pool
        for branch in path(reservation.leaf):
            if branch.parent is not None:
                own = tree.standing(branch, pool, (), 0)
                waiting = tree.children(branch.parent)
                if any(tree.standing(other, pool, (), 0) < own for other in waiting):
                    return False
        return True

    def claimed(self) -> Choice | None:
        """Return who starts out of turn without backfill: whom all others are kept waiting for."""
        reservations = self._reservations
        for reservation in (*reservations.strict.values(), *reservations.firm.values()):
            choice = self._try(reservation.leaf, reservation.owner, reservation.shape)
            if choice is not None:
                return choice
        return None

    def backfill(self) -> Choice | None:
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

    def could_start(self, branch: Branch) -> bool:
        """Tell whether an allowed head surely could start, all reservations withheld."""
        assert branch.head is not None
        turn, shape, pool = branch.head
        standing = tuple(self._reservations.standing.values())
        withheld = self._withheld(pool, turn, shape, None, standing)
        if branch.source is None or not self._roster.usage.policy.backfill:
            return False  # without backfill nobody starts but the next
        if not self._tree.allows(branch.source, shape, pool):
            return False
        account = branch.source.account
        return self._placement.plan_for(account, shape, pool, withheld) is not None

    def _search(self, branch: Branch) -> Choice | None:
        """Go through the children in order; docs/decisions/0008 says why heads bind backfill.

        What a child would start may stand worse in the order than its head. It is then taken
        only if no sibling has anything that stands as well as its own head.
        """
        tree, fallback = self._tree, None
        for child in tree.children(branch):
            if child not in self._owners and self._possible.isdisjoint(child.shapes):
                continue
            found = self._within(child) if isinstance(child, Leaf) else self._below(child)
            if found is None:
                continue
            assert child.key is not None
            if tree.rank(child, found.shape, found.pool) <= child.key[:3]:
                return found
            fallback = fallback or found
            self._pass_below(child)
        return fallback

    def _below(self, tenant: Branch) -> Choice | None:
        """Return the head of a tenant if it fits, else what its children would start."""
        assert tenant.head is not None
        assert tenant.source is not None
        turn, shape, _ = tenant.head
        return self._try(tenant.source, turn, shape, self._passed) or self._search(tenant)

    def _within(self, leaf: Leaf) -> Choice | None:
        standing = self._reservations.standing.values()
        ahead = sorted((r for r in standing if r.leaf is leaf), key=lambda r: r.owner)
        found = None
        for turn, shape in self._in_turn(leaf):
            while ahead and ahead[0].owner < turn:
                self._pass(ahead.pop(0))
            found = self._try(leaf, turn, shape, self._passed)
            if found is not None:
                break
        for reservation in ahead:
            self._pass(reservation)
        return found

    def _in_turn(self, leaf: Leaf) -> Iterable[tuple[Turn, Shape]]:
        """Return what is worth trying of a queue, in its order.

        The first of every shape, and whoever has a reservation: it may fit where others of its
        shape, that stand before it, do not.
        """
        reservations = self._reservations
        kinds = (reservations.strict, reservations.firm, reservations.standing)
        owners = {r.owner: r.shape for kind in kinds for r in kind.values() if r.leaf is leaf}
        if not owners:
            return leaf.queue.heads()
        return sorted({**owners, **dict(leaf.queue.heads())}.items(), key=lambda pair: pair[0])

    def _pass_below(self, branch: Branch) -> None:
        """Whoever comes after a branch stands behind all who have a reservation in it."""
        for reservation in self._reservations.standing.values():
            if reservation not in self._passed and branch in path(reservation.leaf):
                self._pass(reservation)

    def _pass(self, reservation: Reservation) -> None:
        self._passed.append(reservation)
        self._possible = self._fitting_now()

    def _try(
        self, leaf: Leaf, turn: Turn, shape: Shape, passed: Sequence[Reservation] = ()
    ) -> Choice | None:
        pool = shape.pools[0]
        if len(shape.pools) > 1:
            options = self._options(leaf, turn, shape, passed)
            if not options:
                return None
            pool = self._tree.target(leaf, shape, options)
            if leaf.head is not None and leaf.head[0] is turn and leaf.head[2] in options:
                pool = leaf.head[2]  # where its place in the order was found
        elif not self._tree.allows(leaf, shape, pool):
            return None
        withheld = self._withheld(pool, turn, shape, leaf, passed)
        plan = self._placement.plan_for(leaf.account, shape, pool, withheld)
        return Choice(leaf, turn, shape, pool, plan) if plan is not None else None

    def _options(
        self, leaf: Leaf, turn: Turn, shape: Shape, passed: Sequence[Reservation]
    ) -> tuple[PoolName, ...]:
        """Return the pools where a workload may and can start now, the best first."""
        fitting = {}
        for pool in shape.pools:
            withheld = self._withheld(pool, turn, shape, leaf, passed)
            plan = self._placement.plan_for(leaf.account, shape, pool, withheld)
            if plan is not None and self._tree.allows(leaf, shape, pool):
                fitting[pool] = plan
        return self._placement.ranked(shape, fitting)

    def _withheld(
        self,
        pool: PoolName,
        turn: Turn | None,
        shape: Shape,
        leaf: Leaf | None,
        passed: Sequence[Reservation],
    ) -> Withheld:
        reservations = self._reservations
        if not (passed or reservations.strict or reservations.firm):
            return NOTHING
        against = [r for r in passed if r.pool == pool]
        for binding in (reservations.strict, reservations.firm):
            if pool in binding and binding[pool] not in against:
                against.append(binding[pool])
        if turn is not None:
            paid = reservations.strict.get(pool)
            if paid is not None and paid.owner.uid == turn.uid:
                return NOTHING  # it waits for nobody: who waits for it would wait for ever
            against = [r for r in against if r.owner.uid != turn.uid]
        if shape.lifetime is not None:
            against = [r for r in against if not self._ends_before(shape, leaf, r)]
        return reservations.withheld(against)

    def _ends_before(self, shape: Shape, leaf: Leaf | None, reservation: Reservation) -> bool:
        """Tell whether a workload says, and is believed, to end before a reservation starts."""
        now = self._roster.usage.now
        if reservation.strict or shape.lifetime is None:
            return False
        if leaf is not None and self._is_barred(leaf, now):
            return False
        if reservation not in self._starts:
            self._starts[reservation] = self._reservations.starts(reservation)
        starts = self._starts[reservation]
        return starts is not None and now + shape.lifetime <= starts

    def _is_due(self, reservation: Reservation) -> bool:
        """Tell whether the owner of a reservation still waits for just that, and may have it."""
        workload = self._roster.workload(reservation.owner.uid)
        if workload is None or workload.leaf is None or workload.shape is None:
            return False
        if reservation.completes and not (isinstance(workload, Gang) and workload.half):
            return False  # its mates have ended: a whole gang waits like any other
        leaf, shape, pool = workload.leaf, workload.shape, reservation.pool
        if pool not in shape.pools or not self._tree.allows(leaf, shape, pool):
            return False
        reservation.leaf, reservation.shape = leaf, shape
        return True

    def _is_barred(self, leaf: Leaf, now: Millis) -> bool:
        """Tell whether a user's work overstays what was declared, or did so lately."""
        if self._barred.get(leaf.account, 0) > now:
            return True
        self._barred.pop(leaf.account, None)
        running = self._roster.running.get(leaf, {}).values()
        return any(t.stay is not None and t.stay.overstayed(now) for t in running)

    def _fitting_now(self) -> set[Shape]:
        """Return the shapes that fit somewhere, what is withheld by now aside."""
        bound = (*self._reservations.strict.values(), *self._reservations.firm.values())
        owners = [*self._passed, *bound]
        owned = {r.shape for r in owners}
        return {
            shape
            for shape in self._tree.root.shapes
            if shape in owned
            or any(
                self._placement.plan(
                    shape, pool, self._withheld(pool, None, shape, None, self._passed)
                )
                for pool in shape.pools
            )
        }

    def _renew(self) -> None:
        """Give every pool's reservation to the first in order of those who waited long enough."""
        reservations, usage, tree = self._reservations, self._roster.usage, self._tree
        if self._known is not tree:
            self._known = tree
            reservations.rebind()
        reservations.keep_strict(self._is_due)
        self._starts.clear()
        firm = {r.owner.uid: pool for pool, r in reservations.firm.items()}
        waiting = []
        for uid in reservations.due(usage.now, usage.policy.reserve_after):
            workload = self._roster.workload(uid)
            if workload is not None and workload.leaf is not None:
                place = (uid not in firm, _rank_of(workload.leaf), workload.turn)
                waiting.append((place, workload))
        reservations.standing.clear()
        for _, workload in sorted(waiting, key=lambda pair: pair[0]):
            leaf, turn, shape = workload.leaf, workload.turn, workload.shape
            assert leaf is not None
            assert turn is not None
            assert shape is not None
            if reservations.paid_for(turn.uid):
                continue
            for pool in (firm[turn.uid],) if firm.get(turn.uid) in shape.pools else shape.pools:
                free = pool not in reservations.standing and tree.allows(leaf, shape, pool)
                if free and reservations.reserve(turn, leaf, shape, pool):
                    break
        reservations.soften()


def _rank_of(leaf: Leaf) -> list[Key]:
    """Return where a leaf stands in the whole order: comparable with that of any other."""
    return [branch.key for branch in path(leaf) if branch.key is not None][::-1]


def _may_use(branch: Branch, pools: set[PoolName]) -> bool:
    return any(not pools.isdisjoint(shape.pools) for shape in branch.shapes)
