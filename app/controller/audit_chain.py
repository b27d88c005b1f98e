"""Opens, appends to, repairs and prunes the audit chain in one leader's term.

It continues only from an end that a valid signature covers. Any other end is recorded as a gap.
One caller at a time. `audit_writer` has the queue and the timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.core.audit.codec import SignedHead, head_line, missed_line, parse_line
from app.core.audit.verifier import Gap, gap_record, preceding_head, pruning_record
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, is_intact, seal
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.ports.audit import (
    Anchor,
    AuditSink,
    AuditStream,
    Batch,
    HeadSigner,
    StreamTail,
    iterate_lines,
)

MAX_ENTRY_NUMBER = 10**12
"""Upper bound of entry numbers. Fairgate did not write a stream with a higher number."""

MAX_MISSED_ENTRIES = 20_000
"""Most anchored entries that a new leader copies to a sink that lacks them.

One line counts the entries that it does not copy.
"""

FLUSH_SECONDS = 0.5
"""How long an anchor waits for the copies of its entries.

A new leader copies the entries after the anchor again. Entries before it that a killed leader had
not copied yet would be missing in a sink that does not know its last entry.
"""

STEP = 500
"""Entries removed at once."""

log = logging.getLogger("fairgate.audit")


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of the stored entries: `max_age` in milliseconds, `max_bytes` in bytes.

    Entries use at most half of the memory that Redis may use, but `min_bytes` bytes in any case.
    """

    max_age: Millis
    max_bytes: int
    min_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class _Due:
    """A batch that is sent unchanged until its outcome is known. `records`: the caller's part."""

    batch: Batch
    records: int


class Chain:
    """The audit chain in one term. Call `open` first. All methods raise StoreError, ClusterError.

    `is_valid_signature` returns whether the signature of a head is valid.
    """

    def __init__(
        self,
        stream: AuditStream,
        anchor: Anchor,
        load_signer: Callable[[], Awaitable[HeadSigner]],
        is_valid_signature: Callable[[SignedHead], bool],
        sinks: Sequence[AuditSink],
        cluster: str,
        retention: Retention,
        clock: Callable[[], Millis],
    ) -> None:
        self._stream = stream
        self._anchor = anchor
        self._load_signer = load_signer
        self._is_valid_signature = is_valid_signature
        self._sinks = sinks
        self._cluster = cluster
        self._retention = retention
        self._clock = clock
        # `_sealed_head`: the last head that this replica wrote into Redis. `_anchored_head`: the
        # newest head outside Redis. `_stream_end`: the last entry in Redis. `_head`: the
        # predecessor of the next entry. `_stream_end` and `_head` differ after a loss, until the
        # gap entry is sealed.
        self._epoch = 0
        self._signer: HeadSigner | None = None
        self._sealed_head: SignedHead | None = None
        self._anchored_head: SignedHead | None = None
        self._head = Head()
        self._stream_end = Head()
        self._moves_stream_away = False
        self._own_records: list[AuditRecord] = []
        self._unsettled: _Due | None = None

    @property
    def has_unsealed(self) -> bool:
        """Return whether the chain has records of its own, or a batch without known outcome."""
        return bool(self._own_records or self._unsettled)

    @property
    def is_anchored(self) -> bool:
        """Return whether the newest head is stored outside Redis."""
        sealed = self._sealed_head
        return sealed is None or sealed.epoch < self._epoch or sealed == self._anchored_head

    async def open(self, epoch: int) -> None:
        """Find the end of the chain. Prepare a gap entry if entries were lost."""
        signer = await self._load_signer()
        self._anchored_head = await self._anchor.read_anchored_head()
        ending = await self._stream.read_tail()
        self._epoch, self._signer, self._unsettled, self._own_records = epoch, signer, None, []
        self._stream_end, self._moves_stream_away = ending.last_head, False
        trusted = self._trusted_heads(signer, ending)
        best = max(trusted, key=lambda each: (each.epoch, each.head.number), default=None)
        known = best.head if best else Head()
        if ending.last_head == known and ending.highest_number == known.number:
            self._head = known
            await self._copy_missed_entries()
            if best is not None and ending.signed_head != best:
                self._unsettled = _Due(Batch(epoch, known, (), best), 0)  # Redis lost only the head
        else:
            self._continue_after_loss(
                known, ending, trusted, exact=best is not None and best == self._sealed_head
            )
        if self._anchored_head is None or self._anchored_head.public_key != signer.public_key:
            former = self._anchored_head.public_key if self._anchored_head else None
            facts = {"publicKey": signer.public_key, "before": former}
            self._own_records.append(AuditRecord(self._clock(), EntryType.KEY, facts))

    async def matches_stream(self) -> bool:
        """Return whether the stream in Redis still ends where this chain does."""
        ending = await self._stream.read_tail()
        return ending.last_head == self._stream_end and ending.signed_head == self._sealed_head

    async def seal(self, records: Sequence[AuditRecord]) -> int | None:
        """Append records after the chain's own ones; return how many of `records` were appended.

        Return None if the stream in Redis ends elsewhere: call `open` again. Pass the same records
        first again after an error.
        """
        due = self._unsettled = self._unsettled or self._build_batch(
            (*self._own_records, *records), len(records)
        )
        if not await self._stream.append(due.batch):
            self._unsettled = None
            return None
        self._record_appended(due.batch)
        if (
            due.batch.entries
        ):  # else the batch restored only the head, and `_own_records` is still unsent
            self._own_records = []
        return due.records

    async def remove_markers(self, keys: Sequence[str]) -> None:
        """Remove the audit markers with these keys."""
        await self._stream.remove_markers(self._epoch, keys)

    async def anchor(self) -> None:
        """Store the newest head outside Redis."""
        signed = self._sealed_head
        if self.is_anchored or signed is None:
            return
        await asyncio.gather(*(outlet.flush(FLUSH_SECONDS) for outlet in self._sinks))
        await self._anchor.anchor_head(self._epoch, signed)
        self._anchored_head = signed
        self._copy_line(head_line(signed), signed.head.number)

    async def prune(self, *, urgent: bool = False) -> bool:
        """Remove up to `STEP` entries beyond the retention; return whether there may be more.

        `urgent`: Redis refused a batch because its memory is full, and the batch waits for this.
        """
        if (
            self._anchored_head is None
            or self._moves_stream_away
            or (self.has_unsealed and not urgent)
        ):
            return False
        ending = await self._stream.read_tail()
        if urgent and ending.last_head != self._stream_end:
            return False  # Redis did write the batch
        over = ending.size - await self._max_bytes()
        rows = await self._stream.read_lines(0, STEP + 1)
        cut = self._find_prunable(rows, over, self._anchored_head.head.number)
        if cut is None:
            return False
        count, first = cut
        why = "more bytes than are kept" if over > 0 else "older than is kept"
        record = pruning_record(self._clock(), preceding_head(first), count, why)
        self._unsettled = self._build_batch((*self._own_records, record), 0, first.number)
        return await self.seal(()) is not None and count == STEP

    async def _max_bytes(self) -> int:
        """Return the most bytes of entries to store. Other data in Redis needs memory too."""
        kept, room = self._retention, await self._stream.read_memory_limit()
        return min(kept.max_bytes, max(room // 2, kept.min_bytes)) if room else kept.max_bytes

    def _find_prunable(
        self, rows: Sequence[tuple[int, str]], over: int, anchored: int
    ) -> tuple[int, Entry] | None:
        """Return how many of the first rows to remove, and the new first entry; None: no row.

        A modified entry is evidence. It is removed only to save bytes, never for its claimed age.
        """
        oldest = self._clock() - self._retention.max_age
        found: tuple[int, Entry] | None = None
        last: Entry | None = None
        freed = 0
        for count, (number, text) in enumerate(rows):
            entry = _parse_entry(text)
            sound = entry is not None and (last is None or preceding_head(entry) == last.head)
            if count and entry is not None and sound and number <= anchored:
                found = count, entry
            is_old = sound and entry is not None and entry.record.at < oldest
            if number >= anchored or not (is_old or freed < over):
                break
            freed += len(text.encode())
            last = entry
        return found

    def _trusted_heads(self, signer: HeadSigner, ending: StreamTail) -> list[SignedHead]:
        """Return the heads of this cluster with a valid signature of Fairgate."""
        keys = {signer.public_key}
        if self._anchored_head is not None and not self._is_valid_signature(self._anchored_head):
            log.error("the anchored head of the audit chain bears no valid signature: ignored")
            self._anchored_head = None
        if self._anchored_head is not None:
            keys.add(self._anchored_head.public_key)
        found = [each for each in (self._sealed_head, self._anchored_head) if each is not None]
        if (
            (signed := ending.signed_head)
            and signed.public_key in keys
            and self._is_valid_signature(signed)
        ):
            found.append(signed)
        return [each for each in found if each.cluster == self._cluster]

    def _continue_after_loss(
        self, known: Head, ending: StreamTail, trusted: Sequence[SignedHead], *, exact: bool
    ) -> None:
        """Continue after a loss with a gap entry."""
        vouched = ending.last_head == Head() or any(
            each.head == ending.last_head for each in trusted
        )
        self._moves_stream_away = not vouched or ending.highest_number > MAX_ENTRY_NUMBER
        if self._moves_stream_away:
            after, top, why = Head(), 0, self._moved_away_reason(ending, vouched=vouched)
        elif ending.last_head == Head():
            after, top, why = ending.last_head, ending.highest_number, "Redis lost all entries"
        else:
            after, top, why = (
                ending.last_head,
                ending.highest_number,
                "Redis lost its newest entries",
            )
        # Numbers of the stream only rise. The hash is that of the newest known entry.
        self._head = Head(max(top, after.number, known.number), known.hash)
        named = Gap(after, known)
        self._own_records.append(gap_record(self._clock(), named, exact=exact, why=why))
        facts = {"why": why, "after": after.number, "upTo": known.number}
        log.error("entries of the audit chain are lost; a gap is recorded", extra=facts)

    def _moved_away_reason(self, ending: StreamTail, *, vouched: bool) -> str:
        """Return why the stream in Redis is moved away."""
        signed = ending.signed_head
        if vouched:
            what = "entries with impossible numbers"
        elif signed and signed.head == ending.last_head and self._is_valid_signature(signed):
            what = "entries that another key or cluster signed"
        else:
            what = "entries without a signature"
        return f"Redis contained {what}; they were moved away"

    async def _copy_missed_entries(self) -> None:
        """Copy entries that the previous leader may not have copied. Readers detect duplicates."""
        if self._anchored_head is None or (
            self._sealed_head and self._sealed_head.head == self._head
        ):
            return
        first = next((number for number, _ in await self._stream.read_lines(0, 1)), 1)
        starts = [(each, await self._last_copied(each, first)) for each in self._sinks]
        after = min((start for _, start in starts), default=self._head.number)
        async for number, text in iterate_lines(self._stream, after, self._head.number):
            for outlet, start in starts:
                if number > start:
                    outlet.write_line(text, number, self._epoch)

    async def _last_copied(self, outlet: AuditSink, first: int) -> int:
        """Return the number of the last entry that the sink already has or will never receive.

        Write a line about skipped entries to the sink.
        """
        assert self._anchored_head is not None
        anchored, copied = self._anchored_head.head.number, await outlet.read_last_copied()
        if copied is None or copied >= anchored:
            return anchored
        start = max(copied, anchored - MAX_MISSED_ENTRIES, first - 1)
        if 0 < copied < start:
            outlet.write_line(missed_line(start - copied, copied + 1, start), start, self._epoch)
        return start

    def _build_batch(self, records: Sequence[AuditRecord], count: int, keep: int = 0) -> _Due:
        assert self._signer is not None
        head, entries = self._head, []
        for record in records:
            entry = seal(head, self._epoch, record)
            entries.append(entry)
            head = entry.head
        signed = self._signer.sign(SignedHead(self._cluster, head, self._epoch, self._clock()))
        batch = Batch(
            self._epoch, self._stream_end, tuple(entries), signed, keep, self._moves_stream_away
        )
        return _Due(batch, count)

    def _record_appended(self, batch: Batch) -> None:
        self._unsettled, self._moves_stream_away = None, False
        self._sealed_head = batch.signed_head
        self._head = self._stream_end = batch.signed_head.head
        for entry, text in zip(batch.entries, batch.lines, strict=True):
            self._copy_line(text, entry.number)

    def _copy_line(self, text: str, number: int) -> None:
        for outlet in self._sinks:
            outlet.write_line(text, number, self._epoch)


def _parse_entry(text: str) -> Entry | None:
    try:
        found = parse_line(text)
    except InvalidInput:
        return None
    return found if isinstance(found, Entry) and is_intact(found) else None
