"""Background work of the leader: periodic steps, and tasks that run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


async def run_periodically(
    seconds: float,
    leads: Callable[[], bool],
    step: Callable[[], Awaitable[None]],
    rest: Callable[[], None],
) -> None:
    """Call `step` every `seconds` while this replica leads, else `rest`, until cancelled.

    `rest` drops what only a leader may remember. A step that raises ends the work.
    """
    while True:
        await asyncio.sleep(seconds)
        if leads():
            await step()
        else:
            rest()


class TaskSet:
    """Tasks in progress. An unexpected error of a task is passed to `on_failure`."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    def __len__(self) -> int:
        """Return the number of unfinished tasks. A finished one may not be removed yet."""
        return sum(not task.done() for task in self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._remove_ended)

    async def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the tasks in progress."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remove_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
