"""One tenant or user in the tree: what it uses, what of that is borrowed, and who is its head.

Plain bookkeeping in exact integers; the order is the tree's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sortedcontainers import SortedDict

from app.core.asks.shape import Shape
from app.core.fair.backlog import Queue, Turn
from app.core.fair.order import NEVER, Key, Served
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.places.scale import Cost, Scale

Used = dict[Resource, int]

_NOBODY: SortedDict[Key, Branch] = SortedDict()
"""Who waits below a user: never anybody."""


class Branch:
    """A tenant, or the root: children that use and wait.

    `weight` is a ratio of integers. `uses` counts amounts per pool, what still lingers included;
    `over` the grains of it that exceed the guarantee, by column of the scale; `history` parts of
    the cluster as of `remembered`, of no other columns than `over`; `shapes` how many workloads
    of each shape wait below; `source` is the leaf that `head` waits in; `pledged`: a guarantee
    applies here.
    """

    __slots__ = (
        "children", "depth", "guarantees", "head", "history", "key", "limits", "lingering",
        "name", "over", "parent", "pledged", "remembered", "served", "shapes", "source", "uses",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(
        self,
        name: TenantName | UserName,
        parent: Branch | None,
        weight: tuple[int, int],
        quotas: Mapping[PoolName, Quota],
        waiting: SortedDict[Key, Branch] | None = None,
    ) -> None:
        self.name = name
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.weight = weight
        self.guarantees: dict[PoolName, Amounts] = {
            pool: quota.guarantee for pool, quota in quotas.items() if quota.guarantee
        }
        self.limits: dict[PoolName, Amounts] = {
            pool: quota.limit for pool, quota in quotas.items() if quota.limit
        }
        self.pledged: bool = bool(self.guarantees) or (parent is not None and parent.pledged)
        self.uses: dict[PoolName, Used] = {}
        self.lingering: dict[PoolName, Used] = {}
        self.over: Used = {}
        self.history: dict[Resource, float] = {}
        self.remembered = Millis(0)
        self.served: Served = NEVER
        self.head: tuple[Turn, Shape, PoolName] | None = None
        self.source: Leaf | None = None
        self.key: Key | None = None
        self.shapes: dict[Shape, int] = {}
        self.waiting: SortedDict[Key, Branch] = SortedDict() if waiting is None else waiting
        self.children: dict[tuple[str, str], Branch] = {}

    def use(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Add to, or with sign -1 take from, what is used."""
        held = self.uses.setdefault(pool, {})
        guarantee = self.guarantees.get(pool)
        over = self.over
        for r, amount, grains, columns in cost:
            changed = sign * amount
            more = self.beyond(guarantee, pool, r, changed) if guarantee else changed
            held[r] = held.get(r, 0) + changed
            for column in columns:
                over[column] = over.get(column, 0) + more * grains

    def beyond(self, guarantee: Amounts, pool: PoolName, r: Resource, amount: int) -> int:
        """Return how much of a change lies beyond the guarantee."""
        if r not in guarantee:
            return amount
        held = self.uses.get(pool, {}).get(r, 0)
        return max(0, held + amount - guarantee[r]) - max(0, held - guarantee[r])

    def added(self, pool: PoolName, cost: Cost) -> int:
        """Return the most grains that a workload adds to what is borrowed in any column."""
        guarantee = self.guarantees.get(pool)
        values: Used = {}
        for r, amount, grains, columns in cost:
            more = self.beyond(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + more * grains
        return max(values.values(), default=0)

    def linger(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Note that part of what is used ended already."""
        lingering = self.lingering.setdefault(pool, {})
        for r, amount, _, _ in cost:
            lingering[r] = lingering.get(r, 0) + sign * amount

    def recall(self, served: Served, history: Mapping[Resource, float], at: Millis) -> None:
        """Remember this, as of a time, in place of what was remembered."""
        self.served = max(self.served, served)
        self.history, self.remembered = dict(history), at
        for resource in history:
            self.over.setdefault(resource, 0)

    def measure(self, scale: Scale) -> None:
        """Count anew what is borrowed, in the grains of another scale."""
        self.over = dict.fromkeys(self.over, 0)
        for pool, held in self.uses.items():
            guarantee, grains = self.guarantees.get(pool, {}), scale.grains(pool)
            for r, value in held.items():
                more = max(0, value - guarantee.get(r, 0)) * grains.get(r, 0)
                for column in scale.into(pool, r):
                    self.over[column] = self.over.get(column, 0) + more

    def borrowed(self, pool: PoolName) -> Used:
        """Return the amounts used beyond the guarantee in a pool."""
        guarantee = self.guarantees.get(pool, {})
        return {r: max(0, v - guarantee.get(r, 0)) for r, v in self.uses.get(pool, {}).items()}

    def borrows(self, pool: PoolName, cost: Cost) -> bool:
        """Tell whether it uses more than its guarantee of anything a workload needs there."""
        over = self.borrowed(pool)
        return any(over.get(r, 0) > 0 for r, _, _, _ in cost)

    def part_of_guarantee(self, pool: PoolName, cost: Cost, shift: int) -> int | None:
        """Return the part of the guarantee in use, if a workload would stay within it, else None.

        Only what the guarantee names is asked, and it must name something of it. The part is
        rounded down to a multiple of `2**-shift`.
        """
        guarantee = self.guarantees.get(pool)
        if guarantee is None:
            return None
        held = self.uses.get(pool, {})
        named = [(r, amount) for r, amount, _, _ in cost if r in guarantee]
        if not named or any(held.get(r, 0) + amount > guarantee[r] for r, amount in named):
            return None
        return max((held.get(r, 0) << shift) // g for r, g in guarantee.items() if g > 0)

    def guards(self, pool: PoolName, cost: Cost) -> bool:
        """Tell whether the guarantee covers a workload, what ended already aside."""
        guarantee = self.guarantees.get(pool, {})
        held, gone = self.uses.get(pool, {}), self.lingering.get(pool, {})
        named = [(r, amount) for r, amount, _, _ in cost if r in guarantee]
        return bool(named) and all(
            held.get(r, 0) - gone.get(r, 0) + amount <= guarantee[r] for r, amount in named
        )

    def allows(self, pool: PoolName, cost: Cost) -> bool:
        """Tell whether the own limit leaves room for a workload."""
        limit = self.limits.get(pool)
        if limit is None:
            return True
        held, gone = self.uses.get(pool, {}), self.lingering.get(pool, {})
        return all(
            held.get(r, 0) - gone.get(r, 0) + amount <= limit[r]
            for r, amount, _, _ in cost
            if r in limit
        )


class Leaf(Branch):
    """A user of a tenant: the one place where work waits."""

    __slots__ = ("account", "queue", "tenant")

    def __init__(
        self, tenant: TenantName, name: UserName, parent: Branch, weight: tuple[int, int]
    ) -> None:
        # One each, of those who wait below, would weigh as much as all the rest.
        super().__init__(name, parent, weight, {}, _NOBODY)
        self.tenant = tenant
        self.source = self
        self.account = (tenant, name)
        self.queue = Queue()


def path(leaf: Branch) -> Iterator[Branch]:
    """Return a branch and every branch above it, the root last."""
    branch: Branch | None = leaf
    while branch is not None:
        yield branch
        branch = branch.parent


def leaves(branch: Branch) -> Iterator[Leaf]:
    """Return the users below a branch."""
    for child in branch.children.values():
        if isinstance(child, Leaf):
            yield child
        else:
            yield from leaves(child)


def share(branch: Branch, scale: Scale) -> tuple[int, int]:
    """Return the dominant share, as a ratio: the largest part of the cluster used of anything."""
    parts: Used = {}
    for pool, held in branch.uses.items():
        for column, value in scale.measured(pool, held).items():
            parts[column] = parts.get(column, 0) + value
    return max(parts.values(), default=0), scale.whole
