"""Contract of the stored result of the enforcement probes, for the fake and for a real Redis."""

from __future__ import annotations

import pytest

from app.core.model import Millis
from app.ports.api import EnforcementResult
from app.store import schema
from app.store.enforcement_results import MOST_BYTES, RedisEnforcementResults
from tests.fakes.fake_enforcement_results import FakeEnforcementResults
from tests.support.shared_stores import Reals, World, real


@pytest.fixture
def results(stores: World) -> RedisEnforcementResults | FakeEnforcementResults:
    if isinstance(stores, Reals):
        return RedisEnforcementResults(stores.server, stores.cluster)
    return FakeEnforcementResults(stores.memory)


async def test_the_last_result_replaces_the_others(
    results: RedisEnforcementResults | FakeEnforcementResults,
) -> None:
    assert await results.read_result() is None
    await results.store_result(EnforcementResult(Millis(5), 10, {"hold": "a pod is not held."}))
    assert await results.read_result() == EnforcementResult(
        Millis(5), 10, {"hold": "a pod is not held."}
    )
    await results.store_result(EnforcementResult(Millis(6), 0))
    assert await results.read_result() == EnforcementResult(Millis(6), 0)


async def test_a_report_of_a_replica_leaves_the_result_of_the_others(
    results: RedisEnforcementResults | FakeEnforcementResults,
) -> None:
    await results.record_heartbeat(Millis(4))
    assert await results.read_result() is None
    holes = {"hold": "a pod is not held."}
    await results.store_result(EnforcementResult(Millis(5), 10, holes))
    await results.record_heartbeat(Millis(7))
    assert await results.read_result() == EnforcementResult(Millis(5), 10, holes, Millis(7))


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"9" * 16])
async def test_an_invalid_time_is_no_report(store_url: str, text: bytes) -> None:
    async with real(store_url) as world:
        results = RedisEnforcementResults(world.server, world.cluster)
        await results.store_result(EnforcementResult(Millis(5), 10))
        await world.server.call(
            "SET", f"{schema.key_prefix(world.cluster)}enforcement-renewed", text
        )
        assert await results.read_result() == EnforcementResult(Millis(5), 10)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"at":"x"}', b" " * (MOST_BYTES + 1)])
async def test_an_invalid_result_is_no_result(store_url: str, text: bytes) -> None:
    async with real(store_url) as world:
        results = RedisEnforcementResults(world.server, world.cluster)
        await results.store_result(EnforcementResult(Millis(5), 10))
        await world.server.call("SET", f"{schema.key_prefix(world.cluster)}enforcement", text)
        assert await results.read_result() is None
