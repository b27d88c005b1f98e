"""The start of a term: earlier leaders can no longer act, and their releases are settled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.controller.takeover import SPEED_UP_SECONDS
from app.core import events as ev
from app.core.effects import Intend
from app.core.errors import EpochStale
from app.core.model import Millis, Pod, ReleaseOutcome
from app.core.well_known import RELEASE_HELD
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_store import FakeStore, Memory
from tests.support.controller_rig import NODE, Rig, running, until


def member(number: int, size: int) -> Pod:
    return replace(held_pod(f"g{number}", "a"), gang="train", gang_size=size)


async def test_an_older_leader_writes_no_intent_once_a_term_begins() -> None:
    memory = Memory()
    old = FakeStore(memory)
    await old.rebuild(4, [])
    async with running(Rig(memory)) as rig:
        rig.sight.clear.clear()
        rig.lead.free.set()
        await until(lambda: rig.sight.asked == 1)
        assert not rig.leader.is_leading
        with pytest.raises(EpochStale):
            await old.write(4, [])
        rig.sight.clear.set()
        await until(lambda: rig.leader.is_leading)


async def test_a_fence_on_a_lone_held_pod_hastens_the_proof_of_a_slow_watch() -> None:
    async with running(Rig(), gpus=1) as rig:
        await rig.create(member(0, 2))
        await rig.create(held_pod("lone", "a"))
        rig.sight.clear.clear()
        rig.lead.free.set()
        await until(lambda: rig.stamps()["lone"] == "0@5")
        assert rig.stamps()["g0"] == RELEASE_HELD
        rig.sight.clear.set()
        await until(lambda: rig.leader.is_leading)


async def test_watches_that_are_current_at_once_cost_no_write() -> None:
    async with running(Rig(), gpus=0) as rig:
        await rig.create(held_pod("lone", "a"))
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        await asyncio.sleep(2 * SPEED_UP_SECONDS)
        assert rig.stamps()["lone"] == RELEASE_HELD


async def test_leader_decides_only_after_all_earlier_events_are_received() -> None:
    async with running(Rig(), gpus=1) as rig:
        await rig.create(held_pod("p", "a"))

        async def late() -> None:
            other = replace(held_pod("other", "b"), gates=(), release_annotation="3.1", node=NODE)
            await rig.hear(ev.PodObserved(rig.now, other))

        rig.sight.late = late
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        await until(rig.is_copy)
        assert rig.released() == 0


async def test_new_epoch_is_above_the_epoch_in_late_observed_pods() -> None:
    async with running(Rig()) as rig:

        async def late() -> None:
            other = replace(held_pod("other", "b"), gates=(), release_annotation="50.1", node=NODE)
            await rig.hear(ev.PodObserved(rig.now, other))

        rig.sight.late = late
        rig.lead.free.set()
        await until(lambda: rig.meters.epochs == [51])


async def test_the_epoch_does_not_turn_back_without_lease_redis_and_pods() -> None:
    rig = Rig()
    rig.lead.transitions = 0
    rig.anchor.kept = 41
    async with running(rig):
        rig.lead.free.set()
        await until(lambda: rig.meters.epochs == [42])
        assert rig.anchor.kept == 42


async def test_no_term_begins_if_its_epoch_cannot_be_stored() -> None:
    rig = Rig()
    rig.anchor.silent = True
    async with running(rig):
        await rig.create(held_pod("p", "a"))
        rig.lead.free.set()
        asked = rig.anchor.asked
        await until(lambda: rig.anchor.asked > asked + 1)
        assert not rig.leader.is_leading
        rig.anchor.silent = False
        await until(lambda: rig.released() == 1)


async def test_a_replica_without_redis_leaves_the_lease_to_others() -> None:
    async with running(Rig()) as rig:
        rig.memory.down = True
        rig.lead.free.set()
        await until(lambda: rig.lead.declined > 2)
        assert rig.lead.taken == 0
        rig.memory.down = False
        await until(lambda: rig.leader.is_leading)
        assert rig.lead.taken == 1


async def test_replica_with_a_stale_watch_does_not_take_the_lease() -> None:
    async with running(Rig()) as rig:
        await until(lambda: rig.engine.is_ready)
        await rig.hear(ev.SourceStale(rig.now, ev.WatchedSource.PODS))
        await until(lambda: not rig.engine.is_ready)
        rig.lead.free.set()
        await until(lambda: rig.lead.declined > 2)
        assert rig.lead.taken == 0
        await rig.hear(ev.SourceFresh(rig.now, ev.WatchedSource.PODS))
        await until(lambda: rig.leader.is_leading)


async def test_the_intents_of_a_gang_are_written_together() -> None:
    async with running(Rig(), gpus=4) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        for number in range(3):
            await rig.create(member(number, 3))
        await until(lambda: rig.released() == 3)
        intents = [[w for w in batch if isinstance(w, Intend)] for batch in rig.memory.batches]
        assert [len(each) for each in intents if each] == [3]


async def test_gang_is_not_released_if_one_of_its_intents_cannot_be_written() -> None:
    async with running(Rig(), gpus=4) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        rig.memory.refuse = lambda write: isinstance(write, Intend) and write.ref.name == "g2"
        for number in range(3):
            await rig.create(member(number, 3))
        await until(lambda: ReleaseOutcome.UNSENT in rig.meters.answers)
        assert rig.released() == 0
        rig.memory.refuse = lambda write: False
        await until(lambda: rig.released() == 3)


async def test_the_rest_of_a_gang_is_released_before_the_new_leaders_own() -> None:
    """Twenty patches of a gang of 64 arrive, then the leader dies."""
    first = Rig()
    gang = [member(number, 64) for number in range(64)]
    async with running(first, gpus=64) as rig:
        rig.releaser.late = []
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        for pod in gang:
            await rig.create(pod)
        await until(lambda: len(rig.memory.contents.intents() if rig.memory.contents else ()) == 64)
        await until(lambda: bool(rig.releaser.late))
    done = {pod.uid for pod in gang[:20]}
    for pod in gang[:20]:
        stored = first.releaser.pods["a", pod.name]
        stored.held, stored.stamp = False, f"5.{pod.name[1:]}1"
    second = Rig(first.memory)
    second.releaser.pods = first.releaser.pods
    async with running(second, gpus=64) as rig:
        urgent = [held_pod(f"u{n}", "b", priority=1000) for n in range(8)]
        for pod in urgent:
            await rig.create(pod)
        for pod in gang:
            await rig.hear(ev.PodObserved(rig.now, pod))

        async def seen() -> None:
            for pod in gang:
                stored = rig.releaser.pods["a", pod.name]
                gates = pod.gates if stored.held else ()
                now = replace(pod, gates=gates, release_annotation=stored.stamp)
                await rig.hear(ev.PodObserved(rig.now, now))

        rig.sight.late = seen
        rig.lead.transitions = 9
        rig.lead.free.set()
        await until(lambda: rig.released() == 64)
        held = [pod.name for pod in gang if rig.releaser.pods["a", pod.name].held]
        assert held == []
        assert all(rig.releaser.pods["b", pod.name].held for pod in urgent)
        assert len(done) == 20


async def test_a_lost_answer_is_never_taken_for_a_refusal() -> None:
    """The result is unknown, so the capacity is not given to another pod."""
    async with running(Rig(), gpus=1) as rig:
        rig.releaser.silent = True
        rig.lead.free.set()
        await rig.create(held_pod("p", "a"))
        await until(lambda: rig.memory.contents is not None and bool(rig.memory.contents.intents()))
        await rig.create(held_pod("q", "b"))
        rig.now = Millis(rig.now + 3_600_000)
        before = rig.inbox.waits
        await until(lambda: rig.inbox.waits > before + 2)
        assert rig.memory.contents is not None
        assert len(rig.memory.contents.intents()) == 1
        rig.releaser.silent = False
        await until(lambda: rig.released() == 1)


async def test_unavailable_store_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Rig(Memory(down=True))) as rig:

        def logged() -> int:
            return sum("not standing" in record.getMessage() for record in caplog.records)

        rig.lead.free.set()
        await until(lambda: logged() > 0)
        declined = rig.lead.declined
        await until(lambda: rig.lead.declined > declined + 3)
        assert logged() == 1
