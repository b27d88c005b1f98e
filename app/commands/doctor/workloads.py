"""The pods and pod templates of a cluster, reduced to one record for each workload.

A pod belongs to the Deployment, DaemonSet, Job or other object that controls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.commands.doctor.pod_rules import PodJudge, Verdict
from app.core.admission.pod_templates import TemplateKind
from app.core.well_known import ANNOTATION_MIRROR
from app.ports.cluster_survey import Object

DEFAULT_SCHEDULER = "default-scheduler"
DAEMON_SET = "DaemonSet"
HASH = "pod-template-hash"
FINISHED = ("Succeeded", "Failed")

PURPOSES = {
    "network plugin": "calico cilium flannel antrea weave canal ovn multus aws-node kube-router "
    "cni",
    "storage driver": "csi longhorn rook ceph openebs portworx",
    "device plugin": "device-plugin dcgm feature-discovery gpu-operator nvidia-driver mig-manager",
    "monitoring agent": "node-exporter datadog prometheus fluent promtail vector cadvisor falco "
    "telegraf opentelemetry otel filebeat node-problem",
}
"""Parts of the names and images of well-known node agents. Only for the text of a finding."""


@dataclass(slots=True)
class Workload:
    """One workload. `refusals` are the messages with which Fairgate would refuse its pods."""

    namespace: str
    kind: str
    name: str
    requests_devices: bool = False
    refusals: set[str] = field(default_factory=set)
    schedulers: set[str] = field(default_factory=set)
    pods: int = 0
    purpose: str = ""

    @property
    def title(self) -> str:
        """Return kind and name, without the namespace."""
        return f"{self.kind} {self.name}"

    @property
    def address(self) -> str:
        """Return kind, namespace and name."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def is_agent(self) -> bool:
        """Whether it runs on nodes for the cluster: a DaemonSet without a device of its own."""
        return self.kind == DAEMON_SET and not self.requests_devices


class Workloads:
    """Collects workloads. Add templates before pods, so that pods find their owners."""

    def __init__(self, judge: PodJudge) -> None:
        self._judge = judge
        self._found: dict[tuple[str, str, str], Workload] = {}
        self._cron_jobs: dict[tuple[str, str], str] = {}

    def __iter__(self) -> Iterator[Workload]:
        return iter([self._found[key] for key in sorted(self._found)])

    def add_templates(self, kind: TemplateKind, object_kind: str, item: Object) -> None:
        """Add the pod templates of an object, such as a Deployment or a RayCluster."""
        meta = item["metadata"]
        owner = _controller(meta)
        if kind.resource == "jobs" and owner.get("kind") == "CronJob":
            self._cron_jobs[meta["namespace"], meta["name"]] = owner["name"]
            return
        if owner or (kind.resource == "jobs" and _is_finished(item)):
            return
        for found in kind.find_templates(item):
            template = found.content
            if not (found.has_spec and isinstance(template.get("spec"), dict)):
                continue
            verdict = self._judge.evaluate(template, meta["namespace"], is_created=False)
            self._add(meta["namespace"], object_kind, meta["name"], template, verdict)

    def add_pod(self, pod: Object) -> None:
        """Add a pod. Pods that ended and mirror pods are left out."""
        meta = pod["metadata"]
        if (pod.get("status") or {}).get("phase") in FINISHED:
            return
        if ANNOTATION_MIRROR in (meta.get("annotations") or {}):
            return
        kind, name = self._owner(meta)
        verdict = self._judge.evaluate(pod, meta["namespace"], is_created=True)
        self._add(meta["namespace"], kind, name, pod, verdict).pods += 1

    def _add(
        self, namespace: str, kind: str, name: str, pod: Mapping[str, Any], verdict: Verdict
    ) -> Workload:
        key = (namespace, kind, name)
        workload = self._found.setdefault(key, Workload(namespace, kind, name))
        workload.requests_devices |= verdict.requests_devices
        if verdict.refusal:
            workload.refusals.add(verdict.refusal)
        spec = pod.get("spec") or {}
        workload.schedulers.add(spec.get("schedulerName") or DEFAULT_SCHEDULER)
        workload.purpose = workload.purpose or _purpose(name, spec)
        return workload

    def _owner(self, meta: Mapping[str, Any]) -> tuple[str, str]:
        owner = _controller(meta)
        if not owner:
            return "Pod", meta["name"]
        kind, name = owner["kind"], owner["name"]
        if kind == "ReplicaSet":
            end = f"-{(meta.get('labels') or {}).get(HASH, '')}"
            if len(end) > 1 and name.endswith(end):
                return "Deployment", name.removesuffix(end)
        if kind == "Job" and (cron := self._cron_jobs.get((meta["namespace"], name))):
            return "CronJob", cron
        return kind, name


def _controller(meta: Mapping[str, Any]) -> dict[str, Any]:
    owners = meta.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _is_finished(item: Object) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in conditions
    )


def _purpose(name: str, spec: Mapping[str, Any]) -> str:
    images = [str(each.get("image", "")) for each in spec.get("containers") or ()]
    text = " ".join([name, *images]).lower()
    for purpose, parts in PURPOSES.items():
        if any(part in text for part in parts.split()):
            return purpose
    return ""
