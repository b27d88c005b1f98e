"""One tenant or user in the share tree: its usage, its borrowed amounts, and its head.

Bookkeeping in exact integers. `share_tree` computes the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sortedcontainers import SortedDict

from app.core.fairshare.sort_key import NEVER_SERVED, Served, SiblingKey
from app.core.fairshare.user_queue import QueueKey, UserQueue
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.pricing.share_units import Cost, Scale

UsedAmounts = dict[Resource, int]

_NO_CHILDREN: SortedDict[SiblingKey, TenantNode] = SortedDict()
"""Waiting children of a user: always empty."""


class TenantNode:
    """A tenant, or the root. Its children use resources and wait.

    `weight`: a ratio of integers. `usage`: amounts per pool, including ended work that still
    counts.
    `borrowed_grains`: grains of usage beyond the guarantee, by column of the scale. `history`:
    parts of the cluster at the time `history_at`, with no other columns than `borrowed_grains`.
    `waiting_by_class`: number of waiting workloads per class. `head_user`: the leaf of `head`.
    `may_use_guarantee`: a guarantee may apply here.
    """

    __slots__ = (
        "borrowed_grains",
        "children",
        "depth",
        "ended_usage",
        "guarantees",
        "head",
        "head_user",
        "history",
        "history_at",
        "key",
        "last_served",
        "limits",
        "may_use_guarantee",
        "name",
        "parent",
        "usage",
        "waiting_by_class",
        "waiting_children",
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
        self.may_use_guarantee: bool = bool(self.guarantees) or (
            parent is not None and parent.may_use_guarantee
        )
        self.usage: dict[PoolName, UsedAmounts] = {}
        self.ended_usage: dict[PoolName, UsedAmounts] = {}
        self.borrowed_grains: UsedAmounts = {}
        self.history: dict[Resource, float] = {}
        self.history_at = Millis(0)
        self.last_served: Served = NEVER_SERVED
        self.head: tuple[QueueKey, EquivalenceClass, PoolName] | None = None
        self.head_user: UserNode | None = None
        self.key: SiblingKey | None = None
        self.waiting_by_class: dict[EquivalenceClass, int] = {}
        self.waiting_children: SortedDict[SiblingKey, TenantNode] = (
            SortedDict() if waiting is None else waiting
        )
        self.children: dict[tuple[str, str], TenantNode] = {}

    def add_usage(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Add usage. `sign` -1 subtracts."""
        held = self.usage.setdefault(pool, {})
        guarantee = self.guarantees.get(pool)
        over = self.borrowed_grains
        for r, amount, grains, columns in cost:
            changed = sign * amount
            more = self.borrowed_delta(guarantee, pool, r, changed) if guarantee else changed
            held[r] = held.get(r, 0) + changed
            for column in columns:
                over[column] = over.get(column, 0) + more * grains

    def borrowed_delta(self, guarantee: Amounts, pool: PoolName, r: Resource, amount: int) -> int:
        """Return how much of a change lies beyond the guarantee."""
        if r not in guarantee:
            return amount
        held = self.usage.get(pool, {}).get(r, 0)
        return max(0, held + amount - guarantee[r]) - max(0, held - guarantee[r])

    def max_added_grains(self, pool: PoolName, cost: Cost) -> int:
        """Return the most grains that a workload adds to the borrowed amount in any column."""
        guarantee = self.guarantees.get(pool)
        values: UsedAmounts = {}
        for r, amount, grains, columns in cost:
            more = self.borrowed_delta(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + more * grains
        return max(values.values(), default=0)

    def count_ended_work(self, pool: PoolName, cost: Cost, sign: int) -> None:
        """Mark part of the usage as ended. `sign` -1 removes the mark."""
        lingering = self.ended_usage.setdefault(pool, {})
        for r, amount, _, _ in cost:
            lingering[r] = lingering.get(r, 0) + sign * amount

    @property
    def is_idle(self) -> bool:
        """Whether it has no usage, and no ended work that still counts."""
        held = (*self.usage.values(), *self.ended_usage.values())
        return not any(value for each in held for value in each.values())

    def restore_history(
        self, served: Served, history: Mapping[Resource, float], at: Millis
    ) -> None:
        """Replace the history by a stored one of an earlier time."""
        self.last_served = max(self.last_served, served)
        self.history, self.history_at = dict(history), at
        for resource in history:
            self.borrowed_grains.setdefault(resource, 0)

    def recompute_borrowed(self, scale: Scale) -> None:
        """Compute the borrowed amounts again with another scale."""
        self.borrowed_grains = dict.fromkeys(self.borrowed_grains, 0)
        for pool, held in self.usage.items():
            guarantee, grains = self.guarantees.get(pool, {}), scale.grains_per_unit(pool)
            for r, value in held.items():
                more = max(0, value - guarantee.get(r, 0)) * grains.get(r, 0)
                for column in scale.columns_of(pool, r):
                    self.borrowed_grains[column] = self.borrowed_grains.get(column, 0) + more

    def borrowed(self, pool: PoolName) -> UsedAmounts:
        """Return the amounts used beyond the guarantee in a pool."""
        guarantee = self.guarantees.get(pool, {})
        return {r: max(0, v - guarantee.get(r, 0)) for r, v in self.usage.get(pool, {}).items()}

    def is_borrowing(self, pool: PoolName, cost: Cost) -> bool:
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
        held = self.usage.get(pool, {})
        named = [(r, amount) for r, amount, _, _ in cost if r in guarantee]
        if not named or any(held.get(r, 0) + amount > guarantee[r] for r, amount in named):
            return None
        return max((held.get(r, 0) << shift) // g for r, g in guarantee.items() if g > 0)

    def guarantee_covers(self, pool: PoolName, cost: Cost) -> bool:
        """Return whether the guarantee covers a workload. Ended work does not count.

        A workload without a cost is covered: another pod is charged for the claim that it shares.
        """
        if not cost:
            return True
        guarantee = self.guarantees.get(pool, {})
        held, gone = self.usage.get(pool, {}), self.ended_usage.get(pool, {})
        named = [(r, amount) for r, amount, _, _ in cost if r in guarantee]
        return bool(named) and all(
            held.get(r, 0) - gone.get(r, 0) + amount <= guarantee[r] for r, amount in named
        )

    def is_within_limit(self, pool: PoolName, cost: Cost) -> bool:
        """Return whether its own limit has room for a workload."""
        limit = self.limits.get(pool)
        if limit is None:
            return True
        held, gone = self.usage.get(pool, {}), self.ended_usage.get(pool, {})
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
        super().__init__(name, parent, weight, {}, _NO_CHILDREN)
        self.tenant = tenant
        self.head_user = self
        self.account = (tenant, name)
        self.queue = UserQueue()


def path_to_root(leaf: TenantNode) -> Iterator[TenantNode]:
    """Yield a branch and every branch above it, the root last."""
    branch: TenantNode | None = leaf
    while branch is not None:
        yield branch
        branch = branch.parent


def users_below(branch: TenantNode) -> Iterator[UserNode]:
    """Yield the users below a branch."""
    for child in branch.children.values():
        if isinstance(child, UserNode):
            yield child
        else:
            yield from users_below(child)


def dominant_usage_share(branch: TenantNode, scale: Scale) -> tuple[int, int]:
    """Return the dominant share as a ratio: the largest part of any resource that is used."""
    parts: UsedAmounts = {}
    for pool, held in branch.usage.items():
        for column, value in scale.usage_in_grains(pool, held).items():
            parts[column] = parts.get(column, 0) + value
    return max(parts.values(), default=0), scale.total_grains
