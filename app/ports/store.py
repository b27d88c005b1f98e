"""Ports of the store: queues, usage, intents, audit markers and usage records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from app.core.effects import Intend, StoreWrite
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis


class AuditMarkers(Protocol):
    """Audit markers: the last recorded state of each object. All methods raise StoreError."""

    async def noted(self) -> Mapping[str, str] | None:
        """Return the markers, None if they were lost. No other leader adds any after `claim`."""

    async def remember(self, epoch: int, notes: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Store these markers if the stored ones were lost. Newer markers are retained."""


class Store(AuditMarkers, Protocol):
    """The leader's state, copied to Redis. One caller at a time. All methods raise StoreError."""

    async def floor(self, known: int = 0) -> int:
        """Return the highest epoch that ever wrote, 0 for an empty store.

        An epoch that is implausibly far above `known` is ignored: no leader wrote it.
        """

    async def claim(self, epoch: int) -> None:
        """Raise the floor to `epoch`, so older epochs cannot write. Their data stays readable."""

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        """Take the store over for `epoch` and replace all of its contents."""

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        """Apply all writes or no write. Raises EpochStale, StoreEmptied, StoreUnavailable."""

    async def intents(self) -> tuple[Intend, ...]:
        """Return the releases that were started and have no recorded result."""

    async def running(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records. No other leader adds any after `claim`."""


class UsageRecordReader(Protocol):
    """Read access to usage records for every replica. All methods raise StoreError."""

    async def running(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records."""

    def ran(self, after: Millis) -> AsyncIterator[UsageRecord]:
        """Yield the usage records that ended after `after`, in order of their end, in batches.

        A caller that reads `running` first misses no record. It may see a record in both.
        """

    async def complete_since(self) -> Millis | None:
        """Return the time from which usage records are complete, or None if it is not known yet."""


class UsageRetentionStore(Protocol):
    """Limits the number and age of usage records. May raise StoreError."""

    async def trim(self, epoch: int, now: Millis, before: Millis, most: int) -> bool:
        """Remove records that ended before `before`, or exceed `most`. True: there may be more.

        The first call records `now` as the time from which usage records are complete. Raises
        EpochStale.
        """
