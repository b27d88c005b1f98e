"""HTTP/1.1 protocol for uvicorn that limits what a client can occupy without a valid request.

The limits are of connections, of waiting requests, of headers, of bodies, and of the time in which
a client reads an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import socket
import time
from dataclasses import dataclass

import httptools
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
    without the read that completes them. Chunk sizes and trailers of a body may have as much, and
    an eighth of the body. `body_bytes`: sum of the unfinished request bodies of all connections;
    beyond it the connection that sends its body for longest is dropped.
    `write_seconds`: time in which a client must read a part of its answer. `pipelined`: requests of
    a connection that may wait for the answer to another. `connections`: beyond this number the
    connections that wait for their clients for longest are dropped. `client_seconds`: a client with
    an unfinished request or unread answer for longer loses its connection before idle clients do.
    An API server has at most 200 reviews in progress. `handshakes`: beyond this number the oldest
    TLS handshake is dropped.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024
    write_seconds: float = 30.0
    pipelined: int = 8
    connections: int = 2000
    client_seconds: float = 2.0
    handshakes: int = 512
    handshake_seconds: float = 10.0


DEFAULTS = Limits()


@dataclass(slots=True)
class UnfinishedBodies:
    """The bytes of the unfinished request bodies of all connections of a listener."""

    size: int = 0


TLS = "fairgate.tls"
"""Key of the request state that has the TLS object, because uvicorn does not pass it to apps."""

WRITE_BUFFER = 64 * 1024
"""Unread bytes of an answer at which its sender pauses. uvloop's default with TLS is 512 KiB."""

DROPPED_PART = 1 / 40
"""This part of the connections is dropped if there are too many."""

SEND_BUFFER = 128 * 1024
"""Bytes of an answer in the kernel, which doubles the value. By default it may be several MiB. A
write continues after a third was read, so a slow client would seem to have stopped."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 32\r\nconnection: close\r\n\r\n"
    b"The headers are too large; stop.\n"
)


class Protocol(HttpToolsProtocol):
    """uvicorn limits only the pauses between requests. This class also limits each request."""

    def __init__(
        self, config: Config, state: ServerState, limits: Limits, unfinished: UnfinishedBodies
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._unfinished = unfinished
        self._counted_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_receiving = False
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
        if len(self.connections) > self._limits.connections:
            self._drop_longest_waiting()

    def _drop_longest_waiting(self) -> None:
        """Drop the connections that wait for their clients for longest.

        Otherwise a client with many connections would make the API server's reviews fail with 503.
        Several are dropped at a time, because all have to be compared.
        """
        waiting = [other for other in self._others() if other._waits_for_client()]
        number = max(1, int(self._limits.connections * DROPPED_PART))
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
        sends_headers = self._header_timer is not None
        return sends_headers or self._sends_body() or self._write_timer is not None

    def _sends_body(self) -> bool:
        return not self._is_idle() and self.cycle.more_body

    def _drop_order(self) -> tuple[int, float]:
        """Return the sort key: closing ones, slow clients, idle ones, then requests just begun."""
        if self.transport.is_closing():
            group = 0
        elif not self._is_unfinished():
            group = 2
        else:
            is_slow = time.monotonic() - self._waits_since > self._limits.client_seconds
            group = 1 if is_slow else 3
        return group, self._waits_since

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._drop()  # `close` waits until the client has read everything
        else:
            super().timeout_keep_alive_handler()

    def _drop(self) -> None:
        # Not `close`, which waits for the client if TLS is used.
        self._is_dropped = True
        self._uncount_body()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        self._uncount_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._body_bytes
        super().data_received(data)
        if not self._is_receiving or self.transport.is_closing():
            return
        self._field_bytes += len(data) - max(0, self._body_bytes - before)
        if self._unfinished.size > self._limits.body_bytes:
            self._drop_oldest_body()
        if self._field_bytes <= self._limits.header_bytes + self._body_bytes // 8:
            return
        if self._header_timer is None:
            self._drop()
        else:
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            # uvicorn would queue all requests of a read, thousands of them, before it pauses.
            self._drop()
            raise httptools.HttpParserError("too many requests wait for an answer")
        super().on_message_begin()
        self.scope["state"][TLS] = self.transport.get_extra_info("ssl_object")
        self._is_receiving = True
        self._uncount_body()
        self._field_bytes = self._body_bytes = 0
        self._waits_since = time.monotonic()
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(
            self._limits.header_seconds, self.timeout_keep_alive_handler
        )

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        if self._sends_body():  # after an early answer the body is not kept
            self._counted_bytes += len(body)
            self._unfinished.size += len(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._uncount_body()
        super().on_message_complete()

    def _uncount_body(self) -> None:
        self._unfinished.size -= self._counted_bytes
        self._counted_bytes = 0

    def _drop_oldest_body(self) -> None:
        """Drop the connection that sends its body for longest."""
        sending = [each for each in (self, *self._others()) if each._counted_bytes]
        min(sending, key=lambda each: each._waits_since, default=self)._drop()

    def on_response_complete(self) -> None:
        self._uncount_body()
        super().on_response_complete()
        self._waits_since = time.monotonic()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits_since = time.monotonic()
        self._write_timer = self.loop.call_later(self._limits.write_seconds, self._drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
