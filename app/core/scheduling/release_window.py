"""Limits the releases ahead of the scheduler: a window of unbound pods per pool and per user.

As in slow start of TCP, the window follows the number of recently bound pods. It never falls below
a number that keeps a scheduler busy. If the scheduler binds no pod at all, only one workload of
each user is released per interval: a user can prevent the binding of a pod, and that must not
close a pool to other users. These workloads share a separate window.
"""

from __future__ import annotations

from app.core.fairshare.closed_pools import UserAccount
from app.core.fairshare.decision import Selection
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, PoolName, Uid

GROWTH = 2
"""The window is this multiple of the pods bound within the last ten seconds."""

RECLAIM_MS = 600_000
"""If binding is stalled, pods are evicted for at most one workload of a pool per interval."""


class ReleaseWindow:
    """Windows of all pools and users. Call `update_closed_pools` before a cycle, `admit` before a
    release.
    """

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._reopen_at_silent: dict[PoolName, tuple[int, Uid]] = {}
        """Pools with a full window: the number of silent pods at which each one opens again, and
        the workload that waits for that.
        """
        self._last_reclaim_at: dict[PoolName, Millis] = {}

    def update_closed_pools(self) -> None:
        """Close the pools and users that are stalled or have a full window. Open the others."""
        closures, binding = self._registry.usage.closed_pools, self._registry.binding
        before = set(closures.pools)
        closures.pools = {
            pool
            for pool in binding.pools_with_silent_pods()
            if binding.stalled_since(pool) is not None
        }
        for pool, (most, uid) in list(self._reopen_at_silent.items()):
            has_ended = self._registry.find_workload(uid) is None
            if has_ended or binding.count_silent(pool) <= most:
                del self._reopen_at_silent[pool]
        closures.pools.update(self._reopen_at_silent)
        known, closures.excluded_users = closures.excluded_users, self._find_excluded_users()
        if closures.pools != before or closures.excluded_users.keys() != known.keys():
            self._registry.usage.tree.mark_order_stale()
        else:
            for pool, kept_out in closures.excluded_users.items():
                for tenant, user in kept_out ^ known[pool]:
                    self._registry.usage.tree.mark_user_order_stale(tenant, user)
        unowned = {who for who in binding.unowned if self._remaining_unowned(who) <= 0}
        self._close_users(closures.users_closed_for_unowned, unowned)
        apart = {
            who
            for who in binding.users_with_silent_lane()
            if binding.is_user_lane_stalled(who) or self._remaining_user_lane(who) <= 0
        }
        self._close_users(closures.users_closed_for_silent, apart)

    def admit(self, choice: Selection) -> bool:
        """Return whether a workload may be released now. If not, close its pool or its user.

        A workload larger than its window is released as soon as the window is empty.
        """
        leaf, shape, pool = choice.leaf, choice.equivalence_class, choice.pool
        pods = sum(count for _, count in shape.request_counts)
        binding, closures = self._registry.binding, self._registry.usage.closed_pools
        if not shape.is_owned and self._remaining_unowned(leaf.account) <= 0:
            self._close_users(
                closures.users_closed_for_unowned,
                closures.users_closed_for_unowned | {leaf.account},
            )
            return False
        if shape.scheduler_may_be_silent:
            silent = binding.count_user_lane_silent(leaf.account)
            is_closed = pool in closures.pools and binding.has_recent_user_lane(leaf.account)
            is_closed = is_closed or binding.is_user_lane_stalled(leaf.account)
            if is_closed or (silent and pods > self._remaining_user_lane(leaf.account)):
                self._close_users(
                    closures.users_closed_for_silent,
                    closures.users_closed_for_silent | {leaf.account},
                )
                return False
            return True
        silent, window = binding.count_silent(pool), self.max_silent_pods(pool)
        is_closed = pool in closures.pools
        if not is_closed and (not silent or silent + pods <= window):
            return True
        if binding.is_stuck(pool) and self._is_probe(pool, leaf.account, pods):
            return True
        if is_closed:
            closures.excluded_users[pool].add(leaf.account)
            self._registry.usage.tree.mark_user_order_stale(*leaf.account)
            return False
        # The pool opens again late, because every change examines all waiting workloads.
        reopen_at = max(0, min(window * 3 // 4, window - pods))
        self._reopen_at_silent[pool] = reopen_at, choice.queue_key.uid
        closures.pools.add(pool)
        closures.excluded_users = self._find_excluded_users()
        self._registry.usage.tree.mark_order_stale()
        return False

    def may_reclaim(self, pool: PoolName) -> bool:
        """Return whether pods may be evicted for others in a pool.

        While binding is stalled this is possible for one workload per `RECLAIM_MS`. Otherwise a
        user could keep capacity with a pod that cannot be bound.
        """
        now, since = self._registry.usage.now, self._registry.binding.stalled_since(pool)
        last = max(since or 0, self._last_reclaim_at.get(pool, Millis(0)))
        return since is None or now - last >= RECLAIM_MS

    def record_reclaim(self, pool: PoolName) -> None:
        """Record that pods of a pool are being evicted for others."""
        self._last_reclaim_at[pool] = self._registry.usage.now

    def due(self) -> Millis | None:
        """Return the next time at which more may be possible without a new event."""
        binding, now = self._registry.binding, self._registry.usage.now
        due: list[Millis] = []
        for pool in self._registry.usage.closed_pools.pools:
            due += binding.recently_released_users(pool).values()
            since = binding.stalled_since(pool)
            if since is not None:
                last = max(since, self._last_reclaim_at.get(pool, Millis(0)))
                due.append(Millis(last + RECLAIM_MS))
        return min((at for at in due if at > now), default=None)

    def max_silent_pods(self, pool: PoolName) -> int:
        """Return the maximum number of silent pods of a pool."""
        least = self._registry.usage.policy.max_unbound
        return max(least, GROWTH * self._registry.binding.count_recently_bound(pool))

    def _find_excluded_users(self) -> dict[PoolName, set[UserAccount]]:
        """Return the closed pools that accept single workloads, each with the excluded users."""
        binding = self._registry.binding
        found = {}
        for pool in self._registry.usage.closed_pools.pools:
            window = self.max_silent_pods(pool)
            if binding.is_stuck(pool) and binding.count_silent(pool) < 2 * window:
                full = {
                    who for who, count in binding.silent_by_user(pool).items() if count >= window
                }
                found[pool] = full | binding.recently_released_users(pool).keys()
        return found

    def _is_probe(self, pool: PoolName, account: UserAccount, pods: int) -> bool:
        """Return whether a workload may be released although silent pods stall or fill the pool."""
        binding, window = self._registry.binding, self.max_silent_pods(pool)
        pods = min(pods, window)
        silent = binding.silent_by_user(pool).items()
        mine = sum(count for (tenant, _), count in silent if tenant == account[0])
        return (
            account not in binding.recently_released_users(pool)
            and mine + pods <= window
            and binding.count_silent(pool) + pods <= 2 * window
        )

    def _remaining_user_lane(self, account: UserAccount) -> int:
        binding, least = self._registry.binding, self._registry.usage.policy.max_unbound
        window = max(least, GROWTH * binding.count_user_lane_bound(account))
        return window - binding.count_user_lane_silent(account)

    def _remaining_unowned(self, account: UserAccount) -> int:
        """Return how many more unowned pods of a user may be released."""
        usage, binding = self._registry.usage, self._registry.binding
        mine = binding.unowned.get(account, {})
        least = usage.policy.max_unowned_unbound
        window = max(least, GROWTH * binding.count_bound_unowned(account))
        if len(mine) < window:
            return window - len(mine)
        counted = sum(
            1
            for each in mine.values()
            if each.is_overdue
            or not each.was_judged
            or usage.awaited_pool(each.tracked.allocation) is None
        )
        return window - counted

    def _close_users(self, closed: set[UserAccount], now: set[UserAccount]) -> None:
        changed = closed ^ now
        closed.symmetric_difference_update(changed)
        for tenant, user in changed:
            self._registry.usage.tree.mark_user_order_stale(tenant, user)
