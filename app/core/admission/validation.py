"""Rules of the validating webhook: which users may create and change which objects.

The chart has the same rules in CEL, as admission policies (templates/_policies.tpl). One table of
cases tests both. A rule returns the message of its refusal, or None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.model import UserName
from app.core.well_known import (
    ANNOTATION_MIRROR,
    ANNOTATION_RELEASE,
    ANNOTATION_SUBMITTER,
    CREATE_ONLY_KEYS,
    GATE,
    KEY_PREFIX,
    LABEL_TENANT,
    LABEL_USER,
    RELEASE_HELD,
    USER_KEYS,
)

NEVER = "Never"
NODE = "system:node:"
KUBE_SYSTEM = "system:serviceaccount:kube-system:"
CONTROLLER_MANAGER = "system:kube-controller-manager"
FINISHED = ("Succeeded", "Failed")
LEAST_GRACE = 1
"""Seconds that a kubelet gives every pod. If a pod's own grace period is no longer, the pod ends as
soon after a forced deletion as after a deletion with this grace period."""
HARMLESS = ("", "none", "void")
"""Values of the variables of a container runtime that expose no device."""

NODE_NAME = (
    "Fairgate: spec.nodeName would bypass the queue; remove it, or use spec.nodeSelector "
    "to choose nodes."
)
UNGATED = (
    "Fairgate: this pod requests a managed resource without the gate fairgate.io/queue, "
    "so it did not pass Fairgate's webhook; try again, or ask a cluster admin."
)
UNSTAMPED = (
    "Fairgate: labels and annotations that begin with fairgate.io/ differ from those of "
    "Fairgate's webhook; remove them from the pod."
)
SCHEDULER = "Fairgate: the scheduler {0} may not bind pods that request managed resources; use {1}."
PREEMPTION = (
    "Fairgate: a pod that requests managed resources may not preempt; remove preemptionPolicy, "
    "and Fairgate's webhook sets the PriorityClass."
)
GATE_KEPT = (
    "Fairgate: only Fairgate removes the gate fairgate.io/queue; run kubectl describe pod to see "
    "the pod's place in the queue."
)
STAMPS_KEPT = (
    "Fairgate: labels, annotations and fields that Fairgate uses are immutable; delete the pod "
    "and create it again to change them."
)
PHASE = (
    "Fairgate: only the pod's node and kube-system's controllers write phase and startTime of this "
    "pod, and they and schedulers the names of its generated claims; delete the pod to end it."
)
NOMINATED = (
    "Fairgate: a held pod may not have status.nominatedNodeName, because the scheduler would keep "
    "capacity of that node free for it; leave the field empty."
)
BIND = (
    "Fairgate: {0} may not bind pods here; only accounts with the verb bind on "
    "podgates.fairgate.io may."
)
FORCED = (
    "Fairgate: a bound pod is not deleted or evicted with a grace period of 0: its devices would "
    "count as free while its processes may still run; use --grace-period=1, "
    "which its node confirms."
)
VARIABLE = (
    "Fairgate: {0} would give access to devices that the pod does not request; remove the "
    "variable and request the devices in resources.limits."
)
MOST_SEARCHED = 2000
"""Longest list of a pod that policies search for devices. Their time grows with the square."""
LONG = (
    f"Fairgate: a pod may have at most {MOST_SEARCHED} volumes, tolerations, and variables per "
    "container, because each is checked for access to devices; use fewer."
)
PATH = (
    "Fairgate: a hostPath volume gives access to the devices of the node; remove it and request "
    "the devices in resources.limits."
)
PRIVILEGED = (
    "Fairgate: a privileged container has access to all devices of its node; set privileged to "
    "false, or ask a cluster admin for an exempt namespace."
)
TOLERATION = (
    "Fairgate: a pod that requests no device may not tolerate {0}, which reserves nodes with "
    "devices; remove the toleration."
)
DISTANCE = (
    "Fairgate: a required podAntiAffinity may not select pods of other namespaces, or labels that "
    "begin with fairgate.io/. Remove those parts, use a preferred term, or ask a cluster admin to "
    "list this namespace in exemptNamespaces."
)
TEMPLATE = (
    "Fairgate: only Fairgate sets the annotation fairgate.io/submitter of a pod template; leave "
    "it unchanged, or remove it."
)
CLAIM = (
    "Fairgate: a pod was released for this resource claim, so the finalizer "
    "fairgate.io/claim-in-use stays until the pod ends; delete the pod to free the claim."
)
CLAIM_DEVICES = (
    "Fairgate: devices are allocated to this resource claim, so the finalizer "
    "resource.kubernetes.io/delete-protection stays until Kubernetes frees them; delete the pods "
    "that use the claim."
)
CLAIM_OWNER = (
    "Fairgate: only Kubernetes may name the pod of a generated resource claim; remove the "
    "controller owner and the annotations that begin with resource.kubernetes.io/."
)
TENANT = (
    "Fairgate: changing a tenant requires the right to update its parent, or all tenants if it is "
    "at top level or gains a namespace; ask an admin, or change the weights of your own users."
)
USERS = (
    "Fairgate: changing the weights of users requires the right to update tenants/users of this "
    "tenant; ask a cluster admin."
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


CLAIM_MARKS = (
    "resource.kubernetes.io/pod-claim-name",
    "resource.kubernetes.io/extended-resource-claim",
)
"""Annotations by which Kubernetes finds the claims that it generated for a pod."""


@dataclass(frozen=True, slots=True)
class ClaimOwner:
    """An owner reference of a resource claim."""

    kind: str
    uid: str
    is_controller: bool


@dataclass(frozen=True, slots=True)
class ClaimSheet:
    """Fields of a resource claim that the rules use.

    `has_finalizer`: it has that of Fairgate. `has_delete_protection`: it has that of Kubernetes.
    """

    owners: tuple[ClaimOwner, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    has_finalizer: bool = False
    has_delete_protection: bool = False
    is_allocated: bool = False

    @property
    def is_generated(self) -> bool:
        """Whether it states that it was generated for a pod."""
        owned = any(o.is_controller and o.kind in ("Pod", "PodGroup") for o in self.owners)
        return owned or any(key in self.annotations for key in CLAIM_MARKS)

    @property
    def generated_for(self) -> tuple[object, ...]:
        """The fields about the pod that it was generated for."""
        return (self.owners, *(self.annotations.get(key) for key in CLAIM_MARKS))


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """Settings of the rules per cluster. The defaults are those of the chart."""

    controllers: tuple[str, ...] = CONTROLLERS
    """Users that create pods from templates of others."""
    schedulers: tuple[str, ...] = ("default-scheduler",)
    scheduler_users: tuple[str, ...] = ("system:kube-scheduler",)
    """Users that bind pods, and generate claims of pods."""
    phase_writers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES")
    paths: str = (
        r"^[/.]*(dev[/.]*((char|nvidia|dri|kfd|vfio).*)?|"
        r"proc/(.*/)?(root|cwd|fd|map_files)(/.*)?|"
        r"(var[/.]*/)?run[/.]*(/nvidia[/.]*(/driver.*)?)?)?$"
    )
    refuse_privileged: bool = True
    taints: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    refuse_preemption: bool = True
    refuse_other_namespaces: bool = True
    """Whether a required anti-affinity may select pods of its own namespace only."""


@dataclass(frozen=True, slots=True)
class AntiAffinityFacts:
    """A required pod anti-affinity term: the namespaces and the label keys that it selects by."""

    namespaces: tuple[str, ...] = ()
    selects_namespaces: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Fields of a pod that the rules use. The value in `variables` is None if it is a reference.

    `needs_managed`: it requests a managed resource. `mentions_managed`: it mentions one, perhaps
    with amount 0. `too_large_message` is the message for a pod that is too large.
    """

    needs_managed: bool = False
    mentions_managed: bool = False
    gates: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    preemption: str = ""
    node: str = ""
    phase: str = ""
    start_time: str = ""
    generated_claims: object = None
    """The generated claims in its status."""
    nominated_node: str = ""
    variables: tuple[tuple[str, str | None], ...] = ()
    paths: tuple[str, ...] = ()
    privileged: bool = False
    tolerated_taints: tuple[str, ...] = ()
    anti_affinity_terms: tuple[AntiAffinityFacts, ...] = ()
    grace: int = 30
    """Grace period of the pod in seconds, as in its spec."""
    too_large_message: str = ""
    longest_list: int = 0
    """Length of its longest list of volumes, tolerations, or variables of a container."""

    @property
    def is_managed(self) -> bool:
        """Whether Fairgate manages the pod, or should manage it."""
        return GATE in self.gates or ANNOTATION_RELEASE in self.annotations or self.needs_managed


class PodValidator:
    """The rules with the settings of one cluster."""

    def __init__(self, rules: ValidationRules) -> None:
        self._rules = rules
        self._paths = re.compile(rules.paths)

    def is_controller(self, caller: UserName) -> bool:
        """Return whether a caller creates pods from templates of others."""
        return caller in self._rules.controllers

    def check_create(
        self, pod: PodFacts, caller: UserName, names_owner: bool = False, *, held: bool = True
    ) -> str | None:
        """Check a pod at create, in the form in which it would be stored.

        `names_owner`: the caller may name its owner, and with it another submitter.
        `held`: whether the webhook was to hold the pod. In mode Observe it leaves the pod as it is.
        """
        if pod.is_managed and not is_mirror(pod.labels, pod.annotations, pod.node, caller):
            if pod.node:
                return NODE_NAME
            if held and GATE not in pod.gates:
                return UNGATED
            if held and not self._is_stamped(pod, caller, names_owner):
                return UNSTAMPED
            if (pod.scheduler or "default-scheduler") not in self._rules.schedulers:
                return SCHEDULER.format(pod.scheduler, " or ".join(self._rules.schedulers))
            if held and self._rules.refuse_preemption and pod.preemption != NEVER:
                return PREEMPTION
            if pod.too_large_message:
                return pod.too_large_message
        return self.check_device_access(pod)

    def check_update(
        self, before: PodFacts, after: PodFacts, caller: UserName, releases: bool
    ) -> str | None:
        """Check a change of a pod. `releases`: the caller has the permission to release pods."""
        if not before.is_managed:
            return None
        if GATE in before.gates and GATE not in after.gates and not releases:
            return GATE_KEPT
        if not (releases or _keeps_stamps(before, after)):
            return STAMPS_KEPT
        if GATE in before.gates and after.nominated_node not in ("", before.nominated_node):
            return NOMINATED
        knows = self._may_write_phase(before, caller)
        if (before.phase, before.start_time) != (after.phase, after.start_time) and not knows:
            return PHASE
        if before.generated_claims != after.generated_claims and not (
            knows or caller in self._rules.scheduler_users
        ):
            return PHASE
        if after.too_large_message and not (before.too_large_message or releases):
            return after.too_large_message
        return None

    def check_delete(self, pod: PodFacts, caller: UserName, grace: int | None) -> str | None:
        """Check the deletion of a pod by a caller without the permission to release.

        A grace period of 0 removes the pod from the API before its node confirms its end.
        """
        ended = not pod.node or pod.phase in FINISHED
        if grace != 0 or ended or pod.grace <= LEAST_GRACE or not pod.is_managed:
            return None
        return None if self._may_write_phase(pod, caller) else FORCED

    def check_eviction(self, caller: UserName, grace: int | None) -> str | None:
        """Check an eviction by a caller without the permission to release.

        The review of an eviction does not contain the pod, so the rule applies to every pod.
        """
        return FORCED if grace == 0 and not self._may_write_phase(PodFacts(), caller) else None

    def check_device_access(self, pod: PodFacts) -> str | None:
        """Check whether a pod reaches devices that it does not request."""
        rules = self._rules
        if pod.longest_list > MOST_SEARCHED:
            return LONG
        if any(n in rules.variables and v not in HARMLESS for n, v in pod.variables):
            return VARIABLE.format(", ".join(rules.variables))
        if any(self._paths.search(path) for path in pod.paths):
            return PATH
        if pod.privileged and rules.refuse_privileged:
            return PRIVILEGED
        if not (pod.needs_managed or pod.mentions_managed) and any(
            key in rules.taints for key in pod.tolerated_taints
        ):
            return TOLERATION.format(", ".join(rules.taints))
        return None

    def check_anti_affinity(self, pod: PodFacts, namespace: str) -> str | None:
        """Check whether a pod would keep pods of other namespaces off nodes.

        The scheduler honours the anti-affinity of existing pods: a pod that a term selects cannot
        go to the node, or domain, of the pod that has the term.
        """
        for each in pod.anti_affinity_terms:
            others = each.selects_namespaces or any(n != namespace for n in each.namespaces)
            if others and self._rules.refuse_other_namespaces:
                return DISTANCE
            if any(key.startswith(KEY_PREFIX) for key in each.keys):
                return DISTANCE
        return None

    def check_claim(
        self, before: ClaimSheet | None, after: ClaimSheet, caller: UserName, releases: bool
    ) -> str | None:
        """Check a resource claim. `before` is None if it is new."""
        if before is not None and before.has_finalizer and not after.has_finalizer and not releases:
            return CLAIM
        if (
            before is not None
            and before.is_allocated
            and before.has_delete_protection
            and not after.has_delete_protection
            and not self._manages_claims(caller)
        ):
            return CLAIM_DEVICES
        forged = after.is_generated or (before is not None and before.is_generated)
        changed = before is None or before.generated_for != after.generated_for
        if forged and changed and not self._manages_claims(caller):
            return CLAIM_OWNER
        return None

    def check_template_stamps(
        self,
        before: Sequence[str],
        after: Sequence[str],
        caller: UserName,
        names_owner: bool = False,
    ) -> str | None:
        """Check the stamps in the templates of an object. A missing stamp is "" in both lists.

        `names_owner`: the object is new, and the caller may name its owner.
        """
        if self.is_controller(caller) or names_owner or (before and list(before) == list(after)):
            return None
        known = [stamp for stamp in before if stamp]
        allowed = (known[0],) if known else ("", caller)
        return None if all(stamp in allowed for stamp in after) else TEMPLATE

    def _is_stamped(self, pod: PodFacts, caller: UserName, names_owner: bool) -> bool:
        written, labels = pod.annotations, [key for key in pod.labels if key.startswith(KEY_PREFIX)]
        submitter = written.get(ANNOTATION_SUBMITTER, "")
        speaks = names_owner or self.is_controller(caller)
        true = submitter == caller or (submitter != "" and speaks)
        known = {ANNOTATION_RELEASE, ANNOTATION_SUBMITTER, *USER_KEYS}
        return (
            written.get(ANNOTATION_RELEASE) == RELEASE_HELD
            and true
            and all(key in known for key in written if key.startswith(KEY_PREFIX))
            and sorted(labels) == sorted((LABEL_TENANT, LABEL_USER))
        )

    def _may_write_phase(self, pod: PodFacts, caller: UserName) -> bool:
        node = (NODE + pod.node,) if pod.node else ()
        named = (*node, CONTROLLER_MANAGER, *self._rules.phase_writers)
        return caller in named or caller.startswith(KUBE_SYSTEM)

    def _manages_claims(self, caller: UserName) -> bool:
        named = (CONTROLLER_MANAGER, *self._rules.scheduler_users)
        return caller in named or caller.startswith(KUBE_SYSTEM)


def is_mirror(
    labels: Mapping[str, str], annotations: Mapping[str, str], node: str, caller: UserName
) -> bool:
    """Return whether a node made a pod to mirror a static pod, without keys of Fairgate."""
    nameless = not any(key.startswith(KEY_PREFIX) for key in (*labels, *annotations))
    return ANNOTATION_MIRROR in annotations and nameless and caller == NODE + node


def tenant_refusal(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return why a change of a Tenant without the needed permission is refused."""
    others = _without_users(before) != _without_users(after)
    return TENANT if others or not (before and after) else USERS


def _without_users(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "users"}


def _keeps_stamps(before: PodFacts, after: PodFacts) -> bool:
    free: frozenset[str] = frozenset()
    if GATE in before.gates:
        free = USER_KEYS - CREATE_ONLY_KEYS
    return _fairgate_keys(before.labels) == _fairgate_keys(after.labels) and _fairgate_keys(
        before.annotations, free
    ) == _fairgate_keys(after.annotations, free)


def _fairgate_keys(
    written: Mapping[str, str], free: frozenset[str] = frozenset()
) -> dict[str, str]:
    return {k: v for k, v in written.items() if k.startswith(KEY_PREFIX) and k not in free}
