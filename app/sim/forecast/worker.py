"""Parent side of a worker process for slow functions. The process can be stopped at any time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import app
from app.core.errors import ForecastFailed, ForecastTimeout
from app.sim.forecast.worker_main import DONE
from app.sim.forecast.worker_protocol import HEAD, body_length, decode_body, encode_frame

P = ParamSpec("P")
T = TypeVar("T")

GIB = 1024**3
PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "PYTHONPATH")
WORKER_MODULE = "app.sim.forecast.worker_main"


class Worker:
    """Calls functions in a worker process, one at a time. The first call starts the process.

    The process is ended if a call takes more than `seconds` or needs more than `memory` bytes.
    The next call starts a new process.
    """

    def __init__(self, seconds: float, memory: int = 3 * GIB // 4, nice: int = 0) -> None:
        self._nice = nice
        self._seconds = seconds
        self._memory = memory
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id; None if no process runs."""
        return self._process.pid if self._process else None

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a module-level function. Raises ForecastTimeout, ForecastFailed."""
        assert not kwargs, "only what stands in order is sent"
        async with self._lock:
            try:
                async with asyncio.timeout(self._seconds):
                    body = await asyncio.to_thread(encode_frame, (function, args))
                    verdict, answer = await self._send_call(body)
            except TimeoutError:
                await self.close()
                raise ForecastTimeout(
                    f"The simulation took more than {self._seconds:g} s and was stopped."
                ) from None
            except (EOFError, OSError) as error:
                await self.close()
                raise ForecastFailed(
                    "The process that looks ahead ended in the middle of it; try again."
                ) from error
            except BaseException:
                await self.close()  # a partial answer may be in the pipe
                raise
            if verdict != DONE:
                await self.close()
                raise ForecastFailed(f"The simulation failed: {answer}.")
            result: T = answer
            return result

    async def close(self) -> None:
        """Kill the process if it runs."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await _complete(process.communicate())  # reads its pipes to the end: that closes them

    async def _send_call(self, body: bytes) -> tuple[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = await _complete(self._start())
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(body)
        await process.stdin.drain()
        head = await process.stdout.readexactly(HEAD.size)
        answer: tuple[str, Any] = decode_body(await process.stdout.readexactly(body_length(head)))
        return answer

    async def _start(self) -> Process:
        # Pass only the variables that the start needs. Others may be secrets.
        known = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        paths = [str(Path(app.__file__).parents[1]), known.get("PYTHONPATH", "")]
        limits = (str(self._memory), str(int(self._seconds)), str(self._nice))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            WORKER_MODULE,
            *limits,
            stdin=PIPE,
            stdout=PIPE,
            env={**known, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # signals to our group must not reach it: `close` ends it
        )
        return self._process


async def _complete(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. A cancellation waits for its end, so that nothing is left."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
