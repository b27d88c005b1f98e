"""Contract of stored usage records, for the fake and for a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest

from app.core.errors import EpochStale
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.model import Millis, NodeName, Uid
from app.ports.store import UsageRetentionStore
from app.store import usage_records as store_runs
from app.store.usage_records import RedisRuns
from tests.fakes.fake_usage_records import FakeRuns
from tests.support.shared_stores import AnyStore, Fakes, World, real
from tests.support.usage_record_cases import run


@dataclass
class Kept:
    """An empty store claimed by a leader of epoch 7, and a reader of its usage records."""

    world: World
    store: AnyStore
    runs: FakeRuns | RedisRuns

    async def ended(self, after: int = 0) -> list[UsageRecord]:
        return [run async for run in self.runs.read_ended_usage(Millis(after))]


@pytest.fixture(params=["fake", "redis"])
async def kept(request: pytest.FixtureRequest) -> AsyncIterator[Kept]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            fakes = Fakes()
            store, runs = fakes.store(), FakeRuns(fakes.memory.runs, floor=7)
            await store.rebuild(7, [])
            yield Kept(fakes, store, runs)
        else:
            reals = await stack.enter_async_context(real(request.getfixturevalue("store_url")))
            store = reals.store()
            await store.rebuild(7, [])
            yield Kept(reals, store, RedisRuns(reals.server, reals.cluster))


def bound(run: UsageRecord, at: int) -> UsageRecord:
    return replace(run, node=NodeName("n1"), bound=Millis(at))


async def test_usage_records_are_read_back_unchanged(kept: Kept) -> None:
    going, over = bound(run("a"), 1500), replace(bound(run("b", 1000, 9000), 1500), assumed=True)
    await kept.store.write(7, [UsageStarted(going), UsageEnded(over)])
    assert await kept.runs.read_open_usage() == await kept.store.read_open_usage() == (going,)
    assert await kept.ended() == [over]


async def test_ended_usage_record_is_not_open(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(run("a")), UsageEnded(run("a", end=5000))])
    assert await kept.runs.read_open_usage() == ()
    assert await kept.ended() == [run("a", end=5000)]


async def test_first_stored_end_of_a_usage_record_is_final(kept: Kept) -> None:
    await kept.store.write(7, [UsageEnded(run("a", end=5000)), UsageEnded(run("a", end=9000))])
    assert await kept.ended() == [run("a", end=5000)]


async def test_a_run_that_ended_is_not_begun_again(kept: Kept) -> None:
    await kept.store.write(7, [UsageEnded(run("a", end=5000)), UsageStarted(run("a"))])
    assert await kept.runs.read_open_usage() == ()


async def test_usage_record_ends_at_the_start_of_the_pods_next_record(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(run("a", 1000)), UsageStarted(run("a", 4000))])
    assert await kept.runs.read_open_usage() == (run("a", 4000),)
    assert await kept.ended() == [run("a", 1000, 4000)]
    await kept.store.write(7, [UsageStarted(run("a", 1000)), UsageEnded(run("a", 1000, 4000))])
    assert await kept.runs.read_open_usage() == (run("a", 4000),)
    assert await kept.ended() == [run("a", 1000, 4000)]


async def test_end_of_a_later_record_also_ends_the_pods_open_record(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(run("a", 1000)), UsageEnded(run("a", 4000, 6000))])
    assert await kept.runs.read_open_usage() == ()
    assert await kept.ended() == [run("a", 1000, 4000), run("a", 4000, 6000)]


async def test_a_node_once_known_is_not_forgotten(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(bound(run("a"), 1500)), UsageStarted(run("a"))])
    assert await kept.runs.read_open_usage() == (bound(run("a"), 1500),)


async def test_runs_outlast_a_rebuild(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(run("a")), UsageEnded(run("b", end=5000))])
    await kept.world.store().rebuild(8, [UsageEnded(run("c", end=6000)), UsageStarted(run("d"))])
    assert await kept.runs.read_open_usage() == (run("a"), run("d"))
    assert await kept.ended() == [run("b", end=5000), run("c", end=6000)]


async def test_an_old_leader_cannot_end_a_run(kept: Kept) -> None:
    await kept.store.write(7, [UsageStarted(run("a"))])
    await kept.world.store().claim_epoch(8)
    with pytest.raises(EpochStale):
        await kept.store.write(7, [UsageEnded(run("a", end=5000))])
    assert await kept.runs.read_open_usage() == (run("a"),)


async def test_runs_are_read_by_their_end_page_by_page(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_runs, "PAGE", 3)
    over = [run(f"{i:02}", end=5000 + 10 * (i // 4)) for i in range(13)]
    await kept.store.write(7, [UsageEnded(each) for each in over])
    assert await kept.ended(4000) == over
    assert await kept.ended(5000) == over[4:]
    assert await kept.ended(5030) == []


async def test_runs_are_complete_from_the_first_trimming_on(kept: Kept) -> None:
    assert await kept.runs.complete_since() is None
    await trim(kept.runs, now=3000)
    await trim(kept.runs, now=9000)
    assert await kept.runs.complete_since() == 3000


async def test_trim_deletes_old_records_and_moves_complete_since(kept: Kept) -> None:
    await trim(kept.runs, now=1000)
    await kept.store.write(7, [UsageEnded(run(str(i), end=5000 + i)) for i in range(10)])
    await trim(kept.runs, now=9000, before=5004)
    assert [each.pod for each in await kept.ended()] == ["4", "5", "6", "7", "8", "9"]
    assert await kept.runs.complete_since() == 5003


async def test_trim_deletes_the_oldest_records_beyond_the_maximum(kept: Kept) -> None:
    await kept.store.write(7, [UsageEnded(run(str(i), end=5000 + i)) for i in range(10)])
    await trim(kept.runs, now=1000, most=4)
    assert [each.pod for each in await kept.ended()] == ["6", "7", "8", "9"]
    assert await kept.runs.complete_since() == 5005


async def test_an_old_leader_cannot_trim(kept: Kept) -> None:
    await kept.store.write(7, [UsageEnded(run("a", end=5000))])
    await kept.world.store().claim_epoch(8)
    if isinstance(kept.runs, FakeRuns):
        kept.runs.floor = 8
    with pytest.raises(EpochStale):
        await trim(kept.runs, now=9000, before=6000)
    assert await kept.ended() == [run("a", end=5000)]


async def test_complete_since_is_none_after_a_flush(kept: Kept) -> None:
    await trim(kept.runs, now=1000)
    await kept.world.flush()
    if isinstance(kept.runs, FakeRuns):
        kept.runs.runs = kept.world.memory.runs  # type: ignore[union-attr]
    assert await kept.runs.complete_since() is None
    assert await kept.ended() == []


async def test_invalid_usage_records_are_skipped(store_url: str) -> None:
    async with real(store_url) as world:
        store, runs = world.store(), RedisRuns(world.server, world.cluster)
        await store.rebuild(7, [UsageStarted(run("a")), UsageEnded(run("b", end=5000))])
        at = f"fairgate:{{{world.cluster}}}:"
        for text in ("", "[]", "[1]", '["x",0]', "{", '{"begin":1}', "[null,null]"):
            await world.server.call("HSET", at + "running", "odd", text)
            await world.server.call("HSET", at + "run", "odd/1", text)
            await world.server.call("ZADD", at + "runs", 7000, "odd/1")
            assert await runs.read_open_usage() == await store.read_open_usage() == (run("a"),)
            assert [each async for each in runs.read_ended_usage(Millis(0))] == [run("b", end=5000)]
            await store.write(7, [UsageStarted(replace(run("odd"), uid=Uid("odd")))])
            await store.write(7, [UsageEnded(replace(run("odd", 1000, 2000), uid=Uid("odd")))])
            await world.server.call("HDEL", at + "run", "odd/1000")
            await world.server.call("ZREM", at + "runs", "odd/1000")
        assert not await runs.trim(7, Millis(9000), Millis(8000), 10)
        assert await runs.complete_since() == 9000


async def trim(runs: UsageRetentionStore, *, now: int, before: int = 0, most: int = 1000) -> None:
    while await runs.trim(7, Millis(now), Millis(before), most):
        pass
