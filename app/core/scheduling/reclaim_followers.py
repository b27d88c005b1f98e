"""Followers of a reclaim: equal workloads of its user for which the same reclaim makes room.

A pool has one reclaim at a time, which lasts until its victims have ended. With one reclaim for
each workload, a guarantee of many small workloads would return slowly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import takewhile

from app.core.effects import ReclaimCause
from app.core.fairshare.sort_key import GUARANTEED, Rank
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, PoolName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.failed_searches import MAX_STEPS_PER_CYCLE
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.victims import ReclaimPlan

MAX_FOLLOWERS = 31
"""Maximum number of followers. It bounds the time of a search."""

FOLLOWERS_PER_BOUND_POD = 4
"""Followers for each pod of the user that has a node of the pool. Nothing else shows that the
scheduler binds pods of this user: capacity must not be freed for many pods that it cannot bind."""

PlanAndFollowers = tuple[ReclaimPlan, tuple[QueueKey, ...]]
"""The plan of a reclaim for a workload and its followers, and the followers."""


class ReclaimFollowers:
    """Extends the plan of a reclaim to followers.

    `follows_binding_rate`: the pods of the user that have a node limit their number. A simulation
    has no scheduler, and no such limit. `single_until` is when a reclaim of a pool may have
    followers again, because an eviction was refused.
    """

    def __init__(
        self, registry: PodRegistry, reclaimer: Reclaimer, *, follows_binding_rate: bool
    ) -> None:
        self.single_until: dict[PoolName, Millis] = {}
        self._follows_binding_rate = follows_binding_rate
        self._registry = registry
        self._reclaimer = reclaimer

    def extend_plan(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        plan: ReclaimPlan,
    ) -> PlanAndFollowers:
        """Return the plan for a workload and as many followers as the rules permit.

        All victims must be taken for a guarantee that covers the workload and its followers.
        """
        followers = self._followers(leaf, queue_key, shape, pool) if _is_guaranteed(plan) else []
        plans = {0: plan}

        def is_permitted(number: int) -> bool:
            if self._reclaimer.totals.steps >= MAX_STEPS_PER_CYCLE:
                return False
            together = shape.copies(1 + number)
            found = self._reclaimer.find_victims(leaf, queue_key, together, pool)
            self._registry.usage.tree.update_order()
            if found is None or not _is_guaranteed(found):
                return False
            plans[number] = found
            return True

        number = most_permitted(len(followers), is_permitted)
        return plans[number], tuple(followers[:number])

    def _followers(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> list[QueueKey]:
        """Return the equal pods of the user that the fair order starts right after the first."""
        registry = self._registry
        if (
            shape.distance_rules
            or sum(count for _, count in shape.request_counts) != 1
            or registry.usage.now < self.single_until.get(pool, 0)
        ):
            return []
        behind = leaf.queue.next_of_class(queue_key, shape, self._most_followers(leaf, pool))
        found = list(takewhile(self._may_follow, behind))
        return found[: self.count_next(leaf, shape, pool, len(found))]

    def count_next(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName, most: int) -> int:
        """Return how many workloads of a class are next in the fair order, up to `most`.

        It assumes that a first one of the same user has started.
        """
        found = most_permitted(most, lambda number: self._is_next_after(leaf, shape, pool, number))
        self._registry.usage.tree.update_order()
        return found

    def _most_followers(self, leaf: UserNode, pool: PoolName) -> int:
        if not self._follows_binding_rate:
            return MAX_FOLLOWERS
        if self._registry.binding.stalled_since(pool) is not None:
            return 0
        charged = self._registry.charged_by_user.get(leaf, {}).values()
        bound = sum(1 for t in charged if t.pod.node is not None and t.pool == pool)
        return min(MAX_FOLLOWERS, FOLLOWERS_PER_BOUND_POD * bound)

    def _may_follow(self, queue_key: QueueKey) -> bool:
        """Return whether a workload waits without a refusal, and is compared with existing pods.

        Only heads of queues are compared with the anti-affinity of existing pods in each cycle.
        """
        registry = self._registry
        workload = registry.find_workload(queue_key.uid)
        return (
            workload is not None
            and not any(
                registry.reclaim_pauses.get(tracked.pod.uid, 0) > registry.usage.now
                for tracked in workload.pods_to_release
            )
            and registry.are_exclusions_current(workload)
        )

    def _is_next_after(
        self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName, started: int
    ) -> bool:
        """Return whether the next workload of a user is of this class, after some others started.

        The limits and a guarantee above the user must cover it, and the user must come first among
        all that share this guarantee. They could not reclaim the capacity from the user later.
        """
        tree, total = self._registry.usage.tree, shape.copies(started).total
        tree.add_usage(leaf, pool, total)
        try:
            if not tree.is_within_limits(leaf, shape, pool):
                return False
            for branch in path_to_root(leaf):
                rank = tree.rank(branch, shape, pool)
                if branch.guarantees and rank.band == GUARANTEED:
                    return True
                if branch.parent is None or not self._precedes_siblings(branch, rank, pool):
                    return False
            return False
        finally:
            tree.add_usage(leaf, pool, total, -1)

    def _precedes_siblings(self, branch: TenantNode, rank: Rank, pool: PoolName) -> bool:
        """Return whether a branch of this rank precedes all siblings that wait for a pool."""
        assert branch.parent is not None
        for sibling in self._registry.usage.tree.ordered_children(branch.parent):
            if sibling.key is None or sibling.key.is_blocked:
                return True  # all that follow are blocked, too
            if sibling is not branch and any(pool in c.pools for c in sibling.waiting_by_class):
                return (rank.band, rank.score) < (sibling.key.band, sibling.key.score)
        return True


def most_permitted(most: int, is_permitted: Callable[[int], bool]) -> int:
    """Return the largest permitted number from 1 to `most`; 0 if there is none.

    Each number below a permitted one must be permitted, too.
    """
    if most < 1 or is_permitted(most):
        return max(0, most)
    return bisect_left(range(1, most), True, key=lambda number: not is_permitted(number))


def _is_guaranteed(plan: ReclaimPlan) -> bool:
    """Return whether pods are evicted, each one for a guarantee."""
    causes = {victim.cause for victim in plan.victims}
    return causes == {ReclaimCause.GUARANTEE}
