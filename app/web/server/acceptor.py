"""Accepts connections of a listening socket and completes their TLS handshakes.

A client that never completes its TLS handshake is dropped here and does not block other clients.
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
"""Time for the client to confirm the end of the TLS connection."""

BREATH_SECONDS = 0.1
"""Pause before the next accept after an error, such as no free file descriptor."""

_HUNG_UP = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO)
"""Errors of a client that disconnected before it was accepted."""

log = logging.getLogger("fairgate.web")


class TlsAcceptor:
    """Accepts connections from its creation until `close`.

    It replaces the server object that `create_server` would return.
    """

    def __init__(
        self,
        listening: socket.socket,
        new_protocol: Callable[[], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext | None],
        handshakes: int,
        handshake_seconds: float,
    ) -> None:
        """`tls` is called for each connection; None: plain text.

        At most `handshakes` are in progress; a further one drops the oldest. An API server needs
        milliseconds, so the oldest handshake is not an API server's.
        """
        self._listening = listening
        self._new_protocol = new_protocol
        self._tls = tls
        self._most = handshakes
        self._seconds = handshake_seconds
        # A dictionary preserves the order of arrival, unlike a set.
        self._greeting: dict[asyncio.Task[None], None] = {}
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting, and drop unfinished handshakes."""
        self._accepting.cancel()
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return after `close` is complete."""
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
            # Let other tasks run: a full accept queue would otherwise keep this loop busy.
            await asyncio.sleep(0)

    async def _greet(self, taken: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls()
        # Do not log errors here: clients cause them, and there may be many.
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
