"""One tenant or user in the share tree: its usage, its borrowed amounts, and its head.

Bookkeeping in exact integers. `share_tree` computes the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sortedcontainers import SortedDict

from app.core.fairshare.sort_key import NEVER, Served, SiblingKey
from app.core.fairshare.user_queue import QueueKey, UserQueue
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.pricing.share_units import Cost, Scale

UsedAmounts = dict[Resource, int]

_NOBODY: SortedDict[SiblingKey, TenantNode] = SortedDict()
"""Waiting children of a user: always empty."""


class TenantNode:
    """A tenant, or the root. Its children use resources and wait.

    `weight`: a ratio of integers. `uses`: amounts per pool, including ended work that still counts.
    `over`: grains of usage beyond the guarantee, by column of the scale. `history`: parts of the
    cluster at the time `remembered`, with no other columns than `over`. `shapes`: number of waiting
    workloads per class. `source`: the leaf of `head`. `guaranteed`: a guarantee may apply here.
    """

    __slots__ = (
        "children",
        "depth",
        "guaranteed",
        "guarantees",
        "head",
        "history",
        "key",
        "limits",
        "lingering",
        "name",
        "over",
        "parent",
        "remembered",
        "served",
        "shapes",
        "source",
        "uses",
        "waiting",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        name: TenantName | UserName,
        parent: TenantNode | None,
        weight: tuple[int, int],
        quotas: Mapping[PoolName, Quota],
        waiting: SortedDict[SiblingKey, TenantNode] | None = None,
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
        self.guaranteed: bool = bool(self.guarantees) or (parent is not None and parent.guaranteed)
        self.uses: dict[PoolName, UsedAmounts] = {}
        self.lingering: dict[PoolName, UsedAmounts] = {}
        self.over: UsedAmounts = {}
        self.history: dict[Resource, float] = {}
        self.remembered = Millis(0)
        self.served: Served = NEVER
        self.head: tuple[QueueKey, EquivalenceClass, PoolName] | None = None
        self.source: UserNode | None = None
        self.key: SiblingKey | None = None
        self.shapes: dict[EquivalenceClass, int] = {}
        self.waiting: SortedDict[SiblingKey, TenantNode] = (
            SortedDict() if waiting is None else waiting
        )
        self.children: dict[tuple[str, str], TenantNode] = {}

    def use(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Add usage. `sign` -1 subtracts."""
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
        """Return the most grains that a workload adds to the borrowed amount in any column."""
        guarantee = self.guarantees.get(pool)
        values: UsedAmounts = {}
        for r, amount, grains, columns in cost:
            more = self.beyond(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + more * grains
        return max(values.values(), default=0)

    def linger(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Mark part of the usage as ended. `sign` -1 removes the mark."""
        lingering = self.lingering.setdefault(pool, {})
        for r, amount, _, _ in cost:
            lingering[r] = lingering.get(r, 0) + sign * amount

    @property
    def is_idle(self) -> bool:
        """Whether it has no usage, and no ended work that still counts."""
        held = (*self.uses.values(), *self.lingering.values())
        return not any(value for each in held for value in each.values())

    def recall(self, served: Served, history: Mapping[Resource, float], at: Millis) -> None:
        """Replace the history by a stored one of an earlier time."""
        self.served = max(self.served, served)
        self.history, self.remembered = dict(history), at
        for resource in history:
            self.over.setdefault(resource, 0)

    def measure(self, scale: Scale) -> None:
        """Compute the borrowed amounts again with another scale."""
        self.over = dict.fromkeys(self.over, 0)
        for pool, held in self.uses.items():
            guarantee, grains = self.guarantees.get(pool, {}), scale.grains(pool)
            for r, value in held.items():
                more = max(0, value - guarantee.get(r, 0)) * grains.get(r, 0)
                for column in scale.into(pool, r):
                    self.over[column] = self.over.get(column, 0) + more

    def borrowed(self, pool: PoolName) -> UsedAmounts:
        """Return the amounts used beyond the guarantee in a pool."""
        guarantee = self.guarantees.get(pool, {})
        return {r: max(0, v - guarantee.get(r, 0)) for r, v in self.uses.get(pool, {}).items()}

    def borrows(self, pool: PoolName, cost: Cost) -> bool:
        """Return whether it exceeds its guarantee of any resource that a workload needs there."""
        over = self.borrowed(pool)
        return any(over.get(r, 0) > 0 for r, _, _, _ in cost)

    def part_of_guarantee(self, pool: PoolName, cost: Cost, shift: int) -> int | None:
        """Return the used part of the guarantee if a workload would stay within it, else None.

        The check covers only resources in the guarantee. The workload must need at least one such
        resource. The part is rounded down to a multiple of `2**-shift`.
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
        """Return whether the guarantee covers a workload. Ended work does not count."""
        guarantee = self.guarantees.get(pool, {})
        held, gone = self.uses.get(pool, {}), self.lingering.get(pool, {})
        named = [(r, amount) for r, amount, _, _ in cost if r in guarantee]
        return bool(named) and all(
            held.get(r, 0) - gone.get(r, 0) + amount <= guarantee[r] for r, amount in named
        )

    def allows(self, pool: PoolName, cost: Cost) -> bool:
        """Return whether its own limit has room for a workload."""
        limit = self.limits.get(pool)
        if limit is None:
            return True
        held, gone = self.uses.get(pool, {}), self.lingering.get(pool, {})
        return all(
            held.get(r, 0) - gone.get(r, 0) + amount <= limit[r]
            for r, amount, _, _ in cost
            if r in limit
        )


class UserNode(TenantNode):
    """A user of a tenant. Only leaves have a queue."""

    __slots__ = ("account", "queue", "tenant")

    def __init__(
        self, tenant: TenantName, name: UserName, parent: TenantNode, weight: tuple[int, int]
    ) -> None:
        # A separate empty dict per user would need as much memory as everything else.
        super().__init__(name, parent, weight, {}, _NOBODY)
        self.tenant = tenant
        self.source = self
        self.account = (tenant, name)
        self.queue = UserQueue()


def path(leaf: TenantNode) -> Iterator[TenantNode]:
    """Yield a branch and every branch above it, the root last."""
    branch: TenantNode | None = leaf
    while branch is not None:
        yield branch
        branch = branch.parent


def leaves(branch: TenantNode) -> Iterator[UserNode]:
    """Yield the users below a branch."""
    for child in branch.children.values():
        if isinstance(child, UserNode):
            yield child
        else:
            yield from leaves(child)


def share(branch: TenantNode, scale: Scale) -> tuple[int, int]:
    """Return the dominant share as a ratio: the largest part of any resource that is used."""
    parts: UsedAmounts = {}
    for pool, held in branch.uses.items():
        for column, value in scale.measured(pool, held).items():
            parts[column] = parts.get(column, 0) + value
    return max(parts.values(), default=0), scale.whole
