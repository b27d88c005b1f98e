"""Calls in a worker process: answers, limits and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from typing import Any

import pytest

from app.core.errors import ForecastFailed, ForecastTimeout
from app.sim.forecast.worker import GIB, Worker


async def test_worker_process_returns_the_result_of_the_function() -> None:
    worker = Worker(60)
    assert await worker.call(divmod, 17, 5) == (3, 2)
    first = worker.pid
    assert await worker.call(os.getpid) == first != os.getpid()
    await worker.close()
    assert worker.pid is None


async def test_a_call_that_takes_too_long_is_stopped_and_the_next_starts_afresh() -> None:
    worker = Worker(3)
    await worker.call(divmod, 1, 1)
    first = worker.pid
    with pytest.raises(ForecastTimeout, match=r"more than 3 s and was stopped\.$"):
        await worker.call(time.sleep, 60)
    assert await worker.call(divmod, 17, 5) == (3, 2)
    assert worker.pid != first
    await worker.close()


async def test_a_process_that_is_killed_fails_its_call_alone() -> None:
    worker = Worker(60)
    await worker.call(divmod, 1, 1)
    assert worker.pid is not None
    with pytest.raises(ForecastFailed, match="try again"):
        await worker.call(os.kill, worker.pid, signal.SIGKILL)
    assert await worker.call(divmod, 17, 5) == (3, 2)
    await worker.close()


async def test_too_much_memory_fails_the_call_alone() -> None:
    worker = Worker(60, memory=GIB // 2)
    with pytest.raises(ForecastFailed, match="too much memory"):
        await worker.call(bytes, GIB)
    assert await worker.call(divmod, 17, 5) == (3, 2)
    await worker.close()


async def test_error_in_the_worker_is_raised_in_the_caller() -> None:
    worker = Worker(60)
    with pytest.raises(ForecastFailed, match="ZeroDivisionError"):
        await worker.call(divmod, 1, 0)
    await worker.close()


async def test_worker_answers_correctly_after_a_cancelled_call() -> None:
    worker = Worker(60)
    await worker.call(divmod, 1, 1)
    call = asyncio.create_task(worker.call(time.sleep, 50))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await worker.call(divmod, 17, 5) == (3, 2)
    await worker.close()


async def test_a_call_that_is_given_up_while_its_process_starts_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, begun, go = Worker(30), asyncio.Event(), asyncio.Event()
    made: list[Process] = []
    real = asyncio.create_subprocess_exec

    async def slow(*args: Any, **more: Any) -> Process:
        made.append(await real(*args, **more))
        begun.set()
        await go.wait()
        return made[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    call = asyncio.create_task(worker.call(abs, -1))
    await begun.wait()
    call.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (made[0].returncode, worker.pid) == (-signal.SIGKILL, None)
