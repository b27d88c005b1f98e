"""Queues and usage for the routes: the leader's copy, or those of this replica without a leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from app.core.explain.queries import EngineQueries
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.model import TenantName, UserName
from app.ports.store import PendingCount, QueueReader, UsedAmount


class EngineQueues:
    """`ports.store.QueueReader` with the state of this replica's own engine."""

    def __init__(self, queries: EngineQueries) -> None:
        self._queries = queries

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        """Return the users with pending pods, sorted."""
        return tuple(
            PendingCount(name, each.name, each.pending)
            for name in self._tenant_names(tenant)
            for each in self._queries.user_views(name)
            if each.pending
        )

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        """Return the usage of users, sorted."""
        return tuple(
            sorted(each for name in self._tenant_names(tenant) for each in self._tenant_usage(name))
        )

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        """Return at most `limit` workloads that follow `after`."""
        rows: list[QueueRow] = []
        for user in users:
            mark = after if after is not None and after.user == user else None
            rows += islice(self._queries.waiting_rows(tenant, user, mark), limit - len(rows))
            if len(rows) >= limit:
                break
        return tuple(rows)

    def _tenant_names(self, tenant: TenantName | None) -> Sequence[TenantName]:
        return [tenant] if tenant is not None else sorted(self._queries.view().tenants)

    def _tenant_usage(self, tenant: TenantName) -> Iterator[UsedAmount]:
        for each in self._queries.user_views(tenant):
            for pool, amounts in each.used.items():
                for resource, amount in amounts.items():
                    if amount:
                        yield UsedAmount(tenant, each.name, pool, resource, amount)


class LeaderQueues:
    """`ports.store.QueueReader`: the leader's copy, or without a leader this replica's own state.

    The copy lacks pods that came after the end of the last leader. `has_leader` returns whether a
    controller leads, `is_synced` whether this replica has received every source completely.
    """

    def __init__(
        self,
        leader_copy: QueueReader,
        own_queues: QueueReader,
        has_leader: Callable[[], bool],
        is_synced: Callable[[], bool],
    ) -> None:
        self._leader_copy, self._own_queues = leader_copy, own_queues
        self._has_leader, self._is_synced = has_leader, is_synced

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        """Return the users with pending pods, sorted. Raises StoreError."""
        return await self._current_source().read_pending_counts(tenant)

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        """Return the usage of users, sorted. Raises StoreError."""
        return await self._current_source().read_used_amounts(tenant)

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        """Return at most `limit` workloads that follow `after`. Raises StoreError."""
        return await self._current_source().read_page(tenant, users, after, limit)

    def _current_source(self) -> QueueReader:
        return (
            self._own_queues if self._is_synced() and not self._has_leader() else self._leader_copy
        )
