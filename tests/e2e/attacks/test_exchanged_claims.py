"""Row 32: a pod that is released for one resource claim, and then given another claim, or more.

The devices are real for the API server and the scheduler: each node has a ResourceSlice with eight
GPUs and network devices. The tenant may have no GPU, or eight.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from app.core.admission import validation
from app.core.podspec.resource_claims import FINALIZER
from app.devcluster.binaries import Tools
from tests.e2e.attacks.attack_cluster import AttackEnvironment, Object, body, layer_of, path
from tests.e2e.attacks.attack_helpers import CHANGED
from tests.e2e.attacks.attack_namespaces import Yard, only, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.audit_entries import entries
from tests.support.cluster_driver import GATE, GPU, Stage, gates, until
from tests.support.kubernetes_features import require_extended_resources

API = "resource.k8s.io/v1"
ROOT = f"/apis/{API}"
DRIVER = "row32.example.com"
CARD, NIC = "card.row32.example.com", "nic.row32.example.com"
NODES = [f"gpu-node-{number}" for number in range(4)]
HOSTNAME = "kubernetes.io/hostname"
ROW = 32
LAYERED = only("everything", "policies", "webhook")

Steps = Callable[["Trap"], list[str | None]]


@pytest.fixture(scope="module", autouse=True)
def devices(env: AttackEnvironment) -> None:
    """Publish devices on every node, and a DeviceClass for each kind of device."""
    classes: list[Object] = [
        {"name": CARD, "kind": "gpu", "more": {"extendedResourceName": GPU}},
        {"name": NIC, "kind": "nic", "more": {}},
    ]
    for each in classes:
        attributes = f"device.attributes['{DRIVER}']"
        expression = f"device.driver == '{DRIVER}' && {attributes}.kind == '{each['kind']}'"
        spec = {"selectors": [{"cel": {"expression": expression}}], **each["more"]}
        about = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": each["name"]}}
        made = {**about, "spec": spec}
        env.admin.refused("POST", f"{ROOT}/deviceclasses", made)
    for node in NODES:
        found = [device(f"gpu-{number}", "gpu", node) for number in range(8)]
        found += [device(f"nic-{number}", "nic", node) for number in range(64)]
        spec = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": found,
        }
        kind = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"row32-{node}"}}
        env.admin.refused("POST", f"{ROOT}/resourceslices", {**kind, "spec": spec})


def device(name: str, kind: str, node: str) -> Object:
    return {"name": name, "attributes": {"kind": {"string": kind}, "node": {"string": node}}}


def requests(count: int, name: str) -> Object:
    exactly = {"deviceClassName": name, "count": count}
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}


def claim(name: str, count: int = 1, kind: str = NIC, **metadata: object) -> Object:
    meta = {"name": name, **metadata}
    made = {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta}
    return {**made, "spec": requests(count, kind)}


def seven_or_one(name: str, node: str) -> Object:
    """Return a claim for seven GPUs of this node, or else for one GPU of any node."""
    selector = f"device.attributes['{DRIVER}'].node == '{node}'"
    seven = {"name": "seven", "deviceClassName": CARD, "count": 7}
    choices = [
        {**seven, "selectors": [{"cel": {"expression": selector}}]},
        {"name": "one", "deviceClassName": CARD, "count": 1},
    ]
    made = claim(name)
    return {**made, "spec": {"devices": {"requests": [{"name": "r", "firstAvailable": choices}]}}}


def template(name: str, count: int, kind: str) -> Object:
    made = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**made, "spec": {"spec": requests(count, kind)}}


@dataclass
class Trap:
    """A namespace of a tenant that may have no GPU, with a pod that waits for a claim."""

    env: AttackEnvironment
    yard: Yard

    @property
    def claims(self) -> str:
        return f"{ROOT}/namespaces/{self.yard.namespace}/resourceclaims"

    @property
    def templates(self) -> str:
        return f"{ROOT}/namespaces/{self.yard.namespace}/resourceclaimtemplates"

    def claim(self, name: str = "c") -> Object:
        found: Object = self.env.admin.get(f"{self.claims}/{name}")
        return found

    def is_free(self) -> bool:
        return self.env.admin.refused("GET", f"{self.claims}/c", None) is not None

    def pod(self, name: str = "bait") -> Object:
        return self.env.pod(name, self.yard.namespace)

    def bait(self, name: str = "bait", **source: str) -> None:
        """Create a pod that its affinity keeps unscheduled, and wait until it is released."""
        self.hold(name, **source)
        until(f"{name} is released", lambda: GATE not in gates(self.pod(name)))
        until("it finds no node", lambda: self.unscheduled(name))

    def hold(self, name: str, **source: str) -> None:
        """Create such a pod."""
        term = {
            "labelSelector": {"matchLabels": {"spring": name}},
            "topologyKey": HOSTNAME,
        }
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        self.make(name, source or {"resourceClaimName": "c"}, affinity=affinity)

    def make(self, name: str, source: Mapping[str, str], **spec: object) -> None:
        """Create a pod that uses a claim."""
        made = body(name, 0, resourceClaims=[{"name": "d", **source}], **spec)
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "d"}]}
        assert self.yard.make(made) is None

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self.pod(name)["spec"]

    def unscheduled(self, name: str) -> bool:
        found = self.pod(name)["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in found)

    def spring(self, *names: str, nodes: Mapping[str, str] = MappingProxyType({})) -> None:
        """Satisfy the affinity of the named pods and a witness, on `nodes` if these name one.

        The witness runs after the scheduler has tried these pods.
        """
        self.env.admin.call("POST", self.claims, claim("witness"))
        self.bait("witness", resourceClaimName="witness")
        for name in (*(names or ("bait",)), "witness"):
            made = body(f"spring-of-{name}", 0)
            made["metadata"]["labels"] = {"spring": name}
            if name in nodes:
                made["spec"]["nodeSelector"] = {HOSTNAME: nodes[name]}
            assert self.env.mallory.refused("POST", path(self.yard.namespace), made) is None
        until("the witness runs", lambda: self.is_bound("witness"))

    def gained(self) -> int:
        """Return the number of GPUs allocated to claims of the namespace."""
        found = self.env.admin.get(self.claims)["items"]
        allocated = [each.get("status", {}).get("allocation") or {} for each in found]
        results = [r for each in allocated for r in each.get("devices", {}).get("results", [])]
        return sum(each["device"].startswith("gpu-") for each in results)

    def told(self, entry_type: str) -> list[Object]:
        """Return the audit entries of this type for this namespace."""
        return [
            entry
            for entry in entries(self.env.cluster)
            if entry["deed"] == entry_type
            and entry["facts"].get("namespace") == self.yard.namespace
        ]


@pytest.fixture(params=[0])
def trap(env: AttackEnvironment, stage: Stage, request: pytest.FixtureRequest) -> Iterator[Trap]:
    """A trap of a tenant that may have no GPU, or as many as the parameter."""
    place = yard(env, stage)
    stage.tenant(
        place.namespace,
        "1",
        place.namespace,
        quotas=[{"pool": "default", "limit": {GPU: request.param}}],
    )
    until("the tenant is seen", lambda: bool(stage.get("tenant", place.namespace).get("status")))
    made = Trap(env, place)
    yield made
    now = {"gracePeriodSeconds": 0}
    for each in place.pods:
        env.admin.refused("DELETE", path(place.namespace, each["metadata"]["name"]), now)
    env.admin.refused("DELETE", made.claims, None)
    until("no claim is left", lambda: env.admin.get(made.claims)["items"] == [])


# --- the attacks ---


def delete_and_create(trap: Trap) -> list[str | None]:
    mallory, at = trap.env.mallory, f"{trap.claims}/c"
    mallory.call("DELETE", at, {"gracePeriodSeconds": 0})
    return [mallory.refused("POST", trap.claims, claim("c", 8, CARD))]


def free_and_create(trap: Trap) -> list[str | None]:
    """Try every way to write the finalizers of a claim, then to create a new one."""
    mallory, at = trap.env.mallory, f"{trap.claims}/c"
    found = trap.claim()
    meta = {**found["metadata"], "finalizers": []}
    bare = {"name": "c", "finalizers": []}
    apply = {"apiVersion": API, "kind": "ResourceClaim", "metadata": bare}
    index = found["metadata"]["finalizers"].index(FINALIZER)
    remove = {"op": "remove", "path": f"/metadata/finalizers/{index}"}
    primitive = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    said = [
        mallory.refused("PATCH", at, {"metadata": {"finalizers": None}}),
        mallory.refused("PATCH", at, {"metadata": {"finalizers": ["example.com/mine"]}}),
        mallory.refused("PATCH", at, [remove], "json"),
        mallory.refused("PATCH", at, {"metadata": primitive}, "strategic"),
        mallory.refused("PUT", at, {**found, "metadata": meta}),
        mallory.refused("PUT", at, {**found, "metadata": {**meta, "resourceVersion": ""}}),
    ]
    layer = CHANGED[trap.env.mode]
    for each in said:
        assert each is not None
        assert validation.CLAIM in each
        assert layer_of(each) == layer
    assert mallory.refused("PATCH", f"{at}?fieldManager=m&force=true", apply, "apply") is None
    assert FINALIZER in trap.claim()["metadata"]["finalizers"]
    return [*said, *delete_and_create(trap)]


def delete_collection(trap: Trap) -> list[str | None]:
    trap.env.mallory.call("DELETE", trap.claims, {"gracePeriodSeconds": 0})
    return [trap.env.mallory.refused("POST", trap.claims, claim("c", 8, CARD))]


WAYS: dict[str, Steps] = {
    "deleted and created again": delete_and_create,
    "its finalizer removed": free_and_create,
    "deleted with all others": delete_collection,
}


@LAYERED
@pytest.mark.parametrize("way", WAYS)
def test_32_claim_of_a_released_pod_cannot_be_replaced(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap, way: str
) -> None:
    outcomes(ROW, env.mode, "a claim exchanged after the release", "D", exchanged(trap, way))


# Only the leader's memory differs, and no layer reads it.
@only("everything")
@pytest.mark.parametrize("way", WAYS)
def test_32_claim_of_a_released_pod_cannot_be_replaced_after_a_restart(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap, way: str
) -> None:
    said = exchanged(trap, way, before=lambda: restart(env))
    outcomes(ROW, env.mode, "a claim exchanged after the release", "D", said)


def exchanged(trap: Trap, way: str, before: Callable[[], None] = lambda: None) -> str:
    """Try to exchange the claim of a released pod, check that it fails, and return the refusal."""
    trap.env.mallory.call("POST", trap.claims, claim("c"))
    trap.bait()
    first = trap.claim()["metadata"]
    assert FINALIZER in first["finalizers"]
    before()
    said = WAYS[way](trap)
    assert said[-1] is not None
    assert trap.claim()["metadata"]["uid"] == first["uid"]
    trap.spring()
    assert trap.gained() == 0
    assert "nodeName" not in trap.pod()["spec"]
    until("the chain says so", lambda: bool(trap.told("claim-deleted")))
    [entry] = trap.told("claim-deleted")
    assert entry["facts"]["claimUid"] == first["uid"]
    assert trap.yard.told("bait", "Refused", "is being deleted")
    return said[-1]


@only("everything")
def test_32_a_deletion_that_is_under_way_at_the_release_frees_no_name(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap
) -> None:
    """The API server does not look at the finalizers again when a deletion removes the claim."""
    mallory, names = env.mallory, [f"c{number}" for number in range(12)]

    def exchange(name: str) -> None:
        mallory.refused("POST", trap.claims, claim(name))
        made = body(name, 0, resourceClaims=[{"name": "d", "resourceClaimName": name}])
        assert trap.yard.make(made) is None
        for _ in range(30):
            for size, kind in ((8, CARD), (1, NIC)):
                mallory.refused("DELETE", f"{trap.claims}/{name}", {"gracePeriodSeconds": 0})
                mallory.refused("POST", trap.claims, claim(name, size, kind))
                time.sleep(random.random() / 20)  # vary the order of both sides

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(exchange, names))
    env.admin.call("POST", trap.claims, claim("last"))
    trap.bait("last", resourceClaimName="last")
    assert trap.told("bypassed") == []
    assert trap.gained() == 0
    seen = "no released pod has another claim"
    outcomes(ROW, env.mode, "in the moment of the release", "D", seen)


def restart(env: AttackEnvironment) -> None:
    """Stop the leader and wait for the next term."""
    lease = "/apis/coordination.k8s.io/v1/namespaces/fairgate-system/leases/fairgate-controller"

    def terms() -> object:
        return env.admin.get(lease)["spec"].get("leaseTransitions")

    before = terms()
    env.cluster.restart("fairgate-controller")
    until("another leads", lambda: terms() != before)


@LAYERED
def test_32_a_deleted_owner_does_not_free_the_name(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap
) -> None:
    """The garbage collector deletes a claim of a deleted owner, with the rights of kube-system."""
    maps = f"/api/v1/namespaces/{trap.yard.namespace}/configmaps"
    mallory = env.mallory
    owner = mallory.call("POST", maps, {"metadata": {"name": "owner"}})["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    mallory.call("POST", trap.claims, claim("c", ownerReferences=[reference]))
    trap.bait()
    mallory.call("DELETE", f"{maps}/owner")
    until("it is deleted", lambda: "deletionTimestamp" in trap.claim()["metadata"])
    said = mallory.refused("POST", trap.claims, claim("c", 8, CARD))
    assert said is not None
    trap.spring()
    assert trap.gained() == 0
    until("the chain says so", lambda: len(trap.told("claim-deleted")) == 1)
    outcomes(ROW, env.mode, "through the garbage collector", "D", said)


@LAYERED
def test_32_a_generated_claim_is_not_generated_again(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap
) -> None:
    mallory = env.mallory
    mallory.call("POST", trap.templates, template("t", 1, NIC))
    trap.bait(resourceClaimTemplateName="t")
    [status] = trap.pod()["status"]["resourceClaimStatuses"]
    name = status["resourceClaimName"]
    first = trap.claim(name)["metadata"]
    mallory.call("DELETE", f"{trap.templates}/t")
    mallory.call("POST", trap.templates, template("t", 8, CARD))
    owner = first["ownerReferences"][0]
    marks = {"resource.kubernetes.io/pod-claim-name": "d"}
    layer = CHANGED[env.mode]
    for forged in (
        claim("forged", 8, CARD, ownerReferences=[owner], annotations=marks),
        claim("forged", 8, CARD, ownerReferences=[owner]),
        claim("forged", 8, CARD, annotations=marks),
    ):
        said = mallory.refused("POST", trap.claims, forged)
        assert said is not None
        assert validation.CLAIM_OWNER in said
        assert layer_of(said) == layer
        outcomes(ROW, env.mode, "a claim as if it was generated", layer, said)
    orphan = {"metadata": {"ownerReferences": None}}
    said = mallory.refused("PATCH", f"{trap.claims}/{name}", orphan)
    assert said is not None
    assert validation.CLAIM_OWNER in said
    mallory.call("DELETE", f"{trap.claims}/{name}")
    trap.spring()
    [status] = trap.pod()["status"]["resourceClaimStatuses"]
    assert status["resourceClaimName"] == name
    assert trap.claim(name)["metadata"]["uid"] == first["uid"]
    assert trap.gained() == 0
    assert "nodeName" not in trap.pod()["spec"]
    until("the chain says so", lambda: len(trap.told("claim-deleted")) == 1)


@LAYERED
def test_32_shared_claim_cannot_be_replaced_until_the_last_pod_ends(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap
) -> None:
    mallory = env.mallory
    mallory.call("POST", trap.claims, claim("c"))
    trap.bait("one")
    trap.bait("two")
    first = trap.claim()["metadata"]
    mallory.call("DELETE", path(trap.yard.namespace, "one"), {"gracePeriodSeconds": 0})
    mallory.call("DELETE", f"{trap.claims}/c")
    said = mallory.refused("POST", trap.claims, claim("c", 8, CARD))
    assert said is not None
    trap.spring("two")
    assert trap.claim()["metadata"]["uid"] == first["uid"]
    assert trap.gained() == 0
    mallory.call("DELETE", path(trap.yard.namespace, "two"), {"gracePeriodSeconds": 0})
    until("the name is free", trap.is_free)
    outcomes(ROW, env.mode, "a shared claim", "D", said)


@LAYERED
def test_32_an_exchange_is_reported_charged_and_evicted_if_the_name_was_freed_by_force(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap
) -> None:
    """Only a cluster administrator can free the name. The exchange is then detected."""
    mallory = env.mallory
    mallory.call("POST", trap.claims, claim("c"))
    trap.bait()
    mallory.call("DELETE", f"{trap.claims}/c")
    free = {"metadata": {"finalizers": None}}
    env.admin.refused("PATCH", f"{trap.claims}/c", free)
    until("the name is free", trap.is_free)
    mallory.call("POST", trap.claims, claim("c", 8, CARD))
    until("it is evicted", lambda: not env.exists("bait", trap.yard.namespace))
    assert trap.gained() == 0
    until("the chain says so", lambda: len(trap.told("bypassed")) == 1)
    [entry] = trap.told("bypassed")
    assert entry["facts"]["claim"] == "c"
    outcomes(ROW, env.mode, "a name freed by force", "D", "reported as a bypass and evicted")


@LAYERED
def test_32_a_namespace_is_deleted_with_its_claims(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes, trap: Trap
) -> None:
    env.mallory.call("POST", trap.claims, claim("c"))
    trap.bait()
    namespace = trap.yard.namespace
    stage.namespaces.remove(namespace)
    at = f"/api/v1/namespaces/{namespace}"
    env.admin.call("DELETE", at)
    until("it is gone", lambda: env.admin.refused("GET", at, None) is not None)
    outcomes(ROW, env.mode, "a namespace deleted with its claims", "D", "it is deleted")


@LAYERED
@pytest.mark.parametrize("trap", [8], indirect=True)
def test_32_a_claim_that_is_allocated_again_gets_no_devices_beyond_the_limit(
    env: AttackEnvironment, outcomes: Outcomes, trap: Trap, cluster_tools: Tools
) -> None:
    """A first pod gets one GPU of each claim. The scheduler may allocate seven for a second pod."""
    require_extended_resources(cluster_tools)  # its class counts as GPUs by this feature
    mallory, home, nodes = env.mallory, NODES[3], NODES[1:3]
    for node in nodes:
        mallory.call("POST", trap.claims, seven_or_one(node, node))
        trap.make(f"first-{node}", {"resourceClaimName": node}, nodeSelector={HOSTNAME: home})
        until("the first pod runs", lambda n=node: trap.is_bound(f"first-{n}"))  # type: ignore[misc]
    assert trap.gained() == 2
    one, other = (f"second-{node}" for node in nodes)
    trap.bait(one, resourceClaimName=nodes[0])
    trap.hold(other, resourceClaimName=nodes[1])
    until("the other waits", lambda: trap.yard.told(other, "Held", "limit"))
    for node in nodes:
        first = f"first-{node}"
        mallory.call("DELETE", path(trap.yard.namespace, first), {"gracePeriodSeconds": 1})
        until("it is gone", lambda n=first: not env.exists(n, trap.yard.namespace))  # type: ignore[misc]
    trap.spring(one, other, nodes=dict(zip((one, other), nodes, strict=True)))
    until("one has its seven GPUs", lambda: trap.is_bound(one))
    assert trap.gained() in (7, 8)
    assert GATE in gates(trap.pod(other))
    saw = "the second claim waits: each counts as its largest alternative"
    outcomes(ROW, env.mode, "a claim with alternatives, allocated again", "D", saw)
