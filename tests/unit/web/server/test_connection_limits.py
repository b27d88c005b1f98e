"""Connection limits: slow, silent or unauthenticated clients do not block other clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from app.web.server.request_body import BodyTooSlow, Disconnected, read_body
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
async def serving(
    limits: Limits, tls: ssl.SSLContext | None = None, app: ASGIApp | None = None
) -> AsyncIterator[int]:
    """Serve on a port with these limits; without an app the health checks."""
    app = app or ops_app({}, Liveness(), None)
    servers = Servers([Listener("webhook", app, LOOPBACK, tls, limits)])
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
    [
        b"GET /" + b"x" * 3000,
        b"GET / HTTP/1.1\r\nx: " + b"x" * 3000,
        ASK[:-2] + b"a: b\r\n" * 500,
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\nx: " + b"x" * 3000 + b"\r\n\r\n",
    ],
    ids=["path", "one", "many", "complete"],
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


PARTS, PART_BYTES = 512, 64 * 1024
"""A large answer: more than all buffers between server and client contain."""


async def large_answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer /large with a large body, and other paths with "ok" after their body was read."""
    with contextlib.suppress(Disconnected):
        await read_body(receive, 1_000_000)
        parts = PARTS if scope["path"] == "/large" else 0
        length = str(parts * PART_BYTES + 3).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(parts):
            part = b"x" * PART_BYTES
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"ok\n"})


@pytest.mark.parametrize("with_tls", [False, True])
@on_uvloop
async def test_client_that_does_not_read_its_answer_is_dropped_in_time(
    with_tls: bool, server: CertificateAuthority, tmp_path: Path
) -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await large_answers(scope, receive, send)
        ended.set()

    context = context_of(server) if with_tls else None
    trusted = trusting(server, tmp_path) if with_tls else None
    async with (
        serving(Limits(write_seconds=SOON), context, app) as port,
        connected(port, trusted) as (reader, writer),
    ):
        writer.transport.pause_reading()
        writer.write(ASK.replace(b"/livez", b"/large"))
        async with asyncio.timeout(30):
            await ended.wait()
        writer.transport.resume_reading()
        assert len(await closed((reader, writer))) < PARTS * PART_BYTES


@on_uvloop
async def test_many_waiting_requests_of_a_connection_end_it() -> None:
    async with serving(Limits(pipelined=8, header_bytes=10**9)) as port:
        async with connected(port) as (reader, writer):
            writer.write(ASK * 9)
            for _ in range(9):
                await reader.readuntil(b"ok\n")
        async with connected(port) as flood:
            flood[1].write(ASK * 5000)
            assert (await closed(flood)).count(ANSWER) <= 9
        async with connected(port) as other:
            assert (await ask(other)).startswith(ANSWER)


TRAILERS = b"GET /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize("trailer", [b"a: b\r\n" * 100, b"a" * 600], ids=["many", "one"])
@on_uvloop
async def test_endless_trailers_of_a_body_end_the_connection(trailer: bytes) -> None:
    limits = Limits(header_bytes=2000, header_seconds=3600)
    async with serving(limits) as port, connected(port) as (reader, writer):
        writer.write(TRAILERS)
        await reader.readuntil(b"ok\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(20_000):
                writer.write(trailer)
                await writer.drain()
            pytest.fail("The connection stays open.")


@on_uvloop
async def test_a_body_in_small_chunks_is_accepted() -> None:
    async with (
        serving(Limits(header_bytes=2000), app=large_answers) as port,
        connected(port) as (reader, writer),
    ):
        writer.write(TRAILERS.removesuffix(b"0\r\n").replace(b"GET", b"POST"))
        for _ in range(5000):
            writer.write(b"40\r\n" + b"x" * 64 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\nchecksum: 7\r\n\r\n")
        assert (await reader.readline()).startswith(ANSWER)


@pytest.mark.parametrize("rest", [b"x", b"1\r\nx\r\n"], ids=["length", "chunks"])
@on_uvloop
async def test_an_endless_body_after_an_early_answer_ends_the_connection(rest: bytes) -> None:
    framing = b"content-length: 9999999" if rest == b"x" else b"transfer-encoding: chunked"
    async with serving(Limits(header_seconds=SOON)) as port, connected(port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\n")
        await reader.readuntil(b"ok\n")
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(rest)
                    await writer.drain()
                    await asyncio.sleep(0)


@on_uvloop
async def test_an_empty_line_does_not_keep_a_connection_open() -> None:
    async with serving(Limits(header_seconds=SOON)) as port, connected(port) as connection:
        connection[1].write(b"\r\n")
        assert await closed(connection) == b""


@on_uvloop
async def test_a_dropped_client_ends_the_answer_before_its_last_request() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, 1000)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        stream = asyncio.create_task(receive())
        while not stream.done():
            part = b"x" * PART_BYTES
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    async with serving(Limits(write_seconds=SOON), app=app) as port, connected(port) as client:
        client[1].transport.pause_reading()
        client[1].write(ASK + ASK)
        async with asyncio.timeout(30):
            await ended.wait()


# --- bodies ---


HALF = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + b"x" * 40_000


def announcing(begun: asyncio.Queue[str]) -> ASGIApp:
    """Return `large_answers` that also reports each request whose headers have arrived."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.put_nowait(scope["path"])
        await large_answers(scope, receive, send)

    return app


@on_uvloop
async def test_oldest_unfinished_body_is_dropped_if_all_are_too_large() -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    async with serving(Limits(body_bytes=100_000), app=announcing(begun)) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in opened:
            writer.write(HALF)
            await begun.get()
        assert await closed(opened[0]) == b""
        for reader, writer in opened[1:]:
            writer.write(b"x" * 20_000)
            assert (await reader.readline()).startswith(ANSWER)
        for _, writer in opened:
            writer.transport.abort()


@on_uvloop
async def test_unfinished_bodies_do_not_have_a_caller_turned_away() -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    limits = Limits(connections=5, slow_seconds=0)
    async with serving(limits, app=announcing(begun)) as port:
        half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in half:
            writer.write(HALF)
            await begun.get()
        async with connected(port) as caller:
            assert (await ask(caller)).startswith(ANSWER)
        assert await closed(half[0]) == b""
        for _, writer in half:
            writer.transport.abort()


@on_uvloop
async def test_request_that_has_just_begun_is_not_dropped_before_an_idle_connection() -> None:
    limits = Limits(connections=2, slow_seconds=60)
    async with serving(limits, app=large_answers) as port:
        begun = await asyncio.open_connection("127.0.0.1", port)
        begun[1].write(HALF)
        idle = await asyncio.open_connection("127.0.0.1", port)
        assert (await ask(idle)).startswith(ANSWER)
        async with connected(port) as caller:
            assert (await ask(caller)).startswith(ANSWER)
        assert await closed(idle) == b""
        begun[1].write(b"x" * 20_000)
        assert (await begun[0].readline()).startswith(ANSWER)
        for _, writer in (begun, idle):
            writer.transport.abort()


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
    async with serving(Limits(connections=2, slow_seconds=0)) as port:
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
