"""What may be created and changed, and by whom: the rules of the validating webhook.

The chart says the same in CEL, as admission policies (templates/_policies.tpl); one table of cases
drives both. Pure: a rule returns the sentence of its refusal, or None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.admission.keys import FOR_USERS, FROZEN, OURS
from app.core.model import (
    ANNOTATION_MIRROR,
    ANNOTATION_RELEASE,
    ANNOTATION_SUBMITTER,
    GATE,
    HELD,
    LABEL_TENANT,
    LABEL_USER,
    UserName,
)

NEVER = "Never"
NODE = "system:node:"
KUBE_SYSTEM = "system:serviceaccount:kube-system:"
CONTROLLER_MANAGER = "system:kube-controller-manager"
HARMLESS = ("", "none", "void")
"""Values of the variables of a container runtime that hand out no device."""

NODE_NAME = (
    "Fairgate: spec.nodeName binds this pod past the queue; remove it, or use spec.nodeSelector "
    "to choose nodes."
)
UNGATED = (
    "Fairgate: this pod asks for a managed resource and does not carry the gate fairgate.io/queue, "
    "so Fairgate's webhook was not asked; try again, and if that does not help tell who runs this "
    "cluster."
)
UNSTAMPED = (
    "Fairgate: the labels and annotations that begin with fairgate.io/ are not those that Fairgate "
    "writes; leave them out, and let its webhook write them."
)
SCHEDULER = (
    "Fairgate: the scheduler {0} may not place pods that ask for managed resources; use {1}."
)
PREEMPTION = (
    "Fairgate: a pod that asks for managed resources has a PriorityClass that evicts nobody; "
    "leave preemptionPolicy out, and let Fairgate's webhook choose the class."
)
GATE_KEPT = (
    "Fairgate: only Fairgate takes the gate fairgate.io/queue away, when it is this pod's turn; "
    "kubectl describe pod tells where it stands."
)
STAMPS_KEPT = (
    "Fairgate: what Fairgate wrote on a pod, and what it read when the pod was created or "
    "released, does not change; create the pod anew to change it."
)
PHASE = (
    "Fairgate: only the pod's node and the controllers of kube-system tell whether it runs or is "
    "finished; to end a pod, delete it."
)
BIND = (
    "Fairgate: {0} may not bind pods here; only accounts with the verb bind on "
    "podgates.fairgate.io may."
)
VARIABLE = (
    "Fairgate: {0} would reach devices that were not asked for; remove the variable and ask for "
    "the devices under resources.limits."
)
PATH = (
    "Fairgate: a hostPath volume reaches the devices of the node; remove it and ask for the "
    "devices under resources.limits."
)
PRIVILEGED = (
    "Fairgate: a privileged container reaches every device of its node; set privileged to false, "
    "or ask who runs this cluster for an exempt namespace."
)
TOLERATION = (
    "Fairgate: a pod that asks for no device may not tolerate {0}, which keeps nodes with devices "
    "free; remove the toleration."
)
TEMPLATE = (
    "Fairgate: the annotation fairgate.io/submitter of a pod template is written by Fairgate, "
    "once; leave it as it was, or out."
)
TENANT = (
    "Fairgate: what a tenant is owed is decided by whoever may update its parent (at top level: "
    "all tenants); ask them, or weigh your own users only."
)
USERS = (
    "Fairgate: to weigh the users of this tenant you need the right to update tenants/users of "
    "it; ask who runs this cluster."
)

CONTROLLERS = (
    *(
        KUBE_SYSTEM + name
        for name in (
            "cronjob-controller",
            "daemon-set-controller",
            "deployment-controller",
            "job-controller",
            "replicaset-controller",
            "replication-controller",
            "statefulset-controller",
        )
    ),
    CONTROLLER_MANAGER,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between clusters. The defaults are those of the chart."""

    controllers: tuple[str, ...] = CONTROLLERS
    """Users that make pods after templates of others."""
    schedulers: tuple[str, ...] = ("default-scheduler",)
    phase_writers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES")
    paths: str = r"^/[/.]*(dev[/.]*((nvidia|dri|kfd).*)?|proc/+[^/]+/+root.*)?$"
    refuse_privileged: bool = True
    taints: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    refuse_preemption: bool = True


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the rules look at in a pod. `variables`: names and values, None if from elsewhere.

    `asks` for a managed resource; or `names` one, be it to ask for none of it.
    """

    asks: bool = False
    names: bool = False
    gates: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    preemption: str = ""
    node: str = ""
    phase: str = ""
    variables: tuple[tuple[str, str | None], ...] = ()
    paths: tuple[str, ...] = ()
    privileged: bool = False
    tolerated: tuple[str, ...] = ()

    @property
    def concerns(self) -> bool:
        """Whether Fairgate has, or should have, anything to do with the pod."""
        return GATE in self.gates or ANNOTATION_RELEASE in self.annotations or self.asks


class Guard:
    """The rules, for one cluster."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._paths = re.compile(rules.paths)

    def is_controller(self, caller: UserName) -> bool:
        """Tell whether a caller makes pods after templates of others."""
        return caller in self._rules.controllers

    def created(self, pod: Sheet, caller: UserName) -> str | None:
        """Judge a pod as it would be stored."""
        if pod.concerns and not is_mirror(pod.labels, pod.annotations, pod.node, caller):
            if pod.node:
                return NODE_NAME
            if GATE not in pod.gates:
                return UNGATED
            if not self._is_stamped(pod, caller):
                return UNSTAMPED
            if (pod.scheduler or "default-scheduler") not in self._rules.schedulers:
                return SCHEDULER.format(pod.scheduler, " or ".join(self._rules.schedulers))
            if self._rules.refuse_preemption and pod.preemption != NEVER:
                return PREEMPTION
        return self.reached(pod)

    def changed(self, before: Sheet, after: Sheet, caller: UserName, releases: bool) -> str | None:
        """Judge a change of a pod; `releases`: the caller has the right to."""
        if not before.concerns:
            return None
        if GATE in before.gates and GATE not in after.gates and not releases:
            return GATE_KEPT
        if not (releases or _keeps_stamps(before, after)):
            return STAMPS_KEPT
        if before.phase != after.phase and not self._knows_phase(before, caller):
            return PHASE
        return None

    def reached(self, pod: Sheet) -> str | None:
        """Judge whether a pod reaches for devices that it does not ask for."""
        rules = self._rules
        if any(n in rules.variables and v not in HARMLESS for n, v in pod.variables):
            return VARIABLE.format(", ".join(rules.variables))
        if any(self._paths.search(path) for path in pod.paths):
            return PATH
        if pod.privileged and rules.refuse_privileged:
            return PRIVILEGED
        if not (pod.asks or pod.names) and any(key in rules.taints for key in pod.tolerated):
            return TOLERATION.format(", ".join(rules.taints))
        return None

    def stamped(self, before: Sequence[str], after: Sequence[str], caller: UserName) -> str | None:
        """Judge the stamps in the templates of an object, "" where there is none."""
        if self.is_controller(caller) or (before and list(before) == list(after)):
            return None
        known = [stamp for stamp in before if stamp]
        allowed = (known[0],) if known else ("", caller)
        return None if all(stamp in allowed for stamp in after) else TEMPLATE

    def _is_stamped(self, pod: Sheet, caller: UserName) -> bool:
        written, labels = pod.annotations, [key for key in pod.labels if key.startswith(OURS)]
        submitter = written.get(ANNOTATION_SUBMITTER, "")
        true = submitter == caller or (submitter != "" and self.is_controller(caller))
        known = {ANNOTATION_RELEASE, ANNOTATION_SUBMITTER, *FOR_USERS}
        return (
            written.get(ANNOTATION_RELEASE) == HELD
            and true
            and all(key in known for key in written if key.startswith(OURS))
            and sorted(labels) == sorted((LABEL_TENANT, LABEL_USER))
        )

    def _knows_phase(self, pod: Sheet, caller: UserName) -> bool:
        named = (NODE + pod.node, CONTROLLER_MANAGER, *self._rules.phase_writers)
        return caller in named or caller.startswith(KUBE_SYSTEM)


def is_mirror(
    labels: Mapping[str, str], annotations: Mapping[str, str], node: str, caller: UserName
) -> bool:
    """Tell whether a pod mirrors a static pod, made by the node that runs it, in nobody's name."""
    nameless = not any(key.startswith(OURS) for key in (*labels, *annotations))
    return ANNOTATION_MIRROR in annotations and nameless and caller == NODE + node


def governed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return why a change of a Tenant, made without the right to it, is refused."""
    others = _without_users(before) != _without_users(after)
    return TENANT if others or not (before and after) else USERS


def _without_users(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "users"}


def _keeps_stamps(before: Sheet, after: Sheet) -> bool:
    free: frozenset[str] = frozenset()
    if GATE in before.gates:
        free = FOR_USERS - FROZEN
    return _ours(before.labels) == _ours(after.labels) and _ours(before.annotations, free) == _ours(
        after.annotations, free
    )


def _ours(written: Mapping[str, str], free: frozenset[str] = frozenset()) -> dict[str, str]:
    return {k: v for k, v in written.items() if k.startswith(OURS) and k not in free}
