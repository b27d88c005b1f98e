"""Random bodies: no exception, no 5xx, and no admitted GPU pod without the gate."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from app.core.events import SourceFresh, WatchedSource
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.core.well_known import GATE
from app.web.webhook.app import WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from tests.support.asgi import Reply, call
from tests.support.depth import cases
from tests.support.json_patch import PatchFailed, apply

BODIES = int(os.environ.get("FAIRGATE_FUZZ") or cases(1200, 3000))
"""Number of bodies; a quarter are not valid reviews."""

pytestmark = pytest.mark.timeout(300 + BODIES // 10)

GPU = "nvidia.com/gpu"
EXEMPT = "kube-system"

REVIEW: dict[str, Any] = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "705ab4f5",
        "operation": "CREATE",
        "namespace": "team-a",
        "userInfo": {"username": "alice", "groups": ["g"]},
        "dryRun": False,
        "object": {
            "metadata": {
                "name": "p",
                "labels": {"app": "x", "fairgate.io/tenant": "rich"},
                "annotations": {"fairgate.io/release": "9.9"},
            },
            "spec": {
                "containers": [
                    {"name": "a", "resources": {"requests": {GPU: "2"}, "limits": {GPU: "2"}}}
                ],
                "initContainers": [
                    {
                        "name": "b",
                        "restartPolicy": "Always",
                        "resources": {"limits": {GPU: 1, "cpu": "500m"}},
                    }
                ],
                "resources": {"requests": {"cpu": "1"}},
                "overhead": {"cpu": "1m"},
                "schedulingGates": [{"name": "example.com/other"}],
                "nodeSelector": {"zone": "a"},
            },
            "status": {},
        },
    },
}

_POD = REVIEW["request"]["object"]
CHANGE: dict[str, Any] = {
    **REVIEW,
    "request": {
        **REVIEW["request"],
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "oldObject": {**_POD, "spec": {**_POD["spec"], "schedulingGates": [{"name": GATE}]}},
    },
}
_TEMPLATE = {"metadata": {"annotations": {"fairgate.io/submitter": "bob"}}, "spec": _POD["spec"]}
STAMPED: dict[str, Any] = {
    **REVIEW,
    "request": {
        **REVIEW["request"],
        "operation": "UPDATE",
        "resource": {"group": "jobset.x-k8s.io", "version": "v1", "resource": "jobsets"},
        "object": {"spec": {"replicatedJobs": [{"template": {"spec": {"template": _TEMPLATE}}}]}},
        "oldObject": {"spec": {"replicatedJobs": []}},
    },
}

words = st.sampled_from(
    ["", "CREATE", "UPDATE", EXEMPT, GATE, GPU, "0", "1", "-1", "1e99", "Always", "\ud800", "\0"]
)
keys = words | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def post() -> Iterator[Any]:
    with asyncio.Runner() as runner:
        app = runner.run(_app())
        yield lambda body, path="/admit": runner.run(_post(app, body, path))


async def _app() -> ASGIApp:
    view = WebhookCache()
    await view.put(SourceFresh(Millis(0), WatchedSource.TENANTS))
    enforced = WebhookConfig(ManagedResources([GPU]), frozenset([EXEMPT]))
    return admission_app(view, enforced, lambda: view.is_ready)


async def _post(app: ASGIApp, body: bytes, path: str) -> Reply:
    return await call(app, "POST", path, body, {"content-type": "application/json"})


@settings(max_examples=BODIES // 4)
@given(body=st.binary(max_size=200))
def test_bytes_that_are_no_review_are_400(post: Any, body: bytes) -> None:
    assert post(body).status == 400


@settings(max_examples=BODIES - BODIES // 4)
@given(data=st.data())
def test_a_mutated_review_never_lets_a_gpu_pod_past_the_gate(
    post: Any, data: st.DataObject
) -> None:
    document = copy.deepcopy(REVIEW)
    for _ in range(data.draw(st.integers(0, 4))):
        _mutate(document, data)
    body = json.dumps(document).encode()
    if data.draw(st.integers(0, 3)) == 0:
        body = _damage(body, data)

    reply = post(body)

    assert reply.status in (200, 400)
    if reply.status == 400:
        return
    response = reply.json["response"]
    if not response["allowed"]:
        assert response["status"]["code"] < 500
        assert response["status"]["message"]
        return
    # The decoder does not validate strings that it skips, so invalid bytes may remain.
    request = json.loads(body.decode(errors="replace"))["request"]
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    assert _asks_for_nothing(request) or _ends_gated(request["object"], patch)


@settings(max_examples=BODIES // 4)
@given(data=st.data())
def test_mutated_review_of_update_or_template_causes_no_server_error(
    post: Any, data: st.DataObject
) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from([CHANGE, STAMPED])))
    for _ in range(data.draw(st.integers(0, 4))):
        _mutate(document, data)
    body = json.dumps(document).encode()
    if data.draw(st.integers(0, 3)) == 0:
        body = _damage(body, data)

    reply = post(body, data.draw(st.sampled_from(["/stamp", "/validate"])))

    assert reply.status in (200, 400)
    if reply.status == 200 and not reply.json["response"]["allowed"]:
        assert reply.json["response"]["status"]["code"] < 500
        assert reply.json["response"]["status"]["message"]


def _mutate(document: Any, data: st.DataObject) -> None:
    """Change, drop or add one value at a random place."""
    places = list(_places(document))
    place, key = data.draw(st.sampled_from(places))
    match data.draw(st.sampled_from(["change", "drop", "add"])):
        case "drop":
            del place[key]
        case "add" if isinstance(place, dict):
            place[data.draw(words)] = data.draw(values)
        case _:
            place[key] = data.draw(values)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key])
    if not keys and isinstance(node, dict):
        node["x"] = None
        yield node, "x"


def _damage(body: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, max(0, len(body) - 1)))
    return body[:at] + data.draw(st.binary(max_size=3)) + body[at + data.draw(st.integers(0, 3)) :]


def _asks_for_nothing(request: Any) -> bool:
    """Return whether no container obviously requests a GPU, by a second and simpler parser."""
    if request.get("operation") != "CREATE" or request.get("subResource"):
        return True
    if request.get("namespace") == EXEMPT:
        return True
    spec = request["object"].get("spec") or {}
    containers = (spec.get("containers") or []) + (spec.get("initContainers") or [])
    return not any(map(_plainly_asks, containers))


def _plainly_asks(container: Any) -> bool:
    resources = (container or {}).get("resources") or {}  # null is an empty container
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    count = asked.get(GPU, 0)
    if isinstance(count, str):
        return count.isdigit() and int(count) > 0
    return count is not None and count > 0  # null is no request


def _ends_gated(pod: Any, patch: Any) -> bool:
    try:
        held = apply(pod, patch)
    except PatchFailed:
        return True  # the API server then refuses the pod
    return any(gate.get("name") == GATE for gate in held["spec"]["schedulingGates"])
