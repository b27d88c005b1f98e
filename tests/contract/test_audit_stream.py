"""Contract of the audit stream, for the fake and for a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest

from app.core.audit.codec import SignedHead
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.errors import EpochStale, StoreFull
from app.core.model import Millis
from app.ports.audit import AuditStream, Batch, iterate_lines
from app.store.audit_stream import RedisTrail
from app.store.leader_store import RedisStore
from tests.fakes.fake_audit_stream import FakeTrail, Stream
from tests.support.redis import RedisProcess
from tests.support.shared_stores import Reals, real


@dataclass
class Fakes:
    stream: Stream = field(default_factory=Stream)

    def trail(self) -> AuditStream:
        return FakeTrail(self.stream)

    async def flush(self) -> None:
        self.stream.flush()

    async def forge(self, number: int, sequence: int, text: str) -> None:
        self.stream.forge(number, text)


@dataclass
class OnRedis:
    world: Reals

    def trail(self) -> AuditStream:
        return RedisTrail(self.world.server, self.world.cluster)

    async def flush(self) -> None:
        await self.world.flush()

    async def forge(self, number: int, sequence: int, text: str) -> None:
        key = f"fairgate:{{{self.world.cluster}}}:audit"
        await self.world.server.call("XADD", key, f"{number}-{sequence}", "entry", text)


@pytest.fixture(params=["fake", "redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[Fakes | OnRedis]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield Fakes()
        else:
            url = request.getfixturevalue("store_url")
            yield OnRedis(await stack.enter_async_context(real(url)))


@pytest.fixture
def trail(world: Fakes | OnRedis) -> AuditStream:
    return world.trail()


def chain(count: int, *, after: Head | None = None, epoch: int = 7) -> tuple[Entry, ...]:
    head, entries = after or Head(), []
    for number in range(count):
        record = AuditRecord(
            Millis(number), EntryType.HELD, {"pod": f"p{number}", "odd": '\ud800"hash"'}
        )
        entries.append(seal(head, epoch, record))
        head = entries[-1].head
    return tuple(entries)


def batch(entries: tuple[Entry, ...], *, epoch: int = 7, after: Head | None = None) -> Batch:
    signed = SignedHead("c", entries[-1].head, epoch, Millis(5), "signature", "key")
    return Batch(epoch, after or Head(), entries, signed)


async def test_empty_stream_has_no_head_and_no_entries(trail: AuditStream) -> None:
    ending = await trail.read_tail()
    assert (ending.last_head, ending.highest_number, ending.signed_head) == (Head(), 0, None)
    assert await trail.read_lines(0, 10) == ()


async def test_appended_entries_are_read_back_in_order(trail: AuditStream) -> None:
    first = chain(3)
    assert await trail.append(batch(first))
    more = chain(2, after=first[-1].head)
    assert await trail.append(batch(more, after=first[-1].head))
    ending = await trail.read_tail()
    assert (ending.last_head, ending.highest_number) == (more[-1].head, 5)
    assert ending.signed_head == batch(more).signed_head
    assert [number for number, _ in await trail.read_lines(1, 3)] == [2, 3, 4]


async def test_repeated_append_adds_no_entry(trail: AuditStream) -> None:
    for _ in range(2):
        assert await trail.append(batch(chain(3)))
    assert len(await trail.read_lines(0, 10)) == 3


async def test_append_is_refused_if_the_stream_has_another_tail(
    world: Fakes | OnRedis, trail: AuditStream
) -> None:
    first = chain(3)
    await trail.append(batch(first))
    other = chain(1, after=first[0].head)
    assert not await trail.append(batch(other, after=first[0].head))
    assert (await trail.read_tail()).last_head == first[-1].head
    await world.flush()
    assert not await trail.append(batch(chain(1, after=first[-1].head), after=first[-1].head))
    assert (await trail.read_tail()).last_head == Head()


async def test_append_is_refused_if_its_entry_number_was_used_before(trail: AuditStream) -> None:
    first = chain(3)
    await trail.append(batch(first))
    again = chain(1, after=Head(2, first[-1].hash))
    assert not await trail.append(batch(again, after=first[-1].head))


async def test_an_old_leader_cannot_append(world: Fakes | OnRedis, trail: AuditStream) -> None:
    first = chain(1, epoch=8)
    await world.trail().append(batch(first, epoch=8))
    with pytest.raises(EpochStale, match="8"):
        await trail.append(batch(chain(1, after=first[-1].head), after=first[-1].head))


async def test_entries_before_first_kept_number_are_deleted_by_the_append(
    trail: AuditStream,
) -> None:
    first = chain(5)
    await trail.append(batch(first))
    more = batch(chain(1, after=first[-1].head), after=first[-1].head)
    assert await trail.append(replace(more, first_kept_number=4))
    assert [number for number, _ in await trail.read_lines(0, 10)] == [4, 5, 6]


async def test_append_that_moves_the_stream_away_may_restart_numbers(trail: AuditStream) -> None:
    first = chain(3)
    await trail.append(batch(first))
    anew = batch(chain(1), after=first[-1].head)
    assert await trail.append(replace(anew, moves_stream_away=True))
    assert (await trail.read_tail()).last_head == Head(1, anew.signed_head.head.hash)


async def test_a_lost_head_is_written_again(world: Fakes | OnRedis, trail: AuditStream) -> None:
    first = chain(2)
    await trail.append(batch(first))
    signed = replace(batch(first).signed_head, at=Millis(9))
    assert await trail.append(Batch(7, first[-1].head, (), signed))
    assert (await trail.read_tail()).signed_head == signed


async def test_epoch_floor_is_the_highest_epoch_of_chain_and_store(store_url: str) -> None:
    async with real(store_url) as world:
        store = RedisStore(world.server, world.cluster)
        await RedisTrail(world.server, world.cluster).append(batch(chain(1, epoch=9), epoch=9))
        assert await store.read_epoch_floor() == 9
        await store.rebuild(9, [])
        await store.rebuild(12, [])
        assert await store.read_epoch_floor() == 12


async def test_a_rebuild_leaves_the_chain_alone(store_url: str) -> None:
    async with real(store_url) as world:
        trail = RedisTrail(world.server, world.cluster)
        await trail.append(batch(chain(2)))
        store = RedisStore(world.server, world.cluster)
        await store.rebuild(7, [])
        await store.rebuild(7, [])
        assert [each.number for each in await trail.read_entries(0, 10)] == [1, 2]


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("at", [(4, 0), (2**64 - 1, 0), (3, 7)])
async def test_whatever_somebody_appends_is_seen(
    world: Fakes | OnRedis, trail: AuditStream, at: tuple[int, int], is_copy: bool
) -> None:
    first = batch(chain(3))
    await trail.append(first)
    await world.forge(*at, first.lines[-1] if is_copy else "forged")
    last = first.signed_head.head
    assert (await trail.read_tail()).last_head != last
    more = batch(chain(1, after=last), after=last)
    assert not await trail.append(more)
    ending = await trail.read_tail()
    assert await trail.append(replace(more, after=ending.last_head, moves_stream_away=True))
    assert (await trail.read_tail()).last_head == more.signed_head.head


async def test_forged_entries_with_a_repeated_number_are_returned(
    world: Fakes | OnRedis, trail: AuditStream
) -> None:
    await trail.append(batch(chain(3)))
    for sequence in (1, 2):
        await world.forge(3, sequence, "forged")
    await world.forge(4, 0, "forged")
    assert [number for number, _ in await trail.read_lines(2, 9)] == [3, 3, 3, 4]
    assert [number for number, _ in await trail.read_lines(3, 2)] == [3, 3]
    assert [number async for number, _ in iterate_lines(trail, 0, 3)] == [1, 2, 3, 3, 3]


async def test_full_server_accepts_an_append_that_deletes_old_entries(
    own_redis: RedisProcess,
) -> None:
    async with real(own_redis.url) as world:
        trail = RedisTrail(world.server, world.cluster)
        entries = chain(1000)
        await trail.append(batch(entries))
        before = (await trail.read_tail()).size
        await world.server.call("CONFIG", "SET", "maxmemory", "1000000")
        assert await trail.read_memory_limit() == 1_000_000
        await world.server.call("CONFIG", "SET", "maxmemory", "1")
        more = chain(1, after=entries[-1].head)
        with pytest.raises(StoreFull):
            await trail.append(batch(more, after=entries[-1].head))
        assert (await trail.read_tail()).last_head == entries[-1].head
        assert await trail.append(
            replace(batch(more, after=entries[-1].head), first_kept_number=900)
        )
        assert (await trail.read_tail()).size < before / 4
        assert [number for number, _ in await trail.read_lines(0, 1)] == [900]
