"""Reads queues and usage from Redis, as of the last complete state. Base class of `RedisStore`.

Each call runs one script, so its result is consistent. Reads raise StoreEmptied while there is no
complete state in Redis. Invalid records are skipped, because any client of Redis can write there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from app.core.effects import ListOrder
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.fairshare.user_queue import QueueKey
from app.core.model import PoolName, Resource, TenantName, UserName
from app.ports.store import PendingCount, UsedAmount
from app.store import schema
from app.store.connection import Server
from app.store.lua_scripts import Scripts
from app.store.usage_records import INVALID_RECORD_ERRORS


class RedisReader:
    """`ports.store.QueueReader` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        """Return the users of a tenant, or of all tenants, with pending pods, sorted."""
        rows = await self._read_hash("waiting", tenant)
        return tuple(
            PendingCount(TenantName(tenant), UserName(user), pods)
            for (tenant, user), pods in sorted((schema.split(at), int(n)) for at, n in rows)
        )

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        """Return the usage of a tenant's users, or of all users, sorted, without zeros."""
        rows = await self._read_hash("used", tenant)
        return tuple(
            UsedAmount(
                TenantName(tenant), UserName(user), PoolName(pool), Resource(resource), amount
            )
            for (tenant, user, pool, resource), amount in sorted(
                (schema.split(at), int(value)) for at, value in rows
            )
        )

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        """Return at most `limit` workloads of these users, in this order of users."""
        order, member = "", ""
        if after is not None:
            order = str(int(ListOrder.QUEUED if after.is_queued else ListOrder.UNQUEUED))
            member = schema.queue_member(after.queue_key.rank, after.queue_key.uid)
        queues = [schema.join(tenant, user) for user in users]
        found = await self._scripts.run_script("queue_page", limit, order, member, *queues)
        return tuple(row for part in found for row in _rows(users, *part))

    async def _read_hash(self, name: str, tenant: TenantName | None) -> list[tuple[bytes, bytes]]:
        """Return the fields of one hash of the valid generation, all or those of a tenant."""
        prefix = "" if tenant is None else schema.join(tenant) + ":"
        (flat,) = await self._scripts.run_script("generation_hash", name, prefix)
        # A scan may return a field twice.
        return list(dict(zip(flat[::2], flat[1::2], strict=True)).items())


def _rows(
    users: Sequence[UserName], number: int, length: int, start: int, records: bytes
) -> Iterator[QueueRow]:
    """Yield the workloads of one user. `start`: how many of the user's workloads come before."""
    for before, record in enumerate(records.split(b"\n"), start):
        with contextlib.suppress(*INVALID_RECORD_ERRORS):
            held = schema.decode_held_entry(record)
            rank, _, uid = held.member.partition(schema.NUL)
            queued = before < length
            yield QueueRow(
                PageMark(users[number], queued, QueueKey.of_rank(rank)),
                schema.pod_ref(held, uid),
                held.gang,
                held.pods,
                before + 1 if queued else 0,
                length if queued else 0,
            )
