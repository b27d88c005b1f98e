"""A TCP cable that can be cut, mended, or gone dead without a sign. Knows no protocol."""

from __future__ import annotations

import asyncio
import contextlib


class Cable:
    """Forwards a port of loopback to `host:port`; use as an async context manager."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._whole = True
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Break every connection; new ones pass."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut(self) -> None:
        """Break every connection, also those to come."""
        self._whole = False
        self.drop()

    def mend(self) -> None:
        """Let connections pass again."""
        self._whole = True

    def freeze(self) -> None:
        """Keep connections open, and carry nothing."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Carry again, also what was sent meanwhile."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        if self._whole:
            with contextlib.suppress(OSError):
                await self._join(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers.add(far_writer)
        try:
            ways = [
                asyncio.ensure_future(self._carry(reader, far_writer)),
                asyncio.ensure_future(self._carry(far_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers.discard(far_writer)
            far_writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
