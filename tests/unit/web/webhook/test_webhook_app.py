"""The webhook's endpoint: its answers. No error ever leads to an admitted pod without a gate."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp

from app.core.admission.hold import NamespaceOwner
from app.core.admission.priority_class_twins import PriorityClass
from app.core.audit_entry import EntryType, Fact
from app.core.events import (
    PolicyObserved,
    PriorityObserved,
    SourceFresh,
    TenantGone,
    TenantObserved,
    WatchedSource,
)
from app.core.model import Millis, Tenant, TenantName
from app.core.policy import Mode, Policy
from app.core.quantities import ManagedResources
from app.core.well_known import GATE
from app.web.metrics import REGISTRY
from app.web.webhook.app import BODY_LIMIT, LONGEST_NAME, WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from tests.support.asgi import call
from tests.support.json_patch import apply
from tests.support.webhook_app import JSON, UID, answer, app_of, gpu_pod, post, review

NOW = Millis(0)

REPLICATION = "system:serviceaccount:kube-system:replicaset-controller"


async def ready_view(*tenants: TenantObserved) -> WebhookCache:
    view = WebhookCache()
    for tenant in tenants:
        await view.put(tenant)
    await view.put(SourceFresh(NOW, WatchedSource.TENANTS))
    return view


@pytest.fixture
async def app() -> ASGIApp:
    return app_of(await ready_view())


async def test_a_gpu_pod_is_held(app: ASGIApp) -> None:
    pod = gpu_pod()

    response = await answer(app, review(pod))

    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    held = apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))
    assert held["spec"]["schedulingGates"] == [{"name": GATE}]
    assert held["metadata"]["labels"]["fairgate.io/tenant"] == "ns.team-a"
    assert held["metadata"]["annotations"]["fairgate.io/submitter"] == "alice"


async def test_null_field_is_read_as_absent(app: ASGIApp) -> None:
    pod = gpu_pod(labels={"app": None}, namespace=None) | {"status": None}
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": None}
    user = {"username": "alice", "groups": None}

    response = await answer(app, review(pod, dryRun=None, subResource=None, userInfo=user))

    held = apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))
    assert held["spec"]["schedulingGates"] == [{"name": GATE}]


async def test_a_template_with_null_fields_is_stamped(app: ASGIApp) -> None:
    container = {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": None}}}
    template = {
        "metadata": None,
        "spec": {"containers": [container], "tolerations": [{"key": None}]},
    }
    job = {"metadata": {"name": "j"}, "spec": {"template": template}}
    request = {"resource": {"group": "batch", "version": "v1", "resource": "jobs"}, "dryRun": None}

    reply = await call(app, "POST", "/stamp", msgspec.json.encode(review(job, **request)), JSON)

    patch = msgspec.json.decode(base64.b64decode(reply.json["response"]["patch"]))
    written = apply(job, patch)["spec"]["template"]["metadata"]["annotations"]
    assert written == {"fairgate.io/submitter": "alice"}


@pytest.mark.parametrize("amount", ["1e0000000000", "1e4294967296", "1e99999999999999999999", {}])
async def test_a_custom_resource_with_an_odd_amount_is_stamped(app: ASGIApp, amount: Any) -> None:
    """Kubernetes may read an amount that Fairgate does not know, once a pod is made of it."""
    container = {"name": "a", "resources": {"limits": {"nvidia.com/gpu": amount}}}
    workers = {"template": {"spec": {"containers": [container]}}}
    job = {"metadata": {"name": "j"}, "spec": {"pytorchReplicaSpecs": {"Worker": workers}}}
    resource = {"group": "kubeflow.org", "version": "v1", "resource": "pytorchjobs"}
    request = review(job, resource=resource)

    reply = await call(app, "POST", "/stamp", msgspec.json.encode(request), JSON)

    patch = msgspec.json.decode(base64.b64decode(reply.json["response"]["patch"]))
    template = apply(job, patch)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["metadata"]["annotations"] == {"fairgate.io/submitter": "alice"}


@pytest.mark.parametrize(("caller", "submitter"), [("alice", False), (REPLICATION, True)])
async def test_observe_admits_pods_ungated_but_removes_forged_annotations(
    caller: str, submitter: bool
) -> None:
    view = await ready_view()
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    annotations = {
        "fairgate.io/release": "99999999.1",
        "fairgate.io/submitter": "bob",
        "fairgate.io/gang": "g",
        "other": "o",
    }
    pod = gpu_pod(annotations=annotations)

    response = await answer(app_of(view), review(pod, userInfo={"username": caller}))

    passed = apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))
    kept = {"fairgate.io/gang": "g", "other": "o"}
    assert passed["metadata"]["annotations"] == kept | (
        {"fairgate.io/submitter": "bob"} if submitter else {}
    )
    assert passed["spec"] == pod["spec"]


@pytest.mark.parametrize(
    ("spec", "warned"),
    [({}, ""), ({"nodeName": "n"}, "nodeName"), ({"schedulerName": "mine"}, "the scheduler mine")],
)
async def test_observe_warns_only_if_a_held_pod_would_be_refused(
    spec: dict[str, str], warned: str
) -> None:
    view = await ready_view()
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    pod = gpu_pod()
    pod["spec"] |= spec
    resource = {"group": "", "version": "v1", "resource": "pods"}
    body = msgspec.json.encode(review(pod, resource=resource))

    reply = await call(app_of(view), "POST", "/validate", body, JSON)

    response = reply.json["response"]
    assert response["allowed"]
    warnings = response.get("warnings") or []
    assert bool(warnings) is bool(warned)
    assert all(warned in each for each in warnings)


async def test_a_body_may_arrive_in_parts(app: ASGIApp) -> None:
    raw = msgspec.json.encode(review(gpu_pod()))

    response = await answer(app, [raw[:10], raw[10:20], raw[20:], b""])

    assert "patch" in response


@pytest.mark.parametrize(
    "body",
    [
        review(gpu_pod("0")),
        review({"metadata": {}, "spec": {"containers": [{"name": "main"}]}}),
        review(gpu_pod(), namespace="kube-system"),
        review(gpu_pod(), operation="UPDATE"),
        review(gpu_pod(), subResource="status"),
        review(None, operation="DELETE"),
    ],
)
async def test_review_outside_the_scope_of_fairgate_is_allowed_without_a_patch(
    app: ASGIApp, body: Any
) -> None:
    assert await answer(app, body) == {"uid": UID, "allowed": True}


async def test_a_dry_run_is_answered_like_any_other(app: ASGIApp) -> None:
    assert await answer(app, review(gpu_pod(), dryRun=True)) == await answer(
        app, review(gpu_pod(), dryRun=False)
    )


async def test_forged_keys_are_reported_in_few_short_warnings(app: ASGIApp) -> None:
    forged = {f"fairgate.io/{'x' * 40}{i}": "1" for i in range(100)}

    warnings = (await answer(app, review(gpu_pod(annotations=forged))))["warnings"]

    assert 0 < len(warnings) <= 16
    assert all(len(warning) <= 256 for warning in warnings)


@pytest.mark.parametrize("count", ["two", "-1", "1 G", "NaN", "", True, ["1"], {"a": 1}, "9x"])
async def test_a_pod_that_cannot_be_read_is_refused_with_a_sentence(
    app: ASGIApp, count: Any
) -> None:
    response = await answer(app, review(gpu_pod(count)))

    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert "cannot read" in response["status"]["message"]


async def test_a_creation_without_a_pod_is_refused(app: ASGIApp) -> None:
    assert (await answer(app, review(None)))["status"]["code"] == 422


async def test_webhook_without_tenants_refuses_only_pods_that_it_would_hold() -> None:
    app = app_of(WebhookCache())

    refused = await answer(app, review(gpu_pod()))
    assert refused["allowed"] is False
    assert refused["status"]["code"] == 503
    assert (await answer(app, review(gpu_pod("0"))))["allowed"] is True
    assert (await answer(app, review(gpu_pod(), namespace="kube-system")))["allowed"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"' + b"x" * 100,
        b"{}",
        b'{"request": {}}',
        b"\xff\xfe",
        b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": NaN}',
        b'{"request": {"uid": "\\ud800"}}',
        b"[" * 100_000,
        b'{"request":' * 50_000,
    ],
)
async def test_malformed_body_is_400_with_one_sentence(app: ASGIApp, body: bytes) -> None:
    reply = await post(app, body)

    assert reply.status == 400
    assert b"Traceback" not in reply.body
    assert reply.body.startswith(b"Fairgate: ")
    assert reply.body.count(b"\n") == 0


async def test_a_review_of_another_version_is_refused(app: ASGIApp) -> None:
    old = review(gpu_pod()) | {"apiVersion": "admission.k8s.io/v1beta1"}

    assert (await answer(app, old))["allowed"] is False


async def test_a_review_without_a_uid_is_400(app: ASGIApp) -> None:
    assert (await post(app, review(gpu_pod(), uid=""))).status == 400


@pytest.mark.parametrize("kind", ["text/plain", "application/json-patch+json", ""])
async def test_only_json_is_read(app: ASGIApp, kind: str) -> None:
    reply = await post(app, review(gpu_pod()), {"content-type": kind})

    assert reply.status == 415


async def test_a_charset_in_the_content_type_is_fine(app: ASGIApp) -> None:
    reply = await post(app, review(gpu_pod()), {"content-type": "Application/JSON; charset=utf-8"})

    assert reply.status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_only_post_is_answered(app: ASGIApp, method: str) -> None:
    assert (await call(app, method, "/admit", b"", JSON)).status == 405


async def test_body_beyond_the_limit_is_refused_as_a_review_if_the_uid_is_found(
    app: ASGIApp,
) -> None:
    raw = msgspec.json.encode(review(gpu_pod(annotations={"x": "y" * BODY_LIMIT})))

    response = await answer(app, [raw[i : i + 2**20] for i in range(0, len(raw), 2**20)])

    assert response["allowed"] is False
    assert response["status"]["code"] == 413


async def test_a_body_beyond_the_limit_is_413_otherwise(app: ASGIApp) -> None:
    reply = await post(app, [b" " * 2**20] * 10)

    assert reply.status == 413


async def test_a_client_that_leaves_gets_no_answer(app: ASGIApp) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/admit", "root_path": ""}
    await app(scope | {"headers": [(b"content-type", b"application/json")]}, receive, send)

    assert sent == []


class Broken(WebhookCache):
    """A view that fails."""

    def namespace_owner(self, namespace: str) -> NamespaceOwner:
        raise RuntimeError(namespace)


async def test_internal_error_refuses_the_pod_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = Broken()
    await view.put(SourceFresh(NOW, WatchedSource.TENANTS))

    response = await answer(app_of(view), review(gpu_pod()))

    assert response["allowed"] is False
    assert response["status"] == {
        "code": 500,
        "message": "Fairgate: it failed to judge this request, so the request is refused.",
    }
    assert [record.message for record in caplog.records] == ["could not judge a request"]


async def test_max_pending_is_compared_with_the_pending_count_of_the_status() -> None:
    tenant = Tenant(TenantName("a"), NOW, namespaces=("team-a",), max_pending=3)
    view = await ready_view(TenantObserved(NOW, tenant, pending=3))

    refused = await answer(app_of(view), review(gpu_pod()))
    assert refused["status"]["code"] == 403
    assert "maxPending" in refused["status"]["message"]

    await view.put(TenantObserved(NOW, tenant, pending=2))
    assert (await answer(app_of(view), review(gpu_pod())))["allowed"] is True


async def test_cache_follows_observed_and_deleted_tenants() -> None:
    tenant = Tenant(TenantName("a"), NOW, namespaces=("team-a",), max_pending=3)
    view = await ready_view(TenantObserved(NOW, tenant, pending=1))

    assert view.namespace_owner("team-a") == NamespaceOwner(TenantName("a"), 1, 3)
    assert view.namespace_owner("other") == NamespaceOwner(TenantName("ns.other"))
    await view.put(TenantGone(NOW, tenant.name))
    assert view.namespace_owner("team-a") == NamespaceOwner(TenantName("ns.team-a"))


async def test_every_answer_is_counted_by_its_decision(app: ASGIApp) -> None:
    def count(decision: str) -> float:
        name = "fairgate_admission_requests_total"
        return REGISTRY.get_sample_value(name, {"decision": decision}) or 0

    decisions = ("hold", "ignore", "refuse", "error")
    before = {decision: count(decision) for decision in decisions}
    for body in (review(gpu_pod()), review(gpu_pod("0")), review(gpu_pod("x")), b"{"):
        await post(app, body)

    more = {decision: count(decision) - before[decision] for decision in decisions}
    assert more == dict.fromkeys(decisions, 1)


# --- priority ---

TWIN = {"priorityClassName": "fairgate-high", "preemptionPolicy": "Never"}
ORIGINAL = {"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}


def of_class(spec: dict[str, Any]) -> dict[str, Any]:
    pod = gpu_pod()
    return {**pod, "spec": {**pod["spec"], **spec}}


async def app_with(*classes: PriorityClass) -> ASGIApp:
    view = WebhookCache([WatchedSource.TENANTS, WatchedSource.PRIORITIES])
    for each in classes:
        await view.put(PriorityObserved(NOW, each))
    for source in (WatchedSource.TENANTS, WatchedSource.PRIORITIES):
        await view.put(SourceFresh(NOW, source))
    return app_of(view)


def patched(pod: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))
    return changed


async def test_a_held_pod_gets_the_twin_of_its_class() -> None:
    twin = PriorityClass("fairgate-high", 1000, never_preempts=True, is_ours=True)
    app = await app_with(PriorityClass("high", 1000), twin)
    pod = of_class(ORIGINAL)

    held = patched(pod, await answer(app, review(pod)))

    assert held["spec"]["schedulingGates"] == [{"name": GATE}]
    assert TWIN.items() <= held["spec"].items()


async def test_pod_without_a_twin_of_its_class_is_refused_with_retry_after() -> None:
    app = await app_with(PriorityClass("high", 1000))

    response = await answer(app, review(of_class(ORIGINAL)))

    assert response["allowed"] is False
    assert response["status"]["code"] == 503
    assert response["status"]["details"] == {"retryAfterSeconds": 1}


async def test_pod_keeps_its_priority_class_if_twins_are_off(app: ASGIApp) -> None:
    pod = of_class(ORIGINAL)

    assert ORIGINAL.items() <= patched(pod, await answer(app, review(pod)))["spec"].items()


async def test_an_update_that_names_the_original_class_is_mended(app: ASGIApp) -> None:
    pod = of_class(ORIGINAL)
    body = review(pod, operation="UPDATE", oldObject=of_class(TWIN))

    assert patched(pod, await answer(app, body)) == of_class(TWIN)


async def test_an_update_to_another_class_is_left_to_the_api_server(app: ASGIApp) -> None:
    other = of_class({"priorityClassName": "low", "preemptionPolicy": "PreemptLowerPriority"})

    response = await answer(app, review(other, operation="UPDATE", oldObject=of_class(TWIN)))

    assert response == {"uid": UID, "allowed": True}


@pytest.mark.parametrize("where", [{"namespace": "kube-system"}, {"subResource": "status"}])
async def test_an_update_that_is_not_ours_is_not_mended(
    app: ASGIApp, where: dict[str, str]
) -> None:
    body = review(of_class(ORIGINAL), operation="UPDATE", oldObject=of_class(TWIN), **where)

    assert "patch" not in await answer(app, body)


class Heard:
    """A `Reporter` that stores its reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[EntryType, dict[str, Fact], str]] = []

    def report(self, entry_type: EntryType, facts: Mapping[str, Fact], example: str = "") -> None:
        self.reports.append((entry_type, dict(facts), example))


def bound() -> dict[str, Any]:
    """Return a pod that would be refused."""
    pod = gpu_pod()
    return {**pod, "spec": {**pod["spec"], "nodeName": "n1"}}


async def reporting() -> tuple[ASGIApp, Heard]:
    view, heard = await ready_view(), Heard()
    enforced = WebhookConfig(ManagedResources(["nvidia.com/gpu"]), frozenset(["kube-system"]))
    return admission_app(view, enforced, lambda: view.is_ready, heard), heard


async def test_a_refused_pod_without_a_name_is_reported_with_its_controller() -> None:
    app, heard = await reporting()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}
    for owners in ([{**owner, "controller": True}], [owner], None):
        pod = bound()
        pod["metadata"] = {**pod.get("metadata", {}), "ownerReferences": owners}
        await answer(app, review(pod, name="", resource={"resource": "pods"}))
    assert [example for _, _, example in heard.reports] == ["Job/train", "", ""]


async def test_refusal_is_reported_with_user_namespace_operation_and_reason() -> None:
    app, heard = await reporting()
    await answer(app, review(bound(), name="p", resource={"resource": "pods"}))
    [(entry_type, facts, example)] = heard.reports
    assert (entry_type, example) == (EntryType.REFUSED, "p")
    assert (facts["user"], facts["namespace"]) == ("alice", "team-a")
    assert facts["what"] == "CREATE pods"
    assert "spec.nodeName" in str(facts["why"])


async def test_admitted_and_dry_run_reviews_are_not_reported() -> None:
    app, heard = await reporting()
    await answer(app, review(gpu_pod()))
    await answer(app, review(bound(), dryRun=True))
    assert heard.reports == []


async def test_a_report_is_short_and_of_a_namespace_that_can_be() -> None:
    app, heard = await reporting()
    long, resource = "x" * 10_000, {"resource": "y" * 10_000}
    user = {"username": long}
    for namespace in ("n" * 64, "N", "a/b", "team-a\n"):
        await answer(app, review(bound(), namespace=namespace))
    assert heard.reports == []
    await answer(app, review(bound(), name=long, resource=resource, userInfo=user))
    [(_, facts, example)] = heard.reports
    assert max(map(len, (example, *map(str, facts.values())))) == LONGEST_NAME


async def signed(caller: str, old: Any, new: Any, **resource: str) -> Any:
    app, _ = await reporting()
    body = review(new, oldObject=old, operation="UPDATE" if old else "CREATE", resource=resource)
    body["request"]["userInfo"]["username"] = caller
    reply = await call(app, "POST", "/sign", msgspec.json.encode(body), JSON)
    response = reply.json["response"]
    assert response["allowed"] is True
    return apply(new, msgspec.json.decode(base64.b64decode(response.get("patch", "W10="))))


async def test_a_change_of_our_resources_is_signed() -> None:
    old: Any = {"metadata": {"generation": 4}, "spec": {"weight": "1"}}
    new: Any = {"metadata": {"generation": 4}, "spec": {"weight": "2"}}
    for kind in ("tenants", "pools", "policies"):
        found = await signed("bob", old, new, group="fairgate.io", resource=kind)
        written = {"fairgate.io/changed-by": "bob", "fairgate.io/changed": "5"}
        assert found["metadata"]["annotations"] == written
    assert await signed("bob", old, new, group="other.io", resource="tenants") == new


GATES = [{"name": "mine"}, {"name": GATE}]


@pytest.mark.parametrize(
    ("before", "after", "is_signed"),
    [(GATES, [], True), (GATES, GATES[:1], True), (GATES, GATES, False), (GATES[:1], [], False)],
)
async def test_a_gate_removed_by_hand_is_signed(
    before: list[Any], after: list[Any], is_signed: bool
) -> None:
    old: Any = {"metadata": {}, "spec": {"schedulingGates": before}}
    new: Any = {"metadata": {}, "spec": {"schedulingGates": after}}
    app, _ = await reporting()
    response = await answer(app, review(new, operation="UPDATE", oldObject=old))
    assert ("patch" in response) is is_signed
    if is_signed:
        found = patched(new, response)["metadata"]["annotations"]
        assert found == {"fairgate.io/changed-by": "alice"}
