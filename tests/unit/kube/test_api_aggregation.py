"""Fairgate's CA in the APIService: written, restored, left alone if another replica is ahead."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.kube.api_aggregation import ApiServiceBundle
from app.kube.client import Client


@dataclass
class Server(Client):
    """An API server with one APIService or without one."""

    ca: bytes | None = b""
    writes: list[bytes] = field(default_factory=list)
    fails: bool = False

    async def request(self, method: str, path: str, **more: Any) -> bytes:  # type: ignore[override]
        if self.fails:
            raise ClusterUnavailable("no answer")
        if self.ca is None:
            raise ClusterRefused("not found", 404)
        if method == "PATCH":
            self.ca = base64.b64decode(more["body"]["spec"]["caBundle"])
            self.writes.append(self.ca)
        spec = {"caBundle": base64.b64encode(self.ca).decode()} if self.ca else {}
        return json.dumps({"spec": spec}).encode()


def within(few: bytes, many: bytes) -> bool:
    return set(few.split()) <= set(many.split())


async def test_a_ca_is_written_once() -> None:
    server = Server()
    service = ApiServiceBundle(server, within)
    for ca in (b"one", b"one", b"one two"):
        await service.publish(ca)
    assert server.writes == [b"one", b"one two"]


async def test_a_ca_that_is_gone_is_put_back() -> None:
    server = Server()
    service = ApiServiceBundle(server, within)
    await service.publish(b"one")
    for other in (b"", b"somebodys"):
        server.ca = other
        await service.check()
        assert server.ca == b"one"


async def test_ca_bundle_of_a_replica_that_is_ahead_is_not_overwritten() -> None:
    server = Server()
    service = ApiServiceBundle(server, within)
    await service.publish(b"one")
    server.ca = b"one two"
    await service.check()
    assert server.writes == [b"one"]


async def test_nothing_is_written_before_a_ca_is_published() -> None:
    server = Server(b"somebodys")
    await ApiServiceBundle(server, within).check()
    assert server.writes == []


async def test_nothing_is_written_without_an_api_service() -> None:
    server = Server(None)
    service = ApiServiceBundle(server, within)
    await service.publish(b"one")
    await service.check()
    assert server.writes == []


async def test_failed_write_of_the_ca_raises_an_error() -> None:
    service = ApiServiceBundle(Server(fails=True), within)
    with pytest.raises(ClusterError):
        await service.publish(b"one")
