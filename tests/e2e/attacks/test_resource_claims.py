"""Row 16: devices requested by resource claims, which the pod's own resources do not show."""

from __future__ import annotations

import pytest

from app.core.admission import validation
from app.devcluster.binaries import Tools
from tests.e2e.attacks.attack_cluster import RED, AttackEnvironment, Object, body, layer_of, path
from tests.e2e.attacks.attack_helpers import answer, remove, submit, told
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, GPU, gates, until
from tests.support.kubernetes_features import require_extended_resources
from tests.support.personas import Refused

RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/{RED}/resourceclaims"
TEMPLATES = f"{RESOURCES}/namespaces/{RED}/resourceclaimtemplates"
NAMED, MAPPED = "gpu.nvidia.com", "h100.example.com"
"""Classes that count as GPUs: one by Fairgate's settings, one by the DeviceClass itself."""

OF_MAPPED = "by a class that is mapped"
BY_NAME = "deviceclass.resource.kubernetes.io/"


@pytest.fixture(scope="module", autouse=True)
def classes(env: AttackEnvironment) -> None:
    """Both classes exist in the cluster."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    for name, more in ((NAMED, {}), (MAPPED, {"extendedResourceName": GPU})):
        # A class without selectors would match the devices of every other test of this cluster.
        selectors = [{"cel": {"expression": f"device.driver == '{NAMED}'"}}]
        made = {**kind, "metadata": {"name": name}, "spec": {"selectors": selectors, **more}}
        env.admin.refused("POST", f"{RESOURCES}/deviceclasses", made)


def exactly(count: int, name: str = NAMED, **more: object) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": name, "count": count, **more}}


def claim(name: str, request: Object) -> Object:
    spec = {"devices": {"requests": [request]}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def template(name: str, request: Object) -> Object:
    made = claim(name, request)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def using(name: str, **source: str) -> Object:
    """Return a pod that requests only a resource claim."""
    made = body(name, 0, resourceClaims=[{"name": "d", **source}])
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "d"}]}
    return made


def every() -> Object:
    return {"name": "r", "exactly": {"deviceClassName": NAMED, "allocationMode": "All"}}


def whichever(*counts: int) -> Object:
    choices = [
        {"name": f"c{i}", "deviceClassName": NAMED, "count": each} for i, each in enumerate(counts)
    ]
    return {"name": "r", "firstAvailable": choices}


REQUESTS = {
    "so many": (11, exactly(11)),
    "all there are": (32, every()),
    "the cheapest first": (12, whichever(1, 12)),
    OF_MAPPED: (13, exactly(13, MAPPED)),
}
"""The form of a device request, and the number of GPUs charged. No node has this many."""


def is_held(env: AttackEnvironment, outcomes: Outcomes, pod: Object, attack: str) -> bool:
    """Create a pod with a hidden request; return whether it is stored and held."""
    name = pod["metadata"]["name"]
    said = answer(env.mallory, "POST", path(RED), pod)
    if isinstance(said, Refused):
        layer = {"policies": "P", "killed": "outage"}[env.mode]
        assert layer_of(said.message) == layer
        assert layer == "outage" or validation.UNGATED in said.message
        assert not env.exists(name)
        outcomes(16, env.mode, attack, layer, said.message)
        if env.mode == "killed":
            return False
        submit(env, pod)
    assert gates(env.pod(name)) == [GATE]
    return True


@pytest.mark.parametrize("way", REQUESTS)
def test_16_devices_of_a_claim_count_at_their_worst(
    env: AttackEnvironment, outcomes: Outcomes, cluster_tools: Tools, way: str
) -> None:
    if way == OF_MAPPED:
        require_extended_resources(cluster_tools)
    counted, request = REQUESTS[way]
    name = env.name("claimer")
    env.mallory.call("POST", CLAIMS, claim(name, request))
    if is_held(env, outcomes, using(name, resourceClaimName=name), "nothing but a claim"):
        until("it is told", told(env, name, f"waits for {counted} {GPU}"))
        outcomes(
            16,
            env.mode,
            "All, firstAvailable, mapped names",
            "D",
            "counted with the largest possible amount",
        )
        remove(env, name)
    env.admin.call("DELETE", f"{CLAIMS}/{name}")


@pytest.mark.parametrize("class_name", [NAMED, MAPPED])
def test_16_devices_of_a_class_requested_by_name_are_counted(
    env: AttackEnvironment, outcomes: Outcomes, cluster_tools: Tools, class_name: str
) -> None:
    if class_name == MAPPED:
        require_extended_resources(cluster_tools)
    name = env.name("named")
    made = body(name, 0)
    made["spec"]["containers"][0]["resources"] = {"limits": {BY_NAME + class_name: 14}}
    if is_held(env, outcomes, made, "a class by its name"):
        until("it is told", told(env, name, f"waits for 14 {GPU}"))
        remove(env, name)


def test_16_a_class_that_does_not_exist_yet_is_waited_for(
    env: AttackEnvironment, outcomes: Outcomes, cluster_tools: Tools
) -> None:
    """It is not known whether its devices count. An administrator may create it at any time."""
    require_extended_resources(cluster_tools)
    name, later = env.name("early"), env.name("later") + ".example.com"
    env.mallory.call("POST", CLAIMS, claim(name, exactly(17, later)))
    attack = "a claim of a class before the class exists"
    if is_held(env, outcomes, using(name, resourceClaimName=name), attack):
        until("it is told", told(env, name, f"device class {later} does not exist"))
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        selectors = [{"cel": {"expression": f"device.driver == '{NAMED}'"}}]
        spec = {"selectors": selectors, "extendedResourceName": GPU}
        at = f"{RESOURCES}/deviceclasses"
        env.admin.call("POST", at, {**kind, "metadata": {"name": later}, "spec": spec})
        until("it is told", told(env, name, f"waits for 17 {GPU}"))
        outcomes(16, env.mode, attack, "D", "waits until the class shows what it counts as")
        remove(env, name)
        env.admin.call("DELETE", f"{at}/{later}")
    env.admin.call("DELETE", f"{CLAIMS}/{name}")


def test_16_each_pod_of_a_shared_claim_waits_for_the_whole_claim(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    shared = env.name("shared")
    env.mallory.call("POST", CLAIMS, claim(shared, exactly(15)))
    for name in (env.name("sharer"), env.name("sharer")):
        if is_held(env, outcomes, using(name, resourceClaimName=shared), "a shared claim"):
            until("it is told", told(env, name, f"waits for 15 {GPU}"))
            outcomes(16, env.mode, "a shared claim", "D", "each waiting pod is counted in full")
            remove(env, name)
    env.admin.call("DELETE", f"{CLAIMS}/{shared}")


def test_16_changed_claim_template_does_not_affect_a_held_pod(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("swapped")
    at = f"{TEMPLATES}/{name}"
    env.mallory.call("POST", TEMPLATES, template(name, exactly(16)))
    if is_held(env, outcomes, using(name, resourceClaimTemplateName=name), "by a template"):
        until("it is told", told(env, name, f"waits for 16 {GPU}"))
        [made] = claims_of(env, name)
        env.mallory.call("DELETE", at)
        env.mallory.call("POST", TEMPLATES, template(name, exactly(1)))
        [request] = claims_of(env, name)
        assert request["metadata"]["uid"] == made["metadata"]["uid"]
        assert request["spec"] == made["spec"]
        cheaper = {"spec": {"devices": {"requests": [exactly(1)]}}}
        said = env.mallory.refused("PATCH", f"{CLAIMS}/{made['metadata']['name']}", cheaper)
        assert said is not None
        assert layer_of(said) == "K"
        assert "immutable" in said
        assert env.is_held(name)
        outcomes(16, env.mode, "a template swapped after queueing", "K", said)
        remove(env, name)
    env.mallory.call("DELETE", at)


def claims_of(env: AttackEnvironment, pod: str) -> list[Object]:
    """Return the claims generated for a pod."""
    return [
        each
        for each in env.admin.get(CLAIMS)["items"]
        if any(o["name"] == pod for o in each["metadata"].get("ownerReferences", ()))
    ]


def test_16_tenant_user_cannot_request_admin_access(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("admin")
    said = env.mallory.refused("POST", CLAIMS, claim(name, exactly(1, adminAccess=True)))
    assert said is not None
    assert layer_of(said) == "K"
    assert "admin access" in said
    assert env.admin.refused("GET", f"{CLAIMS}/{name}", None) is not None
    outcomes(16, env.mode, "adminAccess", "K", said)


def test_16_tenant_user_cannot_create_a_device_class(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    """The devices of a DeviceClass without a mapping would not be charged."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    made = {**kind, "metadata": {"name": "mine"}, "spec": {}}
    for who in (env.mallory, env.chief):
        said = who.refused("POST", f"{RESOURCES}/deviceclasses", made)
        assert said is not None
        assert layer_of(said) == "R"
    assert env.admin.refused("GET", f"{RESOURCES}/deviceclasses/mine", None) is not None
    outcomes(16, env.mode, "a device class of one's own", "R", said)
