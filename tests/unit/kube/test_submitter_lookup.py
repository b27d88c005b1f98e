"""The search for the submitter of an owner in the API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from app.core.admission.pod_templates import group_by_resource
from app.core.admission.submitters import OwnerRef
from app.core.admission.workload_kinds import BUILT_IN
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.kube.client import Client
from app.kube.submitter_lookup import FOUND_SECONDS, KubeSubmitters

KINDS = group_by_resource(BUILT_IN)
STAMP = {"fairgate.io/submitter": "alice"}


class ApiServer:
    """Serves objects by path, and records the paths."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.asked: list[str] = []
        self.status = 404

    async def request(self, method: str, path: str, *, timeout: float) -> bytes:
        self.asked.append(path)
        if path not in self.objects:
            raise ClusterRefused("no", self.status)
        return msgspec.json.encode(self.objects[path])

    def add(self, owner: OwnerRef, above: OwnerRef | None = None, stamped: bool = False) -> None:
        """Store the object that a reference names, with its own owner."""
        metadata: dict[str, Any] = {"uid": owner.uid}
        if above is not None:
            reference = {"apiVersion": above.api_version, "kind": above.kind, "name": above.name}
            references = [{**reference, "uid": above.uid, "controller": True}]
            metadata["ownerReferences"] = references
        template = {"metadata": {"annotations": STAMP if stamped else {}}}
        path = f"/apis/{owner.api_version}/namespaces/a/{owner.resource}/{owner.name}"
        self.objects[path] = {"metadata": metadata, "spec": {"template": template}}


def job(name: str) -> OwnerRef:
    return OwnerRef("batch/v1", "Job", name, f"uid-{name}")


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def submitters(server: ApiServer, clock: list[float]) -> KubeSubmitters:
    return KubeSubmitters(cast(Client, server), KINDS, lambda: clock[0])


async def test_the_stamp_of_the_owner_counts(submitters: KubeSubmitters, server: ApiServer) -> None:
    server.add(job("train"), stamped=True)
    assert await submitters.submitter_of("a", job("train")) == "alice"


async def test_an_owner_of_the_owner_does_not_count(
    submitters: KubeSubmitters, server: ApiServer
) -> None:
    """A user may edit the references of an object without a stamp."""
    server.add(job("inner"), above=job("outer"))
    server.add(job("outer"), stamped=True)
    assert await submitters.submitter_of("a", job("outer")) == "alice"
    assert await submitters.submitter_of("a", job("inner")) is None


async def test_a_stamped_owner_is_read_once(
    submitters: KubeSubmitters, server: ApiServer, clock: list[float]
) -> None:
    server.add(job("train"), stamped=True)
    for _ in range(3):
        assert await submitters.submitter_of("a", job("train")) == "alice"
    assert len(server.asked) == 1
    clock[0] += FOUND_SECONDS
    await submitters.submitter_of("a", job("train"))
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("namespace", "change"),
    [("b", {}), ("a", {"name": "other"}), ("a", {"kind": "CronJob"}), ("a", {"uid": "other"})],
)
async def test_a_known_owner_counts_only_by_its_whole_reference(
    submitters: KubeSubmitters, server: ApiServer, namespace: str, change: dict[str, str]
) -> None:
    server.add(job("train"), stamped=True)
    assert await submitters.submitter_of("a", job("train")) == "alice"
    assert await submitters.submitter_of(namespace, replace(job("train"), **change)) is None
    assert await submitters.submitter_of("a", job("train")) == "alice"


async def test_the_annotation_of_a_pod_counts_only_if_the_pod_is_managed(server: ApiServer) -> None:
    owner = OwnerRef("v1", "Pod", "leader", "uid-leader")
    written = {**STAMP, "fairgate.io/release": "0"}
    server.objects["/api/v1/namespaces/a/pods/leader"] = {
        "metadata": {"uid": owner.uid, "annotations": written},
        "spec": {"gpus": 1},
    }
    for asks, found in ((True, "alice"), (False, None)):
        submitters = KubeSubmitters(
            cast(Client, server), KINDS, lambda: 0.0, lambda spec, asks=asks: bool(spec) and asks
        )
        assert await submitters.submitter_of("a", owner) == found


async def test_an_object_that_replaced_the_owner_does_not_count(
    submitters: KubeSubmitters, server: ApiServer
) -> None:
    server.add(job("train"), stamped=True)
    assert await submitters.submitter_of("a", OwnerRef("batch/v1", "Job", "train", "old")) is None


async def test_an_unknown_kind_is_not_read(submitters: KubeSubmitters, server: ApiServer) -> None:
    widget = OwnerRef("acme.io/v1", "Widget", "../../secrets", "u")
    assert await submitters.submitter_of("a", widget) is None
    assert server.asked == []


async def test_owner_name_is_escaped_to_one_path_segment(
    submitters: KubeSubmitters, server: ApiServer
) -> None:
    assert await submitters.submitter_of("a", OwnerRef("v1", "Pod", "../x?y", "u")) is None
    assert server.asked == ["/api/v1/namespaces/a/pods/..%2Fx%3Fy"]


@pytest.mark.parametrize("version", ["v1%2Fnamespaces%2Fother%2Fpods%2Fbob?x=", "../v1", "V1", ""])
async def test_a_strange_version_is_not_read(
    submitters: KubeSubmitters, server: ApiServer, version: str
) -> None:
    assert await submitters.submitter_of("a", OwnerRef(version, "Pod", "x", "u")) is None
    assert server.asked == []


@pytest.mark.parametrize("status", [403, 404])
async def test_an_owner_that_cannot_be_read_has_no_submitter(
    submitters: KubeSubmitters, server: ApiServer, status: int
) -> None:
    server.status = status
    assert await submitters.submitter_of("a", job("gone")) is None


async def test_garbage_is_an_error(submitters: KubeSubmitters, server: ApiServer) -> None:
    class Garbled(ApiServer):
        async def request(self, method: str, path: str, *, timeout: float) -> bytes:
            return b"<html>"

    garbled = KubeSubmitters(cast(Client, Garbled()), KINDS, lambda: 0.0)
    with pytest.raises(ClusterUnavailable, match="garbled"):
        await garbled.submitter_of("a", job("x"))
