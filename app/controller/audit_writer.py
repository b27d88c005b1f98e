"""Queue and loop that seal audit records into the chain while this replica leads.

Records wait in a bounded queue while Redis is unreachable. A gap entry counts the dropped ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from app.controller.audit_chain import Chain
from app.core.audit.codec import normalize_facts
from app.core.audit_entry import AuditRecord, EntryType, Fact
from app.core.errors import ClusterError, EpochStale, StoreError, StoreFull
from app.core.model import Millis

MAX_WAITING = 10_000
"""Records that may wait."""

MAX_CLEARED_MARKERS = 200_000
"""Audit markers that may wait for their removal."""

BATCH = 256
GATHER_SECONDS = 0.005
"""How long a record waits for others, so that one signature and one write cover them.

A record that waits is lost if the leader is killed and Redis is emptied in that time.
"""

ANCHOR_SECONDS = 10.0
PROBE_SECONDS = 2.0
"""How often an idle auditor checks that Redis still has the chain."""

PRUNE_SECONDS = 30.0
RETRY_SECONDS = 0.5
END_SECONDS = 1.0
"""How long the end of a term waits for unwritten records."""

log = logging.getLogger("fairgate.audit")


class _Term:
    """The queues and timers of one term."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.waiting: deque[AuditRecord] = deque()
        self.queued_count = self.sealed_count = 0
        self.cleared_markers: deque[tuple[int, str]] = deque()
        """Keys of audit markers, each with the number of records to seal before its removal."""
        self.dropped_times: list[Millis] = []
        self.dropped_count = 0
        self.is_open = False
        self.anchor_at = 0.0
        self.prune_at = 0.0
        self.probe_at = 0.0
        self.is_ending = False
        self.done = asyncio.Event()


class Auditor:
    """`ports.audit.Recorder`. It drops records outside a term (from `start_term` to `end_term`)."""

    def __init__(
        self,
        chain: Chain,
        leader_name: str,
        clock: Callable[[], Millis],
        depose: Callable[[], None],
    ) -> None:
        self._chain = chain
        self._leader_name = leader_name
        self._clock = clock
        self._depose = depose
        self._term: _Term | None = None
        self._wake = asyncio.Event()
        self._flush = asyncio.Event()
        """Set if more records must not be awaited: a batch is complete, or the term ends."""
        self._failing = False

    def can_record(self) -> bool:
        """Return whether this replica leads, and fewer than `MAX_WAITING` records wait."""
        return self._term is not None and len(self._term.waiting) < MAX_WAITING

    def record(self, record: AuditRecord, /) -> None:
        """Queue a record if this replica leads."""
        term = self._term
        if term is None:
            return
        if not self.can_record():
            if not term.dropped_count:
                log.error(
                    "audit records are dropped: too many wait", extra={"waiting": MAX_WAITING}
                )
            term.dropped_count += 1
            term.dropped_times = [*term.dropped_times[:1], record.at]
            return
        term.waiting.append(replace(record, facts=normalize_facts(record.facts)))
        term.queued_count += 1
        self._wake.set()
        if len(term.waiting) >= BATCH:
            self._flush.set()

    def clear_marker(self, key: str, /) -> None:
        """Remove the audit marker of this key after all earlier records are sealed.

        Requests beyond `MAX_CLEARED_MARKERS` are dropped. The next leader removes markers of
        objects that no longer exist.
        """
        term = self._term
        if term is not None and len(term.cleared_markers) < MAX_CLEARED_MARKERS:
            term.cleared_markers.append((term.queued_count, key))
            self._wake.set()

    def start_term(self, epoch: int) -> None:
        """Start a term of this replica."""
        self._term = _Term(epoch)
        self._record_term("began")

    async def end_term(self) -> None:
        """End the term. Wait up to `END_SECONDS` for queued records to be written."""
        term = self._term
        if term is None:
            return
        self._record_term("ended")
        term.is_ending = True
        self._flush.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await term.done.wait()
        if term.waiting or term.dropped_count:
            facts = {"epoch": term.epoch, "records": len(term.waiting) + term.dropped_count}
            log.error("audit records were not written before the term ended", extra=facts)
        if self._term is term:
            self._term = None

    async def write_records(self) -> None:
        """Write until cancelled."""
        while True:
            term = self._term
            if term is None or term.done.is_set():
                await self._wake.wait()
                self._wake.clear()
                continue
            try:
                await self._run_step(term)
                self._report_error(None)
            except EpochStale as error:
                self._abandon_term(term, error)
            except (StoreError, ClusterError) as error:
                self._report_error(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _run_step(self, term: _Term) -> None:
        chain = self._chain
        now = asyncio.get_running_loop().time()
        if not term.is_open:
            await chain.open(term.epoch)
            term.is_open = True
        if term.waiting or chain.has_unsealed:
            await self._wait_for_more_records(term)
            await self._seal(term)
        await self._remove_markers(term)
        if not chain.is_anchored and (now >= term.anchor_at or term.is_ending):
            await self._anchor(term, now)
        if now >= term.prune_at and not term.is_ending:
            term.prune_at = now if await chain.prune() else now + PRUNE_SECONDS
        if term.waiting or (term.cleared_markers and not term.is_ending):
            return
        if term.is_ending:
            term.done.set()
            return
        if now >= term.probe_at:
            term.probe_at = now + PROBE_SECONDS
            term.is_open = await chain.matches_stream()
        await self._wait_until_due(term)

    async def _seal(self, term: _Term) -> None:
        records = [term.waiting[i] for i in range(min(BATCH, len(term.waiting)))]
        if term.dropped_count and len(records) == len(term.waiting):
            term.waiting.append(self._dropped_gap(term))
            term.queued_count += 1
            records.append(term.waiting[-1])
            term.dropped_count = 0
        try:
            sealed = await self._chain.seal(records)
        except StoreFull:
            if not await self._chain.prune(urgent=True):
                raise
            return
        if sealed is None:
            term.is_open = False
            return
        for _ in range(sealed):
            term.waiting.popleft()
        term.sealed_count += sealed

    async def _wait_for_more_records(self, term: _Term) -> None:
        """Wait for more records, unless a batch is complete or the term ends."""
        self._flush.clear()
        if term.is_ending or len(term.waiting) >= BATCH:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                await self._flush.wait()

    async def _remove_markers(self, term: _Term) -> None:
        keys: list[str] = []
        for sealed, key in term.cleared_markers:
            if sealed > term.sealed_count or len(keys) == BATCH:
                break
            keys.append(key)
        if keys:
            await self._chain.remove_markers(keys)
            for _ in keys:
                term.cleared_markers.popleft()

    async def _anchor(self, term: _Term, now: float) -> None:
        """Store the head outside Redis. An unreachable API server does not stop other work."""
        term.anchor_at = now + ANCHOR_SECONDS
        try:
            await self._chain.anchor()
        except ClusterError as error:
            term.anchor_at = now + PROBE_SECONDS
            facts = {"why": str(error)}
            log.warning("the head of the audit chain is not anchored yet", extra=facts)

    async def _wait_until_due(self, term: _Term) -> None:
        due = [term.probe_at, term.prune_at]
        if not self._chain.is_anchored:
            due.append(term.anchor_at)
        seconds = max(0.0, min(due) - asyncio.get_running_loop().time())
        if not term.is_open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _dropped_gap(self, term: _Term) -> AuditRecord:
        facts: dict[str, Fact] = {
            "dropped": term.dropped_count,
            "from": term.dropped_times[0],
            "to": term.dropped_times[-1],
            "why": "more happened than could be written down",
        }
        return AuditRecord(self._clock(), EntryType.GAP, facts)

    def _record_term(self, phase: str) -> None:
        assert self._term is not None
        epoch = self._term.epoch
        facts: dict[str, Fact] = {"leader": self._leader_name, "epoch": epoch, "term": phase}
        self.record(AuditRecord(self._clock(), EntryType.LEADING, facts))
        self._wake.set()

    def _abandon_term(self, term: _Term, error: EpochStale) -> None:
        log.error("a newer leader keeps the audit chain", extra={"why": str(error)})
        term.waiting.clear()
        term.dropped_count = 0
        term.done.set()
        if self._term is term:
            self._term = None
            self._depose()

    def _report_error(self, error: StoreError | ClusterError | None) -> None:
        if error is not None and not self._failing:
            log.warning("the audit chain cannot be written", extra={"why": str(error)})
        elif error is None and self._failing:
            log.info("the audit chain is written again")
        self._failing = error is not None
