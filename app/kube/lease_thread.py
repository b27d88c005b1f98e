"""Leader election in a thread of its own, with its own event loop and client.

So the Lease is renewed while a long step of the engine blocks the event loop of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from app.kube.client import Client
from app.kube.lease import LeaseLeadership

LeaseAnswer = TypeVar("LeaseAnswer")


class LeaseThread:
    """Implements `ports.leadership.Leadership`. `close` ends the thread."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        new_leadership: Callable[[Client], LeaseLeadership],
    ) -> None:
        """The thread calls `connect` once, and `new_leadership` with the client.

        `seconds_left` is positive only between the return of `acquire` and the start of
        `release_lease`.
        """
        self._connect = connect
        self._new_leadership = new_leadership
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._client: Client | None = None
        self._leadership: LeaseLeadership | None = None
        self._leads = False

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        """See `ports.leadership.Leadership`. `fit` runs in the event loop of the caller."""
        home = asyncio.get_running_loop()

        async def is_fit() -> bool:
            return fit is None or await _run_in(home, fit)

        async def take() -> int:
            if self._leadership is None:
                self._client = await self._connect()
                self._leadership = self._new_leadership(self._client)
            return await self._leadership.acquire(is_fit)

        if not self._thread.is_alive():
            self._thread.start()
        transitions = await _run_in(self._loop, take)
        self._leads = True
        return transitions

    def seconds_left(self) -> float:
        """See `ports.leadership.Leadership`."""
        if self._leadership is None or not self._leads:
            return 0.0
        return self._leadership.seconds_left()

    def is_held_by_another(self) -> bool:
        """Return whether another replica holds the Lease and renews it in time."""
        return self._leadership is not None and self._leadership.is_held_by_another()

    async def wait_until_lost(self) -> None:
        """See `ports.leadership.Leadership`."""
        if self._leadership is not None:
            await _run_in(self._loop, self._leadership.wait_until_lost)

    async def release_lease(self) -> None:
        """See `ports.leadership.Leadership`."""
        self._leads = False  # at once: no request is sent while the thread releases the Lease
        if self._leadership is not None:
            await _run_in(self._loop, self._leadership.release_lease)

    async def close(self) -> None:
        """End the thread and its connections. Does not release the Lease."""
        if not self._thread.is_alive():
            return
        if self._client is not None:
            await _run_in(self._loop, self._client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


async def _run_in(
    loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[LeaseAnswer]]
) -> LeaseAnswer:
    """Run `call` in another event loop and return its result."""

    async def made() -> LeaseAnswer:
        return await call()

    coroutine: Coroutine[Any, Any, LeaseAnswer] = made()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
