"""Reports what a process without the lead saw: it goes to Redis, and the leader tells it.

Never in anybody's way: reports wait in a bounded room, what repeats within a second is one with a
count, and while Redis is away they wait on; what there is no room for is counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from app.audit_ports import Recorder, Report, Reports
from app.core.audit import Deed, Fact, Record
from app.core.durations import DAY
from app.core.errors import StoreError
from app.core.model import Millis

MOST = 1_000
"""Different reports that may wait here."""

SPARE = 100
"""Room beyond that for what is no refusal: a flood of those must not hide it."""

SECONDS = 1.0
"""Between two deliveries: what repeats meanwhile is one report."""

NO_ROOM = "more was reported than could be kept"

log = logging.getLogger("fairgate.control")


@dataclass(slots=True)
class _Seen:
    record: Record
    count: int = 1


class Reporting:
    """`audit_ports.Reporter`; `run` delivers."""

    def __init__(
        self, reports: Reports, clock: Callable[[], Millis], *, seconds: float = SECONDS
    ) -> None:
        self._reports = reports
        self._clock = clock
        self._seconds = seconds
        self._seen: dict[str, _Seen] = {}
        self._due: list[Report] = []
        self._dropped: dict[Deed, int] = {}
        self._name = secrets.token_hex(4)
        self._number = 0
        self._failing = False

    def report(self, deed: Deed, facts: Mapping[str, Fact], example: str = "") -> None:
        """Report this; what has the same facts within a second differs in its `example` alone."""
        key = f"{deed.value}{json.dumps(facts, sort_keys=True)}"
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
        elif len(self._seen) + len(self._due) >= MOST + SPARE * (deed is not Deed.REFUSED):
            self._drop(deed, 1)
        else:
            named: Mapping[str, Fact] = {"object": example} if example else {}
            self._seen[key] = _Seen(Record(self._clock(), deed, {**facts, **named}))

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            self._collect()
            if self._due:
                await self._deliver()

    async def flush(self) -> None:
        """Deliver what there is, if that works at once."""
        self._collect()
        if self._due:
            await self._deliver()

    def _collect(self) -> None:
        seen, self._seen = self._seen, {}
        records = [
            replace(each.record, facts={**each.record.facts, "count": each.count})
            for each in seen.values()
        ]
        if len(self._due) + len(records) < MOST:
            for deed, count in self._dropped.items():
                records.append(Record(self._clock(), deed, {"dropped": count, "why": NO_ROOM}))
            self._dropped.clear()
        for record in records:
            self._number += 1
            self._due.append(Report(f"{record.at:015d}-{self._name}-{self._number}", record))

    def _drop(self, deed: Deed, count: int) -> None:
        """Count what is lost: the next report that finds room says so."""
        self._dropped[deed] = self._dropped.get(deed, 0) + count

    async def _deliver(self) -> None:
        due = self._due[: MOST + SPARE]
        try:
            dropped = await self._reports.push(due)
        except StoreError as error:
            if not self._failing:
                facts = {"why": str(error), "waiting": len(due)}
                log.warning("reports for the audit chain wait for Redis", extra=facts)
            self._failing = True
            return
        self._failing = False
        del self._due[: len(due)]
        for deed, count in dropped.items():
            self._drop(deed, count)
        if dropped:
            facts = {"dropped": sum(dropped.values()), "why": "no leader told the earlier ones yet"}
            log.error("reports for the audit chain were dropped", extra=facts)


class Collecting:
    """Hands what others reported to the recorder, while this replica leads."""

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
        self._handed: dict[str, None] = {}
        """Ids handed on in this term, in that order."""

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.collect()
            except StoreError as error:
                log.debug("reports not readable", extra={"why": str(error)})

    async def collect(self) -> None:
        """Hand on, once in a term, what is waiting. Raises StoreError."""
        epoch = self._epoch()
        if epoch != self._term:
            self._term = epoch
            self._handed.clear()
        if epoch is None:
            return
        waiting = await self._reports.waiting(MOST)
        if self._epoch() != epoch:
            return
        for report in waiting:
            key = f"report/{report.id}"
            if report.id in self._handed:
                # Not sealed yet, or delivered again because an answer got lost: gone once it is.
                self._recorder.forget(key)
                continue
            self._handed[report.id] = None
            at = self._then(report.record.at)
            self._recorder.record(replace(report.record, at=at, notes=((key, ""),)))
        while len(self._handed) > 10 * MOST:
            del self._handed[next(iter(self._handed))]

    def _then(self, told: Millis) -> Millis:
        """Return when to tell that it was: within the last day, whatever the report claims."""
        now = self._clock()
        return Millis(max(now - DAY, min(told, now)))
