"""Autoscaling backoff: pools and users that got no new node recently.

Pods are released before their nodes exist. If a node does not appear in time, a doubling backoff
bars the user from scale-up. A single user may request something that no node has. So the pool is
closed for all users only after two users failed. Then one workload at a time may try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, UserName
from app.core.retry import Backoff

AutoscalingAccount = tuple[TenantName, UserName]

MIN_FAILED_USERS = 2
"""Number of users that must fail before the pool counts as the cause."""


class AutoscalingBackoff:
    """Autoscaling backoff of all pools. `version` counts how often the answers changed."""

    def __init__(self) -> None:
        self.version = 0
        self.nodes_added = 0
        """Number of new nodes so far."""
        self._arrived: dict[NodeName, int] = {}
        self._failures: dict[PoolName, Backoff[AutoscalingAccount]] = {}
        self._barred: dict[tuple[PoolName, AutoscalingAccount], Millis] = {}
        self._closed: Mapping[PoolName, Millis] = {}
        self._limited_to_one: frozenset[PoolName] = frozenset()

    @property
    def closed_pools(self) -> Mapping[PoolName, Millis]:
        """The pools that are closed to scale-up for all users, and until when."""
        return self._closed

    def barred_until(self, pool: PoolName, account: AutoscalingAccount) -> Millis | None:
        """Return until when no pod of a user may wait for new nodes of a pool. None: it may."""
        return self._barred.get((pool, account))

    def is_limited_to_one(self, pool: PoolName) -> bool:
        """Return whether only one workload at a time may wait for nodes of a pool."""
        return pool in self._limited_to_one

    def record_node_added(self, node: NodeName) -> None:
        """Record a new node."""
        self.nodes_added += 1
        self._arrived[node] = self.nodes_added

    def record_node_gone(self, node: NodeName) -> None:
        """Record that a node is gone."""
        self._arrived.pop(node, None)

    def is_newer(self, node: NodeName, arrivals: int) -> bool:
        """Return whether a node came after the first `nodes_added` nodes."""
        return self._arrived.get(node, 0) > arrivals

    def record_failure(
        self, pool: PoolName, account: AutoscalingAccount, now: Millis, span: Millis
    ) -> None:
        """Record a release for nodes that did not come. Ignored while the user is barred."""
        self._failures.setdefault(pool, Backoff()).record_failure(account, now, span)

    def record_success(self, pool: PoolName, account: AutoscalingAccount) -> None:
        """Record that a new node of a pool took a waiting pod of a user: the pool grows.

        If fewer than `MIN_FAILED_USERS` users failed, only this user is forgiven, because a single
        failing user is the cause itself. Otherwise all users are forgiven.
        """
        failures = self._failures.get(pool)
        if failures is None:
            return
        if _users(failures) < MIN_FAILED_USERS:
            failures.clear_failures(account)
        else:
            failures.clear()

    def advance(self, now: Millis) -> None:
        """Update the answers to the current time."""
        closed: dict[PoolName, Millis] = {}
        self._barred.clear()
        for pool, failures in sorted(self._failures.items()):
            for account in failures.expired_keys(now):
                failures.clear_failures(account)
            barred = failures.active_delays(now)
            self._barred.update({(pool, who): until for who, until in barred.items()})
            latest: dict[UserName, Millis] = {}
            for (_, user), until in barred.items():
                latest[user] = max(until, latest.get(user, until))
            if len(latest) >= MIN_FAILED_USERS:
                closed[pool] = sorted(latest.values())[-MIN_FAILED_USERS]
        self._failures = {pool: each for pool, each in self._failures.items() if each}
        wary = (pool for pool, each in self._failures.items() if _users(each) >= MIN_FAILED_USERS)
        self._set(closed, frozenset(wary))

    def barred_accounts(self) -> list[tuple[tuple[PoolName, AutoscalingAccount], Millis]]:
        """Return each barred pool and user, and until when."""
        return sorted(self._barred.items())

    def apply_leader_state(
        self,
        closed: Mapping[PoolName, Millis],
        barred: Mapping[tuple[PoolName, AutoscalingAccount], Millis],
    ) -> None:
        """Apply the closed pools and barred users that the leader published."""
        self._barred = dict(barred)
        self._set(dict(closed), frozenset(closed))

    def due(self, now: Millis) -> Millis | None:
        """Return when the answers next change by time alone."""
        due = (each.due(now) for each in self._failures.values())
        return min((at for at in due if at is not None), default=None)

    def clear(self) -> None:
        """Forgive all failures."""
        self._failures.clear()
        self._barred.clear()
        self._set({}, frozenset())

    def _set(self, closed: Mapping[PoolName, Millis], wary: frozenset[PoolName]) -> None:
        if (closed, wary) != (self._closed, self._limited_to_one):
            self._closed, self._limited_to_one = closed, wary
            self.version += 1


def _users(accounts: Iterable[AutoscalingAccount]) -> int:
    """Return the number of distinct people: one person may work for several tenants."""
    return len({user for _, user in accounts})


def capacity_at_max_size(capacity: Amounts, most: Amounts) -> Amounts:
    """Return the capacity of a pool at its maximum size: the larger of both amounts."""
    if not most:
        return capacity
    total: dict[Resource, int] = dict(capacity)
    for resource, value in most.items():
        total[resource] = max(value, total.get(resource, 0))
    return total
