"""Reads queues and usage from Redis, as of the last complete state. Base class of `RedisStore`.

Each call runs one script, so its result is consistent. Reads raise StoreEmptied while there is no
complete state in Redis. The REST API answers from the engine and not from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.effects import PodRef
from app.core.model import PoolName, Resource, TenantName, Uid, UserName
from app.store import schema
from app.store.connection import Server
from app.store.lua_scripts import Scripts


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of a held pod in its user's queue: `position` counts from 1 up to `length`."""

    tenant: TenantName
    user: UserName
    position: int
    length: int


@dataclass(frozen=True, slots=True, order=True)
class PendingCount:
    """Number of waiting pods in one queue."""

    tenant: TenantName
    user: UserName
    pods: int


@dataclass(frozen=True, slots=True, order=True)
class UsedAmount:
    """Usage of one resource by a user of a tenant in a pool, including open releases."""

    tenant: TenantName
    user: UserName
    pool: PoolName
    resource: Resource
    amount: int


class RedisReader:
    """Copied leader state. All methods raise StoreEmptied, StoreForeign, StoreUnavailable."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def place(self, uid: Uid) -> QueuePosition | None:
        """Return the queue position of a held pod, or None if it does not wait."""
        answer = await self._scripts.run_script("queue_position", uid)
        if not answer:
            return None
        record, before, length = answer
        _, tenant, user = schema.held(record)
        return QueuePosition(tenant, user, before + 1, length)

    async def queue(self, tenant: TenantName, user: UserName, limit: int) -> tuple[PodRef, ...]:
        """Return the first `limit` pods of one queue, in order."""
        records = await self._scripts.run_script("queue_page", schema.join(tenant, user), limit)
        return tuple(schema.held(record)[0] for record in records)

    async def counts(self) -> tuple[PendingCount, ...]:
        """Return the number of waiting pods per queue, sorted. Empty queues are left out."""
        rows = sorted((schema.split(at), int(pods)) for at, pods in await self._table("waiting"))
        return tuple(
            PendingCount(TenantName(tenant), UserName(user), pods) for (tenant, user), pods in rows
        )

    async def usage(self) -> tuple[UsedAmount, ...]:
        """Return usage per user, pool and resource, sorted. Zero amounts are left out."""
        rows = sorted((schema.split(at), int(amount)) for at, amount in await self._table("used"))
        return tuple(
            UsedAmount(
                TenantName(tenant), UserName(user), PoolName(pool), Resource(resource), amount
            )
            for (tenant, user, pool, resource), amount in rows
        )

    async def _table(self, name: str) -> list[tuple[bytes, bytes]]:
        """Return one hash of the valid generation as pairs."""
        (flat,) = await self._scripts.run_script("generation_hash", name)
        return list(zip(flat[::2], flat[1::2], strict=True))
