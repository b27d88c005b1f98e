"""Limits of connections: how many of them, how long one may take to ask, and how much it may say.

An HTTP/1.1 protocol for uvicorn and nothing else; what is asked is the business of apps.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE = 130
"""Seconds. API servers keep idle connections for 90: whoever closes first must be them, or their
next review meets a closed door and the pod is refused. They also open connections in advance,
so one that never asked anything has as long, if it got as far as TLS."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one listener; the defaults are far above what API servers need.

    `header_seconds`: from the first byte of a request to the end of its headers; without TLS also
    from connecting to the first byte. `header_bytes`: request line and headers; what the one read
    holds that ends them is let pass. `connections`: then the one idle for longest is closed; an API
    server has at most 200 reviews under way. `handshakes`: under way at once, then the oldest is
    dropped.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    connections: int = 2000
    handshakes: int = 512
    handshake_seconds: float = 10.0


DEFAULTS = Limits()

TLS = "fairgate.tls"
"""Where in the state of a request its connection's TLS is. uvicorn tells apps nothing of it."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 32\r\nconnection: close\r\n\r\n"
    b"The headers are too large; stop.\n"
)


class Protocol(HttpToolsProtocol):
    """uvicorn times only the pauses between requests; this one times their beginnings too."""

    def __init__(self, config: Config, state: ServerState, limits: Limits) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._overdue: asyncio.TimerHandle | None = None
        self._heading = 0
        self._idle_since = time.monotonic_ns()
        self._is_dropped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        seconds = KEEP_ALIVE if self.scheme == "https" else self._limits.header_seconds
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )
        self._make_room()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = time.monotonic_ns()

    def _make_room(self) -> None:
        """Close the connection that asks nothing for the longest time, if there are too many.

        Else whoever opens enough of them would have the API server's reviews answered 503.
        """
        if len(self.connections) <= self._limits.connections:
            return
        others = (other for other in self.connections if isinstance(other, Protocol))
        idle = [other for other in others if other is not self and other._may_go()]
        if idle:
            min(idle, key=Protocol._merit)._drop()

    def _may_go(self) -> bool:
        """Tell whether no whole request is under way. Half a heading is none."""
        asks_nothing = self.cycle is None or self.cycle.response_complete
        return not self._is_dropped and (self.transport.is_closing() or asks_nothing)

    def _merit(self) -> tuple[bool, bool, float]:
        """Return what to order by: first who is on his way out, then who dawdles, then idlers."""
        return (not self.transport.is_closing(), self._overdue is None, self._idle_since)

    def _drop(self) -> None:
        # Not close(): with TLS that waits for the other side.
        self._is_dropped = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_heading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._overdue is None:
            return
        self._heading += len(data)
        if self._heading > self._limits.header_bytes and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][TLS] = self.transport.get_extra_info("ssl_object")
        self._end_heading()
        self._overdue = self.loop.call_later(
            self._limits.header_seconds, self.timeout_keep_alive_handler
        )

    def on_headers_complete(self) -> None:
        self._end_heading()
        super().on_headers_complete()

    def _end_heading(self) -> None:
        self._heading = 0
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
