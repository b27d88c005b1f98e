"""The tree of tenants and users: what each uses, and whose turn is next.

At every level the next turn goes to the lowest score: the weighted dominant share, taken at the
midpoint of the next workload. Ties: least recently served, then the older head, then the smaller
uid. All of it is exact rational arithmetic. Guarantees and history are not counted here yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from sortedcontainers import SortedDict

from app.core.backlog import Queue, Shape, Turn
from app.core.model import Amounts, PoolName, Resource, TenantName, UserName

Served = tuple[int, int]
"""Epoch and sequence of the last release; NEVER sorts first."""

NEVER: Served = (0, 0)

Key = tuple[bool, Fraction, Served, int, str]


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of the cluster in each resource that shares are about, and what a unit is worth.

    `size[r]` is the sum over pools of worth times capacity; a resource that is absent from it
    (not managed, or none there) counts for nothing. `worth[p][r]` is 1 where absent.
    """

    size: Mapping[Resource, Fraction]
    worth: Mapping[PoolName, Mapping[Resource, Fraction]]

    def value(self, pool: PoolName, amounts: Amounts) -> dict[Resource, Fraction]:
        """Return what amounts used in a pool count for, in the resources that shares are about."""
        worth = self.worth.get(pool, {})
        return {r: v * worth.get(r, Fraction(1)) for r, v in amounts.items() if r in self.size}


class Branch:
    """A tenant, or the root: children that use and wait."""

    __slots__ = ("children", "key", "name", "parent", "served", "uses", "waiting", "weight")

    def __init__(
        self, name: TenantName | UserName, parent: Branch | None, weight: Fraction
    ) -> None:
        self.name = name
        self.parent = parent
        self.weight = weight
        self.uses: dict[Resource, Fraction] = {}
        self.served: Served = NEVER
        self.key: Key | None = None
        self.waiting: SortedDict[Key, Branch] = SortedDict()
        self.children: dict[tuple[str, str], Branch] = {}

    def head(self) -> tuple[Turn, Shape] | None:
        """Return who is next below here, or None if nobody waits."""
        if not self.waiting:
            return None
        first: Branch = self.waiting.peekitem(0)[1]
        return first.head()

    def share(self, scale: Scale) -> Fraction:
        """Return the dominant share: the largest part of the cluster used of any resource."""
        parts = (used / scale.size[r] for r, used in self.uses.items() if r in scale.size)
        return max(parts, default=Fraction(0))

    def score(self, shape: Shape, scale: Scale) -> Fraction:
        """Return the weighted dominant share at the midpoint of a workload of this shape."""
        added = scale.value(shape.pools[0], shape.demand)
        worst = Fraction(0)
        for resource in {**self.uses, **added}:
            if resource in scale.size:
                middle = self.uses.get(resource, 0) + added.get(resource, Fraction(0)) / 2
                worst = max(worst, middle / scale.size[resource])
        return worst / self.weight if self.weight else worst


class Leaf(Branch):
    """A user of a tenant: the one place where work waits."""

    __slots__ = ("queue", "tenant")

    def __init__(
        self, tenant: TenantName, name: UserName, parent: Branch, weight: Fraction
    ) -> None:
        super().__init__(name, parent, weight)
        self.tenant = tenant
        self.queue = Queue()

    def head(self) -> tuple[Turn, Shape] | None:
        return self.queue.head()


class Tree:
    """Tenants, nested to any depth, with users as leaves."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.root = Branch(TenantName(""), None, Fraction(1))
        self.tenants: dict[TenantName, Branch] = {}

    def tenant(self, name: TenantName, parent: Branch | None, weight: Fraction) -> Branch:
        """Return the branch of a tenant, made on first use."""
        branch = self.tenants.get(name)
        if branch is None:
            above = parent or self.root
            branch = self.tenants[name] = Branch(name, above, weight)
            above.children["tenant", name] = branch
        return branch

    def leaf(self, tenant: Branch, user: UserName, weight: Fraction) -> Leaf:
        """Return the leaf of a user, made on first use."""
        leaf = tenant.children.get(("user", user))
        if leaf is None:
            leaf = Leaf(TenantName(str(tenant.name)), user, tenant, weight)
            tenant.children["user", user] = leaf
        assert isinstance(leaf, Leaf)
        return leaf

    def enqueue(self, leaf: Leaf, turn: Turn, shape: Shape) -> None:
        """Let a workload wait."""
        leaf.queue.add(turn, shape)
        self._refresh(leaf)

    def dequeue(self, leaf: Leaf, turn: Turn, shape: Shape) -> None:
        """Take a workload that waits out of its queue."""
        leaf.queue.remove(turn, shape)
        self._refresh(leaf)

    def use(self, leaf: Leaf, pool: PoolName, amounts: Amounts, sign: int = 1) -> None:
        """Add to (or, with sign -1, take from) what a user and all tenants above it use."""
        for resource, value in self.scale.value(pool, amounts).items():
            for branch in _path(leaf):
                branch.uses[resource] = branch.uses.get(resource, Fraction(0)) + sign * value
        self._refresh(leaf)

    def serve(self, leaf: Leaf, served: Served) -> None:
        """Note when a user and all tenants above it were last served. Never goes back."""
        for branch in _path(leaf):
            branch.served = max(branch.served, served)
        self._refresh(leaf)

    def rescale(self, scale: Scale) -> None:
        """Measure against a cluster of another size; resources and worth stay the same."""
        self.scale = scale
        for leaf in list(self.leaves()):
            self._refresh(leaf)

    def leaves(self) -> Iterator[Leaf]:
        """Return every user, waiting or not."""
        return _leaves(self.root)

    def in_order(self) -> Iterator[Leaf]:
        """Go through the users that wait, in the order of their turns. Do not change the tree."""
        return _in_order(self.root)

    def _refresh(self, leaf: Leaf) -> None:
        """Put a leaf, and every branch above it, in its place among its siblings again."""
        for branch in _path(leaf):
            parent = branch.parent
            if parent is None:
                return
            if branch.key is not None:
                del parent.waiting[branch.key]
            branch.key = self._key(branch)
            if branch.key is not None:
                parent.waiting[branch.key] = branch

    def _key(self, branch: Branch) -> Key | None:
        head = branch.head()
        if head is None:
            return None
        turn, shape = head
        score = branch.score(shape, self.scale)
        return (branch.weight == 0, score, branch.served, turn.since, turn.uid)


def _path(leaf: Branch) -> Iterator[Branch]:
    branch: Branch | None = leaf
    while branch is not None:
        yield branch
        branch = branch.parent


def _in_order(branch: Branch) -> Iterator[Leaf]:
    for child in branch.waiting.values():
        if isinstance(child, Leaf):
            yield child
        else:
            yield from _in_order(child)


def _leaves(branch: Branch) -> Iterator[Leaf]:
    for child in branch.children.values():
        if isinstance(child, Leaf):
            yield child
        else:
            yield from _leaves(child)
