"""Decision to hold a pod at create, and all JSON patches of its release, as pure functions.

The verdict is `IgnoreDecision`, `HoldDecision`, `PatchDecision` or `DenyDecision`. The caller
provides the tenant of the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.core.admission.priority_class_twins import (
    KnownPriorityClasses,
    Unfit,
    priority_patch,
)
from app.core.admission.validation import NODE_NAME, is_mirror
from app.core.model import Amounts, TenantName, UserName
from app.core.placement.scheduler_hints import packing_patch
from app.core.podspec.annotations import (
    annotation_warnings,
    reserved_key_warnings,
    unknown_key_warnings,
)
from app.core.podspec.pod_groups import GangMetadata, gang_warnings
from app.core.quantities import ManagedResources
from app.core.release_patch import TEMPLATE_LABEL, Patch, json_pointer, label_value
from app.core.well_known import (
    ANNOTATION_RELEASE,
    ANNOTATION_SUBMITTER,
    GATE,
    KEY_PREFIX,
    LABEL_TENANT,
    LABEL_USER,
    RELEASE_HELD,
    USER_KEYS,
)


@dataclass(frozen=True, slots=True)
class PodCreateRequest:
    """The fields of a pod at create that the gate uses. A map is None if it is absent.

    `trusts_stamp`: the caller creates pods from templates of others, so their submitter stamp is
    trusted. `owner`: the submitter of its owner, if that was looked up. `has_device_claims`: the
    pod requests devices by resource claims with unknown content. `job` is the Job that creates it,
    `pod_group` the pod group in its spec, "" if absent. `may_pack`: it may use a pool that packs
    pods, and has no pod affinity. `has_affinity`: it has any other affinity. `too_large_message` is
    the message for a pod that is too large (see `size_limits`), else "".
    """

    namespace: str
    caller: UserName
    demand: Amounts
    trusts_stamp: bool = False
    owner: UserName | None = None
    has_device_claims: bool = False
    gates: tuple[str, ...] = ()
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    node_name: str | None = None
    priority_class: str | None = None
    preemption_policy: str | None = None
    may_pack: bool = False
    has_affinity: bool = False
    job: str = ""
    pod_group: str = ""
    too_large_message: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceOwner:
    """Tenant of a namespace, with the number of its waiting pods and the limit on it."""

    tenant: TenantName
    pending: int = 0
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class IgnoreDecision:
    """Admit the request unchanged. `warnings` are shown to the caller."""

    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """Admit the pod with Fairgate's gate and stamps. `warnings` are shown to the caller."""

    patch: Patch
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PatchDecision:
    """Admit the request, and correct Fairgate's fields. `warnings` are shown to the caller.

    `enforced_decision`: in mode Observe, the decision that mode Enforce would make.
    """

    patch: Patch
    warnings: tuple[str, ...] = field(default=())
    enforced_decision: str = ""


@dataclass(frozen=True, slots=True)
class DenyDecision:
    """Refuse the request. `message` says why and what to do, `code` is the HTTP status."""

    code: int
    message: str


HoldVerdict = IgnoreDecision | HoldDecision | PatchDecision | DenyDecision


def decide_hold(
    candidate: PodCreateRequest,
    owner: NamespaceOwner,
    managed: ManagedResources,
    classes: KnownPriorityClasses | None = None,
) -> HoldVerdict:
    """Decide about a pod at create.

    `classes` are the cluster's PriorityClasses. If None, the pod keeps its own class.
    """
    if not (candidate.has_device_claims or managed.has_managed(candidate.demand)):
        return IgnoreDecision()
    node = candidate.node_name
    labels, annotations = candidate.labels or {}, candidate.annotations or {}
    if node and is_mirror(labels, annotations, node, candidate.caller):
        return IgnoreDecision()
    if node:
        # The API server refuses a gate together with nodeName, with a message about gates.
        return DenyDecision(403, NODE_NAME)
    if candidate.too_large_message:
        return DenyDecision(403, candidate.too_large_message)
    if owner.max_pending is not None and owner.pending >= owner.max_pending:
        return DenyDecision(
            403,
            f"Fairgate: tenant {owner.tenant} already has {owner.pending} pods waiting and its "
            f"limit (maxPending) is {owner.max_pending}; try again when some have started.",
        )
    twin: Patch | Unfit = []
    if classes is not None:
        twin = priority_patch(candidate.priority_class, candidate.preemption_policy, classes)
    if isinstance(twin, Unfit):
        return DenyDecision(twin.code, twin.message)
    hold = _hold_decision(candidate, owner.tenant)
    if isinstance(hold, DenyDecision):
        return hold
    return HoldDecision(hold.patch + twin, hold.warnings)


def forged_annotations_patch(candidate: PodCreateRequest) -> Patch:
    """Return the patch that removes annotations that only Fairgate may write.

    It is for pods that are not held and therefore not stamped: a forged annotation would be trusted
    later. Labels stay: a controller may select its pods by them, and only a preference of the
    scheduler depends on them.
    """
    true = {ANNOTATION_SUBMITTER} if candidate.trusts_stamp else set()
    return [
        {"op": "remove", "path": json_pointer("/metadata/annotations", key)}
        for key in sorted(candidate.annotations or {})
        if key.startswith(KEY_PREFIX) and key not in USER_KEYS and key not in true
    ]


def find_submitter(candidate: PodCreateRequest) -> UserName:
    """Return the submitter of a pod: the user in a trusted stamp, of the owner, or the caller."""
    stamp = (candidate.annotations or {}).get(ANNOTATION_SUBMITTER)
    if stamp and candidate.trusts_stamp:
        return UserName(stamp)
    return candidate.owner or candidate.caller


def _hold_decision(candidate: PodCreateRequest, tenant: TenantName) -> HoldDecision | DenyDecision:
    user = find_submitter(candidate)
    labels = {LABEL_TENANT: label_value(tenant), LABEL_USER: label_value(user)}
    if candidate.trusts_stamp:
        # A controller would create pods endlessly if its pods lost the selector labels.
        for key, value in (candidate.labels or {}).items():
            if key.startswith(KEY_PREFIX) and labels.get(key) != value:
                return DenyDecision(403, TEMPLATE_LABEL.format(key))
    annotations = {ANNOTATION_SUBMITTER: str(user), ANNOTATION_RELEASE: RELEASE_HELD}
    patch: Patch = []
    if GATE not in candidate.gates:
        patch += _append_patch("/spec/schedulingGates", candidate.gates, {"name": GATE})
    written_labels, dropped = _stamp_patch(
        "/metadata/labels", candidate.labels, labels, frozenset()
    )
    patch += written_labels
    written, more = _stamp_patch(
        "/metadata/annotations", candidate.annotations, annotations, USER_KEYS
    )
    patch += written
    if candidate.may_pack:
        patch += packing_patch(candidate.has_affinity)
    warnings = tuple(reserved_key_warnings(dropped | more, "the value given was not kept"))
    words = GangMetadata(
        candidate.labels or {}, candidate.annotations or {}, candidate.job, candidate.pod_group
    )
    more_warnings = (
        *unknown_key_warnings(words.labels, words.annotations),
        *annotation_warnings(words.annotations),
    )
    return HoldDecision(patch, (*warnings, *more_warnings, *gang_warnings(words)))


def _append_patch(path: str, present: Sequence[str], item: dict[str, str]) -> Patch:
    if not present:
        return [{"op": "add", "path": path, "value": [item]}]
    return [{"op": "add", "path": path + "/-", "value": item}]


def _stamp_patch(
    path: str,
    present: Mapping[str, str] | None,
    wanted: Mapping[str, str],
    allowed: frozenset[str],
) -> tuple[Patch, set[str]]:
    """Return the patch that sets Fairgate's keys in a map to `wanted`, and the overruled keys."""
    if present is None:
        return [{"op": "add", "path": path, "value": dict(wanted)}], set()
    foreign = {
        key
        for key in present
        if key.startswith(KEY_PREFIX) and key not in wanted and key not in allowed
    }
    forged = {key for key, value in wanted.items() if present.get(key, value) != value}
    patch: Patch = [{"op": "remove", "path": json_pointer(path, key)} for key in sorted(foreign)]
    patch += [
        {"op": "add", "path": json_pointer(path, key), "value": value}
        for key, value in wanted.items()
        if present.get(key) != value
    ]
    return patch, foreign | forged
