"""A process of its own for work that takes long: it can be stopped, and takes nothing down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import app
from app.core.errors import ForecastFailed
from app.sim.frames import HEAD, length, packed, unpacked
from app.sim.work_room import DONE

P = ParamSpec("P")
T = TypeVar("T")

GIB = 1024**3
NEEDED = ("PATH", "LD_LIBRARY_PATH", "LANG", "PYTHONPATH")
ROOM = "app.sim.work_room"


class Worker:
    """Calls functions in a process of its own, one at a time. It starts with the first call.

    A call that takes more than `seconds`, or a process that needs more than `memory` bytes, is
    ended; the next call starts afresh.
    """

    def __init__(self, seconds: float, memory: int = 3 * GIB // 4, nice: int = 0) -> None:
        self._nice = nice
        self._seconds = seconds
        self._memory = memory
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process, if one is there."""
        return self._process.pid if self._process else None

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of a module returns there. Raises ForecastFailed."""
        assert not kwargs, "only what stands in order is sent"
        async with self._turn:
            try:
                async with asyncio.timeout(self._seconds):
                    body = await asyncio.to_thread(packed, (function, args))
                    verdict, answer = await self._ask(body)
            except TimeoutError:
                await self.close()
                raise ForecastFailed(
                    f"Looking ahead took more than {self._seconds:g} s and was stopped; ask for "
                    "fewer hours, or later."
                ) from None
            except (EOFError, OSError) as error:
                await self.close()
                raise ForecastFailed(
                    "The process that looks ahead ended in the middle of it; try again."
                ) from error
            except BaseException:
                await self.close()  # half an answer may be under way
                raise
            if verdict != DONE:
                await self.close()
                raise ForecastFailed(f"Looking ahead failed: {answer}.")
            result: T = answer
            return result

    async def close(self) -> None:
        """End the process, if one is there."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # to the end of its pipes, which are closed with that

    async def _ask(self, body: bytes) -> tuple[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(body)
        await process.stdin.drain()
        head = await process.stdout.readexactly(HEAD.size)
        answer: tuple[str, Any] = unpacked(await process.stdout.readexactly(length(head)))
        return answer

    async def _start(self) -> Process:
        # No more of the environment than it takes to start: it may hold secrets.
        known = {name: os.environ[name] for name in NEEDED if name in os.environ}
        paths = [str(Path(app.__file__).parents[1]), known.get("PYTHONPATH", "")]
        limits = (str(self._memory), str(int(self._seconds)), str(self._nice))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            ROOM,
            *limits,
            stdin=PIPE,
            stdout=PIPE,
            env={**known, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # a signal to our group is for us: we end it
        )
