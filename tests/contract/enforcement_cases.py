"""What may be created and changed, as one table: the policies, the webhook and the core are held
to the same answers. Each case says who asks for what, and which sentence refuses it, if one does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.core.admission import guard

Object = dict[str, Any]

ALICE = "alice"
"""May edit the namespace, and write every subresource of pods, but has no right of Fairgate's."""
RELEASER = "releaser"
CLASS = "fairgate.none"
"""Of value 0; evicts nobody."""
GPU = {"nvidia.com/gpu": "1"}
BY_CLASS = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}
STAMPS = {"fairgate.io/release": "0", "fairgate.io/submitter": ALICE}
LABELS = {"fairgate.io/tenant": "ns.rules", "fairgate.io/user": ALICE}
GATE = {"name": "fairgate.io/queue"}
SCHEDULER = guard.SCHEDULER.format("other", "default-scheduler")
VARIABLE = guard.VARIABLE.format("NVIDIA_VISIBLE_DEVICES, AMD_VISIBLE_DEVICES")
TOLERATION = guard.TOLERATION.format("nvidia.com/gpu, amd.com/gpu")


@dataclass(frozen=True)
class Case:
    """A create of `after`, or a change of `before`; the caller is refused with `sentence`."""

    rule: str
    sentence: str | None
    before: Object | None = None
    create: Object | None = None
    change: Callable[[Object], object] | None = None
    subresource: str = ""
    caller: str = ALICE
    resource: tuple[str, str] = ("", "pods")

    @property
    def after(self) -> Object:
        """What would be stored."""
        if self.create is not None:
            return copy.deepcopy(self.create)
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
    """Return a pod as the webhook leaves it, unless told otherwise."""
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
    """Return a pod past the gate; a node that does not exist keeps it where it is."""
    return pod(
        annotations={**STAMPS, "fairgate.io/release": "1.1"},
        labels={**LABELS, "fairgate.io/pool": "default"},
        gates=(),
        nodeSelector={"rules": "none"},
        **fields,
    )


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
    """Return what writes, or with None removes, an annotation."""
    return lambda found: _write(found["metadata"]["annotations"], key, value)


def tag(key: str, value: str | None) -> Callable[[Object], None]:
    """Return what writes, or with None removes, a label."""
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


def on_host(path: str) -> Object:
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


ZERO = container(resources={"limits": {"nvidia.com/gpu": "0"}})
JOBS, CRON_JOBS, DEPLOYMENTS = ("batch", "jobs"), ("batch", "cronjobs"), ("apps", "deployments")

CREATES = (
    Case("a pod with gate and stamps", None, create=pod()),
    Case("a pod that asks for nothing managed", None, create=unmanaged()),
    Case("a pod that asks for zero", None, create=unmanaged(ZERO)),
    Case("a pod without the gate", guard.UNGATED, create=pod(gates=())),
    Case("a pod with another gate", guard.UNGATED, create=pod(gates=({"name": "example.com/x"},))),
    Case("a GPU in an init container", guard.UNGATED, create=unmanaged(initContainers=[ASKING | {"name": "init"}])),
    Case("a device class by request alone", guard.UNGATED, create=unmanaged(container(resources={"requests": BY_CLASS}))),
    Case("a claim without the gate", guard.UNGATED, create=unmanaged(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])),
    Case("a node of its own choice", guard.NODE_NAME, create=pod(gates=(), nodeName="rule-node")),
    Case("a false mirror of a static pod", guard.NODE_NAME, create=pod(gates=(), nodeName="rule-node", annotations={**STAMPS, "kubernetes.io/config.mirror": "x"})),
    Case("no stamps", guard.UNSTAMPED, create=pod(annotations={}, labels={})),
    Case("a copied release", guard.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/release": "1.1"})),
    Case("a colleague's name", guard.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/submitter": "bob"})),
    Case("a pool of its own choice", guard.UNSTAMPED, create=pod(labels={**LABELS, "fairgate.io/pool": "x"})),
    Case("an unknown key of ours", guard.UNSTAMPED, create=pod(annotations={**STAMPS, "fairgate.io/new": "x"})),
    Case("an annotation for users", None, create=pod(annotations={**STAMPS, "fairgate.io/gang": "x"})),
    Case("priority over others' pods", guard.PREEMPTION, create=pod(priorityClassName=None, preemptionPolicy=None)),
    Case("another scheduler", SCHEDULER, create=pod(schedulerName="other")),
    Case("another scheduler for other pods", None, create=unmanaged(schedulerName="other")),
    Case("every device by a variable", VARIABLE, create=unmanaged(environment("all"))),
    Case("devices by a variable from elsewhere", VARIABLE, create=unmanaged(environment(None))),
    Case("more devices than asked for", VARIABLE, create=pod({**environment("0,1"), "resources": ASKING["resources"]})),
    Case("no device by a variable", None, create=unmanaged(environment("none"))),
    Case("a device file", guard.PATH, create=unmanaged(**on_host("/dev/nvidia0"))),
    Case("all device files", guard.PATH, create=unmanaged(**on_host("//dev/"))),
    Case("the root of another process", guard.PATH, create=unmanaged(**on_host("/proc/1/root/dev"))),
    Case("the processes of the node", None, create=unmanaged(**on_host("/proc"))),
    Case("a place among devices for who asks for zero", None, create=unmanaged(ZERO, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Case("the whole node", guard.PATH, create=unmanaged(**on_host("/"))),
    Case("another folder of the node", None, create=unmanaged(**on_host("/data"))),
    Case("privilege", guard.PRIVILEGED, create=unmanaged(container(securityContext={"privileged": True}))),
    Case("a place among devices", TOLERATION, create=unmanaged(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Case("a place among devices, asked for", None, create=pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])),
)  # fmt: skip

UPDATES = (
    Case("the gate is taken off", guard.GATE_KEPT, pod(), change=open_gate),
    Case("the gate is taken off, and every trace", guard.GATE_KEPT, pod(), change=forget),
    Case("the releaser takes the gate off", None, pod(), change=open_gate, caller=RELEASER),
    Case("another label", None, pod(), change=tag("app", "y")),
    Case("another tenant", guard.STAMPS_KEPT, pod(), change=tag("fairgate.io/tenant", "x")),
    Case("no user", guard.STAMPS_KEPT, pod(), change=tag("fairgate.io/user", None)),
    Case("a pool", guard.STAMPS_KEPT, pod(), change=tag("fairgate.io/pool", "x")),
    Case("a release", guard.STAMPS_KEPT, pod(), change=note("fairgate.io/release", "9.9")),
    Case("another submitter", guard.STAMPS_KEPT, pod(), change=note("fairgate.io/submitter", "bob")),
    Case("a gang", guard.STAMPS_KEPT, pod(), change=note("fairgate.io/gang", "x")),
    Case("a run time while held", None, pod(), change=note("fairgate.io/max-runtime", "1h")),
    Case("a run time once released", guard.STAMPS_KEPT, released(), change=note("fairgate.io/max-runtime", "1h")),
    Case("a release is erased", guard.STAMPS_KEPT, released(), change=note("fairgate.io/release", None)),
    Case("the releaser stamps", None, pod(), change=note("fairgate.io/release", "0@7"), caller=RELEASER),
    Case("labels through the status", guard.STAMPS_KEPT, pod(), change=tag("fairgate.io/tenant", "x"), subresource="status"),
    Case("a false end", guard.PHASE, released(), change=end, subresource="status"),
    Case("a false end by the releaser", guard.PHASE, released(), change=end, subresource="status", caller=RELEASER),
    Case("an end of what concerns nobody", None, unmanaged(nodeSelector={"rules": "none"}), change=end, subresource="status"),
    Case("a place among devices, later", TOLERATION, unmanaged(nodeSelector={"rules": "none"}), change=tolerate),
    Case("a place among devices for a GPU pod, later", None, pod(), change=tolerate),
)  # fmt: skip

TEMPLATES = (
    Case("no stamp", None, create=job(), resource=JOBS),
    Case("one's own stamp", None, create=job(ALICE), resource=JOBS),
    Case("a colleague's stamp on a Job", guard.TEMPLATE, create=job("bob"), resource=JOBS),
    Case("a colleague's stamp on a CronJob", guard.TEMPLATE, create=cron_job("bob"), resource=CRON_JOBS),
    Case("a colleague's stamp on a Deployment", guard.TEMPLATE, create=deployment("bob"), resource=DEPLOYMENTS),
    Case("a colleague's stamp on a ControllerRevision", guard.TEMPLATE, create=revision("bob"), resource=("apps", "controllerrevisions")),
    Case("another label of a colleague's object", None, deployment("bob"), change=tag("app", "z"), resource=DEPLOYMENTS),
    Case("a stamp changed to a colleague's", guard.TEMPLATE, deployment(ALICE), change=stamp("bob"), resource=DEPLOYMENTS),
    Case("a colleague's stamp changed to one's own", guard.TEMPLATE, deployment("bob"), change=stamp(ALICE), resource=DEPLOYMENTS),
    Case("a stamp taken out", guard.TEMPLATE, deployment("bob"), change=stamp(""), resource=DEPLOYMENTS),
    Case("a colleague's stamp where there was none", guard.TEMPLATE, deployment(), change=stamp("bob"), resource=DEPLOYMENTS),
    Case("one's own stamp where there was none", None, deployment(), change=stamp(ALICE), resource=DEPLOYMENTS),
)  # fmt: skip

CASES = (*CREATES, *UPDATES, *TEMPLATES)
