"""Many processes that share one store, in memory or in a real Redis, with the same interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from app.store.connection import Server
from app.store.leader_store import RedisStore
from tests.fakes.fake_store import FakeStore, Memory

AnyStore = RedisStore | FakeStore


@dataclass
class Fakes:
    """Many processes, one memory."""

    memory: Memory = field(default_factory=Memory)

    def store(self) -> AnyStore:
        return FakeStore(self.memory)

    async def flush(self) -> None:
        self.memory.flush()


@dataclass
class Reals:
    """Many processes, one Redis."""

    server: Server
    cluster: str = field(default_factory=lambda: uuid4().hex)

    def store(self) -> AnyStore:
        return RedisStore(self.server, self.cluster)

    async def flush(self) -> None:
        await self.server.call("FLUSHALL")


World = Fakes | Reals


@asynccontextmanager
async def real(url: str) -> AsyncIterator[Reals]:
    server = Server.connect(url)
    try:
        yield Reals(server)
    finally:
        await server.close()
