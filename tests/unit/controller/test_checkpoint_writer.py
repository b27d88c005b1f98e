"""The timing and content of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controller.checkpoint_writer import PERIOD, Checkpoints
from app.core import events as ev
from app.core.engine import Engine
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.fairshare.checkpoint import (
    MAX_STORED_USERS,
    MAX_USER_NAME,
    OTHER_TENANTS,
    FairnessState,
    TenantCheckpoint,
    build_checkpoint,
    fit_checkpoints,
)
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.quantities import CPU, PODS, ManagedResources
from app.k8s_types import objects
from app.kube.checkpoint_store import read_checkpoint, to_stored
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_checkpoint_store import FakeKeeper

GPU = Resource("nvidia.com/gpu")
A, B = TenantName("a"), TenantName("b")
POOLS = st.sampled_from([DEFAULT_POOL, PoolName("h100")])
TOTALS = st.dictionaries(
    POOLS, st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(0, 10**21))
)
PARTS = st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(0, 10**9))
STAMPS = st.tuples(st.integers(0, 10**12 - 1), st.integers(0, 10**15 - 1))
KEPTS = st.builds(
    lambda served, parts, spent: FairnessState(
        served, {r: v / 10**9 for r, v in parts.items()}, spent
    ),
    STAMPS,
    PARTS,
    TOTALS,
)


@given(
    st.integers(0, 4 * 10**12),
    st.integers(0, 10**12),
    KEPTS,
    st.dictionaries(st.text(min_size=1), KEPTS),
)
def test_written_checkpoint_is_read_back_unchanged(
    at: int, epoch: int, own: FairnessState, users: dict[str, FairnessState]
) -> None:
    kept = TenantCheckpoint(Millis(at), epoch, own, {UserName(u): k for u, k in users.items()})
    text = msgspec.json.encode(to_stored(kept))
    assert read_checkpoint(msgspec.json.decode(text, type=objects.CheckpointObject)) == kept


@pytest.mark.parametrize(
    "garbage",
    [
        {"time": "yesterday"},
        {"time": ""},
        {"history": {"nvidia.com/gpu": "-0.5"}},
        {"history": {"nvidia.com/gpu": "nan"}},
        {"others": {"h100": {"nvidia.com/gpu": "1e9999999"}}},
        {"users": [{"name": "x", "spent": {"h100": {"nvidia.com/gpu": "-1"}}}]},
    ],
)
def test_invalid_checkpoint_is_ignored(garbage: dict[str, object]) -> None:
    fine = {"time": "2024-01-01T00:00:00.000Z", "epoch": 3}
    text = msgspec.json.encode(fine | garbage)
    assert read_checkpoint(msgspec.json.decode(text, type=objects.CheckpointObject)) is None
    assert read_checkpoint(msgspec.convert(fine, objects.CheckpointObject)) is not None


def user(part: float, spent: int) -> FairnessState:
    return FairnessState((1, 1), {GPU: part}, {DEFAULT_POOL: {GPU: spent}})


def spent(*checkpoints: TenantCheckpoint) -> int:
    kept = [k for each in checkpoints for k in (each.own, *each.users.values())]
    return sum(amounts[GPU] for each in kept for amounts in each.totals.values())


def test_users_beyond_the_bound_are_summed_and_those_with_most_history_named() -> None:
    users = {UserName(f"u{i:03}"): user(i / 1000, i) for i in range(MAX_STORED_USERS + 50)}
    kept = build_checkpoint(Millis(0), 1, FairnessState(totals={DEFAULT_POOL: {GPU: 7}}), users)
    assert len(kept.users) == MAX_STORED_USERS
    assert min(kept.users) == "u050"
    assert spent(kept) == 7 + sum(range(MAX_STORED_USERS + 50))


def test_a_user_with_a_name_that_a_tenant_cannot_store_is_summed() -> None:
    users = {UserName("ü" * (MAX_USER_NAME + more)): user(0.5, 10 + more) for more in (0, 1)}
    kept = build_checkpoint(Millis(0), 1, FairnessState(), users)
    assert list(kept.users) == ["ü" * MAX_USER_NAME]
    assert spent(kept) == 21
    assert kept.own.totals == {DEFAULT_POOL: {GPU: 11}}


def test_checkpoints_stay_within_the_limit_and_excess_tenants_are_summed() -> None:
    users = {UserName("ü" * 200 + str(i)): user(0.5, 10**15) for i in range(20)}
    found = {
        TenantName(f"ns.{i:03}"): TenantCheckpoint(Millis(i), 1, user(i / 1000, 0), users)
        for i in range(200)
    }
    kept = fit_checkpoints(found, 500_000)
    text = msgspec.json.encode({n: to_stored(c) for n, c in kept.items()})
    assert 200_000 < len(text) <= 500_000 + 1000
    assert OTHER_TENANTS in kept
    assert "ns.199" in kept
    assert spent(*kept.values()) == spent(*found.values())
    assert fit_checkpoints(kept, 500_000) == kept


class Stage:
    """A leading engine and the writer of its checkpoints."""

    def __init__(self) -> None:
        self.engine, self.keeper = Engine(ManagedResources([GPU])), FakeKeeper()
        self.now = Millis(10**12)
        self.valid = True
        self.checkpoints = Checkpoints(
            self.engine.checkpoints,
            self.keeper,
            lambda: self.valid,
            lambda: self.now,
            tick=0.001,
            gap=0.001,
        )
        self.hear(ev.NodeObserved(self.now, Node(NodeName("n"), {}, {GPU: 8, PODS: 99}, True)))
        self.keeper.tenants = {A, B}
        for name in (A, B):
            self.hear(ev.TenantObserved(self.now, Tenant(name, Millis(0), namespaces=(name,))))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.now, source))

    def hear(self, *news: ev.NewsEvent) -> None:
        for event in news:
            self.engine.handle(event)
        self.engine.handle(ev.Pass(self.now))

    def lead(self, *namespaces: str) -> None:
        self.hear(ev.LeadershipGained(self.now, 7), ev.StoreReady(self.now))
        self.use(*namespaces)

    def use(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.hear(ev.PodObserved(self.now, held_pod(f"{self.now}", namespace)))

    def wait(self, millis: int) -> None:
        self.now = Millis(self.now + millis)
        self.engine.handle(ev.Pass(self.now))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.checkpoints.write_checkpoints())
        try:
            await asyncio.sleep(0)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.002)


async def rounds(stage: Stage) -> None:
    """Wait until the task has run a few more times."""
    for _ in range(5):
        await asyncio.sleep(0.005)


async def test_checkpoint_of_every_active_tenant_is_written_within_the_period() -> None:
    stage = Stage()
    stage.lead("a", "free")
    async with stage.running():
        await rounds(stage)  # it receives the tenants
        stage.wait(PERIOD)
        await until(lambda: A in stage.keeper.kept and "ns.free" in stage.keeper.others)
        assert B not in stage.keeper.kept
        assert spent(stage.keeper.kept[A]) == PERIOD
        stage.wait(PERIOD)
        await until(lambda: spent(stage.keeper.kept[A]) == 2 * PERIOD)


async def test_unchanged_checkpoint_is_not_written_again() -> None:
    stage = Stage()
    stage.lead("a")
    async with stage.running():
        await rounds(stage)
        stage.wait(PERIOD)
        await until(lambda: A in stage.keeper.kept)
        stage.hear(ev.PodGone(stage.now, Uid(f"a/{10**12}")))
        stage.wait(PERIOD)
        await rounds(stage)
        tries = stage.keeper.tries
        stage.wait(10 * PERIOD)
        stage.use("b")
        await rounds(stage)
        stage.wait(PERIOD)
        await until(lambda: B in stage.keeper.kept)
        assert stage.keeper.tries == tries + 1


async def test_slow_server_has_one_checkpoint_write_in_flight() -> None:
    stage = Stage()
    stage.lead("a", "b", "free")
    async with stage.running():
        await rounds(stage)
        stage.keeper.open.clear()
        before = stage.keeper.tries
        for _ in range(5):
            stage.wait(PERIOD)
            await rounds(stage)
        assert stage.keeper.tries == before + 1
        stage.keeper.open.set()
        await until(lambda: {A, B} <= stage.keeper.kept.keys() and bool(stage.keeper.others))


@pytest.mark.parametrize(
    "refusal", [ClusterRefused("busy", 429, 0.01), ClusterUnavailable("no answer")]
)
async def test_refused_checkpoint_is_written_later(refusal: ClusterError) -> None:
    stage = Stage()
    stage.lead("a")
    async with stage.running():
        await rounds(stage)
        before, stage.keeper.refusal = stage.keeper.tries, refusal
        stage.wait(PERIOD)
        await until(lambda: stage.keeper.tries > before)
        assert not stage.keeper.kept
        stage.keeper.refusal = None
        await until(lambda: A in stage.keeper.kept)


@pytest.mark.parametrize("refused", [A, OTHER_TENANTS])
@pytest.mark.parametrize(
    "error", [ClusterRefused("status.checkpoint: too long", 422), ClusterUnavailable("no answer")]
)
async def test_refused_checkpoint_delays_no_other_checkpoint(
    refused: TenantName, error: ClusterError
) -> None:
    stage = Stage()
    stage.lead("a", "b", "free")
    keeper = stage.keeper

    def stored() -> set[TenantName]:
        return {*keeper.kept, *([OTHER_TENANTS] if keeper.others else ())}

    keeper.refused[refused] = error
    async with stage.running():
        await rounds(stage)
        for _ in range(2):  # the second time, it has been due for longer than the others
            stage.wait(PERIOD)
            await until(lambda: stored() == {A, B, OTHER_TENANTS} - {refused})
            keeper.kept, keeper.map.kept = {}, {}
        keeper.refused.clear()
        stage.wait(PERIOD)
        await until(lambda: stored() == {A, B, OTHER_TENANTS})


async def test_no_checkpoint_is_written_without_the_lease() -> None:
    stage = Stage()
    stage.lead("a")
    async with stage.running():
        await rounds(stage)
        stage.valid = False
        stage.wait(PERIOD)
        await rounds(stage)
        stage.valid = True
        stage.hear(ev.LeadershipLost(stage.now))
        await rounds(stage)
        assert not stage.keeper.kept


async def test_a_checkpoint_that_an_older_leader_overwrote_is_written_again() -> None:
    """Its write was delayed while it was suspended, and arrived after its successor's write."""
    stage = Stage()
    stage.lead("a")
    async with stage.running():
        await rounds(stage)
        stage.wait(PERIOD)
        await until(lambda: A in stage.keeper.kept)
        stage.hear(ev.PodGone(stage.now, Uid(f"a/{10**12}")))
        stage.wait(PERIOD)
        await rounds(stage)  # no changes from now on
        whole = spent(stage.keeper.kept[A])
        old = stage.keeper.kept[A] = TenantCheckpoint(stage.now, 6)
        tenant = Tenant(A, Millis(0), namespaces=(A,))
        stage.hear(ev.TenantObserved(stage.now, tenant, 0, old))
        await until(lambda: spent(stage.keeper.kept[A]) == whole)
