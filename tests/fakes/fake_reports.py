"""A `Reports` in memory, with the same answers as Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.audit_entry import EntryType, Fact
from app.core.errors import StoreUnavailable
from app.ports.audit import Report
from app.store.audit_reports import SPARE


class FakeReports:
    """`kept` by id, at most `most`. `down`: no answer. `deaf`: writes take effect, but get no
    reply.

    `delivered` counts calls.
    """

    def __init__(self, most: int = 10_000) -> None:
        self.kept: dict[str, Report] = {}
        self.most = most
        self.down = False
        self.deaf = False
        self.delivered = 0

    async def add_reports(self, reports: Sequence[Report]) -> Mapping[EntryType, int]:
        self._answer()
        self.delivered += 1
        dropped: Counter[EntryType] = Counter()
        for report in reports:
            if report.id in self.kept:
                continue
            spare = SPARE if report.record.entry_type is not EntryType.REFUSED else 0
            if len(self.kept) < self.most + spare:
                self.kept[report.id] = report
            else:
                dropped[report.record.entry_type] += 1
        if self.deaf:
            raise StoreUnavailable("the answer was lost")
        return dropped

    async def read_waiting_reports(self, limit: int) -> Sequence[Report]:
        self._answer()
        return [self.kept[name] for name in sorted(self.kept)[:limit]]

    def _answer(self) -> None:
        if self.down:
            raise StoreUnavailable("it does not answer")


class FakeReporter:
    """A `Reporter` that stores its reports."""

    def __init__(self) -> None:
        self.told: list[tuple[EntryType, Mapping[str, Fact]]] = []

    def report(self, entry_type: EntryType, facts: Mapping[str, Fact], example: str = "") -> None:
        self.told.append((entry_type, dict(facts)))
