"""The HTTP/1.1 protocol of all listeners. It limits what a client can occupy.

The limits are of connections, of waiting requests, of headers, of bodies, and of the time in which
a client reads an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
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
    also from the connect to the first byte. It is also the time for the rest of a request after an
    early answer. `header_bytes`: limit of everything in a request except its body: request line,
    headers, chunk sizes and trailers. An eighth of the body received so far is added. It is checked
    after each read, while the request is incomplete. `body_bytes`: sum of the incomplete request
    bodies of all connections; beyond it the connection that sends its body for longest is dropped.
    `write_seconds`: time in which a client must read the part of an answer that waits for it.
    `pipelined`: requests of a connection that may wait for the answer to another. `connections`:
    beyond this number the connections that wait for their clients for longest are dropped.
    `slow_seconds`: a client with an unfinished request or unread answer for longer loses its
    connection before idle clients do. An API server has at most 200 reviews in progress.
    `handshakes`: beyond this number the oldest TLS handshake is dropped.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    body_bytes: int = 128 * 1024 * 1024
    write_seconds: float = 30.0
    pipelined: int = 8
    connections: int = 2000
    slow_seconds: float = 2.0
    handshakes: int = 512
    handshake_seconds: float = 10.0


DEFAULTS = Limits()


@dataclass(slots=True)
class ListenerUse:
    """Totals over all connections of a listener.

    `body_bytes`: size of the incomplete request bodies. `dropped`: connections that were dropped,
    and that the event loop has not closed yet.
    """

    body_bytes: int = 0
    dropped: int = 0


TLS = "fairgate.tls"
"""Key of the request state that has the TLS object, because uvicorn does not pass it to apps."""

WRITE_BUFFER = 64 * 1024
"""Unread bytes of an answer at which its sender pauses. uvloop's default with TLS is 512 KiB."""

DROPPED_FRACTION = 1 / 40
"""Fraction of `Limits.connections` that one connection beyond the limit drops."""

SEND_BUFFER = 128 * 1024
"""`SO_SNDBUF` of a connection. Linux doubles it, and reports a full socket as writable when a third
is free. A slow client could need more than `write_seconds` with its default of several MiB."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 33\r\nconnection: close\r\n\r\n"
    b"The headers are too large; stop.\n"
)


class Protocol(HttpToolsProtocol):
    """uvicorn limits only the pauses between requests. This class also limits each request."""

    def __init__(
        self, config: Config, state: ServerState, limits: Limits, use: ListenerUse
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._use = use
        self._running: RequestResponseCycle | None = None
        self._counted_bytes = 0
        self._read_body_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_receiving = False
        self._reads_headers = False
        self._field_bytes = 0
        self._body_bytes = 0
        self._waits_since = time.monotonic()
        self._is_dropped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)
        with contextlib.suppress(OSError):  # the client is gone already
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        seconds = KEEP_ALIVE if self.scheme == "https" else self._limits.header_seconds
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )
        if len(self.connections) - self._use.dropped > self._limits.connections:
            self._drop_longest_waiting()

    def _drop_longest_waiting(self) -> None:
        """Drop the connections that wait for their clients for longest.

        Otherwise a client with many connections would make the API server's reviews fail with 503.
        Several are dropped at a time, because all have to be compared.
        """
        waiting = [other for other in self._others() if other._waits_for_client()]
        number = max(1, int(self._limits.connections * DROPPED_FRACTION))
        for each in heapq.nsmallest(number, waiting, key=Protocol._drop_order):
            each._drop()

    def _others(self) -> list[Protocol]:
        others = (each for each in self.connections if isinstance(each, Protocol))
        return [each for each in others if each is not self and not each._is_dropped]

    def _waits_for_client(self) -> bool:
        """Return whether only its client can continue: no request is being answered."""
        return self.transport.is_closing() or self._is_idle() or self._is_unfinished()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_unfinished(self) -> bool:
        """Return whether the client has to send the rest of a request, or to read an answer."""
        return self._is_receiving or self._write_timer is not None

    def _sends_body(self) -> bool:
        return not self._is_idle() and self.cycle.more_body

    def _drop_order(self) -> tuple[int, float]:
        """Return the sort key. Within a group, the longest wait comes first.

        The groups: closing connections, requests or answers that are unfinished for longer than
        `slow_seconds`, idle connections, other unfinished ones.
        """
        if self.transport.is_closing():
            group = 0
        elif not self._is_unfinished():
            group = 2
        else:
            is_slow = time.monotonic() - self._waits_since > self._limits.slow_seconds
            group = 1 if is_slow else 3
        return group, self._waits_since

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._drop()
        else:
            super().timeout_keep_alive_handler()

    def _drop(self) -> None:
        """End the connection now. `close` would wait until the client has read everything."""
        if not self._is_dropped:
            self._is_dropped = True
            self._use.dropped += 1
        self._uncount_body()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        self._uncount_body()
        self._use.dropped -= self._is_dropped
        super().connection_lost(exc)
        # uvicorn disconnects only the newest request. An older one may still be answered.
        for cycle in (self._running, *(each for each, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._read_body_bytes = 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._is_receiving:
            if self._is_idle() and self.timeout_keep_alive_task is None:  # an empty line
                self.timeout_keep_alive_task = self.loop.call_later(
                    self._limits.header_seconds, self.timeout_keep_alive_handler
                )
            return
        self._field_bytes += len(data) - self._read_body_bytes
        if self._use.body_bytes > self._limits.body_bytes:
            self._drop_oldest_body()
        if self._field_bytes <= self._limits.header_bytes + self._body_bytes // 8:
            return
        if not self._can_refuse():
            self._drop()
            return
        if not self._reads_headers:
            self.cycle.disconnected = True  # otherwise the app would answer too
        self.transport.write(TOO_LARGE)
        self.transport.close()

    def _can_refuse(self) -> bool:
        """Return whether the next answer that the client reads is that of its newest request.

        The headers may have ended in the read that exceeded the limit.
        """
        if self._reads_headers:
            return self._is_idle()
        is_next = self._running is self.cycle and not self.cycle.response_started
        return is_next and not self._body_bytes

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            # uvicorn would queue all requests of a read, thousands of them, before it pauses.
            self._drop()
            raise httptools.HttpParserError("too many requests wait for an answer")
        super().on_message_begin()
        self.scope["state"][TLS] = self.transport.get_extra_info("ssl_object")
        self._is_receiving = self._reads_headers = True
        self._uncount_body()
        self._field_bytes = self._body_bytes = 0
        self._waits_since = time.monotonic()
        self._start_header_timer(self.timeout_keep_alive_handler)

    def on_headers_complete(self) -> None:
        self._reads_headers = False
        self._stop_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        self._read_body_bytes += len(body)
        if self._sends_body():  # after an early answer the body is not kept
            self._counted_bytes += len(body)
            self._use.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._stop_header_timer()
        self._uncount_body()
        super().on_message_complete()

    def _uncount_body(self) -> None:
        self._use.body_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _drop_oldest_body(self) -> None:
        """Drop the connection that sends its body for longest."""
        sending = [each for each in (self, *self._others()) if each._counted_bytes]
        min(sending, key=lambda each: each._waits_since, default=self)._drop()

    def on_response_complete(self) -> None:
        answered = self._running
        if answered is not None:
            answered.body = bytearray()  # the app may not have read it
        if answered is self.cycle:
            self._uncount_body()
            self._waits_since = time.monotonic()
            if self._is_receiving:
                self._start_header_timer(self._drop)
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._start_write_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits_since = time.monotonic()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _start_write_timer(self) -> None:
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self._limits.write_seconds, self._drop)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_header_timer(self, end: Callable[[], None]) -> None:
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(self._limits.header_seconds, end)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
