"""The client against a small HTTP server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidSettings
from app.kube.client import JSON_PATCH, Client
from app.kube.credentials import Token


async def answer(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/echo":
            return web.json_response(
                {
                    "authorization": request.headers.get("Authorization"),
                    "groups": request.headers.getall("Impersonate-Group", []),
                    "type": request.headers.get("Content-Type"),
                    "query": request.query_string,
                    "body": await request.text(),
                }
            )
        case "/slow":
            await asyncio.sleep(60)
        case "/reset":
            assert request.transport is not None
            request.transport.abort()
        case "/status":
            return web.json_response(
                {"kind": "Status", "message": "because"},
                status=int(request.query["code"]),
                headers={"Retry-After": "7"},
            )
        case "/lines":
            stream = web.StreamResponse()
            await stream.prepare(request)
            for piece in (b'{"a"', b":1}\n\n", b"x" * 5_000_000, b"\nlast\nnot ended"):
                await stream.write(piece)
            return stream
        case "/quiet":
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.sleep(60)
    return web.Response(status=404, text="what?")


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    (tmp_path / "token").write_text("first\n")
    config = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield path
    await runner.cleanup()


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    client = await Client.connect(kubeconfig)
    yield client
    await client.close()


async def test_request_carries_token_query_and_body(client: Client) -> None:
    said = json.loads(
        await client.request(
            "PATCH",
            "/echo",
            query=[("timeout", "5s"), ("a", "b c")],
            body=[{"op": "test", "path": "/a", "value": "ü"}],
            content_type=JSON_PATCH,
        )
    )
    assert said == {
        "authorization": "Bearer first",
        "groups": [],
        "type": JSON_PATCH,
        "query": "timeout=5s&a=b c",
        "body": '[{"op":"test","path":"/a","value":"ü"}]',
    }


async def test_dict_is_no_json_patch(client: Client) -> None:
    with pytest.raises(TypeError, match="list"):
        await client.request("PATCH", "/echo", body={}, content_type=JSON_PATCH)


@pytest.mark.parametrize("code", [302, 401, 404, 409, 422, 429])
async def test_no_is_a_refusal(client: Client, code: int) -> None:
    with pytest.raises(ClusterRefused, match="because") as caught:
        await client.request("GET", "/status", query=[("code", str(code))])
    assert (caught.value.status, caught.value.retry_after) == (code, 7.0)


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_server_error_is_unknown(client: Client, code: int) -> None:
    with pytest.raises(ClusterUnavailable, match="because"):
        await client.request("PATCH", "/status", query=[("code", str(code))], body={})


@pytest.mark.parametrize("path", ["/slow", "/reset"])
async def test_no_answer_is_unknown(client: Client, path: str) -> None:
    with pytest.raises(ClusterUnavailable, match=path):
        await client.request("PATCH", path, body={}, timeout=0.2)


async def test_lines_of_any_length(client: Client) -> None:
    async with client.stream("/lines", read_timeout=30.0) as lines:
        assert [line[:9] async for line in lines] == [b'{"a":1}', b"x" * 9, b"last"]


async def test_silent_stream_is_left(client: Client) -> None:
    async def read() -> list[bytes]:
        async with client.stream("/quiet", read_timeout=0.2) as lines:
            return [line async for line in lines]

    with pytest.raises(ClusterUnavailable):
        await read()


async def test_refused_stream(client: Client) -> None:
    with pytest.raises(ClusterRefused):
        async with client.stream("/none", read_timeout=1.0):
            pytest.fail("nothing to read")


async def test_closed_port_is_unavailable(kubeconfig: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kubeconfig.write_text(json.dumps(config))
    client = await Client.connect(kubeconfig)
    with pytest.raises(ClusterUnavailable):
        await client.request("GET", "/echo")
    await client.close()


async def test_each_group_of_an_impersonation_is_a_header(kubeconfig: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    config["users"][0]["user"] |= {"as": "bob", "as-groups": ["g", "h"]}
    kubeconfig.write_text(json.dumps(config))
    client = await Client.connect(kubeconfig)
    answer = json.loads(await client.request("GET", "/echo"))
    await client.close()
    assert answer["groups"] == ["g", "h"]


def test_token_follows_its_file(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "token"
    file.write_text("one\n")
    token = Token(file=file, clock=lambda: now)
    assert token.value() == "Bearer one"
    renewed = tmp_path / "renewed"
    renewed.write_text("two")
    renewed.replace(file)
    now = 5.0
    assert token.value() == "Bearer two"
    file.unlink()
    now = 10.0
    assert token.value() == "Bearer two"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"current-context": "x"}'])
async def test_unusable_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidSettings, match=str(path)):
        await Client.connect(path)


async def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="nowhere"):
        await Client.connect(tmp_path / "nowhere")


async def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidSettings, match="FAIRGATE_KUBECONFIG"):
        await Client.connect(None)
