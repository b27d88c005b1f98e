"""Lets connections in: takes them from a listening socket and sees their TLS handshakes through.

A stranger who never ends his handshake gets no further than this, and keeps nobody else out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

GOODBYE_SECONDS = 5.0
"""For the other side to say that it closes too."""

BREATH_SECONDS = 0.1
"""How long to wait when the process has no file descriptor left."""

_HUNG_UP = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO)
"""The client had gone before he was let in."""

log = logging.getLogger("fairgate.web")


class Door:
    """Stands in for the server that `create_server` would return; made open, closed once."""

    def __init__(
        self,
        listening: socket.socket,
        new_protocol: Callable[[], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext | None],
        handshakes: int,
        handshake_seconds: float,
    ) -> None:
        """`tls` is asked for each connection; None: it is in the clear.

        At most so many handshakes are under way: beyond it the oldest is dropped. An API server
        needs milliseconds for one, so who has been at it for longest is not an API server.
        """
        self._listening = listening
        self._new_protocol = new_protocol
        self._tls = tls
        self._most = handshakes
        self._seconds = handshake_seconds
        # In the order they came: dictionaries keep it, sets do not.
        self._greeting: dict[asyncio.Task[None], None] = {}
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Let nobody in any more; who has not ended his handshake is dropped."""
        self._accepting.cancel()
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once that is done."""
        await asyncio.gather(self._accepting, *self._greeting, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno not in _HUNG_UP:
                    log.warning("no room for a connection", extra={"why": str(error)})
                    self._drop_oldest()
                    await asyncio.sleep(BREATH_SECONDS)
                continue
            task = loop.create_task(self._greet(taken))
            self._greeting[task] = None
            task.add_done_callback(self._forget)
            if len(self._greeting) > self._most:
                self._drop_oldest()
            # Of a full queue this loop would take all in one go, and nobody would be served.
            await asyncio.sleep(0)

    async def _greet(self, taken: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls()
        # Whatever goes wrong here is the client's affair, and there may be many such clients.
        with contextlib.suppress(OSError, ValueError):
            await loop.connect_accepted_socket(
                self._new_protocol,
                taken,
                ssl=tls,
                ssl_handshake_timeout=self._seconds if tls else None,
                ssl_shutdown_timeout=GOODBYE_SECONDS if tls else None,
            )

    def _drop_oldest(self) -> None:
        for task in self._greeting:
            task.cancel()
            return

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)
