"""A TCP proxy that can delay, drop or freeze connections, independent of the protocol.

It runs in its own thread, so that synchronous and asynchronous tests can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

Address = tuple[str, int]

CHUNK = 1 << 18
END_SECONDS = 5.0
LAST_ROUNDS = 5


class Cable:
    """Forwards a loopback port to `host:port`; use with `with` or `async with`.

    `at` is the port to listen on, 0 for any. `route` sets other targets, used in turn; a target
    that does not answer is skipped. Each method takes effect before it returns.
    """

    def __init__(self, host: str, port: int, *, at: int = 0) -> None:
        self.port = at
        self.lost = 0
        self.carried = 0
        self._targets: list[Address] = [(host, port)]
        self._turn = 0
        self._whole = True
        self._delay = 0.0
        self._to_lose = 0
        self._stranded: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)

    def __enter__(self) -> Cable:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)
        self._loop.close()

    async def __aenter__(self) -> Cable:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def route(self, *targets: Address) -> None:
        """Send new connections to these targets in turn."""
        self._do(lambda: self._targets.__setitem__(slice(None), targets))

    def delay(self, seconds: float) -> None:
        """Delay the data in each direction by this many seconds; 0 turns it off."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def drop(self) -> None:
        """Close every connection. New connections work."""
        self._do(self._drop)

    def cut(self) -> None:
        """Close every connection and refuse new connections."""

        def cut() -> None:
            self._whole = False
            self._drop()

        self._do(cut)

    def freeze(self, *, replies_only: bool = False) -> None:
        """Keep connections open without forwarding data. New connections are accepted and stay
        silent.

        `replies_only`: requests are forwarded, replies are not.
        """

        def freeze() -> None:
            self._back.clear()
            if not replies_only:
                self._there.clear()

        self._do(freeze)

    def strand(self) -> None:
        """Stop forwarding on the current connections and leave these open. New ones work."""
        self._do(lambda: self._stranded.update(self._tasks))

    def thaw(self) -> None:
        """Resume forwarding, including the data sent meanwhile."""
        self._do(self._thaw)

    def lose(self, replies: int) -> None:
        """Discard the next replies, and close the connection of each; `lost` counts the replies.

        A reply is the next data that the target sends on any connection.
        """
        self._do(lambda: setattr(self, "_to_lose", replies))

    def mend(self) -> None:
        """Undo every fault."""

        def mend() -> None:
            self._whole, self._delay, self._to_lose = True, 0.0, 0
            self._thaw()
            for task in self._stranded:
                task.cancel()

        self._do(mend)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    def _do(self, change: Callable[[], None]) -> None:
        async def step() -> None:
            change()

        asyncio.run_coroutine_threadsafe(step(), self._loop).result(END_SECONDS)

    def _thaw(self) -> None:
        self._there.set()
        self._back.set()

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _open(self) -> None:
        self._thaw()
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, limit=CHUNK, backlog=1024
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _shut(self) -> None:
        self._server.close()
        # A connection that was just accepted has a task that did not begin. Cancelled now, the task
        # would leave its socket open; after one iteration it closes it.
        await asyncio.sleep(0)
        # An aborted transport closes its socket two iterations later.
        for _ in range(LAST_ROUNDS):
            self._drop()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self._whole:
                await self._there.wait()
                await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            self._stranded.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        far_reader, far_writer = await self._dial()
        self._writers.add(far_writer)
        ways = [
            asyncio.ensure_future(self._carry(reader, far_writer, self._there, me)),
            asyncio.ensure_future(self._carry(far_reader, writer, self._back, me)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._writers.discard(far_writer)
            far_writer.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        targets = list(self._targets)
        self._turn += 1
        for step in range(len(targets)):
            with contextlib.suppress(OSError):
                host, port = targets[(self._turn + step) % len(targets)]
                return await asyncio.open_connection(host, port, limit=CHUNK)
        raise ConnectionError("nobody answers at the other end")

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flowing: asyncio.Event,
        joint: asyncio.Task[None] | None,
    ) -> None:
        while True:
            data = await reader.read(CHUNK)
            if self._delay:
                await asyncio.sleep(self._delay)
            await flowing.wait()
            if joint in self._stranded:
                await asyncio.Event().wait()
            if not data:
                return
            if flowing is self._back and self._to_lose:
                self._to_lose -= 1
                self.lost += 1
                return
            self.carried += len(data)
            writer.write(data)
            await writer.drain()
