"""Reports of followers reach the audit chain exactly once and block no caller."""

from __future__ import annotations

import pytest

from app.controller.audit_reports import MAX_WAITING, AuditReportCollector, AuditReportSender
from app.controller.refusal_limit import MOST_REFUSALS, WINDOW_MS
from app.core.audit_entry import EntryType, Fact
from app.core.durations import DAY
from app.core.model import Millis
from tests.fakes.fake_recorder import FakeRecorder
from tests.fakes.fake_reports import FakeReports

FACTS: dict[str, Fact] = {"user": "alice", "namespace": "a", "what": "CREATE pods", "why": "no"}


class Line:
    """A reporter, Redis, and a leader that collects."""

    def __init__(self) -> None:
        self.reports = FakeReports()
        self.now = Millis(5)
        self.reporting = AuditReportSender(self.reports, lambda: self.now)
        self.recorder = Sealing(self.reports)
        self.epoch: int | None = 1
        self.collecting = AuditReportCollector(
            self.reports, self.recorder, lambda: self.epoch, lambda: self.now
        )

    def seal(self) -> None:
        """Seal the pending records and apply the pending removals of reports."""
        self.recorder.seal()


class Sealing(FakeRecorder):
    """Drops a report after its record is sealed, or later when its removal is requested."""

    def __init__(self, reports: FakeReports) -> None:
        super().__init__()
        self._reports = reports
        self._due: list[str] = []

    def note(self, key: str, text: str) -> None:
        self._due.append(key.removeprefix("report/"))

    def seal(self) -> None:
        for name in self._due:
            self._reports.kept.pop(name, None)
        self._due.clear()


async def test_repeated_reports_are_merged_with_a_count() -> None:
    line = Line()
    for name in ("x", "y", "z"):
        line.reporting.report(EntryType.REFUSED, FACTS, name)
    line.reporting.report(EntryType.REFUSED, {**FACTS, "user": "bob"}, "w")
    await line.reporting.flush()
    facts = [dict(each.record.facts) for each in line.reports.kept.values()]
    assert facts == [
        {**FACTS, "object": "x", "count": 3},
        {**FACTS, "user": "bob", "object": "w", "count": 1},
    ]


async def test_reports_wait_while_redis_is_away() -> None:
    line = Line()
    line.reporting.report(EntryType.REFUSED, FACTS)
    line.reports.down = True
    await line.reporting.flush()
    await line.reporting.flush()
    assert not line.reports.kept
    line.reports.down = False
    await line.reporting.flush()
    assert len(line.reports.kept) == 1


async def test_reports_beyond_the_buffer_limit_are_counted() -> None:
    line = Line()
    line.reports.down = True
    for number in range(MAX_WAITING + 7):
        line.reporting.report(EntryType.REFUSED, {**FACTS, "user": str(number)})
    await line.reporting.flush()
    line.reports.down = False
    for _ in range(2):
        await line.reporting.flush()
    counts = [each.record.facts.get("dropped") for each in line.reports.kept.values()]
    assert [count for count in counts if count] == [7]


async def test_report_is_recorded_once_even_if_collected_repeatedly() -> None:
    line = Line()
    line.reporting.report(EntryType.REFUSED, FACTS, "x")
    await line.reporting.flush()
    for _ in range(3):
        await line.collecting.collect()
    assert len(line.recorder.records) == 1
    line.seal()
    assert not line.reports.kept


async def test_a_report_waits_in_redis_while_the_recorder_is_full() -> None:
    line = Line()
    line.reporting.report(EntryType.RESTORED, FACTS)
    await line.reporting.flush()
    line.recorder.is_full = True
    for _ in range(3):
        await line.collecting.collect()
    line.seal()
    assert len(line.reports.kept) == 1
    line.recorder.is_full = False
    await line.collecting.collect()
    line.seal()
    assert (len(line.recorder.records), len(line.reports.kept)) == (1, 0)


@pytest.mark.parametrize("looks", [True, False])
async def test_report_delivered_again_after_sealing_is_not_recorded_again(looks: bool) -> None:
    line = Line()
    line.reporting.report(EntryType.REFUSED, FACTS, "x")
    line.reports.deaf = True
    await line.reporting.flush()
    await line.collecting.collect()
    line.seal()
    if looks:
        await line.collecting.collect()
    line.reports.deaf = False
    await line.reporting.flush()
    assert len(line.reports.kept) == 1
    await line.collecting.collect()
    line.seal()
    line.epoch = 2
    await line.collecting.collect()
    assert len(line.recorder.records) == 1
    assert not line.reports.kept


async def test_reports_that_redis_dropped_are_counted_in_the_next_report() -> None:
    line = Line()
    line.reports.most = 3
    for number in range(8):
        line.reporting.report(EntryType.REFUSED, {**FACTS, "user": str(number)})
    line.reporting.report(EntryType.RESTORED, {"kind": "Policy"})
    await line.reporting.flush()
    await line.collecting.collect()
    line.seal()
    await line.reporting.flush()
    await line.collecting.collect()
    told = line.recorder.told(EntryType.REFUSED)
    assert [each.facts.get("dropped") for each in told] == [None, None, None, 5]
    assert len(line.recorder.told(EntryType.RESTORED)) == 1


def refuse(line: Line, count: int, **facts: Fact) -> None:
    """Report refusals with different texts, as the user of a refused request may choose them."""
    for number in range(count):
        line.reporting.report(EntryType.REFUSED, {**FACTS, "why": f"text {number}", **facts})


async def test_excess_refusals_of_one_user_are_counted_in_one_entry() -> None:
    line = Line()
    refuse(line, MOST_REFUSALS + 70)
    line.now = Millis(line.now + WINDOW_MS)
    await line.reporting.flush()
    facts = [dict(each.record.facts) for each in line.reports.kept.values()]
    assert len(facts) == MOST_REFUSALS + 1
    assert facts[-1]["dropped"] == 70
    assert (facts[-1]["user"], facts[-1]["namespace"]) == ("alice", "a")


async def test_a_flood_of_refusals_hides_no_refusal_of_another_user_or_namespace() -> None:
    line = Line()
    refuse(line, MOST_REFUSALS + 70)
    refuse(line, 1, user="bob")
    refuse(line, 1, namespace="b")
    await line.reporting.flush()
    told = [dict(each.record.facts) for each in line.reports.kept.values()]
    assert {"bob", "alice"} == {each["user"] for each in told}
    assert [each["namespace"] for each in told].count("b") == 1


async def test_service_accounts_of_a_namespace_share_one_limit() -> None:
    """An admin of a namespace may create any number of them."""
    line = Line()
    for number in range(MOST_REFUSALS + 70):
        refuse(line, 1, user=f"system:serviceaccount:a:account-{number}")
    await line.reporting.flush()
    last = [dict(each.record.facts) for each in line.reports.kept.values()][-1]
    assert (last["user"], last["dropped"]) == ("system:serviceaccount:a", 70)


async def test_refusals_are_recorded_individually_again_after_the_window() -> None:
    line = Line()
    refuse(line, MOST_REFUSALS + 1)
    line.now = Millis(line.now + WINDOW_MS)
    await line.reporting.flush()
    before = len(line.reports.kept)
    refuse(line, 1)
    await line.reporting.flush()
    assert len(line.reports.kept) == before + 1


async def test_excess_refusals_do_not_displace_a_restoration_report() -> None:
    line = Line()
    for number in range(MAX_WAITING + 7):
        line.reporting.report(EntryType.REFUSED, {**FACTS, "user": str(number)})
    line.reporting.report(EntryType.RESTORED, {"kind": "Policy"})
    await line.reporting.flush()
    assert EntryType.RESTORED in [each.record.entry_type for each in line.reports.kept.values()]


@pytest.mark.parametrize(
    ("claimed", "told"), [(10**15, 10**12), (0, 10**12 - DAY), (10**12, 10**12)]
)
async def test_report_time_is_limited_to_the_last_day(claimed: int, told: int) -> None:
    line = Line()
    line.now = Millis(claimed)
    line.reporting.report(EntryType.REFUSED, FACTS, "x")
    await line.reporting.flush()
    line.now = Millis(10**12)
    await line.collecting.collect()
    assert [each.at for each in line.recorder.records] == [told]


async def test_next_leader_records_reports_that_were_not_sealed() -> None:
    line = Line()
    line.reporting.report(EntryType.RESTORED, FACTS)
    await line.reporting.flush()
    await line.collecting.collect()
    line.epoch = 2
    await line.collecting.collect()
    assert len(line.recorder.told(EntryType.RESTORED)) == 2, "the first was never sealed"


async def test_replica_that_does_not_lead_collects_no_reports() -> None:
    line = Line()
    line.epoch = None
    line.reporting.report(EntryType.REFUSED, FACTS)
    await line.reporting.flush()
    await line.collecting.collect()
    assert not line.recorder.records
    assert line.reports.kept
