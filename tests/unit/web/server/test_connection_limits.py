"""Connection limits: slow, silent or unauthenticated clients do not block other clients."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop
from starlette.types import Message

from app.config.setting_parsers import HostPort
from app.core.errors import InvalidSettings
from app.ports.liveness import Liveness
from app.tls.certificate_authority import (
    CertificateAuthority,
    Credential,
    new_authority,
    write_private,
)
from app.tls.client_ca import ClientCa
from app.web.health import ops_app
from app.web.server.connection_limits import Limits
from app.web.server.request_body import BodyTooSlow, read_body
from app.web.server.server import Listener, Servers, require_client, tls_context

LOOPBACK = HostPort("127.0.0.1", 0)
NOW = datetime.now(UTC)
ASK = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200"
SOON = 0.2
"""Seconds; a limit that a test waits for."""

P = ParamSpec("P")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on uvloop as in production: it implements part of the handshake limits."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


@pytest.fixture(scope="module")
def server() -> CertificateAuthority:
    return new_authority("server-ca", NOW, 1)


@pytest.fixture(scope="module")
def callers() -> CertificateAuthority:
    return new_authority("callers-ca", NOW, 1)


def context_of(server: CertificateAuthority) -> ssl.SSLContext:
    names = ["127.0.0.1"]
    issued = server.issue("srv", names=names, server=True, client=False, now=NOW, days=1)
    return tls_context(issued.certificate_pem, issued.key_pem)


def caller(authority: CertificateAuthority, **purposes: bool) -> Credential:
    wanted = {"server": False, "client": True} | purposes
    return authority.issue("me", names=["me"], now=NOW, days=1, **wanted)


def trusting(
    server: CertificateAuthority, folder: Path, own: Credential | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=server.certificate_pem.decode())
    if own is not None:
        write_private(folder / "own.crt", own.certificate_pem)
        write_private(folder / "own.key", own.key_pem)
        context.load_cert_chain(folder / "own.crt", folder / "own.key")
    return context


@asynccontextmanager
async def serving(limits: Limits, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on a port with these limits."""
    servers = Servers([Listener("webhook", ops_app({}, Liveness(), None), LOOPBACK, tls, limits)])
    stop = asyncio.Event()
    task = asyncio.create_task(servers.run(stop, 0))
    await servers.started.wait()
    try:
        yield servers.ports["webhook"]
    finally:
        stop.set()
        await task


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(connection: Connection) -> bytes:
    """Send a request; return the first line of the answer, empty if the connection is closed."""
    reader, writer = connection
    writer.write(ASK)
    try:
        line = await reader.readline()
        if line:
            await reader.readuntil(b"ok\n")
    except (ConnectionError, ssl.SSLError):
        return b""
    return line


async def closed(connection: Connection) -> bytes:
    """Return the remaining data after the server has closed."""
    async with asyncio.timeout(30):
        try:
            return await connection[0].read()
        except ConnectionError:
            return b""


# --- client certificates ---


@on_uvloop
async def test_only_a_certificate_of_the_callers_ca_gets_in(
    server: CertificateAuthority, callers: CertificateAuthority, tmp_path: Path
) -> None:
    context = context_of(server)
    require_client(context, callers.certificate_pem)
    strangers: dict[str, Credential | None] = {
        "nobody": None,
        "of the server's own CA": caller(server),
        "for servers only": caller(callers, server=True, client=False),
    }
    async with serving(Limits(), context) as port:
        genuine = trusting(server, tmp_path, caller(callers))
        async with connected(port, genuine) as connection:
            assert (await ask(connection)).startswith(ANSWER)
        for own in strangers.values():
            # A TLS 1.3 client receives the refusal only after its own part of the handshake.
            async with connected(port, trusting(server, tmp_path, own)) as connection:
                assert await ask(connection) == b""


@on_uvloop
async def test_connection_is_accepted_without_a_certificate_if_no_ca_is_set(
    server: CertificateAuthority, tmp_path: Path
) -> None:
    async with (
        serving(Limits(), context_of(server)) as port,
        connected(port, trusting(server, tmp_path)) as connection,
    ):
        assert (await ask(connection)).startswith(ANSWER)


@on_uvloop
async def test_a_callers_ca_that_changes_is_trusted_too(
    server: CertificateAuthority, callers: CertificateAuthority, tmp_path: Path
) -> None:
    context, later = context_of(server), new_authority("callers-later", NOW, 1)
    file = tmp_path / "callers.crt"
    file.write_bytes(callers.certificate_pem)
    client_ca = ClientCa(file, lambda ca: require_client(context, ca))
    async with serving(Limits(), context) as port:
        new = trusting(server, tmp_path, caller(later))
        async with connected(port, new) as connection:
            assert await ask(connection) == b""
        file.write_bytes(b"junk")
        client_ca.check_file()
        file.write_bytes(later.certificate_pem)
        client_ca.check_file()
        for own in (caller(later), caller(callers)):
            async with connected(port, trusting(server, tmp_path, own)) as connection:
                assert (await ask(connection)).startswith(ANSWER)


def test_a_callers_ca_that_is_none_is_refused(server: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="client certificates"):
        require_client(context_of(server), b"junk")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        ClientCa(tmp_path / "nothing.crt", lambda ca: None)


# --- handshakes ---


@on_uvloop
async def test_connection_without_a_handshake_is_closed_in_time(
    server: CertificateAuthority,
) -> None:
    limits = Limits(handshake_seconds=SOON)
    async with serving(limits, context_of(server)) as port, connected(port) as silent:
        assert await closed(silent) == b""


@on_uvloop
async def test_unfinished_handshakes_do_not_block_other_callers(
    server: CertificateAuthority, tmp_path: Path
) -> None:
    limits = Limits(handshakes=3)
    async with serving(limits, context_of(server)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        async with connected(port, trusting(server, tmp_path)) as connection:
            assert (await ask(connection)).startswith(ANSWER)
        for oldest in silent[:7]:
            assert await closed(oldest) == b""
        for _, writer in silent:
            writer.transport.abort()


# --- headers and bodies ---


@pytest.mark.parametrize("begun", [b"G", ASK[:-2], ASK + b"GET / HTTP/1.1\r\nhost:"])
@on_uvloop
async def test_headers_that_do_not_end_close_the_connection(begun: bytes) -> None:
    limits = Limits(header_seconds=SOON)
    async with serving(limits) as port, connected(port) as connection:
        connection[1].write(begun)
        assert (await closed(connection)).startswith(ANSWER if begun.startswith(ASK) else b"")


@on_uvloop
async def test_silent_connection_without_tls_is_closed_in_time() -> None:
    async with serving(Limits(header_seconds=SOON)) as port, connected(port) as connection:
        assert await closed(connection) == b""


@on_uvloop
async def test_an_api_server_may_connect_in_advance(
    server: CertificateAuthority, tmp_path: Path
) -> None:
    limits = Limits(header_seconds=SOON)
    async with (
        serving(limits, context_of(server)) as port,
        connected(port, trusting(server, tmp_path)) as early,
    ):
        async with connected(port, trusting(server, tmp_path)) as dawdler:
            dawdler[1].write(b"G")
            await closed(dawdler)
        assert (await ask(early)).startswith(ANSWER)


@pytest.mark.parametrize(
    "head",
    [b"GET /" + b"x" * 3000, b"GET / HTTP/1.1\r\nx: " + b"x" * 3000, ASK[:-2] + b"a: b\r\n" * 500],
)
@on_uvloop
async def test_headers_beyond_the_limit_are_431(head: bytes) -> None:
    async with serving(Limits(header_bytes=2000)) as port, connected(port) as connection:
        connection[1].write(head)
        assert (await closed(connection)).startswith(b"HTTP/1.1 431 ")


@on_uvloop
async def test_header_limit_applies_to_each_request_separately() -> None:
    async with serving(Limits(header_bytes=60)) as port, connected(port) as connection:
        for _ in range(5):
            assert (await ask(connection)).startswith(ANSWER)


@on_uvloop
async def test_a_body_in_driblets_ends_in_time() -> None:
    async def receive() -> Message:
        await asyncio.sleep(SOON / 20)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(BodyTooSlow):
        await read_body(receive, 1_000_000, seconds=SOON)


# --- number of connections ---


@on_uvloop
async def test_connection_idle_for_longest_is_closed_at_the_limit() -> None:
    async with serving(Limits(connections=3)) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for connection in opened:
            assert (await ask(connection)).startswith(ANSWER)
        assert (await ask(opened[0])).startswith(ANSWER)
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        assert (await ask(opened[3])).startswith(ANSWER)

        assert await closed(opened[1]) == b""
        for connection in (opened[0], opened[2]):
            assert (await ask(connection)).startswith(ANSWER)
        for _, writer in opened:
            writer.transport.abort()


@on_uvloop
async def test_connection_with_a_partial_request_is_closed_before_an_idle_one() -> None:
    async with serving(Limits(connections=2)) as port:
        idle = await asyncio.open_connection("127.0.0.1", port)
        assert (await ask(idle)).startswith(ANSWER)
        dawdler = await asyncio.open_connection("127.0.0.1", port)
        assert (await ask(dawdler)).startswith(ANSWER)
        dawdler[1].write(ASK + b"GET")
        await dawdler[0].readuntil(b"ok\n")
        latest = await asyncio.open_connection("127.0.0.1", port)
        assert (await ask(latest)).startswith(ANSWER)

        assert await closed(dawdler) == b""
        assert (await ask(idle)).startswith(ANSWER)
        for _, writer in (idle, dawdler, latest):
            writer.transport.abort()


@on_uvloop
async def test_a_crowd_of_strangers_never_has_a_caller_turned_away() -> None:
    async with serving(Limits(connections=20)) as port:
        crowd = []
        for number in range(300):
            crowd.append(await asyncio.open_connection("127.0.0.1", port))
            if number % 50 == 49:
                async with connected(port) as connection:
                    assert (await ask(connection)).startswith(ANSWER)
        for _, writer in crowd:
            writer.transport.abort()
