"""Replicas that serve the API read the last result of the enforcement probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from app.controller.enforcement_sync import EnforcementReader, EnforcementReporter
from app.core.model import Millis
from app.ports.api import EnforcementResult
from tests.fakes.fake_enforcement_results import FakeEnforcementResults


async def test_last_result_stays_while_redis_is_unavailable() -> None:
    results = FakeEnforcementResults()
    reader = EnforcementReader(results, seconds=0)
    reading = asyncio.create_task(reader.read_results())
    try:
        first, second = EnforcementResult(Millis(1), 10), EnforcementResult(Millis(2), 10)
        await results.store_result(first)
        async with asyncio.timeout(10):
            while reader.result != first:
                await asyncio.sleep(0)
            results.memory.down = True
            for _ in range(10):
                await asyncio.sleep(0)
            assert reader.result == first
            results.memory.down = False
            await results.store_result(second)
            while reader.result != second:
                await asyncio.sleep(0)
    finally:
        reading.cancel()


class Replica:
    """A webhook replica that reports without a pause. `at` is its clock."""

    def __init__(self, results: FakeEnforcementResults, round_seconds: float = 60) -> None:
        self.at = Millis(1)
        self.is_ready = True
        self.reporter = EnforcementReporter(
            results, lambda: self.at, round_seconds, lambda: self.is_ready, seconds=0
        )

    @asynccontextmanager
    async def reports(self) -> AsyncIterator[None]:
        """Report within this context."""
        reporting = asyncio.create_task(self.reporter.send_heartbeats())
        try:
            yield
        finally:
            reporting.cancel()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_replica_does_not_replace_the_newer_result_of_another() -> None:
    results = FakeEnforcementResults()
    replica = Replica(results)
    await replica.reporter.publish({})
    hole = EnforcementResult(Millis(2), 60, {"hold": "a pod is not held"})
    await results.store_result(hole)
    replica.at = Millis(5)
    async with replica.reports():
        await turns()
    assert await results.read_result() == replace(hole, last_heartbeat=Millis(5))


async def test_a_replica_reports_that_it_works_before_its_first_round() -> None:
    results = FakeEnforcementResults()
    last = EnforcementResult(Millis(1), 3600)
    await results.store_result(last)
    replica = Replica(results, 3600)
    replica.at, replica.is_ready = Millis(3_000_000), False
    async with replica.reports():
        await turns()
        assert results.renewed == 0
        replica.is_ready = True
        await turns()
    assert await results.read_result() == replace(last, last_heartbeat=Millis(3_000_000))


@pytest.mark.parametrize("has_probed", [True, False])
async def test_replica_with_stalled_probes_stops_reporting(has_probed: bool) -> None:
    results = FakeEnforcementResults()
    replica = Replica(results, 20)
    if has_probed:
        await replica.reporter.publish({})
    async with replica.reports():
        replica.at = Millis(120_001)
        await turns()
        assert results.renewed == 120_001
        replica.at = Millis(120_002)
        await turns()
        assert results.renewed == 120_001


async def test_a_result_that_redis_did_not_take_is_stored_later() -> None:
    results = FakeEnforcementResults()
    replica = Replica(results)
    await results.store_result(EnforcementResult(Millis(0), 60))
    results.memory.down = True
    async with replica.reports():
        await replica.reporter.publish({"hold": "a pod is not held"})
        await turns()
        results.memory.down = False
        replica.at = Millis(3)
        await turns()
    holes = {"hold": "a pod is not held"}
    assert await results.read_result() == EnforcementResult(Millis(1), 60, holes, Millis(3))


async def test_a_replica_without_probes_replaces_results_of_replicas_that_end() -> None:
    results = FakeEnforcementResults()
    replica = Replica(results, 0)
    await replica.reporter.publish({})
    async with replica.reports():
        await results.store_result(EnforcementResult(Millis(2), 10, {"hold": "a pod is not held"}))
        replica.at = Millis(500_000)
        await turns()
    assert await results.read_result() == EnforcementResult(
        Millis(1), 0, last_heartbeat=Millis(500_000)
    )
