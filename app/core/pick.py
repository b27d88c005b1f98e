"""One pick: who is next, whether that fits, and who may start meanwhile if it does not.

The next in fair order blocks nobody, but its clock runs; once it has a reservation, what is
reserved is withheld from whoever comes after it. Picks change nothing but clocks and
reservations.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.backlog import Shape, Turn
from app.core.branch import Branch, Leaf, path
from app.core.decision import Choice
from app.core.model import Millis, PoolName
from app.core.placement import NOTHING, Placement, Withheld
from app.core.reservation import Reservation, Reservations
from app.core.roster import Roster
from app.core.shares import Key, Tree

BARRED_MS = 3_600_000
"""Whoever overstayed a declared run time is not believed for so long."""


class Picker:
    """Answers `pick`. One walk through the tree at a time."""

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
        """Return the head of a leaf, if it fits now."""
        if leaf.head is None:
            return None
        turn, shape, _ = leaf.head
        return self._try(leaf, turn, shape)

    def note(self, leaf: Leaf) -> None:
        """The next in order does not fit: let its clock run, and that of the next in other pools.

        The next of a pool is the first in order of those whose head may go there.
        """
        tree, now = self._tree, self._roster.usage.now
        assert leaf.head is not None
        turn, shape, _ = leaf.head
        self._reservations.note(turn.uid, now)
        pools = {pool for shape in tree.root.shapes for pool in shape.pools}
        pools.difference_update(shape.pools)
        if pools:
            self._note_others(tree.root, pools, now)

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
        return self._placement.plan(shape, pool, withheld) is not None

    def _search(self, branch: Branch) -> Choice | None:
        """Go through the children in order; see `docs/decisions` on why heads bind backfill.

        What a child would start may stand worse in the order than its head. It is then taken
        only if no sibling has anything that stands as well as its own head.
        """
        tree, fallback = self._tree, None
        for child in tree.children(branch):
            if child not in self._owners and self._possible.isdisjoint(child.shapes):
                continue
            found = self._within(child) if isinstance(child, Leaf) else self._search(child)
            if found is None:
                continue
            assert child.key is not None
            if tree.rank(child, found.shape, found.pool) <= child.key[:3]:
                return found
            fallback = fallback or found
        return fallback

    def _within(self, leaf: Leaf) -> Choice | None:
        standing = self._reservations.standing.values()
        ahead = sorted((r for r in standing if r.leaf is leaf), key=lambda r: r.owner)
        found = None
        for turn, shape in leaf.queue.heads():
            while ahead and ahead[0].owner < turn:
                self._pass(ahead.pop(0))
            found = self._try(leaf, turn, shape, self._passed)
            if found is not None:
                break
        for reservation in ahead:
            self._pass(reservation)
        return found

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
        elif not self._tree.allows(leaf, shape, pool):
            return None
        plan = self._placement.plan(shape, pool, self._withheld(pool, turn, shape, leaf, passed))
        return Choice(leaf, turn, shape, pool, plan) if plan is not None else None

    def _options(
        self, leaf: Leaf, turn: Turn, shape: Shape, passed: Sequence[Reservation]
    ) -> tuple[PoolName, ...]:
        """Return the pools where a workload may and can start now, the best packed first."""
        fitting = []
        for pool in shape.pools:
            withheld = self._withheld(pool, turn, shape, leaf, passed)
            plan = self._placement.plan(shape, pool, withheld)
            if plan is not None and self._tree.allows(leaf, shape, pool):
                fitting.append((plan.cost, pool))
        return tuple(pool for _, pool in sorted(fitting))

    def _withheld(
        self,
        pool: PoolName,
        turn: Turn | None,
        shape: Shape,
        leaf: Leaf | None,
        passed: Sequence[Reservation],
    ) -> Withheld:
        if not passed and not self._reservations.strict:
            return NOTHING
        against = [r for r in passed if r.pool == pool]
        if pool in self._reservations.strict:
            against.append(self._reservations.strict[pool])
        if turn is not None:
            against = [r for r in against if r.owner.uid != turn.uid]
        if shape.lifetime is not None:
            against = [r for r in against if not self._ends_before(shape, leaf, r)]
        return self._reservations.withheld(against)

    def _ends_before(self, shape: Shape, leaf: Leaf | None, reservation: Reservation) -> bool:
        """Tell whether a workload says, and is believed, to end before a reservation starts."""
        now = self._roster.usage.now
        if reservation.strict or shape.lifetime is None:
            return False
        if leaf is not None and self._barred.get(leaf.account, 0) > now:
            return False
        if reservation not in self._starts:
            self._starts[reservation] = self._reservations.starts(reservation)
        starts = self._starts[reservation]
        return starts is not None and now + shape.lifetime <= starts

    def _fitting_now(self) -> set[Shape]:
        """Return the shapes that fit somewhere, what is withheld by now aside."""
        owners = [*self._passed, *self._reservations.strict.values()]
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
            reservations.rebind(self._roster.workload)
        self._starts.clear()
        waiting = []
        for uid in reservations.due(usage.now, usage.policy.reserve_after):
            workload = self._roster.workload(uid)
            if workload is not None and workload.leaf is not None:
                waiting.append((_place(workload.leaf), workload))
        reservations.standing.clear()
        for _, workload in sorted(waiting, key=lambda pair: pair[0]):
            leaf, turn, shape = workload.leaf, workload.turn, workload.shape
            assert leaf is not None
            assert turn is not None
            assert shape is not None
            if reservations.paid_for(turn.uid):
                continue
            for pool in shape.pools:
                free = pool not in reservations.standing and tree.allows(leaf, shape, pool)
                if free and reservations.reserve(turn, leaf, shape, pool):
                    break

    def _note_others(self, branch: Branch, pools: set[PoolName], now: Millis) -> None:
        for child in self._tree.children(branch):
            if not pools:
                return
            if child.key is None or child.key.blocked or not _may_use(child, pools):
                continue
            if not isinstance(child, Leaf):
                self._note_others(child, pools, now)
            elif child.head is not None and not pools.isdisjoint(child.head[1].pools):
                turn, shape, _ = child.head
                if self._try(child, turn, shape) is None:
                    self._reservations.note(turn.uid, now)
                pools.difference_update(shape.pools)


def _place(leaf: Leaf) -> list[Key]:
    """Return where a leaf stands in the whole order: comparable with that of any other."""
    return [branch.key for branch in path(leaf) if branch.key is not None][::-1]


def _may_use(branch: Branch, pools: set[PoolName]) -> bool:
    return any(not pools.isdisjoint(shape.pools) for shape in branch.shapes)
