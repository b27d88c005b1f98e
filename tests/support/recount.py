"""Compares Redis with a count of a list of writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from app.core.effects import PodRef, StoreWrite
from app.core.model import TenantName, UserName
from app.store.reader import PendingCount, UsedAmount
from tests.fakes.fake_store import Contents


class Reader(Protocol):
    """A store that can be compared: RedisReader, RedisStore, FakeStore."""

    async def counts(self) -> tuple[PendingCount, ...]: ...

    async def usage(self) -> tuple[UsedAmount, ...]: ...

    async def queue(self, tenant: TenantName, user: UserName, limit: int) -> tuple[PodRef, ...]: ...


async def compare(reader: Reader, writes: Iterable[StoreWrite]) -> list[str]:
    """Return the differences between the reader and `writes`, one sentence each; [] if equal."""
    wanted = Contents.of(writes)
    differences = _compare_rows("waiting", wanted.counts(), await reader.counts())
    differences += _compare_rows("used", wanted.usage(), await reader.usage())
    for row in wanted.counts():
        pods = await reader.queue(row.tenant, row.user, 10**9)
        if list(pods) != wanted.queue(row.tenant, row.user):
            differences.append(f"queue of {row.tenant}/{row.user}: other pods or another order")
    return differences


def _compare_rows(what: str, wanted: tuple[object, ...], found: tuple[object, ...]) -> list[str]:
    missing = [f"{what}: {row} is missing" for row in wanted if row not in set(found)]
    surplus = [f"{what}: {row} is too much" for row in found if row not in set(wanted)]
    return missing + surplus
