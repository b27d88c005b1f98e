"""Write requests to the API server, and the interpretation of its answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable, WriteRefused
from app.kube.client import Client
from app.kube.tenants_pools import KubeResources, ResourceStatus, plain_message
from app.ports.api import Stored
from app.ports.cluster import StoredCondition

TENANTS = "/apis/fairgate.io/v1alpha1/tenants"
FOUND = {
    "metadata": {
        "name": "team a", "uid": "u-1", "generation": 4, "resourceVersion": "77",
        "annotations": {"other.example/x": "kept"}, "labels": {"kept": "too"},
    },
    "spec": {"weight": "1"},
}  # fmt: skip


@dataclass
class Wire(Client):
    """A client that records its requests."""

    answers: list[Any] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def request(self, method: str, path: str, **more: Any) -> bytes:  # type: ignore[override]
        self.sent.append({"method": method, "path": path, **more})
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def refused(status: int, said: str, method: str = "PATCH", at: str = "team%20a") -> ClusterRefused:
    return ClusterRefused(f"{method} {TENANTS}/{at}: {status} {said}", status)


async def stored() -> Stored:
    found = await KubeResources(Wire([FOUND])).read("tenants", "team a")
    assert found is not None
    return found


async def test_edition_consists_of_uid_and_generation() -> None:
    found = await stored()
    assert (found.edition, found.version) == ("u-1-4", "77")


async def test_a_change_touches_the_spec_and_its_authors_name_alone() -> None:
    client = Wire([FOUND])
    await KubeResources(client).write("tenants", "team a", {"weight": "2"}, "alice", await stored())
    (sent,) = client.sent
    assert (sent["method"], sent["path"]) == ("PATCH", f"{TENANTS}/team%20a")
    assert sent["body"] == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "77"},
        {"op": "add", "path": "/spec", "value": {"weight": "2"}},
        {"op": "add", "path": "/metadata/annotations/fairgate.io~1changed-by", "value": "alice"},
        {"op": "add", "path": "/metadata/annotations/fairgate.io~1changed", "value": "5"},
    ]
    assert ("dryRun", "All") not in sent["query"]


async def test_an_object_without_annotations_gets_them_all() -> None:
    bare = {**FOUND, "metadata": {**FOUND["metadata"], "annotations": None}}
    client = Wire([bare, FOUND])
    resources = KubeResources(client)
    before = await resources.read("tenants", "team a")
    await resources.write("tenants", "team a", {}, "alice", before)
    assert client.sent[1]["body"][-1] == {
        "op": "add",
        "path": "/metadata/annotations",
        "value": {"fairgate.io/changed-by": "alice", "fairgate.io/changed": "5"},
    }


async def test_created_object_is_annotated_with_its_author() -> None:
    client = Wire([FOUND])
    await KubeResources(client).write("tenants", "new", {}, "alice", None, dry_run=True)
    (sent,) = client.sent
    assert (sent["method"], sent["path"]) == ("POST", TENANTS)
    assert sent["body"]["metadata"]["annotations"] == {
        "fairgate.io/changed-by": "alice",
        "fairgate.io/changed": "1",
    }
    assert ("dryRun", "All") in sent["query"]


async def test_deletion_requires_the_uid_and_resource_version_that_were_read() -> None:
    client = Wire([{"kind": "Status"}])
    assert await KubeResources(client).delete("tenants", await stored(), "alice")
    assert client.sent[0]["body"]["preconditions"] == {"uid": "u-1", "resourceVersion": "77"}
    assert client.sent[0]["body"]["dryRun"] == []
    tried = Wire([{"kind": "Status"}])
    assert await KubeResources(tried).delete("tenants", await stored(), "alice", dry_run=True)
    assert tried.sent[0]["body"]["dryRun"] == ["All"]


@pytest.mark.parametrize("status", [404, 409])
async def test_write_or_deletion_that_lost_a_race_changes_nothing(status: int) -> None:
    before = await stored()
    resources = KubeResources(Wire([refused(status, "no"), refused(status, "no")]))
    assert await resources.write("tenants", "team a", {}, "alice", before) is None
    assert not await resources.delete("tenants", before, "alice")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, WriteRefused), (403, WriteRefused), (400, WriteRefused), (413, WriteRefused),
     (401, ClusterRefused), (429, ClusterRefused)],
)  # fmt: skip
async def test_only_refusals_of_the_object_itself_raise_write_refused(
    status: int, kind: type[ClusterRefused]
) -> None:
    resources, before = KubeResources(Wire([refused(status, "no")])), await stored()
    with pytest.raises(ClusterRefused) as caught:
        await resources.write("tenants", "team a", {}, "alice", before)
    assert type(caught.value) is kind


async def test_write_without_a_response_raises_cluster_unavailable() -> None:
    resources, before = KubeResources(Wire([ClusterUnavailable("no answer")])), await stored()
    with pytest.raises(ClusterUnavailable):
        await resources.write("tenants", "team a", {}, "alice", before)


async def test_answer_that_is_no_valid_object_raises_cluster_unavailable() -> None:
    for answer in ({}, [], {"metadata": {"name": "x"}}, 7):
        with pytest.raises(ClusterUnavailable):
            await KubeResources(Wire([answer])).read("tenants", "x")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            'Tenant.fairgate.io "a" is invalid: spec.weight: Invalid value: "string": must be a '
            "decimal number of 0 or more, such as 2 or 0.5; at most six decimals",
            "spec.weight: must be a decimal number of 0 or more, such as 2 or 0.5; at most six "
            "decimals.",
        ),
        (
            'Tenant.fairgate.io "a" is invalid: spec.maxPending: Invalid value: -1: in body should',
            "spec.maxPending: -1: in body should.",
        ),
        (
            'Tenant.fairgate.io "ns.a" is invalid: metadata.name: Invalid value: names that',
            "metadata.name: names that.",
        ),
        ('tenants.fairgate.io "a" is forbidden: because.', "because."),
        ("anything else", "anything else."),
    ],
)
def test_messages_of_the_api_server_are_shortened_to_field_and_reason(said: str, kept: str) -> None:
    assert plain_message(said) == kept


async def test_a_condition_with_an_odd_time_is_left_out() -> None:
    times = {
        "Bad": "0000-01-01T00:00:00Z",
        "Old": "0001-01-01T00:00:00Z",
        "Late": "9999-12-31T23:59:59-23:59",
        "Good": "2026-01-02T03:04:05Z",
    }
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": at} for name, at in times.items()
    ]
    conditions.append({"type": "Timeless", "status": "True"})
    item = {"metadata": {"name": "a", "uid": "u"}, "status": {"conditions": conditions}}
    bare = {"metadata": {"name": "b", "uid": "v"}}
    found = await ResourceStatus(Wire([{"items": [item, bare]}])).read_status("tenants")
    assert found.conditions == {("a", "Good"): StoredCondition("u", True, 1_767_323_045_000)}


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        {},
        [],
        {"items": [{}]},
        {"items": [{"metadata": {"name": "a", "uid": "u"}, "status": {"conditions": [7]}}]},
    ],
)
async def test_conditions_that_cannot_be_read_are_an_unavailable_cluster(answer: Any) -> None:
    with pytest.raises(ClusterUnavailable, match="something else than a list"):
        await ResourceStatus(Wire([answer])).read_status("tenants")
