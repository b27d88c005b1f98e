"""Opens, appends to, repairs and prunes the audit chain in one leader's term.

It continues only from an end that a valid signature covers. Any other end is recorded as a gap.
One caller at a time. `audit_writer` has the queue and the timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.core.audit.codec import SignedHead, head_line, missed_line, read
from app.core.audit.verifier import Gap, ahead, gap, pruned
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, is_intact, seal
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.ports.audit import Anchor, AuditSink, AuditStream, Batch, Signing, StreamTail

MOST = 10**12
"""Upper bound of entry numbers. Fairgate did not write a stream with a higher number."""

REFILL = 20_000
"""Most anchored entries that a new leader copies to a sink that lacks them.

One line counts the entries that it does not copy.
"""

FLUSH_SECONDS = 0.5
"""How long an anchor waits for the copies of its entries.

A new leader copies the entries after the anchor again. Entries before it that a killed leader had
not copied yet would be missing in a sink that does not know its last entry.
"""

STEP = 500
"""Entries read, or removed, at once."""

log = logging.getLogger("fairgate.audit")


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of the stored entries: `age` in milliseconds, `size` in bytes.

    Entries use at most half of the memory that Redis may use, but `least` bytes in any case.
    """

    age: Millis
    size: int
    least: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class _Due:
    """A batch that is sent unchanged until its outcome is known. `records`: the caller's part."""

    batch: Batch
    records: int


class Chain:
    """The audit chain in one term. Call `open` first. All methods raise StoreError, ClusterError.

    `holds` returns whether the signature of a head is valid.
    """

    def __init__(
        self,
        trail: AuditStream,
        anchor: Anchor,
        load: Callable[[], Awaitable[Signing]],
        holds: Callable[[SignedHead], bool],
        outlets: Sequence[AuditSink],
        cluster: str,
        retention: Retention,
        clock: Callable[[], Millis],
    ) -> None:
        self._trail = trail
        self._anchor = anchor
        self._load = load
        self._holds = holds
        self._outlets = outlets
        self._cluster = cluster
        self._retention = retention
        self._clock = clock
        # `_sealed`: the last head that this replica wrote into Redis. `_anchored`: the newest head
        # outside Redis. `_after`: the last entry in Redis. `_head`: the predecessor of the next
        # entry. `_after` and `_head` differ after a loss, until the gap entry is sealed.
        self._epoch = 0
        self._signer: Signing | None = None
        self._sealed: SignedHead | None = None
        self._anchored: SignedHead | None = None
        self._head = Head()
        self._after = Head()
        self._aside = False
        self._own: list[AuditRecord] = []
        self._due: _Due | None = None

    @property
    def has_own(self) -> bool:
        """Return whether the chain has records of its own, or a batch without known outcome."""
        return bool(self._own or self._due)

    @property
    def is_anchored(self) -> bool:
        """Return whether the newest head is stored outside Redis."""
        sealed = self._sealed
        return sealed is None or sealed.epoch < self._epoch or sealed == self._anchored

    async def open(self, epoch: int) -> None:
        """Find the end of the chain. Prepare a gap entry if entries were lost."""
        signer = await self._load()
        self._anchored = await self._anchor.anchored()
        ending = await self._trail.ending()
        self._epoch, self._signer, self._due, self._own = epoch, signer, None, []
        self._after, self._aside = ending.last, False
        trusted = self._trusted(signer, ending)
        best = max(trusted, key=lambda each: (each.epoch, each.head.number), default=None)
        known = best.head if best else Head()
        if ending.last == known and ending.top == known.number:
            self._head = known
            await self._refill()
            if best is not None and ending.signed != best:
                self._due = _Due(Batch(epoch, known, (), best), 0)  # Redis lost only the head
        else:
            self._branch(known, ending, trusted, exact=best is not None and best == self._sealed)
        if self._anchored is None or self._anchored.key != signer.public_key:
            former = self._anchored.key if self._anchored else None
            facts = {"publicKey": signer.public_key, "before": former}
            self._own.append(AuditRecord(self._clock(), EntryType.KEY, facts))

    async def stands(self) -> bool:
        """Return whether the stream in Redis still ends where this chain does."""
        ending = await self._trail.ending()
        return ending.last == self._after and ending.signed == self._sealed

    async def seal(self, records: Sequence[AuditRecord]) -> int | None:
        """Append records after the chain's own ones; return how many of `records` were appended.

        Return None if the stream in Redis ends elsewhere: call `open` again. Pass the same records
        first again after an error.
        """
        due = self._due = self._due or self._batch((*self._own, *records), len(records))
        if not await self._trail.append(due.batch):
            self._due = None
            return None
        self._settle(due.batch)
        if due.batch.entries:  # else the batch restored only the head, and `_own` is still unsent
            self._own = []
        return due.records

    async def remove_markers(self, keys: Sequence[str]) -> None:
        """Remove the audit markers with these keys."""
        await self._trail.remove_markers(self._epoch, keys)

    async def anchor(self) -> None:
        """Store the newest head outside Redis."""
        signed = self._sealed
        if self.is_anchored or signed is None:
            return
        await asyncio.gather(*(outlet.flush(FLUSH_SECONDS) for outlet in self._outlets))
        await self._anchor.anchor(self._epoch, signed)
        self._anchored = signed
        self._copy(head_line(signed), signed.head.number)

    async def prune(self, *, urgent: bool = False) -> bool:
        """Remove up to `STEP` entries beyond the retention; return whether there may be more.

        `urgent`: Redis refused a batch because its memory is full, and the batch waits for this.
        """
        if self._anchored is None or self._aside or (self.has_own and not urgent):
            return False
        ending = await self._trail.ending()
        if urgent and ending.last != self._after:
            return False  # Redis did write the batch
        over = ending.size - await self._most()
        rows = await self._trail.lines(0, STEP + 1)
        cut = self._cut(rows, over, self._anchored.head.number)
        if cut is None:
            return False
        count, first = cut
        why = "more bytes than are kept" if over > 0 else "older than is kept"
        record = pruned(self._clock(), ahead(first), count, why)
        self._due = self._batch((*self._own, record), 0, first.number)
        return await self.seal(()) is not None and count == STEP

    async def _most(self) -> int:
        """Return the most bytes of entries to store. Other data in Redis needs memory too."""
        kept, room = self._retention, await self._trail.room()
        return min(kept.size, max(room // 2, kept.least)) if room else kept.size

    def _cut(
        self, rows: Sequence[tuple[int, str]], over: int, anchored: int
    ) -> tuple[int, Entry] | None:
        """Return how many of the first rows to remove, and the new first entry; None: no row.

        A modified entry is evidence. It is removed only to save bytes, never for its claimed age.
        """
        oldest = self._clock() - self._retention.age
        found: tuple[int, Entry] | None = None
        last: Entry | None = None
        freed = 0
        for count, (number, text) in enumerate(rows):
            entry = _entry(text)
            sound = entry is not None and (last is None or ahead(entry) == last.head)
            if count and entry is not None and sound and number <= anchored:
                found = count, entry
            is_old = sound and entry is not None and entry.record.at < oldest
            if number >= anchored or not (is_old or freed < over):
                break
            freed += len(text.encode())
            last = entry
        return found

    def _trusted(self, signer: Signing, ending: StreamTail) -> list[SignedHead]:
        """Return the heads of this cluster with a valid signature of Fairgate."""
        keys = {signer.public_key}
        if self._anchored is not None and not self._holds(self._anchored):
            log.error("the anchored head of the audit chain bears no valid signature: ignored")
            self._anchored = None
        if self._anchored is not None:
            keys.add(self._anchored.key)
        found = [each for each in (self._sealed, self._anchored) if each is not None]
        if (signed := ending.signed) and signed.key in keys and self._holds(signed):
            found.append(signed)
        return [each for each in found if each.cluster == self._cluster]

    def _branch(
        self, known: Head, ending: StreamTail, trusted: Sequence[SignedHead], *, exact: bool
    ) -> None:
        """Continue after a loss with a gap entry."""
        vouched = ending.last == Head() or any(each.head == ending.last for each in trusted)
        self._aside = not vouched or ending.top > MOST
        if self._aside:
            after, top, why = Head(), 0, self._why_aside(ending, vouched=vouched)
        elif ending.last == Head():
            after, top, why = ending.last, ending.top, "Redis lost all entries"
        else:
            after, top, why = ending.last, ending.top, "Redis lost its newest entries"
        # Numbers of the stream only rise. The hash is that of the newest known entry.
        self._head = Head(max(top, after.number, known.number), known.hash)
        named = Gap(after, known)
        self._own.append(gap(self._clock(), named, exact=exact, why=why))
        facts = {"why": why, "after": after.number, "upTo": known.number}
        log.error("entries of the audit chain are lost; a gap is recorded", extra=facts)

    def _why_aside(self, ending: StreamTail, *, vouched: bool) -> str:
        """Return why the stream in Redis is moved away."""
        signed = ending.signed
        if vouched:
            what = "entries with impossible numbers"
        elif signed and signed.head == ending.last and self._holds(signed):
            what = "entries that another key or cluster signed"
        else:
            what = "entries without a signature"
        return f"Redis contained {what}; they were moved away"

    async def _refill(self) -> None:
        """Copy entries that the previous leader may not have copied. Readers detect duplicates."""
        if self._anchored is None or (self._sealed and self._sealed.head == self._head):
            return
        first = next((number for number, _ in await self._trail.lines(0, 1)), 1)
        starts = [(each, await self._start(each, first)) for each in self._outlets]
        after = min((start for _, start in starts), default=self._head.number)
        while rows := await self._trail.lines(after, STEP):
            for number, text in rows:
                for outlet, start in starts:
                    if number > start:
                        outlet.write_line(text, number, self._epoch)
            after = rows[-1][0]

    async def _start(self, outlet: AuditSink, first: int) -> int:
        """Return the number of the last entry that the sink already has or will never receive.

        Write a line about skipped entries to the sink.
        """
        assert self._anchored is not None
        anchored, copied = self._anchored.head.number, await outlet.copied()
        if copied is None or copied >= anchored:
            return anchored
        start = max(copied, anchored - REFILL, first - 1)
        if 0 < copied < start:
            outlet.write_line(missed_line(start - copied, copied + 1, start), start, self._epoch)
        return start

    def _batch(self, records: Sequence[AuditRecord], count: int, keep: int = 0) -> _Due:
        assert self._signer is not None
        head, entries = self._head, []
        for record in records:
            entry = seal(head, self._epoch, record)
            entries.append(entry)
            head = entry.head
        signed = self._signer.sign(SignedHead(self._cluster, head, self._epoch, self._clock()))
        batch = Batch(self._epoch, self._after, tuple(entries), signed, keep, self._aside)
        return _Due(batch, count)

    def _settle(self, batch: Batch) -> None:
        self._due, self._aside = None, False
        self._sealed = batch.signed
        self._head = self._after = batch.signed.head
        for entry, text in zip(batch.entries, batch.lines, strict=True):
            self._copy(text, entry.number)

    def _copy(self, text: str, number: int) -> None:
        for outlet in self._outlets:
            outlet.write_line(text, number, self._epoch)


def _entry(text: str) -> Entry | None:
    try:
        found = read(text)
    except InvalidInput:
        return None
    return found if isinstance(found, Entry) and is_intact(found) else None
