"""The leader's audit chain: sealing, losses and retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from app.controller.audit_chain import STEP, Retention
from app.controller.audit_writer import MAX_WAITING, Auditor
from app.core.audit.codec import entry_line, parse_line
from app.core.audit.verifier import BrokenChain, ChainVerifier
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.errors import StoreFull
from app.core.model import Millis
from tests.fakes.fake_audit_stream import Copies, FakeKey
from tests.support.audit_world import AGE, SIZE, World, held


def whole(copies: Copies) -> int:
    """Return the number of entries in the copies, after checking their consistency."""
    proof = ChainVerifier(copies=True)
    for entry in copies.entries():
        proof.add_entry(entry)
    return proof.verdict().entries


@pytest.fixture
def world() -> World:
    return World()


@asynccontextmanager
async def running(auditor: Auditor) -> AsyncIterator[Auditor]:
    task = asyncio.create_task(auditor.write_records())
    try:
        yield auditor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


# --- terms ---


async def test_records_of_a_term_are_sealed_signed_and_anchored(world: World) -> None:
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        auditor.record(held(1))
        await auditor.end_term()
    entry_types = [each.record.entry_type for each in world.stream.entries()]
    assert entry_types == [EntryType.KEY, EntryType.LEADING, EntryType.HELD, EntryType.LEADING]
    assert world.anchor.head == world.stream.signed
    assert world.verify().entries == 4
    assert world.copies.entries() == world.stream.entries()


async def test_marker_is_stored_with_its_entry_and_cleared_after_earlier_entries(
    world: World,
) -> None:
    world.stream.down = True
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        auditor.record(replace(held(1), audit_markers=(("a", "held"),)))
        auditor.record(replace(held(2), audit_markers=(("b", "held"),)))
        auditor.clear_marker("a")
        world.stream.down = False
        await until(lambda: world.stream.notes == {"b": "held"})
        auditor.clear_marker("b")
        await until(lambda: not world.stream.notes)
        assert world.verify().entries == 4


async def test_unsealed_entry_stores_no_marker(world: World) -> None:
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        await until(lambda: bool(world.stream.rows))
        world.stream.down = True
        auditor.record(replace(held(1), audit_markers=(("a", "held"),)))
        await auditor.end_term()
    assert world.stream.notes == {}


async def test_standby_records_no_entries(world: World) -> None:
    async with running(world.auditor()) as auditor:
        auditor.record(held(1))
        auditor.start_term(3)
        await auditor.end_term()
        auditor.record(held(2))
    assert EntryType.HELD not in [each.record.entry_type for each in world.stream.entries()]


async def test_records_wait_while_redis_is_away(world: World) -> None:
    world.stream.down = True
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        for number in range(600):
            auditor.record(held(number))
        world.stream.down = False
        await until(lambda: len(world.stream.rows) == 602)
        await auditor.end_term()
    assert world.verify().gaps == 0


async def test_entries_beyond_the_bound_are_named_in_a_gap(world: World) -> None:
    world.stream.down = True
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        for number in range(MAX_WAITING + 10):
            auditor.record(held(number, at=number))
        world.stream.down = False
        await until(lambda: bool(world.gaps()))
    (gap,) = world.gaps()
    assert gap.record.facts["dropped"] == 11  # including the first entry of the term
    assert (gap.record.facts["from"], gap.record.facts["to"]) == (MAX_WAITING - 1, MAX_WAITING + 9)


async def test_a_full_queue_and_a_standby_accept_no_record(world: World) -> None:
    auditor = world.auditor()
    assert not auditor.can_record()
    auditor.start_term(3)  # records one entry
    for number in range(MAX_WAITING - 1):
        assert auditor.can_record()
        auditor.record(held(number))
    assert not auditor.can_record()


async def test_a_lost_answer_seals_once(world: World) -> None:
    async with running(world.auditor()) as auditor:
        world.stream.deaf = True
        auditor.start_term(3)
        auditor.record(held(1))
        await until(lambda: len(world.stream.rows) == 3)
        auditor.record(held(2))
        world.stream.deaf = False
        await until(lambda: len(world.stream.rows) == 4)
        await auditor.end_term()
    entry_types = [each.record.entry_type for each in world.stream.entries()]
    assert entry_types == [
        EntryType.KEY,
        EntryType.LEADING,
        EntryType.HELD,
        EntryType.HELD,
        EntryType.LEADING,
    ]
    assert world.verify().gaps == 0


async def test_old_leader_steps_down_and_seals_no_entries(world: World) -> None:
    await world.term(4, 1)
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        await until(lambda: world.deposed == 1)
        await auditor.end_term()
    assert {each.epoch for each in world.stream.entries()} == {4}


async def test_an_anchor_that_cannot_be_written_stops_no_sealing(world: World) -> None:
    chain = await world.term(3, 1)
    world.anchor.silent = True
    await chain.seal([held(2)])
    assert not chain.is_anchored
    world.anchor.silent = False
    await chain.anchor()
    assert world.anchor.head == world.stream.signed


async def test_facts_of_any_kind_are_written_as_json_gives_them_back(world: World) -> None:
    facts = {"a": ("x", 1), "b": {"c": None}, "d": "\ud800", "e": 1.5, "f": 2**70}
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        auditor.record(AuditRecord(Millis(1), EntryType.HELD, facts))  # type: ignore[arg-type]
        await auditor.end_term()
    assert world.verify().entries == 4


# --- losses ---


async def test_next_leader_continues_the_chain(world: World) -> None:
    await world.term(3, 2)
    await world.term(4, 2)
    assert (world.verify().entries, world.gaps()) == (5, [])


async def test_redis_emptied_under_a_leader_becomes_a_gap_that_is_exact(world: World) -> None:
    chain = await world.term(3, 2)
    world.stream.flush()
    assert not await chain.matches_stream()
    assert await chain.seal([held(9)]) is None
    await world.term(3, 1, chain)
    (gap,) = world.gaps()
    assert gap.record.facts["exact"] is True
    assert gap.number == 4
    assert world.verify().entries == 2


async def test_chain_continues_from_the_anchor_if_redis_was_emptied(world: World) -> None:
    first = await world.term(3, 2)
    anchored = world.anchor.head
    assert anchored is not None
    await first.seal([held(9)])
    world.stream.flush()
    await world.term(4, 1)
    (gap,) = world.gaps()
    assert (gap.number, gap.previous_hash) == (anchored.head.number + 1, anchored.head.hash)
    assert gap.record.facts["exact"] is False
    assert world.verify().first == gap


async def test_an_older_copy_of_redis_becomes_a_gap_after_its_end(world: World) -> None:
    chain = await world.term(3, 2)
    old = world.stream.copy()
    await chain.seal([held(number) for number in range(5)])
    await chain.anchor()
    lost = world.stream.last()
    world.stream.restore(old)
    await world.term(4, 1)
    (gap,) = world.gaps()
    assert gap.record.facts["after"] == {"number": 3, "hash": old.last().hash}
    assert gap.record.facts["upTo"] == {"number": lost.number, "hash": lost.hash}
    assert (world.verify().entries, world.verify().gaps) == (5, 1)


async def test_a_chain_of_another_branch_is_named_and_left(world: World) -> None:
    chain = await world.term(3, 2)
    await chain.seal([held(number) for number in range(9)])
    old = world.stream.copy()  # never anchored
    world.stream.flush()
    await world.term(4, 1)
    world.stream.restore(old)
    await world.term(5, 1)
    assert world.verify().gaps == 1
    assert world.stream.last().number > old.last().number


@pytest.mark.parametrize("forge", ["append", "replace", "shorten"])
async def test_entries_that_were_never_signed_are_moved_away(world: World, forge: str) -> None:
    await world.term(3, 3)
    stream = world.stream
    entries = stream.entries()
    match forge:
        case "append":
            forged = [*entries, seal(entries[-1].head, 3, held(66))]
        case "replace":
            forged = [*entries[:-1], seal(entries[-2].head, 3, held(66))]
        case _:
            forged = entries[:-1]
    stream.rows = [(each.number, entry_line(each)) for each in forged]
    with pytest.raises(BrokenChain):
        world.verify()
    await world.term(4, 1)
    assert [number for number, _ in stream.aside] == [each.number for each in forged]
    (gap,) = world.gaps()
    assert gap.previous_hash == entries[-1].hash
    assert world.verify().first == gap


async def test_gap_states_that_a_former_key_signed_the_entries(world: World) -> None:
    await world.term(3, 2)
    old = world.stream.copy()
    world.key = FakeKey()
    await world.term(4, 2)
    world.stream.restore(old)
    await world.term(5, 1)
    (gap,) = world.gaps()
    assert gap.record.facts["why"] == (
        "Redis contained entries that another key or cluster signed; they were moved away"
    )
    assert [number for number, _ in world.stream.aside] == [number for number, _ in old.rows]
    world.verify()


async def test_head_signed_by_another_key_is_not_trusted(world: World) -> None:
    await world.term(3, 2)
    stream = world.stream
    forged = seal(stream.entries()[-1].head, 3, held(66))
    stream.rows.append((forged.number, entry_line(forged)))
    signed = stream.signed
    assert signed is not None
    stream.signed = FakeKey().signer.sign(replace(signed, head=forged.head))
    await world.term(4, 1)
    assert [each.record.entry_type for each in stream.entries()] == [EntryType.GAP, EntryType.HELD]


async def test_a_head_that_was_lost_alone_is_written_again(world: World) -> None:
    chain = await world.term(3, 2)
    world.stream.signed = None
    assert not await chain.matches_stream()
    await chain.open(3)
    assert chain.has_unsealed
    assert await chain.seal([]) == 0
    assert (world.verify().entries, world.verify().gaps) == (3, 0)


async def test_new_key_is_recorded_and_the_chain_continues(world: World) -> None:
    await world.term(3, 2)
    world.key = FakeKey()
    await world.term(4, 1)
    entry_types = [each.record.entry_type for each in world.stream.entries()]
    assert entry_types == [
        EntryType.KEY,
        EntryType.HELD,
        EntryType.HELD,
        EntryType.KEY,
        EntryType.HELD,
    ]
    assert world.verify().entries == 5


async def test_a_new_key_is_recorded_though_the_head_was_lost_too(world: World) -> None:
    await world.term(3, 2)
    world.key, world.stream.signed = FakeKey(), None
    async with running(world.auditor()) as auditor:
        auditor.start_term(4)
        await auditor.end_term()
    assert EntryType.KEY in [each.record.entry_type for each in world.stream.entries()[3:]]
    assert world.verify().gaps == 0


async def test_next_leader_copies_unanchored_entries_again(world: World) -> None:
    chain = await world.term(3, 2)
    await chain.seal([held(8), held(9)])
    world.copies.lines = world.copies.lines[:-2]  # this killed the process
    await world.term(4, 1)
    proof = ChainVerifier(copies=True)
    for entry in world.copies.entries():
        proof.add_entry(entry)
    assert proof.verdict().entries == 6


async def test_only_copied_entries_are_anchored(world: World) -> None:
    """A sink that writes late loses no entry when the leader is killed right after the anchor."""
    chain = await world.term(3, 2)
    world.copies.slow = True
    await chain.seal([held(8), held(9)])
    await chain.anchor()
    world.copies.waiting.clear()  # this killed the process
    world.copies.slow = False
    await world.term(4, 1)
    assert whole(world.copies) == len(world.stream.rows)


async def test_an_anchor_waits_for_all_sinks_at_once(world: World) -> None:
    steps: list[str] = []

    class SlowSink(Copies):
        async def flush(self, seconds: float) -> None:
            steps.append("start")
            await asyncio.sleep(0)
            steps.append("end")

    chain = world.chain(SlowSink(), SlowSink())
    await world.term(3, 2, chain)
    assert steps == ["start", "start", "end", "end"]


async def test_however_much_was_not_anchored_is_copied_to_its_end(world: World) -> None:
    world.retention = Retention(Millis(10**12), 10**12)
    chain = await world.term(3, 2)
    for _ in range(24):
        await chain.seal([held(number) for number in range(256)])
    world.copies.lines = world.copies.lines[:-300]  # this killed the process
    await world.term(4, 1)
    assert whole(world.copies) == len(world.stream.rows)


async def test_forged_entries_with_repeated_numbers_do_not_stop_the_next_leader(
    world: World,
) -> None:
    chain = await world.term(3, 2)
    await chain.seal([held(8), held(9)])
    *earlier, last = world.stream.rows
    world.stream.rows = [*earlier, *[earlier[-1]] * STEP, last]

    class BoundedSink(Copies):
        def write_line(self, line: str, number: int, epoch: int) -> None:
            super().write_line(line, number, epoch)
            assert len(self.lines) < 3 * STEP

    await world.chain(BoundedSink()).open(4)


async def test_a_copy_of_the_last_entry_is_set_aside(world: World) -> None:
    await world.term(3, 2)
    number, text = world.stream.rows[-1]
    world.stream.forge(number, text)
    await world.term(4, 1)
    assert [at for at, _ in world.stream.aside] == [1, 2, 3, 3]
    assert world.verify().first == world.gaps()[0]


async def test_next_leader_copies_anchored_entries_that_were_never_copied(
    world: World,
) -> None:
    world.copies.knows = True
    chain = await world.term(3, 2)
    kept = list(world.copies.lines)
    await chain.seal([held(number) for number in range(100)])
    await chain.anchor()
    world.copies.lines = kept  # the disk was full
    await world.term(4, 1)
    assert whole(world.copies) == len(world.stream.rows)


async def test_entries_that_can_no_longer_be_copied_are_named_in_one_line(world: World) -> None:
    world.copies.knows = True
    chain = await world.term(3, 2)
    kept = list(world.copies.lines)
    await chain.seal([held(number) for number in range(100)])
    await chain.anchor()
    world.copies.lines = kept
    world.stream.rows = [row for row in world.stream.rows if row[0] > 50]
    await world.term(4, 1)
    missed = [text for text in world.copies.lines if "missed" in text]
    assert missed == ['{"audit":true,"missed":{"entries":47,"from":4,"to":50}}']
    assert world.copies.entries()[3:][0].number == 51


async def test_copies_verify_across_entries_that_redis_lost(world: World) -> None:
    chain = await world.term(3, 2)
    await chain.seal([held(9)])
    world.stream.flush()
    await world.term(4, 2)
    proof = ChainVerifier(copies=True)
    for text in world.copies.lines:
        found = parse_line(text)
        if isinstance(found, Entry):
            proof.add_entry(found)
        elif found is not None:
            proof.check_head(found)
    verdict = proof.verdict()
    assert (verdict.unsigned_entries, verdict.gaps) == (0, 1)
    assert verdict.newest_signed_head == world.anchor.head


# --- retention ---


async def test_old_entries_are_pruned_and_the_remaining_chain_verifies(world: World) -> None:
    chain = await world.term(3, 20)
    world.now = Millis(10 + AGE + 1)
    await chain.seal([held(99, at=world.now)])
    await chain.anchor()
    assert not await chain.prune()
    entries = world.stream.entries()
    assert [each.record.entry_type for each in entries] == [EntryType.HELD, EntryType.PRUNED]
    assert entries[-1].record.facts["last"] == {"number": 21, "hash": entries[0].previous_hash}
    assert world.verify().missing_head == Head(21, entries[0].previous_hash)
    assert not await chain.prune()


async def test_oldest_entries_are_pruned_first_if_the_chain_is_too_large(world: World) -> None:
    chain = await world.term(3, 50)
    world.retention = Retention(Millis(AGE), 6000)
    chain = await world.term(4, 1)
    await chain.prune()
    assert sum(len(text) for _, text in world.stream.rows) < 6600
    assert world.verify().last == world.stream.entries()[-1]


async def test_chain_uses_at_most_half_of_the_redis_memory(world: World) -> None:
    chain = await world.term(3, 50)
    world.stream.most = world.stream.size * 2 - 4000
    await chain.prune()
    assert world.stream.size < world.stream.most / 2 + 600
    assert world.verify().last == world.stream.entries()[-1]


async def test_newest_entries_stay_even_if_redis_has_very_little_memory(world: World) -> None:
    world.retention = Retention(Millis(AGE), SIZE, min_bytes=6000)
    chain = await world.term(3, 50)
    world.stream.most = 1
    for _ in range(3):
        await chain.prune(urgent=True)
    assert 5000 < world.stream.size < 7000


async def test_a_redis_without_memory_is_given_some_and_all_is_sealed(world: World) -> None:
    await world.term(2, 100)
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        await until(lambda: len(world.stream.rows) == 102)
        world.stream.most = world.stream.size
        auditor.record(held(555))
        await auditor.end_term()
    entry_types = [each.record.entry_type for each in world.stream.entries()]
    assert entry_types[-3:] == [EntryType.PRUNED, EntryType.HELD, EntryType.LEADING]
    assert world.stream.size < world.stream.most
    assert world.verify().gaps == 0


async def test_pending_entry_is_sealed_once_after_redis_was_full(world: World) -> None:
    chain = await world.term(3, 100)
    world.stream.most = world.stream.size
    with pytest.raises(StoreFull):
        await chain.seal([held(555)])
    await chain.prune(urgent=True)
    assert await chain.seal([held(555)]) == 1
    assert [each.record.facts.get("pod") for each in world.stream.entries()].count("p555") == 1
    assert world.verify().gaps == 0


async def test_a_long_queue_of_records_hinders_no_retention(world: World) -> None:
    await world.term(2, 100)
    world.now = Millis(10 + AGE + 1)
    async with running(world.auditor()) as auditor:
        auditor.start_term(3)
        for number in range(5000):
            auditor.record(held(number, at=world.now))
        await until(lambda: world.stream.rows[0][0] > 1)
        await auditor.end_term()
    entry_types = [each.record.entry_type for each in world.stream.entries()]
    assert entry_types.index(EntryType.PRUNED) < 2000


async def test_unanchored_entries_are_not_pruned(world: World) -> None:
    chain = await world.term(3, 3)
    await chain.seal([held(number) for number in range(30)])
    world.now = Millis(10 + AGE + 1)
    await chain.prune()
    assert world.stream.rows[0][0] == 4
    assert world.verify().entries == 32


async def test_one_prune_step_removes_a_bounded_number_of_entries(world: World) -> None:
    chain = await world.term(3, 1200)
    world.now = Millis(10 + AGE + 1)
    assert await chain.prune()
    assert world.stream.rows[0][0] == 501
    assert await chain.prune()
    assert not await chain.prune()
    assert world.stream.rows[0][0] == 1201
    assert world.verify().entries == 4


async def test_entries_with_forged_old_times_are_not_pruned(world: World) -> None:
    world.now = Millis(20_000)
    chain = await world.term(3, 0)
    await chain.seal([held(number, at=20_000) for number in range(5)])
    await chain.anchor()
    rows = world.stream.rows
    rows[:] = [(number, text.replace('"at":20000', '"at":1')) for number, text in rows]
    await chain.prune()
    assert len(world.stream.rows) == 6
    with pytest.raises(BrokenChain, match="entry 1"):
        world.verify()
