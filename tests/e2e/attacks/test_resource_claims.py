"""Row 16: devices requested by resource claims, which the pod's own resources do not show."""

from __future__ import annotations

import pytest

from app.core.admission import validation
from app.devcluster.binaries import Tools
from tests.e2e.attacks.attack_cluster import RED, Ground, Object, body, layer_of, path
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
def classes(ground: Ground) -> None:
    """Both classes exist in the cluster."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    for name, more in ((NAMED, {}), (MAPPED, {"extendedResourceName": GPU})):
        # A class without selectors would match the devices of every other test of this cluster.
        selectors = [{"cel": {"expression": f"device.driver == '{NAMED}'"}}]
        made = {**kind, "metadata": {"name": name}, "spec": {"selectors": selectors, **more}}
        ground.admin.refused("POST", f"{RESOURCES}/deviceclasses", made)


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


def is_held(ground: Ground, outcomes: Outcomes, pod: Object, attack: str) -> bool:
    """Create a pod with a hidden request; return whether it is stored and held."""
    name = pod["metadata"]["name"]
    said = answer(ground.mallory, "POST", path(RED), pod)
    if isinstance(said, Refused):
        layer = {"policies": "P", "killed": "outage"}[ground.mode]
        assert layer_of(said.message) == layer
        assert layer == "outage" or validation.UNGATED in said.message
        assert not ground.exists(name)
        outcomes(16, ground.mode, attack, layer, said.message)
        if ground.mode == "killed":
            return False
        submit(ground, pod)
    assert gates(ground.pod(name)) == [GATE]
    return True


@pytest.mark.parametrize("way", REQUESTS)
def test_16_devices_of_a_claim_count_at_their_worst(
    ground: Ground, outcomes: Outcomes, cluster_tools: Tools, way: str
) -> None:
    if way == OF_MAPPED:
        require_extended_resources(cluster_tools)
    counted, request = REQUESTS[way]
    name = ground.name("claimer")
    ground.mallory.call("POST", CLAIMS, claim(name, request))
    if is_held(ground, outcomes, using(name, resourceClaimName=name), "nothing but a claim"):
        until("it is told", told(ground, name, f"waits for {counted} {GPU}"))
        outcomes(
            16,
            ground.mode,
            "All, firstAvailable, mapped names",
            "D",
            "counted with the largest possible amount",
        )
        remove(ground, name)
    ground.admin.call("DELETE", f"{CLAIMS}/{name}")


@pytest.mark.parametrize("class_name", [NAMED, MAPPED])
def test_16_devices_of_a_class_requested_by_name_are_counted(
    ground: Ground, outcomes: Outcomes, cluster_tools: Tools, class_name: str
) -> None:
    if class_name == MAPPED:
        require_extended_resources(cluster_tools)
    name = ground.name("named")
    made = body(name, 0)
    made["spec"]["containers"][0]["resources"] = {"limits": {BY_NAME + class_name: 14}}
    if is_held(ground, outcomes, made, "a class by its name"):
        until("it is told", told(ground, name, f"waits for 14 {GPU}"))
        remove(ground, name)


def test_16_a_class_that_does_not_exist_yet_is_waited_for(
    ground: Ground, outcomes: Outcomes, cluster_tools: Tools
) -> None:
    """It is not known whether its devices count. An administrator may create it at any time."""
    require_extended_resources(cluster_tools)
    name, later = ground.name("early"), ground.name("later") + ".example.com"
    ground.mallory.call("POST", CLAIMS, claim(name, exactly(17, later)))
    attack = "a claim of a class before the class exists"
    if is_held(ground, outcomes, using(name, resourceClaimName=name), attack):
        until("it is told", told(ground, name, f"device class {later} does not exist"))
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        selectors = [{"cel": {"expression": f"device.driver == '{NAMED}'"}}]
        spec = {"selectors": selectors, "extendedResourceName": GPU}
        at = f"{RESOURCES}/deviceclasses"
        ground.admin.call("POST", at, {**kind, "metadata": {"name": later}, "spec": spec})
        until("it is told", told(ground, name, f"waits for 17 {GPU}"))
        outcomes(16, ground.mode, attack, "D", "waits until the class shows what it counts as")
        remove(ground, name)
        ground.admin.call("DELETE", f"{at}/{later}")
    ground.admin.call("DELETE", f"{CLAIMS}/{name}")


def test_16_each_pod_of_a_shared_claim_waits_for_the_whole_claim(
    ground: Ground, outcomes: Outcomes
) -> None:
    shared = ground.name("shared")
    ground.mallory.call("POST", CLAIMS, claim(shared, exactly(15)))
    for name in (ground.name("sharer"), ground.name("sharer")):
        if is_held(ground, outcomes, using(name, resourceClaimName=shared), "a shared claim"):
            until("it is told", told(ground, name, f"waits for 15 {GPU}"))
            outcomes(16, ground.mode, "a shared claim", "D", "each waiting pod is counted in full")
            remove(ground, name)
    ground.admin.call("DELETE", f"{CLAIMS}/{shared}")


def test_16_changed_claim_template_does_not_affect_a_held_pod(
    ground: Ground, outcomes: Outcomes
) -> None:
    name = ground.name("swapped")
    at = f"{TEMPLATES}/{name}"
    ground.mallory.call("POST", TEMPLATES, template(name, exactly(16)))
    if is_held(ground, outcomes, using(name, resourceClaimTemplateName=name), "by a template"):
        until("it is told", told(ground, name, f"waits for 16 {GPU}"))
        [made] = claims_of(ground, name)
        ground.mallory.call("DELETE", at)
        ground.mallory.call("POST", TEMPLATES, template(name, exactly(1)))
        [request] = claims_of(ground, name)
        assert request["metadata"]["uid"] == made["metadata"]["uid"]
        assert request["spec"] == made["spec"]
        cheaper = {"spec": {"devices": {"requests": [exactly(1)]}}}
        said = ground.mallory.refused("PATCH", f"{CLAIMS}/{made['metadata']['name']}", cheaper)
        assert said is not None
        assert layer_of(said) == "K"
        assert "immutable" in said
        assert ground.is_held(name)
        outcomes(16, ground.mode, "a template swapped after queueing", "K", said)
        remove(ground, name)
    ground.mallory.call("DELETE", at)


def claims_of(ground: Ground, pod: str) -> list[Object]:
    """Return the claims generated for a pod."""
    return [
        each
        for each in ground.admin.get(CLAIMS)["items"]
        if any(o["name"] == pod for o in each["metadata"].get("ownerReferences", ()))
    ]


def test_16_tenant_user_cannot_request_admin_access(ground: Ground, outcomes: Outcomes) -> None:
    name = ground.name("admin")
    said = ground.mallory.refused("POST", CLAIMS, claim(name, exactly(1, adminAccess=True)))
    assert said is not None
    assert layer_of(said) == "K"
    assert "admin access" in said
    assert ground.admin.refused("GET", f"{CLAIMS}/{name}", None) is not None
    outcomes(16, ground.mode, "adminAccess", "K", said)


def test_16_tenant_user_cannot_create_a_device_class(ground: Ground, outcomes: Outcomes) -> None:
    """The devices of a DeviceClass without a mapping would not be charged."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    made = {**kind, "metadata": {"name": "mine"}, "spec": {}}
    for who in (ground.mallory, ground.chief):
        said = who.refused("POST", f"{RESOURCES}/deviceclasses", made)
        assert said is not None
        assert layer_of(said) == "R"
    assert ground.admin.refused("GET", f"{RESOURCES}/deviceclasses/mine", None) is not None
    outcomes(16, ground.mode, "a device class of one's own", "R", said)
