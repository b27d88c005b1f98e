"""HTTP/1.1 protocol for uvicorn with limits of connections, of header time and of header size."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE = 130
"""Seconds that an idle connection stays open.

API servers close idle connections after 90 s. They must close first: a review that meets a closed
connection fails, and the pod is refused. They also open connections in advance, so a new TLS
connection may stay idle for the same time.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one listener. The defaults far exceed the needs of API servers.

    `header_seconds`: time from the first byte of a request to the end of its headers; without TLS
    also from the connect to the first byte. `header_bytes`: size of the request line and headers,
    without the read that completes them. `connections`: beyond this number the connection that is
    idle for longest is closed. An API server has at most 200 reviews in progress. `handshakes`:
    beyond this number the oldest TLS handshake is dropped.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    connections: int = 2000
    handshakes: int = 512
    handshake_seconds: float = 10.0


DEFAULTS = Limits()

TLS = "fairgate.tls"
"""Key of the request state that has the TLS object, because uvicorn does not pass it to apps."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 32\r\nconnection: close\r\n\r\n"
    b"The headers are too large; stop.\n"
)


class Protocol(HttpToolsProtocol):
    """uvicorn limits only the pauses between requests. This class also limits the headers."""

    def __init__(self, config: Config, state: ServerState, limits: Limits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._idle_since = time.monotonic_ns()
        self._is_dropped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        seconds = KEEP_ALIVE if self.scheme == "https" else self._limits.header_seconds
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )
        self._close_idle_connection()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = time.monotonic_ns()

    def _close_idle_connection(self) -> None:
        """Close the connection that is idle for longest if there are too many.

        Otherwise a client with many connections would make the API server's reviews fail with 503.
        """
        if len(self.connections) <= self._limits.connections:
            return
        others = (other for other in self.connections if isinstance(other, Protocol))
        idle = [other for other in others if other is not self and other._may_be_closed()]
        if idle:
            min(idle, key=Protocol._close_order)._drop()

    def _may_be_closed(self) -> bool:
        """Return whether no complete request is in progress. Partial headers do not count."""
        asks_nothing = self.cycle is None or self.cycle.response_complete
        return not self._is_dropped and (self.transport.is_closing() or asks_nothing)

    def _close_order(self) -> tuple[bool, bool, float]:
        """Return the sort key: first closing connections, then those with partial headers."""
        return (not self.transport.is_closing(), self._header_timer is None, self._idle_since)

    def _drop(self) -> None:
        # Not `close`, which waits for the client if TLS is used.
        self._is_dropped = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._header_timer is None:
            return
        self._header_bytes += len(data)
        if self._header_bytes > self._limits.header_bytes and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][TLS] = self.transport.get_extra_info("ssl_object")
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(
            self._limits.header_seconds, self.timeout_keep_alive_handler
        )

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        super().on_headers_complete()

    def _stop_header_timer(self) -> None:
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
