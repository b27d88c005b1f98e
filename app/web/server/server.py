"""Runs several uvicorn servers in one event loop, and stops them without dropping a request.

It owns the TLS contexts, so that a renewed certificate takes effect without a restart. `wiring`
handles signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from app.config.setting_parsers import HostPort
from app.core.errors import InvalidSettings
from app.web.server.acceptor import TlsAcceptor
from app.web.server.connection_limits import (
    DEFAULTS,
    KEEP_ALIVE,
    Limits,
    ListenerUse,
    Protocol,
)

log = logging.getLogger("fairgate.web")

CLOSING_CONNECTIONS = 200
"""Allowance for just dropped connections, which still count. uvicorn answers 503 beyond it."""

OPEN_FILES = 16_384
"""More file descriptors than three listeners can use. Soft limits are often 1024 for select()."""

BACKLOG = 2048
FINISH_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Listener:
    """One app at one address. `tls` None: plain HTTP. A function is called for each connection."""

    name: str
    app: ASGIApp
    address: HostPort
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None
    limits: Limits = DEFAULTS
    own_thread: bool = False
    """Serve from a thread with its own event loop, because that of the process may block."""


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the number that all listeners may need."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class ServerTls:
    """The TLS context of a listener for new connections.

    Each change makes a new context. A context in use would lose its key if the new one does not
    fit, and would keep its certificate beside a new one with another type of key.
    """

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Raises InvalidSettings if certificate and key do not match."""
        self._pair = (certificate_pem, key_pem)
        self._client_cas: tuple[bytes, ...] = ()
        self._context = tls_context(certificate_pem, key_pem)

    def current_context(self) -> ssl.SSLContext:
        """Return the context for new connections."""
        return self._context

    def renew_certificate(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Use another certificate. Raises InvalidSettings; then the former one stays in use."""
        self._context = _listening_context((certificate_pem, key_pem), self._client_cas)
        self._pair = (certificate_pem, key_pem)

    def require_client(self, ca_pem: bytes) -> None:
        """Require a client certificate of this CA, or of a CA that was required before.

        Raises InvalidSettings.
        """
        cas = (*self._client_cas, ca_pem)
        self._context = _listening_context(self._pair, cas)
        self._client_cas = cas


def _listening_context(pair: tuple[bytes, bytes], client_cas: Sequence[bytes]) -> ssl.SSLContext:
    context = tls_context(*pair)
    for ca_pem in client_cas:
        require_client(context, ca_pem)
    return context


def tls_context(certificate_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or later and HTTP/1.1.

    Raises InvalidSettings if certificate and key do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # OpenSSL only reads files. Files in memory keep the key off disks, and also work with a
        # read-only file system.
        with _memory_file(certificate_pem) as certificate, _memory_file(key_pem) as key:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InvalidSettings(
            f"The serving certificate cannot be used ({error.reason}): give a PEM certificate "
            "and the unencrypted PEM key that belongs to it."
        ) from error
    return context


def require_client(context: ssl.SSLContext, ca_pem: bytes) -> None:
    """Require a client certificate of this CA, or of one that was required before.

    Raises InvalidSettings.
    """
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise InvalidSettings(
            f"The CA of client certificates cannot be read ({error.reason}); give PEM."
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


class Servers:
    """Serves all listeners until a stop event.

    `started` is set after every listener answers. `draining` is true from the stop event on, for
    the readiness check. `ports`: the port of each listener, by name.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Bind all addresses. Raises InvalidSettings, which names an unavailable address."""
        self.started = asyncio.Event()
        self.draining = False
        self._servers: list[tuple[_Server, socket.socket]] = []
        try:
            for listener in listeners:
                self._servers.append((_Server(listener), _bind(listener)))
        except InvalidSettings:
            self.close()
            raise
        names = [listener.name for listener in listeners]
        self.ports: dict[str, int] = {
            name: taken.getsockname()[1]
            for name, (_, taken) in zip(names, self._servers, strict=True)
        }

    def close(self) -> None:
        """Close the sockets if `run` will not be called."""
        for _, taken in self._servers:
            taken.close()

    async def run(self, stop: asyncio.Event, drain_seconds: float) -> None:
        """Serve until `stop` is set; then fail readiness, serve `drain_seconds` more, and close.

        Requests in progress are completed. Raises the error of a failed server.
        """
        async with asyncio.TaskGroup() as group:
            for server, taken in self._servers:
                serve = server.serve_in_thread if server.own_thread else server.serve
                group.create_task(serve([taken]))
            for server, _ in self._servers:
                await server.answering.wait()
            self.started.set()
            log.info("serving", extra={"ports": self.ports})
            await stop.wait()
            self.draining = True
            log.info("draining", extra={"seconds": drain_seconds})
            for server, _ in self._servers:
                server.close_after_answer()
            await asyncio.sleep(drain_seconds)
            for server, _ in self._servers:
                server.should_exit = True
        log.info("stopped serving")


class _Server(uvicorn.Server):
    """A uvicorn server that ignores signals and sets `answering` when it answers."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(_config(listener))
        self._listener = listener
        self._main_loop = asyncio.get_running_loop()
        self.own_thread = listener.own_thread
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Not super(): its listeners do not limit the time or number of handshakes. Fairgate's apps
        # have no lifespan.
        tls, limits = self._listener.tls, self._listener.limits

        def tls_now() -> ssl.SSLContext | None:
            return tls() if callable(tls) else tls

        use = ListenerUse()

        def new_protocol() -> asyncio.Protocol:
            return Protocol(self.config, self.server_state, limits, use)

        doors = [
            TlsAcceptor(each, new_protocol, tls_now, limits.handshakes, limits.handshake_seconds)
            for each in sockets or ()
        ]
        # uvicorn only closes them and waits until they are closed.
        self.servers = cast("list[asyncio.base_events.Server]", doors)
        self.started = True
        self._main_loop.call_soon_threadsafe(self.answering.set)

    async def serve_in_thread(self, sockets: list[socket.socket]) -> None:
        """Serve from a separate thread until `should_exit` is set."""
        ended = self._main_loop.create_future()

        def end(error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                uvloop.run(self.serve(sockets=sockets))
            except BaseException as failed:
                error = failed
            with contextlib.suppress(RuntimeError):  # the event loop of the process has ended
                self._main_loop.call_soon_threadsafe(end, error)

        threading.Thread(target=work, name=self._listener.name, daemon=True).start()
        try:
            await ended
        finally:
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def close_after_answer(self) -> None:
        """Close each connection after its next answer, so that clients use other replicas."""
        self.config.encoded_headers.append((b"connection", b"close"))


def _config(listener: Listener) -> uvicorn.Config:
    return uvicorn.Config(
        listener.app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=FINISH_SECONDS,
        limit_concurrency=listener.limits.connections + CLOSING_CONNECTIONS,
        backlog=BACKLOG,
    )


def _bind(listener: Listener) -> socket.socket:
    at = listener.address
    # An empty host means every address: a dual-stack socket if the machine has IPv6.
    everywhere = not at.host and socket.has_dualstack_ipv6()
    host = "::" if everywhere else at.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, at.port), family=family, backlog=BACKLOG, dualstack_ipv6=everywhere
        )
    except OSError as error:
        raise InvalidSettings(
            f"The {listener.name} cannot listen on {at}: {os.strerror(error.errno or 0)}; "
            f"choose another address by --{listener.name}-listen."
        ) from error


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    handle = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(handle, content)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
