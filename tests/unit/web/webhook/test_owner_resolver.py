"""Pods and objects that a controller creates count for the submitter of their owner."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp

from app.core.admission.validation import CONTROLLERS
from app.core.events import SourceFresh, WatchedSource
from app.core.model import Millis, UserName
from app.core.quantities import ManagedResources
from app.web.metrics import REGISTRY
from app.web.webhook.app import WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from app.web.webhook.owner_resolver import OwnerResolver
from tests.fakes.fake_authorizer import People
from tests.fakes.fake_submitter_lookup import FakeSubmitters
from tests.support.asgi import call
from tests.support.json_patch import apply
from tests.support.webhook_app import JSON, gpu_pod, review

OPERATOR = "system:serviceaccount:acme:operator"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u1", "controller": True}
SUBMITTER = "fairgate.io/submitter"
EVERYWHERE = {("create", ":pods", ""), ("create", ":jobs", "")}
JOBS = {"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}
PODS = {"resource": {"group": "", "version": "v1", "resource": "pods"}}


class Setting:
    """The webhook with one operator, and an owner that alice submitted."""

    def __init__(self, view: WebhookCache) -> None:
        self.people = People({OPERATOR: set(EVERYWHERE)})
        self.submitters = FakeSubmitters()
        self.submitters.known["u1"] = UserName("alice")
        enforced = WebhookConfig(ManagedResources(["nvidia.com/gpu"]), frozenset(["kube-system"]))
        owners = OwnerResolver(CONTROLLERS, self.people, self.submitters)
        self.app: ASGIApp = admission_app(view, enforced, lambda: True, None, owners)

    async def decide(self, path: str, item: Any, caller: str, **request: Any) -> dict[str, Any]:
        """Return the answer of a path."""
        body = review(item, userInfo={"username": caller}, **request)
        reply = await call(self.app, "POST", path, msgspec.json.encode(body), JSON)
        answer: dict[str, Any] = reply.json["response"]
        return answer

    async def submitter(self, caller: str, stamp: str = "", **metadata: Any) -> str:
        """Return the submitter of a pod that the caller creates."""
        annotations = {SUBMITTER: stamp} if stamp else {}
        pod = gpu_pod(annotations=annotations, ownerReferences=[OWNER], **metadata)
        answer = await self.decide("/admit", pod, caller, **PODS)
        held = apply(pod, msgspec.json.decode(base64.b64decode(answer["patch"])))
        return str(held["metadata"]["annotations"][SUBMITTER])


@pytest.fixture
async def setting() -> Setting:
    view = WebhookCache()
    await view.put(SourceFresh(Millis(0), WatchedSource.TENANTS))
    return Setting(view)


def looked_up(result: str) -> float:
    return REGISTRY.get_sample_value("fairgate_owner_lookups_total", {"result": result}) or 0.0


async def test_a_pod_of_an_operator_counts_for_the_submitter_of_its_owner(setting: Setting) -> None:
    before = looked_up("found")
    assert await setting.submitter(OPERATOR) == "alice"
    assert await setting.submitter(OPERATOR, stamp="mallory") == "alice"
    assert looked_up("found") == before + 2


async def test_a_pod_of_a_listed_controller_without_a_stamp_counts_for_its_owner(
    setting: Setting,
) -> None:
    assert await setting.submitter(CONTROLLERS[0]) == "alice"


async def test_a_stamp_from_a_listed_controller_needs_no_look_up(setting: Setting) -> None:
    assert await setting.submitter(CONTROLLERS[0], stamp="bob") == "bob"
    assert setting.submitters.asked == []


async def test_a_tenant_cannot_name_the_owner_of_its_pod(setting: Setting) -> None:
    before = looked_up("not-trusted")
    assert await setting.submitter("mallory", stamp="alice") == "mallory"
    assert setting.submitters.asked == []
    assert looked_up("not-trusted") == before + 1


async def test_without_a_submitter_the_caller_is_charged(setting: Setting) -> None:
    setting.submitters.known.clear()
    before = looked_up("none")
    assert await setting.submitter(OPERATOR) == OPERATOR
    assert looked_up("none") == before + 1


@pytest.mark.parametrize("part", ["people", "submitters"])
async def test_a_failed_look_up_charges_the_caller(setting: Setting, part: str) -> None:
    if part == "people":
        setting.people.rights.clear()
    setting.submitters.silent = True
    assert await setting.submitter(OPERATOR) == OPERATOR


async def test_a_pod_without_an_owner_needs_no_look_up(setting: Setting) -> None:
    await setting.decide("/admit", gpu_pod(), OPERATOR, **PODS)
    assert setting.submitters.asked == []


def job(stamp: str = "") -> dict[str, Any]:
    template: dict[str, Any] = {"spec": gpu_pod()["spec"]}
    if stamp:
        template["metadata"] = {"annotations": {SUBMITTER: stamp}}
    return {"metadata": {"name": "j", "ownerReferences": [OWNER]}, "spec": {"template": template}}


@pytest.mark.parametrize("caller", [OPERATOR, CONTROLLERS[0]])
@pytest.mark.parametrize("stamp", ["", "alice"])
async def test_an_object_of_a_controller_has_the_stamp_of_its_owner(
    setting: Setting, caller: str, stamp: str
) -> None:
    item = job(stamp)
    answer = await setting.decide("/stamp", item, caller, **JOBS)
    patch = msgspec.json.decode(base64.b64decode(answer["patch"])) if "patch" in answer else []
    template = apply(item, patch)["spec"]["template"]
    assert template["metadata"]["annotations"] == {SUBMITTER: "alice"}
    assert "warnings" not in answer


async def test_an_object_of_an_operator_without_a_submitter_counts_for_the_operator(
    setting: Setting,
) -> None:
    setting.submitters.known.clear()
    item = job()
    answer = await setting.decide("/stamp", item, OPERATOR, **JOBS)
    patch = msgspec.json.decode(base64.b64decode(answer["patch"]))
    template = apply(item, patch)["spec"]["template"]
    assert template["metadata"]["annotations"] == {SUBMITTER: OPERATOR}


@pytest.mark.parametrize(("caller", "allowed"), [(OPERATOR, True), ("mallory", False)])
async def test_validation_allows_the_stamp_of_another_only_to_operators(
    setting: Setting, caller: str, allowed: bool
) -> None:
    answer = await setting.decide("/validate", job("alice"), caller, **JOBS)
    assert answer["allowed"] is allowed
