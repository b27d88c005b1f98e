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
from app.core.model import Millis, PoolName

GROWTH = 2
"""The window is this multiple of the pods bound within the last ten seconds."""

RECLAIM_MS = 600_000
"""If binding is stalled, pods are evicted for at most one workload of a pool per interval."""


class ReleaseWindow:
    """Windows of all pools and users. Call `review` before a cycle, `admits` before a release."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._reopens: dict[PoolName, int] = {}
        """Pools with a full window, and the number of silent pods at which each one opens again."""
        self._reclaimed: dict[PoolName, Millis] = {}

    def review(self) -> None:
        """Close the pools and users that are stalled or have a full window. Open the others."""
        closures, binding = self._registry.usage.closures, self._registry.binding
        before = set(closures.pools)
        closures.pools = {pool for pool in binding.pools() if binding.stalled(pool) is not None}
        for pool, most in list(self._reopens.items()):
            if binding.silent(pool) <= most:
                del self._reopens[pool]
        closures.pools.update(self._reopens)
        known, closures.kept_out = closures.kept_out, self._all_kept_out()
        if closures.pools != before or closures.kept_out.keys() != known.keys():
            self._registry.usage.tree.reopen()
        else:
            for pool, kept_out in closures.kept_out.items():
                for tenant, user in kept_out ^ known[pool]:
                    self._registry.usage.tree.reopen_leaf(tenant, user)
        unowned = {who for who in binding.unowned if self._unowned_room(who) <= 0}
        self._close_users(closures.unowned, unowned)
        apart = {
            who
            for who in binding.accounts_apart()
            if binding.stalled_apart(who) or self._room_apart(who) <= 0
        }
        self._close_users(closures.apart, apart)

    def admits(self, choice: Selection) -> bool:
        """Return whether a workload may be released now. If not, close its pool or its user.

        A workload larger than its window is released as soon as the window is empty.
        """
        leaf, shape, pool = choice.leaf, choice.shape, choice.pool
        pods = sum(count for _, count in shape.parts)
        binding, closures = self._registry.binding, self._registry.usage.closures
        if not shape.owned and self._unowned_room(leaf.account) <= 0:
            self._close_users(closures.unowned, closures.unowned | {leaf.account})
            return False
        if shape.apart:
            silent = binding.silent_apart(leaf.account)
            is_closed = pool in closures.pools and binding.is_recent_apart(leaf.account)
            is_closed = is_closed or binding.stalled_apart(leaf.account)
            if is_closed or (silent and pods > self._room_apart(leaf.account)):
                self._close_users(closures.apart, closures.apart | {leaf.account})
                return False
            return True
        silent, window = binding.silent(pool), self.window(pool)
        is_closed = pool in closures.pools
        if not is_closed and (not silent or silent + pods <= window):
            return True
        if binding.is_stuck(pool) and self._is_probe(pool, leaf.account, pods):
            return True
        if is_closed:
            closures.kept_out[pool].add(leaf.account)
            self._registry.usage.tree.reopen_leaf(*leaf.account)
            return False
        # The pool opens again late, because every change examines all waiting workloads.
        self._reopens[pool] = max(0, min(window * 3 // 4, window - pods))
        closures.pools.add(pool)
        closures.kept_out = self._all_kept_out()
        self._registry.usage.tree.reopen()
        return False

    def reclaims(self, pool: PoolName) -> bool:
        """Return whether pods may be evicted for others in a pool.

        While binding is stalled this is possible for one workload per `RECLAIM_MS`. Otherwise a
        user could keep capacity with a pod that cannot be bound.
        """
        now, since = self._registry.usage.now, self._registry.binding.stalled(pool)
        last = max(since or 0, self._reclaimed.get(pool, Millis(0)))
        return since is None or now - last >= RECLAIM_MS

    def reclaimed(self, pool: PoolName) -> None:
        """Record that pods of a pool are being evicted for others."""
        self._reclaimed[pool] = self._registry.usage.now

    def due(self) -> Millis | None:
        """Return the next time at which more may be possible without a new event."""
        binding, now = self._registry.binding, self._registry.usage.now
        due: list[Millis] = []
        for pool in self._registry.usage.closures.pools:
            due += binding.recent(pool).values()
            since = binding.stalled(pool)
            if since is not None:
                last = max(since, self._reclaimed.get(pool, Millis(0)))
                due.append(Millis(last + RECLAIM_MS))
        return min((at for at in due if at > now), default=None)

    def window(self, pool: PoolName) -> int:
        """Return the maximum number of silent pods of a pool."""
        least = self._registry.usage.policy.max_unbound
        return max(least, GROWTH * self._registry.binding.bound_recently(pool))

    def _all_kept_out(self) -> dict[PoolName, set[UserAccount]]:
        """Return the closed pools that accept single workloads, each with the excluded users."""
        binding = self._registry.binding
        found = {}
        for pool in self._registry.usage.closures.pools:
            window = self.window(pool)
            if binding.is_stuck(pool) and binding.silent(pool) < 2 * window:
                full = {who for who, count in binding.silent_of(pool).items() if count >= window}
                found[pool] = full | binding.recent(pool).keys()
        return found

    def _is_probe(self, pool: PoolName, account: UserAccount, pods: int) -> bool:
        """Return whether a workload may be released although silent pods stall or fill the pool."""
        binding, window = self._registry.binding, self.window(pool)
        pods = min(pods, window)
        silent = binding.silent_of(pool).items()
        mine = sum(count for (tenant, _), count in silent if tenant == account[0])
        return (
            account not in binding.recent(pool)
            and mine + pods <= window
            and binding.silent(pool) + pods <= 2 * window
        )

    def _room_apart(self, account: UserAccount) -> int:
        binding, least = self._registry.binding, self._registry.usage.policy.max_unbound
        window = max(least, GROWTH * binding.bound_recently_apart(account))
        return window - binding.silent_apart(account)

    def _unowned_room(self, account: UserAccount) -> int:
        """Return how many more unowned pods of a user may be released."""
        usage, binding = self._registry.usage, self._registry.binding
        mine = binding.unowned.get(account, {})
        least = usage.policy.max_unowned_unbound
        window = max(least, GROWTH * binding.bound_unowned(account))
        if len(mine) < window:
            return window - len(mine)
        counted = sum(
            1
            for each in mine.values()
            if each.overdue or not each.judged or usage.awaited(each.tracked.allocation) is None
        )
        return window - counted

    def _close_users(self, closed: set[UserAccount], now: set[UserAccount]) -> None:
        changed = closed ^ now
        closed.symmetric_difference_update(changed)
        for tenant, user in changed:
            self._registry.usage.tree.reopen_leaf(tenant, user)
