"""Contract of the data beside the audit chain: audit markers, and reports waiting for an entry."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.core.audit.codec import SignedHead
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.errors import EpochStale
from app.core.model import Millis
from app.ports.audit import Batch, Report, Reports
from app.store.audit_reports import RedisReports
from app.store.audit_stream import RedisTrail
from tests.fakes.fake_reports import FakeReports
from tests.support.shared_stores import Reals, World, real
from tests.support.store_cases import world as world  # the fixture

AT = Millis(1000)


async def test_audit_markers_are_none_before_the_first_restore(world: World) -> None:
    assert await world.store().audit_markers() is None


async def test_restore_writes_audit_markers_to_an_empty_store(world: World) -> None:
    store = world.store()
    await store.claim_epoch(7)
    await store.restore_audit_markers(7, lambda: [("a", "held"), ("Tenant/x", "{}")])
    assert await store.audit_markers() == {"a": "held", "Tenant/x": "{}"}


async def test_restore_does_not_overwrite_complete_audit_markers(world: World) -> None:
    store = world.store()
    await store.claim_epoch(7)
    await store.restore_audit_markers(7, lambda: [("a", "held")])
    await world.store().claim_epoch(8)
    await world.store().restore_audit_markers(8, lambda: [("b", "held")])
    assert await store.audit_markers() == {"a": "held"}


async def test_restore_writes_thousands_of_audit_markers(world: World) -> None:
    many = {f"uid-{number}": "held" for number in range(5000)}
    await world.store().claim_epoch(7)
    await world.store().restore_audit_markers(7, lambda: iter(many.items()))
    assert await world.store().audit_markers() == many


async def test_audit_markers_that_are_no_text_are_skipped(redis: Reals) -> None:
    key = f"fairgate:{{{redis.cluster}}}:notes"
    await redis.server.call("HSET", key, "a", "held", b"\xff", "held", "b", b"\xff")
    assert await redis.store().audit_markers() == {"a": "held"}


async def test_old_leader_cannot_restore_audit_markers(world: World) -> None:
    await world.store().claim_epoch(8)
    with pytest.raises(EpochStale):
        await world.store().restore_audit_markers(7, lambda: [("a", "held")])
    assert await world.store().audit_markers() is None


async def test_audit_markers_are_none_after_a_flush(world: World) -> None:
    await world.store().claim_epoch(7)
    await world.store().restore_audit_markers(7, lambda: [("a", "held")])
    await world.flush()
    assert await world.store().audit_markers() is None


@pytest.fixture
async def redis(store_url: str) -> AsyncIterator[Reals]:
    async with real(store_url) as reals:
        store = reals.store()
        await store.claim_epoch(7)
        await store.restore_audit_markers(7, tuple)
        yield reals


def batch(after: Head, *notes: tuple[str, str], epoch: int = 7) -> Batch:
    """Return a batch with one entry per marker."""
    entries: list[Entry] = []
    head = after
    for note in notes:
        entries.append(
            seal(head, epoch, AuditRecord(AT, EntryType.HELD, {"uid": note[0]}, (note,)))
        )
        head = entries[-1].head
    return Batch(epoch, after, tuple(entries), SignedHead("c", head, epoch, AT))


async def test_audit_marker_is_written_together_with_its_entry(redis: Reals) -> None:
    trail, store = RedisTrail(redis.server, redis.cluster), redis.store()
    first = batch(Head(), ("a", "held"), ("b", "held"))
    assert await trail.append(first)
    assert await trail.append(first), "sent again"
    assert await store.audit_markers() == {"a": "held", "b": "held"}
    elsewhere = batch(Head(), ("c", "held"))
    assert not await trail.append(elsewhere)
    assert await trail.append(batch(first.signed_head.head, ("a", "released"), ("b", "")))
    assert await store.audit_markers() == {"a": "released"}


async def test_old_leader_cannot_write_or_remove_audit_markers(redis: Reals) -> None:
    trail = RedisTrail(redis.server, redis.cluster)
    assert await trail.append(batch(Head(), ("a", "held")))
    await redis.store().claim_epoch(8)
    with pytest.raises(EpochStale):
        await trail.append(batch(Head(), ("b", "held")))
    with pytest.raises(EpochStale):
        await trail.remove_markers(7, ["a"])
    assert await redis.store().audit_markers() == {"a": "held"}


async def test_removed_audit_marker_is_not_read(redis: Reals) -> None:
    trail = RedisTrail(redis.server, redis.cluster)
    await trail.append(batch(Head(), ("a", "held"), ("b", "held")))
    await trail.remove_markers(7, ["a", "never seen"])
    assert await redis.store().audit_markers() == {"b": "held"}


async def test_restore_does_not_overwrite_newer_markers_after_a_flush(redis: Reals) -> None:
    await redis.flush()
    store, trail = redis.store(), RedisTrail(redis.server, redis.cluster)
    await store.claim_epoch(7)
    await trail.append(batch(Head(), ("a", "released")))
    assert await store.audit_markers() is None
    await store.restore_audit_markers(7, lambda: [("a", "held"), ("b", "held")])
    assert await store.audit_markers() == {"a": "released", "b": "held"}


def report(name: str, **facts: str) -> Report:
    return Report(name, AuditRecord(AT, EntryType.REFUSED, facts))


@pytest.fixture(params=["fake", "redis"])
async def waiting(request: pytest.FixtureRequest) -> AsyncIterator[Reports]:
    if request.param == "fake":
        yield FakeReports()
        return
    async with real(request.getfixturevalue("store_url")) as reals:
        yield RedisReports(reals.server, reals.cluster)


async def test_waiting_reports_are_read_back_in_order(waiting: Reports) -> None:
    assert await waiting.add_reports([report("2", why="b"), report("1", why="a")]) == {}
    assert list(await waiting.read_waiting_reports(9)) == [
        report("1", why="a"),
        report("2", why="b"),
    ]
    assert len(await waiting.read_waiting_reports(1)) == 1


async def test_report_added_twice_is_stored_once(waiting: Reports) -> None:
    for _ in range(2):
        await waiting.add_reports([report("1", why="a")])
    assert list(await waiting.read_waiting_reports(9)) == [report("1", why="a")]


async def test_reports_beyond_the_bound_are_counted(redis: Reals) -> None:
    kept = RedisReports(redis.server, redis.cluster, most=3)
    many = [report(str(number)) for number in range(5)]
    assert await kept.add_reports(many) == {EntryType.REFUSED: 2}
    assert len(await kept.read_waiting_reports(9)) == 3
    restored = Report("9", AuditRecord(AT, EntryType.RESTORED))
    assert await kept.add_reports([*many, restored]) == {EntryType.REFUSED: 2}
    assert restored in await kept.read_waiting_reports(9)


async def test_waiting_report_is_removed_together_with_its_appended_entry(redis: Reals) -> None:
    kept = RedisReports(redis.server, redis.cluster)
    await kept.add_reports([report("1"), report("2")])
    trail = RedisTrail(redis.server, redis.cluster)
    assert await trail.append(batch(Head(), ("report/1", "")))
    assert [each.id for each in await kept.read_waiting_reports(9)] == ["2"]
    assert await redis.store().audit_markers() == {}


async def test_waiting_report_is_removed_with_its_marker(redis: Reals) -> None:
    kept = RedisReports(redis.server, redis.cluster)
    await kept.add_reports([report("1"), report("2")])
    await RedisTrail(redis.server, redis.cluster).remove_markers(7, ["report/1"])
    assert [each.id for each in await kept.read_waiting_reports(9)] == ["2"]


FORGED = {
    "no JSON": b"{broken",
    "an entry of the leader alone": b'{"at":1,"deed":"pruned","facts":{"entries":15}}',
    "another": b'{"at":1,"deed":"gap","facts":{"why":"x"}}',
    "a key": b'{"at":1,"deed":"key","facts":{"publicKey":"x"}}',
    "facts that are no mapping": b'{"at":1,"deed":"refused","facts":[]}',
    "facts in facts": b'{"at":1,"deed":"refused","facts":{"last":{"number":1}}}',
    "a fraction": b'{"at":1,"deed":"refused","facts":{"count":1.5}}',
    "a long fact": b'{"at":1,"deed":"refused","facts":{"why":"%s"}}' % (b"x" * 2000),
    "a long report": b'{"at":1,"deed":"refused","facts":{},"x":"%s"}' % (b"x" * 20_000),
    "a time without end": b'{"at":1e999,"deed":"refused","facts":{}}',
    "a time before time": b'{"at":-1,"deed":"refused","facts":{}}',
    "a deep one": b'{"at":1,"deed":"refused","facts":{"a":%s}}' % (b"[" * 8000),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
async def test_a_report_that_is_none_of_ours_is_dropped(
    redis: Reals, forged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kept, key = RedisReports(redis.server, redis.cluster), f"fairgate:{{{redis.cluster}}}:reports"
    await redis.server.call(
        "HSET", key, "x", forged, b"\xff", '{"at":1,"deed":"refused","facts":{}}'
    )
    await kept.add_reports([report("1", why="a")])
    assert list(await kept.read_waiting_reports(9)) == [report("1", why="a")]
    assert await redis.server.call("HLEN", key) == 1
    assert [each.__dict__["dropped"] for each in caplog.records] == [2]
