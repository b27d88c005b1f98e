"""The server: certificate renewal, and a shutdown that completes all open requests."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.types import Receive, Scope, Send

from app.config.setting_parsers import HostPort
from app.core.errors import InvalidSettings
from app.ports.liveness import Liveness
from app.web.health import ops_app
from app.web.server.server import Listener, Servers, ServerTls, tls_context

LOOPBACK = HostPort("127.0.0.1", 0)


@dataclass(frozen=True)
class Pem:
    certificate: bytes
    key: bytes


def self_signed(*, is_rsa: bool = False) -> Pem:
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
        rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
    )
    name = x509.Name.from_rfc4514_string("CN=localhost")
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return Pem(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )


class Slow:
    """An app that answers when the test allows it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


@asynccontextmanager
async def running(
    servers: Servers, stop: asyncio.Event, drain_seconds: float = 0
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(servers.run(stop, drain_seconds))
    await servers.started.wait()
    try:
        yield task
    finally:
        stop.set()
        await task


def get(connection: http.client.HTTPConnection, path: str = "/") -> tuple[int, str | None, bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.getheader("connection"), response.read()


async def test_several_listeners_respond_and_report_their_ports() -> None:
    servers = Servers(
        [
            Listener("ops", ops_app({}, Liveness(), None), LOOPBACK),
            Listener("api", Slow(), LOOPBACK),
        ]
    )

    async with running(servers, asyncio.Event()):
        connection = http.client.HTTPConnection("127.0.0.1", servers.ports["ops"], timeout=5)
        assert await asyncio.to_thread(get, connection, "/livez") == (200, None, b"ok\n")
        connection.close()

    assert servers.ports["api"] != servers.ports["ops"]


async def test_a_renewed_certificate_is_shown_without_a_restart() -> None:
    first, second, other_type = self_signed(), self_signed(), self_signed(is_rsa=True)
    tls = ServerTls(first.certificate, first.key)
    app = ops_app({}, Liveness(), None)
    servers = Servers([Listener("webhook", app, LOOPBACK, tls.current_context)])

    async with running(servers, asyncio.Event()):
        address = ("127.0.0.1", servers.ports["webhook"])

        async def shown() -> bytes:
            return (await asyncio.to_thread(ssl.get_server_certificate, address)).encode()

        assert await shown() == first.certificate
        with pytest.raises(InvalidSettings, match="belongs to it"):
            tls.renew_certificate(second.certificate, first.key)
        assert await shown() == first.certificate
        for each in (second, other_type, first):
            tls.renew_certificate(each.certificate, each.key)
            assert await shown() == each.certificate


def test_a_key_that_belongs_to_another_certificate_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="certificate"):
        tls_context(self_signed().certificate, self_signed().key)


async def test_old_tls_is_refused() -> None:
    pem = self_signed()
    context = tls_context(pem.certificate, pem.key)

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = HostPort("127.0.0.1", taken.getsockname()[1])

        with pytest.raises(InvalidSettings, match=rf"webhook.*127\.0\.0\.1:{at.port}"):
            Servers([Listener("ops", Slow(), LOOPBACK), Listener("webhook", Slow(), at)])


async def test_readiness_fails_first_while_requests_are_still_served() -> None:
    draining = asyncio.Event()
    checks = {"not draining": lambda: not (servers.draining and (draining.set() or True))}
    servers = Servers([Listener("ops", ops_app(checks, Liveness(), None), LOOPBACK)])
    stop = asyncio.Event()

    async with running(servers, stop, drain_seconds=5):
        connection = http.client.HTTPConnection("127.0.0.1", servers.ports["ops"], timeout=5)
        assert (await asyncio.to_thread(get, connection, "/readyz"))[0] == 200
        stop.set()
        while not draining.is_set():
            status, _, body = await asyncio.to_thread(get, connection, "/readyz")
        assert (status, body) == (503, b"not ready: not draining\n")
        closing = None
        while closing is None:
            status, closing, _ = await asyncio.to_thread(get, connection, "/livez")
            assert status == 200
        assert closing == "close"
        connection.close()


async def test_a_request_under_way_is_finished() -> None:
    slow = Slow()
    servers = Servers([Listener("webhook", slow, LOOPBACK)])
    stop = asyncio.Event()

    async with running(servers, stop) as task:
        connection = http.client.HTTPConnection("127.0.0.1", servers.ports["webhook"], timeout=5)
        answer = asyncio.create_task(asyncio.to_thread(get, connection))
        await slow.asked.wait()
        stop.set()
        await asyncio.sleep(0)
        slow.go.set()
        assert (await answer)[::2] == (200, b"done")
        connection.close()
        await task
