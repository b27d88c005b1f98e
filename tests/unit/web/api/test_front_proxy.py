"""The endpoint for the API server's front proxy: accepted and refused callers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.config.setting_parsers import HostPort
from app.kube.api_aggregation import read_front
from app.ports.api import FrontProxySettings
from app.ports.auth import Identity
from app.tls.certificate_authority import CertificateAuthority, new_authority, write_private
from app.web.api.api_aggregation import ROOT, Aggregated, FrontDoor
from app.web.api.auth import CALLER
from app.web.server.server import Listener, Servers

NOW = datetime.now(UTC)
NAME = "front-proxy-client"
PROXY = FrontProxySettings(
    allowed_names=(NAME,),
    user_headers=("X-Remote-User",),
    uid_headers=("X-Remote-Uid",),
    group_headers=("X-Remote-Group",),
    extra_prefixes=("X-Remote-Extra-",),
)
ALICE = {"X-Remote-User": "alice", "X-Remote-Group": "team-a"}


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return new_authority("proxies", NOW, 1)


@pytest.fixture(scope="module")
def server() -> CertificateAuthority:
    return new_authority("servers", NOW, 1)


class Echo:
    """Returns the caller as the routes would see it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who: Identity = scope["state"][CALLER]
        told: dict[str, Any] = {
            "path": scope["path"], "name": who.name, "uid": who.uid, "groups": list(who.groups),
            "extra": {key: list(values) for key, values in who.extra},
        }  # fmt: skip
        await JSONResponse(told)(scope, receive, send)


@dataclass
class Served:
    """A running front-proxy endpoint."""

    door: FrontDoor
    port: int
    server: CertificateAuthority
    folder: Path

    def tls(self, authority: CertificateAuthority | None, name: str = NAME) -> ssl.SSLContext:
        """Return a TLS context with a client certificate of this CA."""
        context = ssl.create_default_context(cadata=self.server.certificate_pem.decode())
        if authority is not None:
            own = authority.issue(name, names=[], server=False, client=True, now=NOW, days=1)
            write_private(self.folder / "own.crt", own.certificate_pem)
            write_private(self.folder / "own.key", own.key_pem)
            context.load_cert_chain(self.folder / "own.crt", self.folder / "own.key")
        return context

    async def ask(
        self,
        tls: ssl.SSLContext,
        headers: dict[str, str] | list[tuple[str, str]] = ALICE,
        path: str = f"{ROOT}/tenants",
    ) -> tuple[int, Any]:
        """Return the status and JSON of an answer; status 0 if the connection failed."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        except OSError:
            return 0, None
        try:
            return await exchange(reader, writer, headers, path)
        finally:
            writer.transport.abort()


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    headers: dict[str, str] | list[tuple[str, str]] = ALICE,
    path: str = f"{ROOT}/tenants",
) -> tuple[int, Any]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    lines = "".join(f"{key}: {value}\r\n" for key, value in pairs)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        return 0, None
    fields = dict(
        line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line
    )
    body = await reader.readexactly(int(fields["content-length"]))
    return int(head.split(b" ")[1]), json.loads(body)


@pytest.fixture
async def served(
    server: CertificateAuthority, authority: CertificateAuthority, tmp_path: Path
) -> AsyncIterator[Served]:
    async with serving(server, tmp_path) as found:
        found.door.trust_proxy(replace(PROXY, ca=authority.certificate_pem))
        yield found


@asynccontextmanager
async def serving(server: CertificateAuthority, folder: Path) -> AsyncIterator[Served]:
    own = server.issue("srv", names=["127.0.0.1"], server=True, client=False, now=NOW, days=1)
    door = FrontDoor(own.certificate_pem, own.key_pem)
    app = Aggregated(Echo(), door)
    servers = Servers([Listener("aggregated", app, HostPort("127.0.0.1", 0), door.current_context)])
    stop = asyncio.Event()
    task = asyncio.create_task(servers.run(stop, 0))
    await servers.started.wait()
    try:
        yield Served(door, servers.ports["aggregated"], server, folder)
    finally:
        stop.set()
        await task


async def test_front_proxy_headers_set_the_identity_of_the_caller(
    served: Served, authority: CertificateAuthority
) -> None:
    headers = [
        ("X-Remote-User", "älice"),
        ("X-Remote-Group", "team-a"),
        ("X-Remote-Group", "all"),
        ("X-Remote-Uid", "u-1"),
        ("X-Remote-Extra-Example.com%2fScopes", "a"),
        ("X-Remote-Extra-Example.com%2fScopes", "b"),
    ]
    assert await served.ask(served.tls(authority), headers) == (
        200,
        {
            "path": "/v1/tenants",
            "name": "älice",
            "uid": "u-1",
            "groups": ["team-a", "all"],
            "extra": {"example.com/scopes": ["a", "b"]},
        },
    )


async def test_connection_without_a_client_certificate_is_refused(served: Served) -> None:
    assert await served.ask(served.tls(None)) == (0, None)


async def test_client_certificate_of_another_ca_is_refused(
    served: Served,
) -> None:
    other = new_authority("proxies", NOW, 1)
    assert await served.ask(served.tls(other)) == (0, None)


async def test_client_certificate_with_another_name_is_401(
    served: Served, authority: CertificateAuthority
) -> None:
    status, problem = await served.ask(served.tls(authority, "somebody"))
    assert status == 401
    assert "front proxy" in problem["detail"]


async def test_a_certificate_for_servers_is_no_proxys(
    served: Served, authority: CertificateAuthority
) -> None:
    own = authority.issue(NAME, names=["x"], server=True, client=False, now=NOW, days=1)
    write_private(served.folder / "srv.crt", own.certificate_pem)
    write_private(served.folder / "srv.key", own.key_pem)
    context = served.tls(None)
    context.load_cert_chain(served.folder / "srv.crt", served.folder / "srv.key")
    assert await served.ask(context) == (0, None)


async def test_request_without_a_user_header_is_401(
    served: Served, authority: CertificateAuthority
) -> None:
    for headers in ({}, {"X-Remote-User": ""}, {"X-Forwarded-User": "alice"}):
        status, problem = await served.ask(served.tls(authority), headers)
        assert status == 401
        assert problem["detail"]


async def test_connection_is_refused_before_the_proxy_settings_are_known(
    server: CertificateAuthority, authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with serving(server, tmp_path) as served:
        assert await served.ask(served.tls(authority)) == (0, None)


async def test_certificate_of_a_replaced_proxy_ca_is_refused(
    served: Served, authority: CertificateAuthority
) -> None:
    old = served.tls(authority)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=old)
    assert (await exchange(reader, writer))[0] == 200
    following = new_authority("proxies of tomorrow", NOW, 1)
    served.door.trust_proxy(replace(PROXY, ca=following.certificate_pem))
    assert (await exchange(reader, writer))[0] == 401
    writer.transport.abort()
    assert await served.ask(old) == (0, None)
    assert (await served.ask(served.tls(following)))[0] == 200


async def test_invalid_proxy_ca_changes_nothing(
    served: Served, authority: CertificateAuthority
) -> None:
    served.door.trust_proxy(replace(PROXY, ca=b"no certificate"))
    assert (await served.ask(served.tls(authority)))[0] == 200


async def test_names_are_those_of_now(served: Served, authority: CertificateAuthority) -> None:
    ca = authority.certificate_pem
    for names, status in [(("other",), 401), ((), 200)]:
        served.door.trust_proxy(replace(PROXY, ca=ca, allowed_names=names))
        assert (await served.ask(served.tls(authority)))[0] == status


async def test_a_renewed_certificate_is_shown(
    served: Served, server: CertificateAuthority, authority: CertificateAuthority
) -> None:
    following = new_authority("servers of tomorrow", NOW, 1)
    own = following.issue("s", names=["127.0.0.1"], server=True, client=False, now=NOW, days=1)
    served.door.renew_certificate(own.certificate_pem, own.key_pem)
    assert await served.ask(served.tls(authority)) == (0, None)
    served.server = following
    assert (await served.ask(served.tls(authority)))[0] == 200
    later = new_authority("proxies of tomorrow", NOW, 1)
    served.door.trust_proxy(replace(PROXY, ca=later.certificate_pem))
    assert (await served.ask(served.tls(later)))[0] == 200  # and presented by the next context too


async def test_discovery_lists_the_group_without_resources(
    served: Served, authority: CertificateAuthority
) -> None:
    tls = served.tls(authority)
    assert (await served.ask(tls, path=ROOT))[1]["resources"] == []
    groups = (await served.ask(tls, path="/apis"))[1]["groups"]
    assert [group["name"] for group in groups] == ["api.fairgate.io"]
    for described in ("/openapi/v2", "/openapi/v3"):
        assert (await served.ask(tls, path=described))[1]["paths"] == {}
    version = (await served.ask(tls, path="/apis/api.fairgate.io"))[1]["preferredVersion"]
    assert version["groupVersion"] == "api.fairgate.io/v1"


async def test_other_paths_are_404_at_the_front_proxy_endpoint(
    served: Served, authority: CertificateAuthority
) -> None:
    tls = served.tls(authority)
    for path in ("/v1/tenants", "/metrics", "/openapi.json", "/apis/other/v1/x", f"{ROOT}s/x"):
        assert (await served.ask(tls, path=path))[0] == 404


def test_proxy_settings_are_read_from_the_published_config_map() -> None:
    data = {
        "client-ca-file": "others",
        "requestheader-client-ca-file": "pem",
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
    }
    read = read_front(json.dumps({"metadata": {}, "data": data}).encode())
    assert read == replace(PROXY, ca=b"pem")
    assert read_front(b'{"metadata": {}}') == FrontProxySettings()
