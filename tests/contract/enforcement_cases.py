"""A table of requests to create and change objects, with the expected answers.

The policies, the webhook and the core must give the same answers. Each case states the caller, the
request and the refusing sentence, if any.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.core.admission import validation
from app.core.podspec.resource_claims import DELETE_PROTECTION, FINALIZER
from app.core.podspec.size_limits import BOUNDS, sentence
from tests.support import largest_pods

Object = dict[str, Any]

ALICE = "alice"
"""May edit the namespace and write every subresource of pods, but has no Fairgate role."""
RELEASER = "releaser"
HOST = "gpu-node-0"
NODE = validation.NODE + HOST
OTHER_NODE = validation.NODE + "gpu-node-1"
KUBE_SCHEDULER = "system:kube-scheduler"
SECOND_SCHEDULER = "system:serviceaccount:volcano-system:volcano-scheduler"
"""A scheduler that the operator added to `schedulers.users`."""
CLASS = "fairgate.none"
"""A PriorityClass of value 0 that never preempts."""
GPU = {"nvidia.com/gpu": "1"}
BY_CLASS = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}
STAMPS = {"fairgate.io/release": "0", "fairgate.io/submitter": ALICE}
LABELS = {"fairgate.io/tenant": "ns.rules", "fairgate.io/user": ALICE}
GATE = {"name": "fairgate.io/queue"}
SCHEDULER = validation.SCHEDULER.format("other", "default-scheduler")
VARIABLE = validation.VARIABLE.format("NVIDIA_VISIBLE_DEVICES, AMD_VISIBLE_DEVICES")
TOLERATION = validation.TOLERATION.format("nvidia.com/gpu, amd.com/gpu")


@dataclass(frozen=True)
class Case:
    """A create of `after`, or a change of `before`. `sentence` is the expected refusal.

    `deletes` deletes `before` with this grace period (None: the pod's own). `evicts` evicts it.
    """

    rule: str
    sentence: str | None
    before: Object | None = None
    create: Object | None = None
    change: Callable[[Object], object] | None = None
    subresource: str = ""
    caller: str = ALICE
    resource: tuple[str, str] = ("", "pods")
    deletes: bool = False
    evicts: bool = False
    grace: int | None = None

    @property
    def options(self) -> Object:
        """The delete options."""
        return {} if self.grace is None else {"gracePeriodSeconds": self.grace}

    @property
    def operation(self) -> str:
        """The operation in the admission request."""
        if self.deletes:
            return "DELETE"
        return "CREATE" if self.before is None or self.evicts else "UPDATE"

    @property
    def after(self) -> Object:
        """The object that would be stored."""
        if self.create is not None:
            return copy.deepcopy(self.create)
        if self.evicts:
            return {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {},
                "deleteOptions": self.options,
            }
        changed = copy.deepcopy(self.before)
        assert changed is not None
        assert self.change is not None
        self.change(changed)
        return changed


def container(**fields: Any) -> Object:
    return {"name": "main", "image": "none", **fields}


ASKING = container(resources={"limits": GPU, "requests": GPU})
PLAIN = container()


def pod(
    *containers: Object,
    annotations: Object | None = None,
    labels: Object | None = None,
    gates: tuple[Object, ...] = (GATE,),
    **spec: Any,
) -> Object:
    """Return a pod as the webhook leaves it; the arguments override its parts."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": dict(STAMPS if annotations is None else annotations),
            "labels": dict(LABELS if labels is None else labels),
        },
        "spec": {
            "containers": list(containers or (ASKING,)),
            "schedulingGates": list(gates),
            "terminationGracePeriodSeconds": 0,
            "priorityClassName": CLASS,
            "preemptionPolicy": "Never",
            **spec,
        },
    }


def unmanaged(*containers: Object, **spec: Any) -> Object:
    return pod(*containers or (PLAIN,), annotations={}, labels={}, gates=(), **spec)


def released(**fields: Any) -> Object:
    """Return a released pod that stays unbound, because its node does not exist."""
    return pod(
        annotations={**STAMPS, "fairgate.io/release": "1.1"},
        labels={**LABELS, "fairgate.io/pool": "default"},
        gates=(),
        nodeSelector={"rules": "none"},
        **fields,
    )


def bound(*containers: Object, grace: int = 3600, **fields: Any) -> Object:
    """Return a released and bound pod with a grace period of one hour."""
    made = released(terminationGracePeriodSeconds=grace, nodeName=HOST, **fields)
    made["spec"] |= {"containers": list(containers or (ASKING,)), "nodeSelector": {}}
    return made


def claiming() -> Object:
    """Return a held pod with a claim that Kubernetes generates."""
    return pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "none"}])


def template(submitter: str = "") -> Object:
    annotations = {"fairgate.io/submitter": submitter} if submitter else {}
    return {
        "metadata": {"annotations": annotations, "labels": {"app": "x"}},
        "spec": {"containers": [ASKING], "restartPolicy": "Never"},
    }


def job(submitter: str = "") -> Object:
    spec = {"suspend": True, "template": template(submitter)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": spec}


def cron_job(submitter: str = "") -> Object:
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template(submitter)}}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": spec}


def deployment(submitter: str = "") -> Object:
    made = template(submitter)
    made["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": made}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec}


def revision(submitter: str) -> Object:
    spec = {"spec": {"template": template(submitter)}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {},
        "revision": 1,
        "data": spec,
    }


def note(key: str, value: str | None) -> Callable[[Object], None]:
    """Return a function that sets an annotation, or removes it if the value is None."""
    return lambda found: _write(found["metadata"]["annotations"], key, value)


def tag(key: str, value: str | None) -> Callable[[Object], None]:
    """Return a function that sets a label, or removes it if the value is None."""
    return lambda found: _write(found["metadata"].setdefault("labels", {}), key, value)


def _write(written: Object, key: str, value: str | None) -> None:
    if value is None:
        del written[key]
    else:
        written[key] = value


def open_gate(found: Object) -> None:
    found["spec"]["schedulingGates"] = []


def forget(found: Object) -> None:
    open_gate(found)
    for written in (found["metadata"]["annotations"], found["metadata"]["labels"]):
        for key in [key for key in written if key.startswith("fairgate.io/")]:
            del written[key]


def end(found: Object) -> None:
    found.setdefault("status", {})["phase"] = "Succeeded"


def start(found: Object) -> None:
    found.setdefault("status", {})["startTime"] = "2099-01-01T00:00:00Z"


def no_claim(found: Object) -> None:
    found.setdefault("status", {})["resourceClaimStatuses"] = [{"name": "gpu"}]


def extended_claim(found: Object) -> None:
    made_for = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r0"}
    claim = {"resourceClaimName": "of-a-colleague", "requestMappings": [made_for]}
    found.setdefault("status", {})["extendedResourceClaimStatus"] = claim


def nominate(found: Object) -> None:
    found.setdefault("status", {})["nominatedNodeName"] = "none"


def tolerate(found: Object) -> None:
    found["spec"].setdefault("tolerations", []).append(
        {"key": "nvidia.com/gpu", "operator": "Exists"}
    )


def stamp(name: str) -> Callable[[Object], None]:
    return lambda found: _write(
        found["spec"]["template"]["metadata"].setdefault("annotations", {}),
        "fairgate.io/submitter",
        name or None,
    )


def environment(value: str | None) -> Object:
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    given = {"value": value} if value is not None else {"valueFrom": source}
    return container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", **given}])


def many(name: str, more: int = 0) -> list[Object]:
    """Return as many volumes or variables as a pod may have, and more. A token is one more volume."""
    return [{"name": f"{name}{number}"} for number in range(MANY + more)]


def on_host(path: str) -> Object:
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


def apart(**term: Any) -> Object:
    """Return a pod without managed resources, with one required anti-affinity term."""
    whole = {"topologyKey": "kubernetes.io/hostname", **term}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [whole]}
    return unmanaged(affinity={"podAntiAffinity": rule})


def labelled(key: str) -> Object:
    return {"labelSelector": {"matchLabels": {key: "blue"}}}


MANY = validation.MOST_SEARCHED
ANYWHERE = {"operator": "Exists"}
OURS = "fairgate.io/tenant"
ANY = {"key": OURS, "operator": "Exists"}
PREFERRED = {
    "weight": 100,
    "podAffinityTerm": {"topologyKey": "x", "namespaceSelector": {}, **labelled(OURS)},
}
ZERO = container(resources={"limits": {"nvidia.com/gpu": "0"}})
JOBS, CRON_JOBS, DEPLOYMENTS = ("batch", "jobs"), ("batch", "cronjobs"), ("apps", "deployments")

CREATES = (
    Case("a pod with gate and stamps", None, create=pod()),
    Case("a pod that asks for nothing managed", None, create=unmanaged()),
    Case("a pod that asks for zero", None, create=unmanaged(ZERO)),
    Case("a pod without the gate", validation.UNGATED, create=pod(gates=())),
    Case("a pod with another gate", validation.UNGATED, create=pod(gates=({"name": "example.com/x"},))),
    Case("a GPU in an init container", validation.UNGATED, create=unmanaged(initContainers=[ASKING | {"name": "init"}])),
    Case("a device class by request alone", validation.UNGATED, create=unmanaged(container(resources={"requests": BY_CLASS}))),
    Case("a claim without the gate", validation.UNGATED, create=unmanaged(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])),
    Case("a node of its own choice", validation.NODE_NAME, create=pod(gates=(), nodeName="rule-node")),
    Case("a false mirror of a static pod", validation.NODE_NAME, create=pod(gates=(), nodeName="rule-node", annotations={**STAMPS, "kubernetes.io/config.mirror": "x"})),
    Case("no stamps", validation.UNSTAMPED, create=pod(annotations={}, labels={})),
    Case("a copied release", validation.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/release": "1.1"})),
    Case("a colleague's name", validation.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/submitter": "bob"})),
    Case("a pool of its own choice", validation.UNSTAMPED, create=pod(labels={**LABELS, "fairgate.io/pool": "x"})),
    Case("an unknown key of ours", validation.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/new": "x"})),
    Case("an annotation for users", None, create=pod(annotations={**STAMPS, "fairgate.io/gang": "x"})),
    Case("priority over others' pods", validation.PREEMPTION, create=pod(priorityClassName=None, preemptionPolicy=None)),
    Case("another scheduler", SCHEDULER, create=pod(schedulerName="other")),
    Case("another scheduler for other pods", None, create=unmanaged(schedulerName="other")),
    Case("every device by a variable", VARIABLE, create=unmanaged(environment("all"))),
    Case("devices by a variable from elsewhere", VARIABLE, create=unmanaged(environment(None))),
    Case("more devices than asked for", VARIABLE, create=pod({**environment("0,1"), "resources": ASKING["resources"]})),
    Case("no device by a variable", None, create=unmanaged(environment("none"))),
    Case("too many volumes", validation.LONG, create=unmanaged(volumes=many("v", 1))),
    Case("many volumes", None, create=unmanaged(volumes=many("v", -1))),
    Case("too many tolerations", validation.LONG, create=unmanaged(tolerations=[ANYWHERE] * (MANY + 1))),
    Case("many tolerations", None, create=unmanaged(tolerations=[ANYWHERE] * MANY)),
    Case("too many variables", validation.LONG, create=unmanaged(container(env=many("V", 1)))),
    Case("many variables", None, create=unmanaged(container(env=many("V")))),
    Case("a device file", validation.PATH, create=unmanaged(**on_host("/dev/nvidia0"))),
    Case("a device file without a leading slash", validation.PATH, create=unmanaged(**on_host("dev/nvidia0"))),
    Case("all device files", validation.PATH, create=unmanaged(**on_host("//dev/"))),
    Case("links to device files", validation.PATH, create=unmanaged(**on_host("/dev/char/195:0"))),
    Case("the root of another process", validation.PATH, create=unmanaged(**on_host("/proc/1/root/dev"))),
    Case("the root of another process, spelled oddly", validation.PATH, create=unmanaged(**on_host("/proc//./1/task/1/./root"))),
    Case("the folder of another process", validation.PATH, create=unmanaged(**on_host("/proc/1/cwd/dev"))),
    Case("the device files of the driver", validation.PATH, create=unmanaged(**on_host("/var/./run/nvidia/driver/dev"))),
    Case("the folder above those of the driver", validation.PATH, create=unmanaged(**on_host("/run/nvidia/"))),
    Case("the folder of running programs", validation.PATH, create=unmanaged(**on_host("/var//run"))),
    Case("another folder of the driver", None, create=unmanaged(**on_host("/run/nvidia-persistenced"))),
    Case("a folder of another program", None, create=unmanaged(**on_host("/run/systemd"))),
    Case("a device file of a GPU for virtual machines", validation.PATH, create=unmanaged(**on_host("/dev/vfio/1"))),
    Case("limits of the node", None, create=unmanaged(**on_host("/proc/sys/fs"))),
    Case("the processes of the node", None, create=unmanaged(**on_host("/proc"))),
    Case("a place among devices for who asks for zero", None, create=unmanaged(ZERO, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Case("the whole node", validation.PATH, create=unmanaged(**on_host("/"))),
    Case("another folder of the node", None, create=unmanaged(**on_host("/data"))),
    Case("privilege", validation.PRIVILEGED, create=unmanaged(container(securityContext={"privileged": True}))),
    Case("a place among devices", TOLERATION, create=unmanaged(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Case("a place among devices, asked for", None, create=pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Case("a distance from pods of its own namespace", None, create=apart(**labelled("app"), namespaces=["rules"])),
    Case("a distance from pods of all namespaces", validation.DISTANCE, create=apart(**labelled("app"), namespaceSelector={})),
    Case("a distance from pods of chosen namespaces", validation.DISTANCE, create=apart(**labelled("app"), namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "rules"}})),
    Case("a distance from pods of another namespace", validation.DISTANCE, create=apart(**labelled("app"), namespaces=["rules", "blue"])),
    Case("a distance from a tenant", validation.DISTANCE, create=apart(**labelled(OURS))),
    Case("a distance from every tenant", validation.DISTANCE, create=apart(labelSelector={"matchExpressions": [ANY]})),
    Case("a distance from its own tenant", validation.DISTANCE, create=apart(**labelled("app"), matchLabelKeys=[OURS])),
    Case("a distance from all other tenants", validation.DISTANCE, create=apart(**labelled("app"), mismatchLabelKeys=[OURS])),
    Case("a distance from a tenant in a second term", validation.DISTANCE, create=unmanaged(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x", **labelled("app")}, {"topologyKey": "x", **labelled(OURS)}]}})),
    Case("a distance from a tenant, asked for by a GPU pod", validation.DISTANCE, create=pod(affinity=apart(**labelled(OURS))["spec"]["affinity"])),
    Case("a distance that is only preferred", None, create=unmanaged(affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}})),
    Case("nearness to pods of all namespaces", None, create=unmanaged(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x", "namespaceSelector": {}, **labelled(OURS)}]}})),
)  # fmt: skip

UPDATES = (
    Case("the gate is taken off", validation.GATE_KEPT, pod(), change=open_gate),
    Case("the gate is taken off, and every trace", validation.GATE_KEPT, pod(), change=forget),
    Case("the releaser takes the gate off", None, pod(), change=open_gate, caller=RELEASER),
    Case("another label", None, pod(), change=tag("app", "y")),
    Case("another tenant", validation.STAMPS_KEPT, pod(), change=tag("fairgate.io/tenant", "x")),
    Case("no user", validation.STAMPS_KEPT, pod(), change=tag("fairgate.io/user", None)),
    Case("a pool", validation.STAMPS_KEPT, pod(), change=tag("fairgate.io/pool", "x")),
    Case("a release", validation.STAMPS_KEPT, pod(), change=note("fairgate.io/release", "9.9")),
    Case("another submitter", validation.STAMPS_KEPT, pod(), change=note("fairgate.io/submitter", "bob")),
    Case("a gang", validation.STAMPS_KEPT, pod(), change=note("fairgate.io/gang", "x")),
    Case("a run time while held", None, pod(), change=note("fairgate.io/max-runtime", "1h")),
    Case("a run time once released", validation.STAMPS_KEPT, released(), change=note("fairgate.io/max-runtime", "1h")),
    Case("a release is erased", validation.STAMPS_KEPT, released(), change=note("fairgate.io/release", None)),
    Case("the releaser stamps", None, pod(), change=note("fairgate.io/release", "0@7"), caller=RELEASER),
    Case("labels through the status", validation.STAMPS_KEPT, pod(), change=tag("fairgate.io/tenant", "x"), subresource="status"),
    Case("a false end", validation.PHASE, released(), change=end, subresource="status"),
    Case("a false end by the releaser", validation.PHASE, released(), change=end, subresource="status", caller=RELEASER),
    Case("a false start", validation.PHASE, released(), change=start, subresource="status"),
    Case("a start by the pod's node", None, bound(), change=start, subresource="status", caller=NODE),
    Case("a start by another node", validation.PHASE, bound(), change=start, subresource="status", caller=OTHER_NODE),
    Case("no claim while held", validation.PHASE, claiming(), change=no_claim, subresource="status"),
    Case("a claim by the scheduler", None, claiming(), change=no_claim, subresource="status", caller=KUBE_SCHEDULER),
    Case("a claim by a second scheduler", None, claiming(), change=no_claim, subresource="status", caller=SECOND_SCHEDULER),
    Case("a claim by the releaser", validation.PHASE, claiming(), change=no_claim, subresource="status", caller=RELEASER),
    Case("a claim for extended resources", validation.PHASE, released(), change=extended_claim, subresource="status"),
    Case("a claim for extended resources by another node", validation.PHASE, bound(), change=extended_claim, subresource="status", caller=OTHER_NODE),
    Case("a claim for extended resources by the scheduler", None, released(), change=extended_claim, subresource="status", caller=KUBE_SCHEDULER),
    Case("a claim for extended resources by a second scheduler", None, released(), change=extended_claim, subresource="status", caller=SECOND_SCHEDULER),
    Case("a node kept while held", validation.NOMINATED, pod(), change=nominate, subresource="status"),
    Case("a node kept once released", None, released(), change=nominate, subresource="status"),
    Case("an end of what concerns nobody", None, unmanaged(nodeSelector={"rules": "none"}), change=end, subresource="status"),
    Case("a place among devices, later", TOLERATION, unmanaged(nodeSelector={"rules": "none"}), change=tolerate),
    Case("a place among devices for a GPU pod, later", None, pod(), change=tolerate),
)  # fmt: skip

TEMPLATES = (
    Case("no stamp", None, create=job(), resource=JOBS),
    Case("one's own stamp", None, create=job(ALICE), resource=JOBS),
    Case("a colleague's stamp on a Job", validation.TEMPLATE, create=job("bob"), resource=JOBS),
    Case("a colleague's stamp on a CronJob", validation.TEMPLATE, create=cron_job("bob"), resource=CRON_JOBS),
    Case("a colleague's stamp on a Deployment", validation.TEMPLATE, create=deployment("bob"), resource=DEPLOYMENTS),
    Case("a colleague's stamp on a ControllerRevision", validation.TEMPLATE, create=revision("bob"), resource=("apps", "controllerrevisions")),
    Case("another label of a colleague's object", None, deployment("bob"), change=tag("app", "z"), resource=DEPLOYMENTS),
    Case("a stamp changed to a colleague's", validation.TEMPLATE, deployment(ALICE), change=stamp("bob"), resource=DEPLOYMENTS),
    Case("a colleague's stamp changed to one's own", validation.TEMPLATE, deployment("bob"), change=stamp(ALICE), resource=DEPLOYMENTS),
    Case("a stamp taken out", validation.TEMPLATE, deployment("bob"), change=stamp(""), resource=DEPLOYMENTS),
    Case("a colleague's stamp where there was none", validation.TEMPLATE, deployment(), change=stamp("bob"), resource=DEPLOYMENTS),
    Case("one's own stamp where there was none", None, deployment(), change=stamp(ALICE), resource=DEPLOYMENTS),
)  # fmt: skip

FREE = unmanaged(nodeName=HOST, terminationGracePeriodSeconds=3600)

DELETES = (
    Case("a bound pod deleted at once", validation.FORCED, bound(), deletes=True, grace=0),
    Case("a bound pod deleted in a second", None, bound(), deletes=True, grace=1),
    Case("a bound pod deleted as it says", None, bound(), deletes=True),
    Case("a bound pod deleted at once by the releaser", None, bound(), deletes=True, grace=0, caller=RELEASER),
    Case("a bound pod deleted at once by its node", None, bound(), deletes=True, grace=0, caller=NODE),
    Case("a bound pod deleted at once by another node", validation.FORCED, bound(), deletes=True, grace=0, caller=OTHER_NODE),
    Case("a bound pod that asks by a claim deleted at once", validation.FORCED, bound(PLAIN, resourceClaims=[{"name": "c", "resourceClaimName": "c"}]), deletes=True, grace=0),
    Case("a bound pod of one second deleted at once", None, bound(grace=1), deletes=True, grace=0),
    Case("a bound pod of no second deleted as it says", None, bound(grace=0), deletes=True),
    Case("a held pod deleted at once", None, pod(terminationGracePeriodSeconds=3600), deletes=True, grace=0),
    Case("a released pod without a node deleted at once", None, released(terminationGracePeriodSeconds=3600), deletes=True, grace=0),
    Case("a bound pod that concerns nobody deleted at once", None, FREE, deletes=True, grace=0),
    Case("a bound pod evicted at once", validation.FORCED, bound(), evicts=True, grace=0, subresource="eviction"),
    Case("a bound pod evicted in a second", None, bound(), evicts=True, grace=1, subresource="eviction"),
    Case("a bound pod evicted as it says", None, bound(), evicts=True, subresource="eviction"),
    Case("a bound pod evicted at once by the releaser", None, bound(), evicts=True, grace=0, subresource="eviction", caller=RELEASER),
)  # fmt: skip

OVER: dict[str, Object] = {
    "selector": largest_pods.selector_keys(51, ""),
    "tolerations": largest_pods.tolerations(51, ""),
    "node_terms": largest_pods.affinity_terms(51, ""),
    "node_requirements": largest_pods.affinity_expressions(101, ""),
    "node_values": largest_pods.affinity_values(251, ""),
    "preferences": largest_pods.preferred_terms(51, ""),
    "pod_terms": largest_pods.anti_affinity_terms(51, ""),
    "spreads": largest_pods.spread_constraints(21, ""),
    "pod_requirements": largest_pods.anti_affinity_expressions(101, ""),
    "pod_values": largest_pods.anti_affinity_namespaces(201, ""),
    "containers": largest_pods.containers(100, ""),
    "resources": largest_pods.resource_names(149, ""),
    "claims": largest_pods.resource_claims(51, ""),
    "gates": largest_pods.gates(20, ""),
    "annotation": largest_pods.pool_names(900, ""),
}
"""One pod per bound that exceeds the bound by one."""

WITHIN: dict[str, Object] = {
    "selector": largest_pods.selector_keys(50, ""),
    "tolerations": largest_pods.tolerations(48, ""),  # the API server adds two
    "node_terms": largest_pods.affinity_terms(50, ""),
    "node_requirements": largest_pods.affinity_expressions(100, ""),
    "node_values": largest_pods.affinity_values(250, ""),
    "preferences": largest_pods.preferred_terms(50, ""),
    "pod_terms": largest_pods.anti_affinity_terms(50, ""),
    "spreads": largest_pods.spread_constraints(20, ""),
    "pod_requirements": largest_pods.anti_affinity_expressions(100, ""),
    "pod_values": largest_pods.anti_affinity_values(199, ""),
    "containers": largest_pods.containers(99, ""),
    "resources": largest_pods.resource_names(148, ""),
    "claims": largest_pods.resource_claims(50, ""),
    "gates": largest_pods.gates(19, ""),
    "annotation": largest_pods.pool_names(700, ""),
}
"""One pod per bound that is exactly at the bound."""


def held(large: Object) -> Object:
    """Return a pod of `largest` as the webhook leaves it."""
    made, metadata, spec = pod(), large["metadata"], large["spec"]
    made["metadata"]["labels"] |= metadata.get("labels", {})
    made["metadata"]["annotations"] |= metadata.get("annotations", {})
    others = spec.get("schedulingGates", ())
    made["spec"] |= {**spec, "schedulingGates": [GATE, *others]}
    return made


def grow(found: Object) -> None:
    """Add enough tolerations to exceed the bound."""
    found["spec"]["tolerations"] = [
        *found["spec"].get("tolerations", ()),
        *largest_pods.tolerations(BOUNDS.tolerations + 1, "more")["spec"]["tolerations"],
    ]


def grow_annotation(found: Object) -> None:
    found["metadata"]["annotations"]["fairgate.io/max-runtime"] = "1" * 4097


def grow_claims(found: Object) -> None:
    """Change another annotation and the claims, so that the API server calls the webhook."""
    note("app", "y")(found)
    no_claim(found)


LARGE_CLAIMING = held(OVER["selector"])
LARGE_CLAIMING["spec"] |= claiming()["spec"]

SIZES = (
    *(Case(f"just too large: {field}", sentence(field), create=held(each)) for field, each in OVER.items()),
    *(Case(f"just not too large: {field}", None, create=held(each)) for field, each in WITHIN.items()),
    Case("too large and not managed", None, create=unmanaged(nodeSelector=OVER["selector"]["spec"]["nodeSelector"])),
    Case("grows too large", sentence("tolerations"), pod(), change=grow),
    Case("grows too large once released", sentence("tolerations"), released(), change=grow),
    Case("an annotation grows too large", sentence("annotation"), pod(), change=grow_annotation),
    Case("the releaser adds to a large pod", None, pod(), change=grow, caller=RELEASER),
    Case("another label of a pod that was too large", None, held(OVER["selector"]), change=tag("app", "y")),
    Case("claims of a pod that was too large", validation.PHASE, LARGE_CLAIMING, change=grow_claims, subresource="status"),
    Case("claims of a pod that was too large by a second scheduler", None, LARGE_CLAIMING, change=grow_claims, subresource="status", caller=SECOND_SCHEDULER),
)  # fmt: skip

CLAIMS = ("resource.k8s.io", "resourceclaims")
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "00000000-0000-0000-0000-000000000001"}  # fmt: skip
MADE_FOR = {"resource.kubernetes.io/pod-claim-name": "c"}


def claim(
    *owners: Object, annotations: Object | None = None, finalizers: tuple[str, ...] = ()
) -> Object:
    """Return a resource claim as a user writes it, unless the arguments say otherwise."""
    metadata: Object = {"annotations": dict(annotations or {}), "finalizers": list(finalizers)}
    metadata["ownerReferences"] = [dict(owner) for owner in owners]
    request = {"name": "r", "exactly": {"deviceClassName": "nic.example.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": [request]}},
    }


def protected() -> Object:
    """Return a claim that a pod was released for."""
    return claim(finalizers=("example.com/mine", FINALIZER))


def allocated() -> Object:
    """Return a claim with devices. Kubernetes does not know its user, so it does not free them."""
    user = {"apiGroup": "example.com", "resource": "users", "name": "u", "uid": "u"}
    status = {"allocation": {"devices": {}}, "reservedFor": [user]}
    return {**claim(finalizers=("example.com/mine", DELETE_PROTECTION)), "status": status}


def free_claim(found: Object) -> None:
    found["metadata"]["finalizers"] = ["example.com/mine"]


def own(found: Object) -> None:
    found["metadata"]["ownerReferences"] = [{**OWNER, "controller": True}]


CLAIM_RULES = (
    Case("a claim", None, create=claim(), resource=CLAIMS),
    Case("a claim of a Job", None, create=claim({**OWNER, "apiVersion": "batch/v1", "kind": "Job"}), resource=CLAIMS),
    Case("a claim as if generated", validation.CLAIM_OWNER, create=claim({**OWNER, "controller": True}, annotations=MADE_FOR), resource=CLAIMS),
    Case("a claim as if generated, by the scheduler", None, create=claim({**OWNER, "controller": True}, annotations=MADE_FOR), resource=CLAIMS, caller=KUBE_SCHEDULER),
    Case("a claim as if generated, by a second scheduler", None, create=claim({**OWNER, "controller": True}, annotations=MADE_FOR), resource=CLAIMS, caller=SECOND_SCHEDULER),
    Case("a claim that goes with a pod", None, create=claim(OWNER), resource=CLAIMS),
    Case("a claim of a pod, by its owner alone", validation.CLAIM_OWNER, create=claim({**OWNER, "controller": True}), resource=CLAIMS),
    Case("a claim of a pod, by its annotation alone", validation.CLAIM_OWNER, create=claim(annotations=MADE_FOR), resource=CLAIMS),
    Case("a claim as if the scheduler had made it", validation.CLAIM_OWNER, create=claim(annotations={"resource.kubernetes.io/extended-resource-claim": "true"}), resource=CLAIMS),
    Case("a claim of a pod group", validation.CLAIM_OWNER, create=claim({**OWNER, "kind": "PodGroup", "controller": True}), resource=CLAIMS),
    Case("the finalizer is removed", validation.CLAIM, protected(), change=free_claim, resource=CLAIMS),
    Case("the releaser removes the finalizer", None, protected(), change=free_claim, caller=RELEASER, resource=CLAIMS),
    Case("devices of a claim are freed", validation.CLAIM_DEVICES, allocated(), change=free_claim, resource=CLAIMS),
    Case("devices of a claim are freed by the releaser", validation.CLAIM_DEVICES, allocated(), change=free_claim, caller=RELEASER, resource=CLAIMS),
    Case("devices of a claim are freed by the scheduler", None, allocated(), change=free_claim, caller=KUBE_SCHEDULER, resource=CLAIMS),
    Case("devices of a claim are freed by a second scheduler", None, allocated(), change=free_claim, caller=SECOND_SCHEDULER, resource=CLAIMS),
    Case("another annotation of a claim with devices", None, allocated(), change=note("app", "y"), resource=CLAIMS),
    Case("a claim without devices loses the finalizer of Kubernetes", None, claim(finalizers=("example.com/mine", DELETE_PROTECTION)), change=free_claim, resource=CLAIMS),
    Case("another annotation of a claim in use", None, protected(), change=note("app", "y"), resource=CLAIMS),
    Case("the finalizer is added by a user", None, claim(), change=lambda found: found["metadata"].update(finalizers=[FINALIZER]), resource=CLAIMS),
    Case("a claim becomes that of a pod", validation.CLAIM_OWNER, claim(), change=own, resource=CLAIMS),
    Case("a claim becomes that of a pod, by the annotation", validation.CLAIM_OWNER, claim(), change=note(*next(iter(MADE_FOR.items()))), resource=CLAIMS),
    Case("what says that a claim was generated is removed", validation.CLAIM_OWNER, claim(annotations=MADE_FOR), change=note(next(iter(MADE_FOR)), None), resource=CLAIMS),
    Case("another label of a generated claim", None, claim(annotations=MADE_FOR), change=tag("app", "y"), resource=CLAIMS),
)  # fmt: skip

CASES = (*CREATES, *UPDATES, *DELETES, *SIZES, *TEMPLATES, *CLAIM_RULES)
