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

from app.core.audit import Deed, Fact, Record
from app.core.errors import StoreError
from app.core.model import Millis
from app.ports import Report, Reports

MOST = 1_000
"""Different reports that may wait here."""

SECONDS = 1.0
"""Between two deliveries: what repeats meanwhile is one report."""

NO_ROOM = "more was reported than could be kept"

log = logging.getLogger("fairgate.control")


@dataclass(slots=True)
class _Seen:
    record: Record
    count: int = 1


class Reporting:
    """`ports.Reporter`; `run` delivers."""

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
        elif len(self._seen) + len(self._due) >= MOST:
            self._dropped[deed] = self._dropped.get(deed, 0) + 1
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

    async def _deliver(self) -> None:
        due = self._due[:MOST]
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
        if dropped:
            facts = {"dropped": str(dropped), "why": "no leader has told the earlier ones yet"}
            log.error("reports for the audit chain were dropped", extra=facts)


class Collecting:
    """Hands what others reported to the recorder, while this replica leads."""

    def __init__(
        self,
        reports: Reports,
        record: Callable[[Record], None],
        epoch: Callable[[], int | None],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._reports = reports
        self._record = record
        self._epoch = epoch
        self._seconds = seconds
        self._term: int | None = None
        self._handed: dict[str, bool] = {}
        """Ids handed on in this term; True once they were gone, and so told."""

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
        there = {report.id for report in waiting}
        for known in self._handed:
            self._handed[known] = self._handed[known] or (known not in there and len(there) < MOST)
        for report in waiting:
            told = self._handed.get(report.id)
            if told is None:
                notes = ((f"report/{report.id}", ""),)
                self._record(replace(report.record, notes=notes))
                self._handed[report.id] = False
            elif told:  # delivered again, because an answer got lost
                await self._reports.drop(report.id)
        while len(self._handed) > 10 * MOST:
            del self._handed[next(iter(self._handed))]
