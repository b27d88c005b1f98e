"""Ports of the store: queues, usage, intents, audit markers and usage records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.effects import Intend, StoreWrite
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, PoolName, Resource, TenantName, UserName


class AuditMarkers(Protocol):
    """Audit markers: the last recorded state of each object. All methods raise StoreError."""

    async def audit_markers(self) -> Mapping[str, str] | None:
        """Return the markers, None if they were lost. No other leader adds any after the claim."""

    async def restore_audit_markers(
        self, epoch: int, markers: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """Store these markers if the stored ones were lost. Newer markers are retained."""


class Store(AuditMarkers, Protocol):
    """The leader's state, copied to Redis. One caller at a time. All methods raise StoreError."""

    async def read_epoch_floor(self, known: int = 0) -> int:
        """Return the highest epoch that ever wrote, 0 for an empty store.

        An epoch that is implausibly far above `known` is ignored: no leader wrote it.
        """

    async def claim_epoch(self, epoch: int) -> None:
        """Raise the floor to `epoch`, so older epochs cannot write. Their data stays readable."""

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        """Take the store over for `epoch` and replace all of its contents."""

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        """Apply all writes or no write. Raises EpochStale, StoreEmptied, StoreUnavailable."""

    async def read_open_intents(self) -> tuple[Intend, ...]:
        """Return the releases that were started and have no recorded result."""

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records. No other leader adds any after `claim_epoch`."""


@dataclass(frozen=True, slots=True, order=True)
class PendingCount:
    """Number of pending pods of one user in a tenant."""

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


class QueueReader(Protocol):
    """The leader's copy of queues and usage, for every replica. All methods raise StoreError.

    StoreEmptied: there is no complete copy. StoreForeign: another version of Fairgate wrote it.
    """

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        """Return the users of a tenant, or of all tenants, with pending pods, sorted."""

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        """Return the usage of a tenant's users, or of all users, sorted, without zeros."""

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        """Return at most `limit` workloads of these users, in this order of users.

        `after` is a mark of the first user. Its workload need not wait any more.
        """


class UsageRecordReader(Protocol):
    """Read access to usage records for every replica. All methods raise StoreError."""

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records."""

    def read_ended_usage(self, after: Millis) -> AsyncIterator[UsageRecord]:
        """Yield the usage records that ended after `after`, in order of their end, in batches.

        A caller that reads `read_open_usage` first misses no record. It may see a record in both.
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
