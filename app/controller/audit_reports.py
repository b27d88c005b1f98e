"""Audit reports of processes that do not lead: sent through Redis, and recorded by the leader.

Reporting never blocks. Reports wait in a bounded queue, also while Redis is unreachable. Equal
reports within a second become one with a count. Dropped reports are counted. `refusal_limit` bounds
the refusals of one user.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from app.controller.refusal_limit import RefusalLimit
from app.core.audit_entry import AuditRecord, EntryType, Fact
from app.core.durations import DAY
from app.core.errors import StoreError
from app.core.model import Millis
from app.ports.audit import Recorder, Report, Reports

MAX_WAITING = 1_000
"""Different reports that may wait in this process."""

SPARE_PLACES = 100
"""More places for reports that are no refusals, so that a flood of refusals cannot hide them."""

SECONDS = 1.0
"""Time between two deliveries. Equal reports within it become one."""

TOO_MANY_REPORTS = "more was reported than could be kept"

log = logging.getLogger("fairgate.control")


@dataclass(slots=True)
class _Seen:
    record: AuditRecord
    count: int = 1


class AuditReportSender:
    """`ports.audit.Reporter`. `deliver_reports` delivers the reports."""

    def __init__(
        self, reports: Reports, clock: Callable[[], Millis], *, seconds: float = SECONDS
    ) -> None:
        self._reports = reports
        self._clock = clock
        self._seconds = seconds
        self._merged: dict[str, _Seen] = {}
        self._undelivered: list[Report] = []
        self._dropped: dict[EntryType, int] = {}
        self._refusals = RefusalLimit()
        self._name = secrets.token_hex(4)
        self._number = 0
        self._failing = False

    def report(self, entry_type: EntryType, facts: Mapping[str, Fact], example: str = "") -> None:
        """Report an audit entry. Equal facts within a second become one report with a count.

        `example` names one object; the first one of equal reports is recorded.
        """
        key = f"{entry_type.value}{json.dumps(facts, sort_keys=True)}"
        seen = self._merged.get(key)
        if seen is not None:
            seen.count += 1
        elif len(self._merged) + len(self._undelivered) >= MAX_WAITING + SPARE_PLACES * (
            entry_type is not EntryType.REFUSED
        ):
            self._count_dropped(entry_type, 1)
        elif entry_type is not EntryType.REFUSED or self._refusals.admit_refusal(
            facts, self._clock()
        ):
            named: Mapping[str, Fact] = {"object": example} if example else {}
            self._merged[key] = _Seen(AuditRecord(self._clock(), entry_type, {**facts, **named}))

    async def deliver_reports(self) -> None:
        """Deliver until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            self._queue_merged()
            if self._undelivered:
                await self._deliver()

    async def flush(self) -> None:
        """Deliver waiting reports with one attempt, before this process ends."""
        self._queue_merged(ends=True)
        if self._undelivered:
            await self._deliver()

    def _queue_merged(self, *, ends: bool = False) -> None:
        seen, self._merged = self._merged, {}
        records = [
            replace(each.record, facts={**each.record.facts, "count": each.count})
            for each in seen.values()
        ]
        records += self._refusals.end_windows(self._clock(), early=ends)
        if len(self._undelivered) + len(records) < MAX_WAITING:
            for entry_type, count in self._dropped.items():
                records.append(
                    AuditRecord(
                        self._clock(), entry_type, {"dropped": count, "why": TOO_MANY_REPORTS}
                    )
                )
            self._dropped.clear()
        for record in records:
            self._number += 1
            self._undelivered.append(
                Report(f"{record.at:015d}-{self._name}-{self._number}", record)
            )

    def _count_dropped(self, entry_type: EntryType, count: int) -> None:
        """Count dropped reports. A later report states their number."""
        self._dropped[entry_type] = self._dropped.get(entry_type, 0) + count

    async def _deliver(self) -> None:
        due = self._undelivered[: MAX_WAITING + SPARE_PLACES]
        try:
            dropped = await self._reports.add_reports(due)
        except StoreError as error:
            if not self._failing:
                facts = {"why": str(error), "waiting": len(due)}
                log.warning("reports for the audit chain wait for Redis", extra=facts)
            self._failing = True
            return
        self._failing = False
        del self._undelivered[: len(due)]
        for entry_type, count in dropped.items():
            self._count_dropped(entry_type, count)
        if dropped:
            facts = {
                "dropped": sum(dropped.values()),
                "why": "no leader has recorded the earlier ones yet",
            }
            log.error("reports for the audit chain were dropped", extra=facts)


class AuditReportCollector:
    """Passes the reports of other processes to the recorder while this replica leads."""

    def __init__(
        self,
        reports: Reports,
        recorder: Recorder,
        epoch: Callable[[], int | None],
        clock: Callable[[], Millis],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._reports = reports
        self._recorder = recorder
        self._epoch = epoch
        self._clock = clock
        self._seconds = seconds
        self._term: int | None = None
        self._forwarded: dict[str, None] = {}
        """Ids passed on in this term, in that order."""

    async def collect_reports(self) -> None:
        """Collect until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.collect()
            except StoreError as error:
                log.debug("reports not readable", extra={"why": str(error)})

    async def collect(self) -> None:
        """Pass on each waiting report once a term if the recorder accepts it. Raises StoreError."""
        epoch = self._epoch()
        if epoch != self._term:
            self._term = epoch
            self._forwarded.clear()
        if epoch is None:
            return
        waiting = await self._reports.read_waiting_reports(MAX_WAITING)
        if self._epoch() != epoch:
            return
        for report in waiting:
            key = f"report/{report.id}"
            if report.id in self._forwarded:
                # Not sealed yet, or delivered twice after a lost answer: removed after sealing.
                self._recorder.clear_marker(key)
                continue
            if not self._recorder.can_record():
                continue  # the report is safe in Redis until then
            self._forwarded[report.id] = None
            at = self._limit_time(report.record.at)
            self._recorder.record(replace(report.record, at=at, audit_markers=((key, ""),)))
        while len(self._forwarded) > 10 * MAX_WAITING:
            del self._forwarded[next(iter(self._forwarded))]

    def _limit_time(self, told: Millis) -> Millis:
        """Return the time to record: the claimed one, limited to the last day."""
        now = self._clock()
        return Millis(max(now - DAY, min(told, now)))
