"""Contract of finding pods without a controller and pods with idle devices, fake and real."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
from aiohttp import web

from app.core.errors import ClusterError, ClusterUnavailable
from app.kube.client import Client
from app.kube.owners import KubeOwners
from app.ports.cluster import DeviceUse, OwnerLookup
from app.web.prometheus_client import Prometheus
from tests.fakes.fake_owner_lookup import FakeDeviceUse, FakeOwners

CORE = "/api/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
NOW = [("gracePeriodSeconds", "0"), ("propagationPolicy", "Orphan")]
SPEC: dict[str, Any] = {
    "containers": [{"name": "c", "image": "none"}],
    "nodeSelector": {"example.com/nowhere": "yes"},
    "restartPolicy": "Never",
}


class World(Protocol):
    owners: OwnerLookup

    async def make(self, *, gone: bool) -> tuple[str, str]:
        """Create a pod of a Job that exists or is gone; return the pod's name and uid."""


class FakeWorld:
    def __init__(self) -> None:
        self.owners: FakeOwners = FakeOwners()

    async def make(self, *, gone: bool) -> tuple[str, str]:
        name = uuid.uuid4().hex
        if gone:
            self.owners.gone[name] = "Job train"
        return name, name


class RealWorld:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.owners: OwnerLookup = KubeOwners(client)
        self.made: list[str] = []

    async def make(self, *, gone: bool) -> tuple[str, str]:
        """The pod has a finalizer, so that the garbage collector cannot delete it too early."""
        name, owner = f"z-{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
        if not gone:
            job = {
                "metadata": {"name": "train"},
                "spec": {"suspend": True, "template": {"spec": SPEC}},
            }
            made = await self._client.request("POST", JOBS, body=job)
            owner = json.loads(made)["metadata"]["uid"]
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
        metadata = {
            "name": name,
            "finalizers": ["example.com/wait"],
            "ownerReferences": [{**reference, "uid": owner}],
        }
        body = {"metadata": metadata, "spec": SPEC}
        pod = await self._client.request("POST", f"{CORE}/pods", body=body)
        self.made.append(name)
        return name, str(json.loads(pod)["metadata"]["uid"])

    async def clear(self) -> None:
        kind = "application/merge-patch+json"
        for name in self.made:
            path, patch = f"{CORE}/pods/{name}", {"metadata": {"finalizers": None}}
            await self._quietly("PATCH", path, body=patch, content_type=kind)
            await self._quietly("DELETE", path, query=NOW[:1])
        await self._quietly("DELETE", f"{JOBS}/train", query=NOW)

    async def _quietly(self, method: str, path: str, **more: Any) -> None:
        try:
            await self._client.request(method, path, **more)
        except ClusterError:
            return  # it is gone


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[RealWorld]:
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    world = RealWorld(client)
    yield world
    await world.clear()
    await client.close()


@pytest.fixture(params=["fake", "real"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "fake":
        return FakeWorld()
    return request.getfixturevalue("real")  # type: ignore[no-any-return]


async def test_a_controller_that_is_gone_is_named(world: World) -> None:
    name, uid = await world.make(gone=True)
    assert await world.owners.find_missing_owner("default", name, uid) == "Job train"


async def test_existing_controller_is_not_reported_missing(world: World) -> None:
    name, uid = await world.make(gone=False)
    assert await world.owners.find_missing_owner("default", name, uid) == ""


async def test_missing_owner_is_not_reported_for_another_pod_of_the_same_name(world: World) -> None:
    name, _ = await world.make(gone=True)
    assert await world.owners.find_missing_owner("default", name, str(uuid.uuid4())) == ""


def series(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1_700_000_000.123, value]}


class Server:
    """An HTTP server that answers like Prometheus."""

    def __init__(self) -> None:
        self.result: list[dict[str, Any]] = []
        self.queries: list[str] = []
        self.error = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.queries.append(str((await request.post())["query"]))
        if self.error:
            said = {"status": "error", "errorType": "bad_data", "error": self.error}
            return web.json_response(said, status=400)
        data = {"resultType": "vector", "result": self.result}
        return web.json_response({"status": "success", "data": data})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    server, app = Server(), web.Application()
    app.router.add_post("/prom/api/v1/query", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield server, f"http://127.0.0.1:{port}/prom/"
    await runner.cleanup()


@pytest.fixture(params=["fake", "real"])
def use(request: pytest.FixtureRequest) -> DeviceUse:
    """Device use of pod a/p: its busiest device was used 25 % of the time."""
    if request.param == "fake":
        fake = FakeDeviceUse()
        fake.parts = {("a", "p"): 0.25}
        return fake
    server, url = request.getfixturevalue("server")
    server.result = [series("25", namespace="a", pod="p")]
    return Prometheus(url)


async def test_peak_device_use_is_a_fraction(use: DeviceUse) -> None:
    assert await use.read_peak_device_use(3600) == {("a", "p"): 0.25}


async def test_the_window_is_in_the_query(server: tuple[Server, str]) -> None:
    asked, url = server
    await Prometheus(url).read_peak_device_use(1800)
    [query] = asked.queries
    assert "avg_over_time(DCGM_FI_DEV_GPU_UTIL[1800s])" in query


async def test_labels_that_prometheus_renamed_are_those_of_the_pod(
    server: tuple[Server, str],
) -> None:
    asked, url = server
    exporter = {"namespace": "gpu-operator", "pod": "dcgm-x"}
    asked.result = [
        series("3", **exporter, exported_namespace="a", exported_pod="p"),
        series("7", **exporter, exported_namespace="a", exported_pod="p"),
        series("NaN", namespace="a", pod="none"),
        series("9", Hostname="a device of nobody"),
    ]
    assert await Prometheus(url).read_peak_device_use(60) == {("a", "p"): 0.07}


async def test_answer_larger_than_a_read_buffer_is_read_completely(
    server: tuple[Server, str],
) -> None:
    """The answer is larger than the buffer of a reader."""
    asked, url = server
    asked.result = [series("25", namespace="a", pod=f"p{number}") for number in range(5000)]
    assert len(await Prometheus(url).read_peak_device_use(60)) == 5000


async def test_refused_query_raises_an_error_with_the_reason(server: tuple[Server, str]) -> None:
    asked, url = server
    asked.error = "parse error"
    with pytest.raises(ClusterUnavailable, match="400 parse error"):
        await Prometheus(url).read_peak_device_use(60)


async def test_unreachable_prometheus_raises_an_error(server: tuple[Server, str]) -> None:
    _, url = server
    with pytest.raises(ClusterUnavailable, match="404"):
        await Prometheus(url + "nowhere").read_peak_device_use(60)
    with pytest.raises(ClusterUnavailable, match="no answer"):
        await Prometheus("http://127.0.0.1:1").read_peak_device_use(60)
