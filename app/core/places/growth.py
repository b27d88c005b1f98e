"""Pools that grow when pods wait for nodes: which of them did not, lately, and how far they may.

Work is released into them before its nodes are there. If none comes in time, that is over for its
user for a while, twice as long each time. What one user asks may be what no node has; so only
where that befell two is it over for all, and then one workload at a time may try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.core.backoff import Backoff
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, UserName

Account = tuple[TenantName, UserName]

ENOUGH = 2
"""Users who must have failed before the pool is to blame."""


class Growth:
    """See the module. `changes` counts how often the answers changed."""

    def __init__(self) -> None:
        self.changes = 0
        self.arrivals = 0
        """How many nodes came so far."""
        self._arrived: dict[NodeName, int] = {}
        self._failures: dict[PoolName, Backoff[Account]] = {}
        self._barred: dict[tuple[PoolName, Account], Millis] = {}
        self._closed: Mapping[PoolName, Millis] = {}
        self._wary: frozenset[PoolName] = frozenset()

    @property
    def closed(self) -> Mapping[PoolName, Millis]:
        """The pools that are filled no further than their nodes reach, by anybody, and how long."""
        return self._closed

    def barred(self, pool: PoolName, account: Account) -> Millis | None:
        """Return until when no work of a user waits for new nodes of a pool; None: it may."""
        return self._barred.get((pool, account))

    def is_wary(self, pool: PoolName) -> bool:
        """Tell whether one workload at a time may wait for nodes of a pool."""
        return pool in self._wary

    def arrive(self, node: NodeName) -> None:
        """A node came that was not known."""
        self.arrivals += 1
        self._arrived[node] = self.arrivals

    def depart(self, node: NodeName) -> None:
        """A node is gone."""
        self._arrived.pop(node, None)

    def is_newer(self, node: NodeName, arrivals: int) -> bool:
        """Tell whether a node came after so many others."""
        return self._arrived.get(node, 0) > arrivals

    def failed(self, pool: PoolName, account: Account, now: Millis, span: Millis) -> None:
        """Work of a user was released for nodes that did not come. Together it counts once."""
        self._failures.setdefault(pool, Backoff()).fail(account, now, span)

    def came(self, pool: PoolName, account: Account) -> None:
        """A new node of a pool took work of a user that waited for one: it grows.

        So who failed alone has itself to blame, and who failed with others has not.
        """
        failures = self._failures.get(pool)
        if failures is None:
            return
        if _users(failures) < ENOUGH:
            failures.forgive(account)
        else:
            failures.clear()

    def advance(self, now: Millis) -> None:
        """Bring the answers up to date."""
        closed: dict[PoolName, Millis] = {}
        self._barred.clear()
        for pool, failures in sorted(self._failures.items()):
            for account in failures.old(now):
                failures.forgive(account)
            barred = failures.waiting(now)
            self._barred.update({(pool, who): until for who, until in barred.items()})
            latest: dict[UserName, Millis] = {}
            for (_, user), until in barred.items():
                latest[user] = max(until, latest.get(user, until))
            if len(latest) >= ENOUGH:
                closed[pool] = sorted(latest.values())[-ENOUGH]
        self._failures = {pool: each for pool, each in self._failures.items() if each}
        wary = (pool for pool, each in self._failures.items() if _users(each) >= ENOUGH)
        self._set(closed, frozenset(wary))

    def all_barred(self) -> list[tuple[tuple[PoolName, Account], Millis]]:
        """Return for whom which pools are closed, and until when."""
        return sorted(self._barred.items())

    def hear(
        self,
        closed: Mapping[PoolName, Millis],
        barred: Mapping[tuple[PoolName, Account], Millis],
    ) -> None:
        """Another engine, which leads, says which pools are closed, and for whom."""
        self._barred = dict(barred)
        self._set(dict(closed), frozenset(closed))

    def due(self, now: Millis) -> Millis | None:
        """Return when the answers change by time alone."""
        due = (each.due(now) for each in self._failures.values())
        return min((at for at in due if at is not None), default=None)

    def clear(self) -> None:
        """Nothing is held against any pool."""
        self._failures.clear()
        self._barred.clear()
        self._set({}, frozenset())

    def _set(self, closed: Mapping[PoolName, Millis], wary: frozenset[PoolName]) -> None:
        if (closed, wary) != (self._closed, self._wary):
            self._closed, self._wary = closed, wary
            self.changes += 1


def _users(accounts: Iterable[Account]) -> int:
    """Return how many people these are: one may work for several tenants."""
    return len({user for _, user in accounts})


def raised(capacity: Amounts, most: Amounts) -> Amounts:
    """Return what a pool offers once it has grown: what it may reach, or has if that is more."""
    if not most:
        return capacity
    total: dict[Resource, int] = dict(capacity)
    for resource, value in most.items():
        total[resource] = max(value, total.get(resource, 0))
    return total
