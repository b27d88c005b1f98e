"""A `Reports` in memory: the same answers as Redis, by the plainest means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.audit_ports import Report
from app.core.audit import Deed, Fact
from app.core.errors import StoreUnavailable
from app.store.reports import SPARE


class FakeReports:
    """`kept` by id, at most `most`. `down`: it does not answer; `deaf`: it does, and is not heard.

    `delivered` counts calls.
    """

    def __init__(self, most: int = 10_000) -> None:
        self.kept: dict[str, Report] = {}
        self.most = most
        self.down = False
        self.deaf = False
        self.delivered = 0

    async def push(self, reports: Sequence[Report]) -> Mapping[Deed, int]:
        self._answer()
        self.delivered += 1
        dropped: Counter[Deed] = Counter()
        for report in reports:
            if report.id in self.kept:
                continue
            spare = SPARE if report.record.deed is not Deed.REFUSED else 0
            if len(self.kept) < self.most + spare:
                self.kept[report.id] = report
            else:
                dropped[report.record.deed] += 1
        if self.deaf:
            raise StoreUnavailable("the answer was lost")
        return dropped

    async def waiting(self, limit: int) -> Sequence[Report]:
        self._answer()
        return [self.kept[name] for name in sorted(self.kept)[:limit]]

    def _answer(self) -> None:
        if self.down:
            raise StoreUnavailable("it does not answer")


class FakeReporter:
    """A `Reporter` that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Deed, Mapping[str, Fact]]] = []

    def report(self, deed: Deed, facts: Mapping[str, Fact], example: str = "") -> None:
        self.told.append((deed, dict(facts)))
