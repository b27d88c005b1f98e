"""Behaviour of the store when a real Redis fails, restarts or loses data."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from app.core.effects import Refund, StoreWrite
from app.core.errors import EpochStale, StoreEmptied, StoreForeign, StoreUnavailable
from app.core.model import Uid
from app.ports.store import UsedAmount
from app.store import schema
from app.store.connection import Server
from app.store.leader_store import CHUNK, RedisStore
from app.store.reader import RedisReader
from tests.faults.tcp_proxy import Cable
from tests.support.recount import compare
from tests.support.redis import RedisProcess
from tests.support.shared_stores import real
from tests.support.store_writes import ALICE, GPU, POOL, TEAM, charge, enqueue, intend


class Recorder(Server):
    """Records the commands to send them again. `fail_at` interrupts a rebuild."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sent: list[tuple[str | bytes | int, ...]] = []
        self.fail_at: int | None = None

    async def call(self, *command: str | bytes | int) -> object:
        self.sent.append(command)
        if self.fail_at is not None and len(self.sent) > self.fail_at:
            raise StoreUnavailable("cut short")
        return await self._server.call(*command)

    async def close(self) -> None:
        await self._server.close()


async def keys(server: Server, cluster: str) -> int:
    return len(await server.call("KEYS", f"fairgate:{{{cluster}}}:*"))


async def test_flushed_scripts_are_sent_again(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [])
        await world.server.call("SCRIPT", "FLUSH")
        await store.write(7, [charge("a", 4)])
        await world.server.call("SCRIPT", "FLUSH")
        assert await compare(store, [charge("a", 4)]) == []


async def test_write_with_a_lost_reply_is_repeated_and_counted_once(store_url: str) -> None:
    proxy = Cable("127.0.0.1", int(store_url.rsplit(":", 1)[1].split("/")[0]))
    async with proxy, real(f"redis://127.0.0.1:{proxy.port}/0") as world:
        store = world.store()
        await store.rebuild(7, [])
        proxy.lose(1)
        await store.write(7, [charge("a", 4), enqueue("b", "1")])
        assert proxy.lost == 1
        assert await compare(store, [charge("a", 4), enqueue("b", "1")]) == []


async def test_two_lost_answers_are_reported(store_url: str) -> None:
    proxy = Cable("127.0.0.1", int(store_url.rsplit(":", 1)[1].split("/")[0]))
    async with proxy, real(f"redis://127.0.0.1:{proxy.port}/0") as world:
        store = world.store()
        await store.rebuild(7, [])
        proxy.lose(2)
        with pytest.raises(StoreUnavailable):
            await store.write(7, [charge("a", 4)])
        assert proxy.lost == 2


async def test_late_repeated_write_changes_nothing(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        await store.rebuild(7, [])
        await store.write(7, [charge("a", 4)])
        late = recorder.sent[-1]
        await store.write(7, [Refund(Uid("a"))])
        assert await world.server.call(*late) == [b"OK"]
        assert await store.read_used_amounts(None) == ()


async def test_write_from_before_a_rebuild_is_refused(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        await store.rebuild(7, [])
        await store.write(7, [charge("a", 4)])
        late = recorder.sent[-1]
        await store.rebuild(7, [])
        assert (await world.server.call(*late))[0] == b"EMPTIED"
        assert await store.read_used_amounts(None) == ()


async def test_going_on_after_a_write_that_never_arrived_is_refused(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        await store.rebuild(7, [])
        recorder.fail_at = 0
        with pytest.raises(StoreUnavailable):
            await store.write(7, [charge("a", 4)])
        recorder.fail_at = None
        with pytest.raises(StoreEmptied, match="missing"):
            await store.write(7, [charge("b", 4)])


async def test_a_rebuild_cut_short_leaves_the_old_state_and_no_writer(store_url: str) -> None:
    async with real(store_url) as world:
        old = world.store()
        await old.rebuild(7, [charge("a", 4), intend("i", 1)])
        recorder = Recorder(world.server)
        recorder.fail_at = 5  # INFO, floor, begin, and two steps
        new = RedisStore(recorder, world.cluster)
        with pytest.raises(StoreUnavailable):
            await new.rebuild(8, [charge(str(n), 1) for n in range(3 * CHUNK)])
        recorder.fail_at = None
        assert await compare(new, [charge("a", 4), intend("i", 1)]) == []
        assert await new.read_open_intents() == (intend("i", 1),)
        with pytest.raises(StoreEmptied):
            await new.write(8, [])
        await new.rebuild(8, [charge("b", 1)])
        assert await compare(old, [charge("b", 1)]) == []


async def test_rebuild_with_a_missing_step_does_not_become_valid(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        await store.rebuild(7, [charge("a", 1)])  # loads the scripts into the server
        recorder.fail_at = len(recorder.sent) + 5  # INFO, floor, begin, two steps
        with pytest.raises(StoreUnavailable):
            await store.rebuild(8, [charge(str(n), 1) for n in range(2 * CHUNK)])
        recorder.fail_at = None
        (sequence,) = await world.server.call("KEYS", f"fairgate:{{{world.cluster}}}:8.*:sequence")
        await world.server.call("DECR", sequence)
        assert (await world.server.call(*recorder.sent[-1]))[0] == b"EMPTIED"
        assert await compare(store, [charge("a", 1)]) == []


async def test_late_commands_of_an_older_rebuild_change_nothing(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        await store.rebuild(7, [])
        await store.rebuild(7, [charge("a", 1)])
        late = list(recorder.sent)
        await store.rebuild(7, [charge("b", 1)])
        for command in late:
            if command[0] == "EVALSHA":
                await world.server.call(*command)
        await store.write(7, [charge("c", 1)])
        assert await compare(store, [charge("b", 1), charge("c", 1)]) == []


async def test_keys_of_replaced_and_failed_rebuilds_are_deleted(store_url: str) -> None:
    async with real(store_url) as world:
        recorder = Recorder(world.server)
        store = RedisStore(recorder, world.cluster)
        contents: list[StoreWrite] = [enqueue("q", "1"), charge("a", 4), intend("i", 1)]
        await store.rebuild(7, contents)
        whole = await keys(world.server, world.cluster)
        recorder.fail_at = len(recorder.sent) + 4
        with pytest.raises(StoreUnavailable):
            await store.rebuild(7, contents * CHUNK)
        recorder.fail_at = None
        await store.rebuild(7, contents)
        assert await keys(world.server, world.cluster) == whole


async def test_empty_queues_and_counters_leave_no_keys(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [])
        before = await keys(world.server, world.cluster)
        await store.write(7, [enqueue("q", "1"), charge("a", 4)])
        await store.write(7, [enqueue("q", "2"), Refund(Uid("a")), Refund(Uid("q"))])
        await store.rebuild(7, [])
        assert await keys(world.server, world.cluster) == before


async def test_absurd_amounts_cannot_stop_the_store(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [])
        await store.write(7, [charge("a", 10**40), charge("b", 10**40), charge("c", 0)])
        assert await store.read_used_amounts(None) == (
            UsedAmount(TEAM, ALICE, POOL, GPU, 2 * schema.MOST_AMOUNT),
        )
        await store.write(7, [Refund(Uid("a")), Refund(Uid("b")), Refund(Uid("c"))])
        assert await store.read_used_amounts(None) == ()


async def test_sums_beyond_64_bits_are_exact(store_url: str) -> None:
    """The pods of one user can request any amounts before they are bound, in mode Observe."""
    most, amounts = schema.MOST_AMOUNT, (10**15 - 1, 10**15, 10**15 + 1, 1, 999)
    async with real(store_url) as world:
        store = world.store()
        small = [charge(f"s{n}", amount) for n, amount in enumerate(amounts)]
        large = [charge(str(n), most) for n in range(2**63 // most + 1)]
        await store.rebuild(7, [*large, *small])
        expected = most * len(large) + sum(amounts)
        for write, amount in zip(small, amounts, strict=True):
            assert await store.read_used_amounts(None) == (
                UsedAmount(TEAM, ALICE, POOL, GPU, expected),
            )
            await store.write(7, [Refund(write.uid)])
            expected -= amount
        await store.write(7, [Refund(write.uid) for write in large[:-1]])
        assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, most),)
        await store.write(7, [Refund(large[-1].uid)])
        assert await store.read_used_amounts(None) == ()


async def test_a_foreign_layout_is_refused(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [])
        await world.server.call("SET", f"fairgate:{{{world.cluster}}}:layout", "99")
        for attempt in (
            store.write(7, [charge("a", 4)]),
            store.rebuild(8, []),
            store.read_epoch_floor(),
            store.read_open_intents(),
            store.read_used_amounts(None),
        ):
            with pytest.raises(StoreForeign, match=r"layout 99 .* layout 1"):
                await attempt


@pytest.mark.parametrize(
    "false", ["", "abc", "1001.0", "-1", "1e3", "2000000000", "9" * 12, "9" * 99]
)
async def test_an_epoch_that_no_leader_has_counts_as_none(store_url: str, false: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [charge("a", 4)])
        await world.server.call("HSET", f"fairgate:{{{world.cluster}}}:state", "epoch", false)
        assert await store.read_epoch_floor() == 0
        with pytest.raises(StoreEmptied):
            await store.write(7, [charge("b", 4)])
        await store.rebuild(8, [charge("a", 4)])
        assert await store.read_epoch_floor() == 8
        await store.write(8, [charge("b", 4)])
        assert await compare(store, [charge("a", 4), charge("b", 4)]) == []


async def test_an_intent_that_no_leader_wrote_counts_as_none(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [intend("a", 4)])
        [name] = await world.server.call("KEYS", f"fairgate:{{{world.cluster}}}:*:intents")
        await world.server.call("HSET", name, "b", "x", "c", "{}", b"\xff", '{"at": 1}')
        assert await store.read_open_intents() == (intend("a", 4),)


async def test_store_refuses_a_foreign_state_key(store_url: str) -> None:
    async with real(store_url) as world:
        await world.server.call("SET", f"fairgate:{{{world.cluster}}}:state", "mine")
        with pytest.raises(StoreForeign):
            await world.store().read_epoch_floor()


async def test_a_cancelled_call_does_not_mix_up_answers(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [charge("a", 4)])
        for _ in range(20):
            call = asyncio.create_task(store.read_epoch_floor())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)


async def test_an_evicting_server_is_refused(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        await world.server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        await world.server.check()  # a Redis without maxmemory evicts no key
        await world.server.call("CONFIG", "SET", "maxmemory", "100mb")
        with pytest.raises(StoreForeign, match=r"allkeys-lru.*noeviction"):
            await world.store().rebuild(7, [])
        await world.server.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        await world.store().rebuild(7, [])


async def test_a_killed_server_is_noticed_at_once(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [])
        own_redis.kill()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{own_redis.port}") as caught:
            await store.write(7, [charge("a", 4)])
        assert "did not answer" not in str(caught.value)  # no time-out was needed


async def test_a_hanging_server_is_noticed_within_the_time_outs(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [])
        own_redis.freeze()
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await store.write(7, [charge("a", 4)])


async def test_a_server_restarted_empty_is_rebuilt(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [charge("a", 4)])
        own_redis.kill()
        own_redis.start()
        with pytest.raises(StoreEmptied):
            await store.write(7, [])
        await store.rebuild(7, [charge("b", 4)])
        assert await compare(store, [charge("b", 4)]) == []


async def test_an_old_snapshot_of_the_same_epoch_is_noticed(
    own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [])
        await store.write(7, [charge("a", 4)])
        await world.server.call("SAVE")
        shutil.copy(tmp_path / "dump.rdb", tmp_path / "old")
        await store.write(7, [charge("b", 4)])
        own_redis.kill()
        shutil.move(tmp_path / "old", tmp_path / "dump.rdb")
        own_redis.start()
        assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)
        with pytest.raises(StoreEmptied, match="missing"):
            await store.write(7, [])


async def test_full_server_applies_no_part_of_a_write(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [charge("a", 4)])
        await world.server.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await store.write(7, [Refund(Uid("a")), charge("b", 1)])
        await world.server.call("CONFIG", "SET", "maxmemory", "0")
        assert await compare(store, [charge("a", 4)]) == []


async def test_write_to_a_read_only_server_is_reported_as_such(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        store = world.store()
        await store.rebuild(7, [charge("a", 4)])
        await world.server.call("REPLICAOF", "127.0.0.1", str(own_redis.port))
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.write(7, [])
        assert await RedisReader(world.server, world.cluster).read_pending_counts(None) == ()


async def test_a_wrong_password_is_named_and_not_shown(own_redis: RedisProcess) -> None:
    async with real(own_redis.url) as world:
        await world.server.call("CONFIG", "SET", "requirepass", "right")
        async with real(f"redis://:secret@127.0.0.1:{own_redis.port}/0") as intruder:
            with pytest.raises(StoreUnavailable, match="does not let us in") as refused:
                await intruder.server.check()
        assert "secret" not in str(refused.value)


async def test_the_primary_is_found_through_a_sentinel(
    own_redis: RedisProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sentinel")
    file = folder / "sentinel.conf"
    file.write_text(f"sentinel monitor primary 127.0.0.1 {own_redis.port} 1\n")
    sentinel = RedisProcess(folder, str(file), "--sentinel")
    try:
        hosts = f"127.0.0.1:1,127.0.0.1:{sentinel.port}"
        async with real(f"redis+sentinel://{hosts}/primary/0") as world:
            await world.store().rebuild(7, [charge("a", 4)])
            assert await compare(world.store(), [charge("a", 4)]) == []
        async with real(f"redis+sentinel://{hosts}/stranger/0") as world:
            with pytest.raises(StoreUnavailable) as refused:
                await world.store().read_epoch_floor()
        assert str(refused.value) == (
            f"Redis at {hosts}: no sentinel names a primary 'stranger' (Error 111 connecting to "
            "127.0.0.1:1. Connect call failed ('127.0.0.1', 1)); check that the sentinels run, and "
            "the name in the redis URL."
        )
    finally:
        sentinel.kill()


async def test_invalid_intents_are_skipped(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [intend("a", 4)])
        [key] = await world.server.call("KEYS", f"fairgate:{{{world.cluster}}}:*:intents")
        good = await world.server.call("HGET", key, "a")
        odd = good.replace(b'"nvidia', b'"a:nvidia')
        assert odd != good
        await world.server.call("HSET", key, "b", odd, "c", "{}", b"\xff", good)
        assert await store.read_open_intents() == (intend("a", 4),)


@pytest.mark.parametrize("where", ["state", "audit-head"])
async def test_no_epoch_that_redis_names_stops_leaders_or_turns_them_back(
    store_url: str, where: str
) -> None:
    """A writer in Redis can depose a leader. The next leader takes over with a higher epoch."""
    async with real(store_url) as world:
        key, known = f"fairgate:{{{world.cluster}}}:{where}", 7
        await world.store().rebuild(known, [])
        for forged in (10**9, 10**9 + 6, 5 * 10**9, 10**11, 2 * 10**9, 10**12 - 1):
            await world.server.call("HSET", key, "epoch", str(forged))
            epoch = max(known, await world.store().read_epoch_floor(known)) + 1
            assert known < epoch <= known + 10**9 + 2
            store = world.store()
            await store.claim_epoch(epoch)
            await store.rebuild(epoch, [])
            await store.write(epoch, [])
            with pytest.raises(EpochStale):
                await world.store().claim_epoch(known)
            known = epoch
        assert known > 10**9
