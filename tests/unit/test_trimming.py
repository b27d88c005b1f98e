"""Runs are kept for their time, and no longer, by whoever leads."""

from __future__ import annotations

import asyncio

from app.control.trimming import Keeping, Trimming
from app.core.model import Millis
from tests.contract.test_runs import run
from tests.fakes.runs import FakeRuns

NOW = Millis(100_000)
MINUTE = Keeping(Millis(60_000), 10)


async def test_a_leader_removes_what_is_older_than_its_time() -> None:
    runs = FakeRuns()
    for name, end in (("old", 39_999), ("young", 40_000)):
        each = run(name, 1000, end)
        runs.runs.ended[each.id] = each
    await Trimming(runs, MINUTE, lambda: 7, lambda: NOW).trim(7)
    assert [each.pod for each in runs.runs.ended.values()] == ["young"]


async def test_a_leader_that_finds_no_redis_goes_on_trying() -> None:
    runs = FakeRuns(fails=True)
    asked = 0

    def epoch() -> int:
        nonlocal asked
        asked += 1
        runs.fails = asked < 2
        return 7

    task = asyncio.create_task(Trimming(runs, MINUTE, epoch, lambda: NOW).run())
    try:
        async with asyncio.timeout(30):
            while runs.runs.since is None:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert runs.runs.since == NOW
