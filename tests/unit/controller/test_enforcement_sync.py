"""Replicas that serve the API read the last result of the enforcement probes."""

from __future__ import annotations

import asyncio

from app.controller.enforcement_sync import EnforcementReader, EnforcementReporter
from app.core.model import Millis
from app.ports.api import EnforcementResult
from tests.fakes.fake_enforcement_results import FakeEnforcementResults


async def test_the_last_result_stays_while_redis_does_not_answer() -> None:
    results = FakeEnforcementResults()
    reader = EnforcementReader(results, seconds=0)
    reading = asyncio.create_task(reader.read_results())
    try:
        first, second = EnforcementResult(Millis(1), 10), EnforcementResult(Millis(2), 10)
        await results.post(first)
        async with asyncio.timeout(10):
            while reader.result != first:
                await asyncio.sleep(0)
            results.memory.down = True
            for _ in range(10):
                await asyncio.sleep(0)
            assert reader.result == first
            results.memory.down = False
            await results.post(second)
            while reader.result != second:
                await asyncio.sleep(0)
    finally:
        reading.cancel()


async def test_a_replica_that_lives_stores_its_last_result_again() -> None:
    results = FakeEnforcementResults()
    at = Millis(1)
    reporter = EnforcementReporter(results, lambda: at, 60, seconds=0)
    repeating = asyncio.create_task(reporter.repeat_result())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        assert await results.read() is None
        await reporter.publish({"hold": "a pod is not held"})
        at = Millis(2)
        results.memory.down = True
        for _ in range(10):
            await asyncio.sleep(0)
        results.memory.down = False
        async with asyncio.timeout(10):
            while (found := await results.read()) is None or found.at < at:
                await asyncio.sleep(0)
        assert found == EnforcementResult(at, 60, {"hold": "a pod is not held"})
    finally:
        repeating.cancel()
