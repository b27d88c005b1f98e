"""Route /releases: counts and waits from the audit chain, for callers that may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.core.audit.codec import entry_line
from app.core.audit_entry import AuditRecord, EntryType, Fact, seal
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.web.api.auth import Access
from app.web.api.release_reader import MOST_RELEASES, WEEK, ReleaseReader
from app.web.api.releases import PORTION
from app.web.server.rate_limit import RateLimit
from tests.fakes.fake_audit_stream import FakeTrail, Stream
from tests.support.asgi import Reply, call
from tests.support.rest_app import GPU, NOW, Both, problem

MINUTE = 60_000
MANAGED = ManagedResources((GPU,))


@pytest.fixture
def both() -> Both:
    both = Both()
    both.rights.granted = {("get", "tenants/usage")}
    return both


def release(
    minutes: float, waited: int | None = 60, tenant: str = "a", gpus: str = "8", **more: Fact
) -> AuditRecord:
    """Return the record of a release some minutes ago."""
    amounts: Mapping[str, Fact] = {str(GPU): gpus, "cpu": "1"}
    facts: dict[str, Fact] = {"tenant": tenant, "amounts": amounts, **more}
    if waited is not None:
        facts["waited"] = waited
    return AuditRecord(Millis(NOW - int(minutes * MINUTE)), EntryType.RELEASED, facts)


def write(stream: Stream, *records: AuditRecord) -> None:
    head = stream.last()
    for record in records:
        entry = seal(head, 1, record)
        stream.rows.append((entry.number, entry_line(entry)))
        head = entry.head


async def get(both: Both, query: str = "") -> Reply:
    headers = {"authorization": "Bearer alices"}
    return await call(both.app, "GET", f"/v1/releases{query}", b"", headers)


async def shown(both: Both, query: str = "") -> dict[str, Any]:
    answer = await get(both, query)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


async def test_the_last_hour_is_counted_with_pods_gpus_and_waits(both: Both) -> None:
    write(both.stream, release(61), *(release(30, waited) for waited in (10, 20, 30, 40)))
    total = (await shown(both))["total"]
    request = {str(GPU): "32"}
    assert total == {"pods": 4, "request": request, "waitP50": 20, "waitP90": 40}


async def test_releases_are_shown_by_tenant_and_by_step(both: Both) -> None:
    write(both.stream, release(50, 5), release(40, 7, tenant="b"), release(10, 9))
    found = await shown(both, "?step=30m")
    assert [(each["tenant"], each["pods"]) for each in found["tenants"]] == [("a", 2), ("b", 1)]
    assert [(each["pods"], each["waitP50"]) for each in found["steps"]] == [(2, 5), (1, 9)]
    only = await shown(both, "?tenant=b")
    assert only["total"]["pods"] == 1


async def test_other_entries_and_releases_by_hand_are_not_counted(both: Both) -> None:
    held = AuditRecord(Millis(NOW - MINUTE), EntryType.HELD, {"tenant": "a"})
    adopted = AuditRecord(Millis(NOW - MINUTE), EntryType.ADOPTED, {"tenant": "a"})
    write(both.stream, held, adopted, release(1, byHand=True), release(1, None))
    total = (await shown(both))["total"]
    assert (total["pods"], total["waitP50"]) == (1, None)


async def test_later_releases_are_added_without_reading_again(both: Both) -> None:
    write(both.stream, release(2))
    assert (await shown(both))["total"]["pods"] == 1
    del both.stream.rows[:]  # the first entry is only in the memory of the replica
    write(both.stream, *(AuditRecord(NOW, EntryType.HELD, {"tenant": "a"}) for _ in range(2)))
    write(both.stream, release(1))
    assert (await shown(both))["total"]["pods"] == 2


async def test_an_emptied_store_starts_the_count_again(both: Both) -> None:
    write(both.stream, release(3), release(2))
    assert (await shown(both))["total"]["pods"] == 2
    both.stream.flush()
    found = await shown(both)
    assert (found["total"]["pods"], found["completeSince"]) == (0, None)
    write(both.stream, release(1))
    assert (await shown(both))["total"]["pods"] == 1


async def test_a_gap_and_the_first_entry_limit_the_complete_time(both: Both) -> None:
    write(both.stream, release(30))
    assert (await shown(both))["completeSince"].startswith("2023-11-14T21:43:20")
    gap = AuditRecord(Millis(NOW - 10 * MINUTE), EntryType.GAP, {"from": 2, "to": 3})
    write(both.stream, gap, release(1))
    assert (await shown(both))["completeSince"].startswith("2023-11-14T22:03:20")


async def test_entries_of_the_far_future_are_left_out(both: Both) -> None:
    """Any client of Redis can write them."""
    write(both.stream, release(30))
    gap = AuditRecord(Millis(10**17), EntryType.GAP, {"from": 2, "to": 3})
    write(both.stream, gap, replace(release(2), at=Millis(10**17)), release(1))
    found = await shown(both)
    assert found["total"]["pods"] == 2
    assert found["completeSince"].startswith("2023-11-14T21:43:20")


async def test_releases_in_memory_are_limited_to_a_week_and_a_number() -> None:
    stream = Stream()
    now = [NOW]
    reader = ReleaseReader(FakeTrail(stream), MANAGED, lambda: now[0], max_releases=2)
    write(stream, release(4), release(3), release(2))
    await reader.read_new_entries()
    assert len(list(reader.releases_between(Millis(0), NOW))) == 2
    assert reader.complete_since == NOW - 4 * MINUTE
    now[0] = Millis(NOW + WEEK)
    await reader.read_new_entries()
    assert list(reader.releases_between(Millis(0), now[0])) == []
    assert MOST_RELEASES > 2


async def test_invalid_lines_are_skipped(both: Both) -> None:
    write(both.stream, release(3), release(2, gpus="many"), release(1))
    number, text = both.stream.rows[0]
    both.stream.rows[0] = number, text[:-20]  # its begin is that of a release
    assert (await shown(both))["total"]["pods"] == 1


async def test_the_right_to_see_usage_is_needed(both: Both) -> None:
    both.rights.granted = {("get", "tenants/usage/a")}
    assert (await get(both)).status == 403
    assert (await get(both, "?tenant=a")).status == 200
    assert (await get(both, "?tenant=a&tenant=b")).status == 403


async def test_too_many_steps_are_refused(both: Both) -> None:
    answer = await get(both, "?step=1s")
    assert answer.status == 400
    assert "500 steps" in problem(answer)


async def test_a_store_that_does_not_answer_is_reported(both: Both) -> None:
    both.stream.down = True
    assert (await get(both)).status == 503


async def test_releases_are_summed_by_pool_and_can_be_filtered_by_pool(both: Both) -> None:
    write(both.stream, release(3, 10, pool="h100"), release(2, 30, pool="h100"), release(1, 60))
    found = await shown(both)
    assert [(each["pool"], each["pods"], each["waitP90"]) for each in found["pools"]] == [
        ("", 1, 60),
        ("h100", 2, 30),
    ]
    one = await shown(both, "?pool=h100&step=1m")
    assert (one["total"]["pods"], len(one["steps"])) == (2, 2)
    assert (await shown(both, "?pool=other"))["total"]["pods"] == 0


async def test_a_sum_of_many_releases_counts_as_many_requests(both: Both) -> None:
    access = Access(both.rights, RateLimit(5, lambda: 0.0))
    both.context = replace(both.context, access=access)
    write(both.stream, *(release(1) for _ in range(10 * PORTION)))
    assert (await shown(both))["total"]["pods"] == 10 * PORTION
    assert (await get(both)).status == 429


async def test_releases_are_summed_between_other_tasks() -> None:
    """One tenant may have all 200 000 releases, and their sum takes more than a second."""
    both = Both()
    both.rights.granted = {("get", "tenants/usage")}
    write(both.stream, *(release(1) for _ in range(5 * PORTION)))
    await get(both)  # reads the chain
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    quiet = turns
    await get(both, "?tenant=none")
    few = turns - quiet
    await get(both)
    counting.cancel()
    assert turns - quiet - few >= few + 5
