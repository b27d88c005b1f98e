"""Contract of adopting and evicting pods, for the fakes and for a real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from app.core.effects import Adopt, PodRef
from app.core.errors import ClusterError
from app.core.model import Millis, Uid
from app.core.well_known import ANNOTATION_RELEASE, RELEASE_ADOPTED
from app.kube.client import Client
from app.kube.convert import read_time
from app.kube.eviction import LONGEST_GRACE, OVERRIDE_GRACE, PodAdopter, PodEvictor
from app.kube.install_record import NAME, KeptInstallation
from app.ports.cluster import Adopter, Evictor, InstallRecord
from tests.fakes.fake_evictor import FakeCorrector, FakeInstallation, FreePod

CORE = "/api/v1/namespaces/default"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
NOW = [("gracePeriodSeconds", "0")]
LABELS = {"fairgate.io/tenant": "team-a", "fairgate.io/pool": "h100"}
MINE = {"mine": "yes"}


class World(Protocol):
    """An API server with released pods."""

    adopter: Adopter
    evictor: Evictor

    async def run(self, *, bare: bool = False, guarded: bool = False) -> PodRef:
        """Create a running pod. `bare` creates it without labels and annotations."""

    async def run_together(self, count: int, allowed: int) -> list[PodRef]:
        """Create ready pods under one budget that allows `allowed` evictions."""

    async def state(self, ref: PodRef) -> tuple[str, dict[str, str], dict[str, str]] | None:
        """Return the stamp, the labels and the other annotations; None if gone or terminating."""

    async def replace(self, ref: PodRef) -> None:
        """Delete the pod and create another pod with the same name."""


class FakeWorld:
    def __init__(self) -> None:
        self.fake = FakeCorrector()
        self.adopter: Adopter = self.fake
        self.evictor: Evictor = self.fake

    async def run(self, *, bare: bool = False, guarded: bool = False) -> PodRef:
        name = uuid.uuid4().hex
        kept = {} if bare else dict(MINE)
        self.fake.pods["default", name] = FreePod(
            name, "", dict(kept), dict(kept), [0] if guarded else None
        )
        return PodRef(Uid(name), "default", name)

    async def run_together(self, count: int, allowed: int) -> list[PodRef]:
        budget = [allowed]
        refs = [await self.run() for _ in range(count)]
        for ref in refs:
            self.fake.pods["default", ref.name].budget = budget
        return refs

    async def state(self, ref: PodRef) -> tuple[str, dict[str, str], dict[str, str]] | None:
        pod = self.fake.pods.get(("default", ref.name))
        return None if pod is None else (pod.stamp, pod.labels, pod.annotations)

    async def replace(self, ref: PodRef) -> None:
        self.fake.pods["default", ref.name] = FreePod("another")


class RealWorld:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.adopter: Adopter = PodAdopter(client)
        self.evictor: Evictor = PodEvictor(client)
        self.made: list[str] = []

    async def run(self, *, bare: bool = False, guarded: bool = False, grace: int = 30) -> PodRef:
        name = f"correct-{uuid.uuid4().hex[:8]}"
        kept = {} if bare else dict(MINE)
        if guarded:
            kept["guarded"] = name
            budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"guarded": name}}}
            body = {"metadata": {"name": name}, "spec": budget}
            await self.client.request("POST", BUDGETS, body=body)
        return PodRef(Uid(await self._create(name, kept, guarded, grace)), "default", name)

    async def run_together(self, count: int, allowed: int) -> list[PodRef]:
        group = f"together-{uuid.uuid4().hex[:8]}"
        names = [f"{group}-{number}" for number in range(count)]
        refs = []
        for name in names:
            refs.append(
                PodRef(Uid(await self._create(name, {"group": group}, True)), "default", name)
            )
        match = [{"key": "group", "operator": "In", "values": [group]}]
        spec = {"minAvailable": count - allowed, "selector": {"matchExpressions": match}}
        await self.client.request(
            "POST", BUDGETS, body={"metadata": {"name": names[0]}, "spec": spec}
        )
        async with asyncio.timeout(60):
            while (await self._budget(names[0])).get("disruptionsAllowed") != allowed:
                await asyncio.sleep(0.1)
        return refs

    async def _budget(self, name: str) -> dict[str, Any]:
        found = json.loads(await self.client.request("GET", f"{BUDGETS}/{name}"))
        status: dict[str, Any] = found.get("status", {})
        return status if status.get("currentHealthy") else {}

    async def _create(
        self, name: str, kept: dict[str, str], bound: bool = False, grace: int = 30
    ) -> str:
        meta = {"name": name} | ({"labels": kept, "annotations": kept} if kept else {})
        spec: dict[str, Any] = {
            "containers": [{"name": "c", "image": "none"}],
            "nodeSelector": {"example.com/nowhere": "yes"},
            "terminationGracePeriodSeconds": grace,
        }
        pod = await self.client.request(
            "POST", f"{CORE}/pods", body={"metadata": meta, "spec": spec}
        )
        self.made.append(name)
        if bound:  # a budget protects only pods that are not pending
            ready = {"type": "Ready", "status": "True"}
            status = {"status": {"phase": "Running", "conditions": [ready]}}
            path, kind = f"{CORE}/pods/{name}/status", "application/merge-patch+json"
            await self.client.request("PATCH", path, body=status, content_type=kind)
        return str(json.loads(pod)["metadata"]["uid"])

    async def _read(self, name: str) -> Any:
        try:
            return json.loads(await self.client.request("GET", f"{CORE}/pods/{name}"))
        except ClusterError:
            return None

    async def state(self, ref: PodRef) -> tuple[str, dict[str, str], dict[str, str]] | None:
        pod = await self._read(ref.name)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return None
        annotations = dict(pod["metadata"].get("annotations", {}))
        stamp = annotations.pop(ANNOTATION_RELEASE, "")
        return stamp, pod["metadata"].get("labels", {}), annotations

    async def replace(self, ref: PodRef) -> None:
        await self.client.request("DELETE", f"{CORE}/pods/{ref.name}", query=NOW)
        await self._create(ref.name, {})

    async def clear(self) -> None:
        for name in self.made:
            for path in (f"{CORE}/pods/{name}", f"{BUDGETS}/{name}"):
                try:
                    await self.client.request("DELETE", path, query=NOW)
                except ClusterError:
                    continue  # it is gone


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


async def test_adopted_pod_is_stamped_and_keeps_its_labels_and_annotations(world: World) -> None:
    ref = await world.run()
    await world.adopter.adopt(Adopt(ref, LABELS))
    assert await world.state(ref) == (RELEASE_ADOPTED, LABELS | MINE, MINE)


async def test_a_pod_without_labels_and_annotations_is_adopted(world: World) -> None:
    ref = await world.run(bare=True)
    await world.adopter.adopt(Adopt(ref, LABELS))
    assert await world.state(ref) == (RELEASE_ADOPTED, LABELS, {})


async def test_second_adoption_does_not_change_the_pod(world: World) -> None:
    ref = await world.run()
    for _ in range(2):
        await world.adopter.adopt(Adopt(ref, LABELS))
    assert await world.state(ref) == (RELEASE_ADOPTED, LABELS | MINE, MINE)


async def test_another_pod_of_that_name_is_not_adopted(world: World) -> None:
    ref = await world.run()
    await world.replace(ref)
    with pytest.raises(ClusterError):
        await world.adopter.adopt(Adopt(ref, LABELS))
    assert await world.state(ref) == ("", {}, {})


async def test_adopting_and_evicting_a_deleted_pod_succeed(world: World) -> None:
    ref = await world.run()
    assert await world.evictor.evict(ref)
    await world.adopter.adopt(Adopt(ref, LABELS))
    assert await world.evictor.evict(ref)


async def test_evicted_pod_is_deleted(world: World) -> None:
    ref = await world.run()
    assert await world.evictor.evict(ref)
    assert await world.state(ref) is None


async def test_another_pod_of_that_name_is_not_evicted(world: World) -> None:
    ref = await world.run()
    await world.replace(ref)
    assert await world.evictor.evict(ref)  # the pod is gone
    assert await world.state(ref) == ("", {}, {})


async def test_eviction_fails_if_a_budget_protects_the_pod(world: World) -> None:
    ref = await world.run(guarded=True)
    assert not await world.evictor.evict(ref)
    assert await world.state(ref) is not None


async def test_eviction_fails_if_several_budgets_cover_the_pod(real: RealWorld) -> None:
    """The API server answers 500, as if it were down."""
    ref = await real.run(guarded=True)
    second = {"maxUnavailable": 1, "selector": {"matchLabels": {"guarded": ref.name}}}
    body = {"metadata": {"name": f"{ref.name}-2"}, "spec": second}
    await real.client.request("POST", BUDGETS, body=body)
    try:
        assert not await real.evictor.evict(ref)
        assert list(await real.evictor.find_unevictable([ref])) == [ref.uid]
        assert await real.state(ref) is not None
    finally:
        await real.client.request("DELETE", f"{BUDGETS}/{ref.name}-2", query=NOW)


async def test_protected_pods_are_reported_unevictable_without_any_eviction(world: World) -> None:
    free, guarded = await world.run(), await world.run(guarded=True)
    kept = await world.evictor.find_unevictable([free, guarded])
    assert list(kept) == [guarded.uid]
    assert await world.state(free) is not None


async def test_pods_are_unevictable_together_if_their_budget_allows_fewer(world: World) -> None:
    refs = await world.run_together(3, allowed=2)
    assert set(await world.evictor.find_unevictable(refs)) == {ref.uid for ref in refs}
    assert not await world.evictor.find_unevictable(refs[:2])


async def test_deleted_pod_is_not_unevictable(world: World) -> None:
    ref = await world.run()
    await world.replace(ref)
    assert not await world.evictor.find_unevictable([ref])


async def forget(client: Client) -> None:
    try:
        await client.request("DELETE", f"{CORE}/configmaps/{NAME}")
    except ClusterError:
        return  # the record is absent


async def write(client: Client, data: dict[str, str]) -> int:
    """Write the installation record and return its time."""
    body = {"metadata": {"name": NAME}, "data": data}
    kept = json.loads(await client.request("POST", f"{CORE}/configmaps", body=body))
    return read_time("", kept["metadata"]["creationTimestamp"])


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    await forget(client)
    yield client
    await forget(client)
    await client.close()


@pytest.fixture(params=["fake", "real"])
def installation(request: pytest.FixtureRequest) -> InstallRecord:
    if request.param == "fake":
        return FakeInstallation()
    return KeptInstallation(request.getfixturevalue("client"), "default")


LATER = Millis(4_000_000_000_000)


async def test_first_call_sets_the_install_time_for_all_later_calls(
    installation: InstallRecord,
) -> None:
    assert await installation.ensure_install_time(LATER) == LATER
    assert await installation.ensure_install_time(Millis(LATER + 60_000)) == LATER
    assert await installation.ensure_install_time(Millis(0)) == LATER


async def test_another_leader_reads_the_same_install_time(client: Client) -> None:
    await KeptInstallation(client, "default").ensure_install_time(LATER)
    assert await KeptInstallation(client, "default").ensure_install_time(Millis(1)) == LATER


async def test_the_record_is_never_older_than_itself(client: Client) -> None:
    """A slow clock of the writer must not make a pod count as a bypass."""
    written = await write(client, {"since": "2001-01-01T00:00:00Z"})
    assert await KeptInstallation(client, "default").ensure_install_time(Millis(1)) == written


@pytest.mark.parametrize("data", [{}, {"since": "yesterday"}], ids=str)
async def test_invalid_install_record_counts_from_its_creation_time(
    client: Client, data: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    written = await write(client, data)
    assert await KeptInstallation(client, "default").ensure_install_time(Millis(1)) == written
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_pod_protected_by_a_budget_can_be_deleted(world: World) -> None:
    ref = await world.run(guarded=True)
    assert not await world.evictor.evict(ref)
    await world.evictor.delete(ref)
    assert await world.state(ref) is None
    await world.evictor.delete(ref)  # a pod that is gone is no error


async def test_another_pod_of_that_name_is_not_deleted(world: World) -> None:
    ref = await world.run()
    await world.replace(ref)
    await world.evictor.delete(ref)
    assert await world.state(ref) is not None


async def test_a_deleted_pod_has_a_short_time_to_end(real: RealWorld) -> None:
    ref = await real.run(guarded=True)
    asked: list[Any] = []
    request = real.client.request

    async def heard(method: str, path: str, **more: Any) -> bytes:
        asked.append((method, more.get("body")))
        return await request(method, path, **more)

    real.client.request = heard  # type: ignore[method-assign]
    await real.evictor.delete(ref)
    body = {"preconditions": {"uid": ref.uid}, "gracePeriodSeconds": OVERRIDE_GRACE}
    assert asked[-1] == ("DELETE", body)


async def test_an_evicted_pod_has_no_year_to_end(real: RealWorld) -> None:
    ref = await real.run(grace=31_536_000)
    asked: list[Any] = []
    request = real.client.request

    async def heard(method: str, path: str, **more: Any) -> bytes:
        asked.append(more.get("body"))
        return await request(method, path, **more)

    real.client.request = heard  # type: ignore[method-assign]
    assert await real.evictor.evict(ref)
    assert asked[-1]["deleteOptions"]["gracePeriodSeconds"] == LONGEST_GRACE
