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

TLS_CLOSE_SECONDS = 5.0
"""Time for the client to confirm the end of the TLS connection."""

ERROR_PAUSE_SECONDS = 0.1
"""Pause before the next accept after an error, such as no free file descriptor."""

_DISCONNECT_ERRORS = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO)
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
        max_handshakes: int,
        handshake_seconds: float,
    ) -> None:
        """`tls` is called for each connection; None: plain text.

        At most `max_handshakes` are in progress; a further one drops the oldest. An API server
        needs milliseconds, so the oldest handshake is not an API server's.
        """
        self._socket = listening
        self._new_protocol = new_protocol
        self._tls = tls
        self._max_handshakes = max_handshakes
        self._handshake_seconds = handshake_seconds
        # A dictionary preserves the order of arrival, unlike a set.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        listening.setblocking(False)
        self._accept_task = asyncio.create_task(self._accept_connections())

    def close(self) -> None:
        """Stop accepting, and drop unfinished handshakes."""
        self._accept_task.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return after `close` is complete."""
        await asyncio.gather(self._accept_task, *self._handshakes, return_exceptions=True)

    async def _accept_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno not in _DISCONNECT_ERRORS:
                    log.warning("no room for a connection", extra={"why": str(error)})
                    self._drop_oldest_handshake()
                    await asyncio.sleep(ERROR_PAUSE_SECONDS)
                continue
            task = loop.create_task(self._shake_hands(taken))
            self._handshakes[task] = None
            task.add_done_callback(self._remove_handshake)
            if len(self._handshakes) > self._max_handshakes:
                self._drop_oldest_handshake()
            # Let other tasks run: a full accept queue would otherwise keep this loop busy.
            await asyncio.sleep(0)

    async def _shake_hands(self, taken: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls()
        # Do not log errors here: clients cause them, and there may be many.
        with contextlib.suppress(OSError, ValueError):
            await loop.connect_accepted_socket(
                self._new_protocol,
                taken,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_seconds if tls else None,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS if tls else None,
            )

    def _drop_oldest_handshake(self) -> None:
        for task in self._handshakes:
            task.cancel()
            return

    def _remove_handshake(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
