"""The leader deletes usage records after their retention time."""

from __future__ import annotations

import asyncio

from app.controller.usage_retention import RetentionLimits, UsageRetention
from app.core.model import Millis
from tests.fakes.fake_usage_records import FakeRuns
from tests.support.usage_record_cases import run

NOW = Millis(100_000)
MINUTE = RetentionLimits(Millis(60_000), 10)


async def test_leader_removes_usage_records_after_the_retention_time() -> None:
    runs = FakeRuns()
    for name, end in (("old", 39_999), ("young", 40_000)):
        each = run(name, 1000, end)
        runs.runs.ended[each.id] = each
    await UsageRetention(runs, MINUTE, lambda: 7, lambda: NOW).trim(7)
    assert [each.pod for each in runs.runs.ended.values()] == ["young"]


async def test_leader_retries_if_redis_is_unavailable() -> None:
    runs = FakeRuns(fails=True)
    asked = 0

    def epoch() -> int:
        nonlocal asked
        asked += 1
        runs.fails = asked < 2
        return 7

    task = asyncio.create_task(UsageRetention(runs, MINUTE, epoch, lambda: NOW).trim_records())
    try:
        async with asyncio.timeout(30):
            while runs.runs.since is None:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert runs.runs.since == NOW
