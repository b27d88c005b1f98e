"""What every replica may read of the queues and of usage, as of the last complete state.

Each call is one script, so its answer is of one moment. While Redis holds no complete state, a
read raises StoreEmptied instead of answering "nothing". People are answered from an engine, not
from here: this shows whether the copy is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.effects import PodRef
from app.core.model import PoolName, Resource, TenantName, Uid, UserName
from app.store import layout
from app.store.connection import Server
from app.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Place:
    """Where a held pod stands in its user's queue: `position` from 1 of `length`."""

    tenant: TenantName
    user: UserName
    position: int
    length: int


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """How many pods wait in one queue."""

    tenant: TenantName
    user: UserName
    pods: int


@dataclass(frozen=True, slots=True, order=True)
class Used:
    """How much of one resource one user of a tenant uses in one pool, open releases included."""

    tenant: TenantName
    user: UserName
    pool: PoolName
    resource: Resource
    amount: int


class RedisReader:
    """What the leader copied. All raise StoreEmptied, StoreForeign, StoreUnavailable."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def place(self, uid: Uid) -> Place | None:
        """Position of a held pod; None if it does not wait."""
        answer = await self._scripts.run("place", uid)
        if not answer:
            return None
        record, before, length = answer
        _, tenant, user = layout.held(record)
        return Place(tenant, user, before + 1, length)

    async def queue(self, tenant: TenantName, user: UserName, limit: int) -> tuple[PodRef, ...]:
        """The first `limit` pods of one queue, in order."""
        records = await self._scripts.run("queue", layout.join(tenant, user), limit)
        return tuple(layout.held(record)[0] for record in records)

    async def counts(self) -> tuple[Waiting, ...]:
        """How many pods wait, queue by queue, sorted; empty queues are left out."""
        rows = sorted((layout.split(at), int(pods)) for at, pods in await self._table("waiting"))
        return tuple(
            Waiting(TenantName(tenant), UserName(user), pods) for (tenant, user), pods in rows
        )

    async def usage(self) -> tuple[Used, ...]:
        """What is used, user by user, sorted; what nobody uses is left out."""
        rows = sorted((layout.split(at), int(amount)) for at, amount in await self._table("used"))
        return tuple(
            Used(TenantName(tenant), UserName(user), PoolName(pool), Resource(resource), amount)
            for (tenant, user, pool, resource), amount in rows
        )

    async def _table(self, name: str) -> list[tuple[bytes, bytes]]:
        """Return one hash of the state as pairs."""
        (flat,) = await self._scripts.run("table", name)
        return list(zip(flat[::2], flat[1::2], strict=True))
