"""Followers of a reclaim: equal workloads of its user for which the same reclaim makes room.

A pool has one reclaim at a time, which lasts until its victims have ended. With one reclaim for
each workload, a guarantee of many small workloads would return slowly.
"""

from __future__ import annotations

from bisect import bisect_left

from app.core.effects import ReclaimCause
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tree_node import UserNode, path_to_root
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import PoolName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.failed_searches import MAX_STEPS_PER_CYCLE
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.victims import ReclaimPlan

MAX_FOLLOWERS = 31
"""Maximum number of followers. It bounds the time of a search."""

FOLLOWERS_PER_BOUND_POD = 4
"""Followers for each pod of the user that has a node of the pool. Nothing else shows that the
scheduler binds pods of this user: capacity must not be freed for many pods that it cannot bind."""

Extended = tuple[ReclaimPlan, tuple[QueueKey, ...]]
"""The plan of a reclaim for a workload and its followers, and the followers."""


class ReclaimFollowers:
    """Extends the plan of a reclaim to followers.

    `follows_binding_rate`: only as many as the scheduler binds. A simulation has no scheduler.
    """

    def __init__(
        self, registry: PodRegistry, reclaimer: Reclaimer, *, follows_binding_rate: bool
    ) -> None:
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
    ) -> Extended:
        """Return the plan for a workload and as many followers as the rules permit.

        All victims must be taken for a guarantee that covers the workload and its followers. If
        there is no such plan, half as many followers are tried.
        """
        followers = self._followers(leaf, queue_key, shape, pool) if _is_guaranteed(plan) else []
        while followers and self._reclaimer.steps < MAX_STEPS_PER_CYCLE:
            together = shape.copies(1 + len(followers))
            found = self._reclaimer.find_victims(leaf, queue_key, together, pool)
            self._registry.usage.tree.update_order()
            if found is not None and _is_guaranteed(found):
                return found, tuple(followers)
            del followers[len(followers) // 2 :]
        return plan, ()

    def _followers(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> list[QueueKey]:
        """Return the next equal pods of the user, within its limits and a guarantee."""
        registry = self._registry
        if (
            shape.distance_rules
            or sum(count for _, count in shape.request_counts) != 1
            or registry.usage.now < self._reclaimer.single_until.get(pool, 0)
        ):
            return []
        behind = leaf.queue.next_of_class(queue_key, shape, self._most_followers(leaf, pool))
        found = [each for each in behind if self._may_follow(each)]
        covered = bisect_left(
            range(1, len(found) + 1),
            True,
            key=lambda number: not self._is_covered(leaf, shape.copies(1 + number), pool),
        )
        return found[:covered]

    def _most_followers(self, leaf: UserNode, pool: PoolName) -> int:
        if not self._follows_binding_rate:
            return MAX_FOLLOWERS
        if self._registry.binding.stalled_since(pool) is not None:
            return 0
        charged = self._registry.charged_by_user.get(leaf, {}).values()
        bound = sum(1 for t in charged if t.pod.node is not None and t.pool == pool)
        return min(MAX_FOLLOWERS, FOLLOWERS_PER_BOUND_POD * bound)

    def _may_follow(self, queue_key: QueueKey) -> bool:
        """Return whether a workload waits, and its release was not refused before."""
        workload = self._registry.find_workload(queue_key.uid)
        return workload is not None and not any(
            tracked.release_refusals for tracked in workload.pods_to_release
        )

    def _is_covered(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether the limits and a guarantee above a user cover a class."""
        tree = self._registry.usage.tree
        return tree.is_within_limits(leaf, shape, pool) and any(
            branch.guarantees and tree.rank(branch, shape, pool).band == GUARANTEED
            for branch in path_to_root(leaf)
        )


def _is_guaranteed(plan: ReclaimPlan) -> bool:
    """Return whether pods are evicted, each one for a guarantee."""
    causes = {victim.cause for victim in plan.victims}
    return causes == {ReclaimCause.GUARANTEE}
