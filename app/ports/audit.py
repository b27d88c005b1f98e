"""Protocols of the audit trail: recording, storage, signing and reading, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.core.audit.codec import SignedHead, entry_line
from app.core.audit_entry import AuditRecord, Entry, EntryType, Fact, Head

PAGE = 500
"""Entries that `iterate_lines` reads at once."""


class Recorder(Protocol):
    """Records audit entries on the leader. Never blocks, never raises."""

    def can_record(self) -> bool:
        """Return whether `record` accepts a record now. Otherwise it drops the record."""

    def record(self, record: AuditRecord, /) -> None:
        """Record this after all earlier records, and store its audit markers in the same step."""

    def clear_marker(self, key: str, /) -> None:
        """Remove the audit marker `key` after all earlier records are written."""


class Reporter(Protocol):
    """Reports audit records from a process that does not lead. Never blocks or raises."""

    def report(self, entry_type: EntryType, facts: Mapping[str, Fact], example: str = "") -> None:
        """Report a record. Records with equal facts within a second are merged with a count."""


@dataclass(frozen=True, slots=True)
class Report:
    """A record on its way to the leader. The id makes repeated delivery harmless."""

    id: str
    record: AuditRecord


class Reports(Protocol):
    """Reports that wait for the leader. All methods raise StoreError."""

    async def add_reports(self, reports: Sequence[Report]) -> Mapping[EntryType, int]:
        """Store each report once. Return how many of each type did not fit."""

    async def read_waiting_reports(self, limit: int) -> Sequence[Report]:
        """Return some reports that are not in the chain yet, by id.

        Sealing a record with the marker `report/ID` removes its report.
        `AuditStream.remove_markers` does so too.
        """


@dataclass(frozen=True, slots=True)
class StreamTail:
    """Tail of the audit stream: last entry, highest number ever written, signed head, size."""

    last_head: Head
    highest_number: int
    signed_head: SignedHead | None
    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries to append to a stream that ends with `after`. `signed_head` is the head after that.

    `lines`: the entries as text. The audit markers of the records are stored in the same step.
    Entries below number `first_kept_number` are removed. `moves_stream_away` is True if the stored
    stream cannot be continued and is moved away.
    """

    epoch: int
    after: Head
    entries: tuple[Entry, ...]
    signed_head: SignedHead
    first_kept_number: int = 0
    moves_stream_away: bool = False
    lines: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(entry_line(entry) for entry in self.entries))


class AuditStream(Protocol):
    """The stream of the audit chain. All methods raise StoreError."""

    async def read_tail(self) -> StreamTail:
        """Return the tail of the stream."""

    async def read_lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return at most `limit` entries above number `after`, each with its number, not parsed."""

    async def append(self, batch: Batch) -> bool:
        """Append a batch. Repeated calls append it once. False: the stream has another last entry.

        Raises EpochStale if a newer leader has written. Raises StoreFull if Redis is out of memory;
        then no entry was written. A batch that removes entries needs no memory.
        """

    async def read_memory_limit(self) -> int:
        """Return the memory limit of the Redis server in bytes, 0 if there is no known limit."""

    async def remove_markers(self, epoch: int, keys: Sequence[str]) -> None:
        """Remove the audit markers with these keys. Raises EpochStale."""


class AuditReader(Protocol):
    """Read access to the chain. All methods raise StoreError."""

    async def read_tail(self) -> StreamTail:
        """Return the tail of the chain."""

    async def read_lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return at most `limit` entries above number `after`, each with its number, not parsed.

        Forged entries that repeat the number `after` are returned too.
        """


async def iterate_lines(
    chain: AuditReader, after: int, last: int
) -> AsyncIterator[tuple[int, str]]:
    """Yield number and text of the entries above `after`, up to `last`, without parsing them.

    It ends with any contents of the stream. Raises StoreError.
    """
    while after < last:
        rows = await chain.read_lines(after, PAGE)
        if not rows:
            return
        for number, text in rows:
            if number <= last:
                yield number, text
        after = max(after + 1, rows[-1][0])  # always advance, even over forged numbers


class Anchor(Protocol):
    """Stores the newest signed head outside Redis. May raise ClusterError."""

    async def read_anchored_head(self) -> SignedHead | None:
        """Return the newest anchored head, or None if it is missing or invalid."""

    async def anchor_head(self, epoch: int, signed: SignedHead) -> None:
        """Store this head as leader of `epoch`. Raises EpochStale if a newer leader has claimed."""


class HeadSigner(Protocol):
    """A key that signs heads."""

    @property
    def public_key(self) -> str: ...
    def sign(self, head: SignedHead, /) -> SignedHead:
        """Return the head with key and signature."""


class AuditSink(Protocol):
    """Sink for copies of the chain's lines. Never blocks the caller, never raises."""

    def write_line(self, line: str, number: int, epoch: int) -> None:
        """Write a line about entry `number`, in order. `epoch` is the leader's."""

    async def read_last_copied(self) -> int | None:
        """Return the number of the last entry that any process has copied or is copying.

        Returns 0 if there is no copy, None if unknown. Returns soon.
        """

    async def flush(self, seconds: float) -> None:
        """Wait until all lines are copied, at most `seconds` seconds."""
