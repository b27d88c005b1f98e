"""Runs are kept for their time, and no longer, by whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import AsyncIterator

from app.control import trimming
from app.control.trimming import Keeping, Trimming
from app.core.model import Millis
from tests.contract.test_runs import run
from tests.fakes.runs import FakeRuns

NOW = Millis(100_000)


@dataclass
class Term:
    epoch: int | None = None


@asynccontextmanager
async def trimmed(runs: FakeRuns, term: Term, keeping: Keeping) -> AsyncIterator[None]:
    task = asyncio.create_task(Trimming(runs, keeping, lambda: term.epoch, lambda: NOW).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


async def test_a_leader_removes_what_is_older_than_its_time(monkeypatch: object) -> None:
    runs, term = FakeRuns(), Term()
    for name, end in (("old", 39_999), ("young", 40_000)):
        each = run(name, 1000, end)
        runs.runs.ended[each.id] = each
    assert not await Trimming(runs, Keeping(Millis(60_000), 10), lambda: 7, lambda: NOW).trim(7)
    assert [each.pod for each in runs.runs.ended.values()] == ["young"]
    assert term.epoch is None


async def test_who_does_not_lead_removes_nothing_until_it_leads() -> None:
    runs, term = FakeRuns(), Term()
    async with trimmed(runs, term, Keeping(Millis(60_000), 10)):
        await asyncio.sleep(0)
        assert runs.runs.since is None
        term.epoch = 7
        await until(lambda: runs.runs.since == NOW)
