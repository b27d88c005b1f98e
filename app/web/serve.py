"""Serving HTTP: several uvicorn servers in one event loop, stopped without dropping a request.

TLS contexts stay ours, so that a renewed certificate takes effect without a restart. Signals
are the business of wiring.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from app.core.errors import InvalidSettings
from app.settings import HostPort
from app.web.door import Door
from app.web.limits import DEFAULTS, KEEP_ALIVE, Limits, Protocol

log = logging.getLogger("fairgate.web")

CLOSING = 200
"""Connections that were just dropped still count; beyond these a request is answered 503."""

FILES = 16_384
"""Above what the limits of three listeners add up to. Soft limits are often 1024, for the sake of
programs that use select()."""

BACKLOG = 2048
FINISH_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Listener:
    """One app at one address. Without `tls` it is plain HTTP; a function is asked each time."""

    name: str
    app: ASGIApp
    at: HostPort
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None
    limits: Limits = DEFAULTS


def allow_connections() -> None:
    """Let this process have as many sockets as all listeners may come to hold."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def tls_context(certificate_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """Return a server context: TLS 1.2 at least, HTTP/1.1 only. Raises InvalidSettings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    renew(context, certificate_pem, key_pem)
    return context


def require_client(context: ssl.SSLContext, ca_pem: bytes) -> None:
    """End every handshake without a client certificate of this CA, or of one required before.

    A context in use takes further CAs, but forgets none. Raises InvalidSettings.
    """
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise InvalidSettings(
            f"The CA of client certificates cannot be read ({error.reason}); give PEM."
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


def renew(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Change the certificate of a context in use; connections made from now on see the new one.

    Raises InvalidSettings if the two do not belong together.
    """
    try:
        # OpenSSL reads files only. This one has no name and lives in memory, so that the key is
        # never on a disk and a read-only file system will do.
        with _in_memory(certificate_pem) as certificate, _in_memory(key_pem) as key:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InvalidSettings(
            f"The serving certificate cannot be used ({error.reason}): give a PEM certificate "
            "and the unencrypted PEM key that belongs to it."
        ) from error


class Servers:
    """Serves all listeners until told to stop.

    `started` is set once every listener answers; `draining` is true from the moment it was told
    to stop, and is meant for the readiness check; `ports` tells what port each listener has.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Take all addresses. Raises InvalidSettings, naming the one that cannot be had."""
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
        """Give the addresses back, if `run` is never to be called."""
        for _, taken in self._servers:
            taken.close()

    async def run(self, stop: asyncio.Event, drain_seconds: float) -> None:
        """Serve until `stop` is set; then fail readiness, serve `drain_seconds` more, and close.

        Requests under way are finished. Raises whatever made a server fail.
        """
        async with asyncio.TaskGroup() as group:
            for server, taken in self._servers:
                group.create_task(server.serve(sockets=[taken]))
            for server, _ in self._servers:
                await server.answering.wait()
            self.started.set()
            log.info("serving", extra={"ports": self.ports})
            await stop.wait()
            self.draining = True
            log.info("draining", extra={"seconds": drain_seconds})
            for server, _ in self._servers:
                server.send_away()
            await asyncio.sleep(drain_seconds)
            for server, _ in self._servers:
                server.should_exit = True
        log.info("stopped serving")


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals alone and says when it answers."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(_config(listener))
        self._listener = listener
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Not super(): its listeners know no limit of handshakes, in time or number. No app of
        # ours has a lifespan.
        tls, limits = self._listener.tls, self._listener.limits

        def tls_now() -> ssl.SSLContext | None:
            return tls() if callable(tls) else tls

        def new_protocol() -> asyncio.Protocol:
            return Protocol(self.config, self.server_state, limits)

        doors = [
            Door(each, new_protocol, tls_now, limits.handshakes, limits.handshake_seconds)
            for each in sockets or ()
        ]
        # uvicorn closes them and waits for that; it asks nothing else of them.
        self.servers = cast("list[asyncio.base_events.Server]", doors)
        self.started = True
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def send_away(self) -> None:
        """Close each connection after its next answer, so that clients turn to other replicas."""
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
        limit_concurrency=listener.limits.connections + CLOSING,
        backlog=BACKLOG,
    )


def _bind(listener: Listener) -> socket.socket:
    at = listener.at
    # An empty host is every address: a dual-stack socket where the machine has IPv6.
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
def _in_memory(content: bytes) -> Iterator[str]:
    handle = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(handle, content)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
