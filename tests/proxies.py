"""A TCP proxy that loses answers: what the client sent arrives, what the server says does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LossyProxy:
    """`lose(n)`: the next n answers are swallowed, each with its connection cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._to_lose = 0
        self.lost = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def lose(self, answers: int) -> None:
        self._to_lose = answers

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LossyProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        there = asyncio.create_task(_carry(reader, far_writer))
        try:
            while data := await far_reader.read(65536):
                if self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            there.cancel()
            far_writer.close()
            writer.close()
            self._tasks.discard(task)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
