"""The two changes Fairgate makes to a pod, as pure functions: hold it at create, release it later.

A review becomes ignore, hold (with a JSON patch) or refuse (with a reason). Nothing here looks
anything up; the caller says which tenant the namespace belongs to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from app.core.admission.guard import NODE_NAME, is_mirror
from app.core.admission.keys import FOR_USERS, OURS
from app.core.admission.priorities import Known, Unfit, kept_patch, priority_patch
from app.core.asks.annotations import misread
from app.core.asks.groups import Words, doubtful
from app.core.asks.terms import Toleration
from app.core.effects import Release
from app.core.model import (
    ANNOTATION_RELEASE,
    ANNOTATION_SUBMITTER,
    GATE,
    HELD,
    LABEL_POOL,
    LABEL_TENANT,
    LABEL_USER,
    Amounts,
    TenantName,
    UserName,
)
from app.core.places.steering import packing_patch, steer_patch
from app.core.resources import ManagedResources

Patch = list[dict[str, Any]]
"""A JSON Patch (RFC 6902)."""

TEMPLATE_LABEL = (
    "Fairgate: the pod template has the label {0}, which Fairgate writes; take it out of the "
    "template and of the selector."
)

_LABEL_VALUE = re.compile(r"(?!.{64})([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the gate looks at in a pod about to be created; a map is None where it is absent.

    `believed`: the caller makes pods after templates of others, so a stamp from there is true.
    `claims`: it asks for devices by resource claims, whose content nobody knows yet. `job` is the
    Job that makes it, `group` the pod group that its spec names; "" for none.
    `packs`: it may go where pods are packed, and has no pod affinity; `affinity`: it has any other.
    """

    namespace: str
    caller: UserName
    demand: Amounts
    believed: bool = False
    claims: bool = False
    gates: tuple[str, ...] = ()
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    node_name: str | None = None
    priority_class: str | None = None
    preemption_policy: str | None = None
    packs: bool = False
    affinity: bool = False
    job: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the namespace is, and how much that tenant may still queue."""

    tenant: TenantName
    pending: int = 0
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class Ignore:
    """Let it pass untouched. `warnings` are shown to whoever asked."""

    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Hold:
    """Let it pass with our gate and stamps. `warnings` are shown to whoever created it."""

    patch: Patch
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Mend:
    """Let it pass, but put right what is Fairgate's. `warnings` are shown to whoever asked.

    `observed`: what would have become of it if the policy did not only observe.
    """

    patch: Patch
    warnings: tuple[str, ...] = field(default=())
    observed: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let it not pass; `message` says why and what to do, `code` is the HTTP status."""

    code: int
    message: str


Verdict = Ignore | Hold | Mend | Refuse


def judge(
    candidate: Candidate,
    owner: Owner,
    managed: ManagedResources,
    classes: Known | None = None,
) -> Verdict:
    """Decide about a pod that is about to be created.

    `classes` are the cluster's PriorityClasses; None: pods keep theirs.
    """
    if not (candidate.claims or managed.asked(candidate.demand)):
        return Ignore()
    node = candidate.node_name
    labels, annotations = candidate.labels or {}, candidate.annotations or {}
    if node and is_mirror(labels, annotations, node, candidate.caller):
        return Ignore()
    if node:
        # A gate together with nodeName is refused by the API server with a message about gates.
        return Refuse(403, NODE_NAME)
    if owner.max_pending is not None and owner.pending >= owner.max_pending:
        return Refuse(
            403,
            f"Fairgate: tenant {owner.tenant} already has {owner.pending} pods waiting and its "
            f"limit (maxPending) is {owner.max_pending}; try again when some have started.",
        )
    twin: Patch | Unfit = []
    if classes is not None:
        twin = priority_patch(candidate.priority_class, candidate.preemption_policy, classes)
    if isinstance(twin, Unfit):
        return Refuse(twin.code, twin.message)
    hold = _hold(candidate, owner.tenant)
    if isinstance(hold, Refuse):
        return hold
    return Hold(hold.patch + twin, hold.warnings)


Priority = tuple[str | None, str | None]
"""Class and policy of a pod, as written in it."""


def judge_change(old: Priority, new: Priority) -> Verdict:
    """Decide about a change of a pod's class: `kubectl apply` names the original again."""
    patch = kept_patch(old, new)
    return Mend(patch) if patch else Ignore()


def forged(candidate: Candidate) -> Patch:
    """Return the patch that takes annotations away that only Fairgate writes.

    For pods that are not held, and so not stamped: what is forged now would be believed later.
    Labels stay: a controller may select its pods by them, and they decide nothing.
    """
    true = {ANNOTATION_SUBMITTER} if candidate.believed else set()
    return [
        {"op": "remove", "path": _at("/metadata/annotations", key)}
        for key in sorted(candidate.annotations or {})
        if key.startswith(OURS) and key not in FOR_USERS and key not in true
    ]


def submitter(candidate: Candidate) -> UserName:
    """Return who submitted a pod: the caller, or whom a stamp that can be believed names."""
    stamp = (candidate.annotations or {}).get(ANNOTATION_SUBMITTER)
    return UserName(stamp) if stamp and candidate.believed else candidate.caller


def _hold(candidate: Candidate, tenant: TenantName) -> Hold | Refuse:
    user = submitter(candidate)
    labels = {LABEL_TENANT: label_value(tenant), LABEL_USER: label_value(user)}
    if candidate.believed:
        # Without the labels it selects by, a controller would make pods without end.
        for key, value in (candidate.labels or {}).items():
            if key.startswith(OURS) and labels.get(key) != value:
                return Refuse(403, TEMPLATE_LABEL.format(key))
    annotations = {ANNOTATION_SUBMITTER: str(user), ANNOTATION_RELEASE: HELD}
    patch: Patch = []
    if GATE not in candidate.gates:
        patch += _append("/spec/schedulingGates", candidate.gates, {"name": GATE})
    written_labels, dropped = _stamp("/metadata/labels", candidate.labels, labels, frozenset())
    patch += written_labels
    written, more = _stamp("/metadata/annotations", candidate.annotations, annotations, FOR_USERS)
    patch += written
    if candidate.packs:
        patch += packing_patch(candidate.affinity)
    warnings = tuple(
        f"Fairgate: {key} is written by Fairgate alone; the value given was not kept."
        for key in sorted(dropped | more)
    )
    words = Words(
        candidate.labels or {}, candidate.annotations or {}, candidate.job, candidate.group
    )
    return Hold(patch, (*warnings, *misread(words.annotations), *doubtful(words)))


def _append(path: str, present: Sequence[str], item: dict[str, str]) -> Patch:
    if not present:
        return [{"op": "add", "path": path, "value": [item]}]
    return [{"op": "add", "path": path + "/-", "value": item}]


def _stamp(
    path: str,
    present: Mapping[str, str] | None,
    wanted: Mapping[str, str],
    allowed: frozenset[str],
) -> tuple[Patch, set[str]]:
    """Return the patch that makes our keys in a map exactly `wanted`, and the keys it overrules."""
    if present is None:
        return [{"op": "add", "path": path, "value": dict(wanted)}], set()
    foreign = {
        key for key in present if key.startswith(OURS) and key not in wanted and key not in allowed
    }
    forged = {key for key, value in wanted.items() if present.get(key, value) != value}
    patch: Patch = [{"op": "remove", "path": _at(path, key)} for key in sorted(foreign)]
    patch += [
        {"op": "add", "path": _at(path, key), "value": value}
        for key, value in wanted.items()
        if present.get(key) != value
    ]
    return patch, foreign | forged


def release_patch(order: Release) -> Patch:
    """Return the one patch that releases a pod, or fails as a whole.

    It tests that this is the same pod, that ours is its only gate, and that no other leader has
    fenced it; then it pins the pod to its pool and takes the gate away.
    """
    release_at = _at("/metadata/annotations", ANNOTATION_RELEASE)
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": order.intent.ref.uid},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
        {"op": "test", "path": release_at, "value": order.tested},
    ]
    patch += _merge("/spec/nodeSelector", order.selector, order.has_selector)
    patch += _tolerate(order)
    patch += steer_patch(order.steer) if order.steer else []
    patch += _merge("/metadata/labels", order.labels, order.has_labels)
    patch.append({"op": "replace", "path": release_at, "value": order.stamp})
    patch.append({"op": "remove", "path": "/spec/schedulingGates"})
    return patch


def _tolerate(order: Release) -> Patch:
    """Return the part of a release patch that adds tolerations; none may ever be taken away."""
    written = [_written(each) for each in order.tolerations]
    if written and not order.has_tolerations:
        return [{"op": "add", "path": "/spec/tolerations", "value": written}]
    return [{"op": "add", "path": "/spec/tolerations/-", "value": each} for each in written]


def _written(toleration: Toleration) -> dict[str, Any]:
    fields = {name: getattr(toleration, name) for name in ("key", "operator", "value", "effect")}
    found: dict[str, Any] = {name: value for name, value in fields.items() if value}
    if toleration.seconds is not None:
        found["tolerationSeconds"] = toleration.seconds
    return found


def stamp_patch(order: Release) -> Patch:
    """Return the patch that writes the release annotation again where somebody took it away."""
    wanted = {ANNOTATION_RELEASE: written_again(order)}
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": order.intent.ref.uid},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
    ]
    return patch + _merge("/metadata/annotations", wanted, order.has_annotations)


def fenced(epoch: int) -> str:
    """Return the release annotation of a held pod that a leader of this epoch has fenced."""
    return f"{HELD}@{epoch}"


def fence_of(order: Release) -> str:
    """Return the release annotation after which one release of this leader cannot succeed.

    No other release of it was, or will be, tested against that.
    """
    return f"{fenced(order.intent.epoch)}.{order.intent.sequence}"


def written_again(order: Release) -> str:
    """Return what a release writes first, and tests, where the annotation is missing."""
    return f"{fence_of(order)}.0"


def fence_patch(uid: str, tested: str, fence: str) -> Patch:
    """Return the patch after which a release tested against `tested` can no longer succeed."""
    release_at = _at("/metadata/annotations", ANNOTATION_RELEASE)
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": release_at, "value": tested},
        {"op": "replace", "path": release_at, "value": fence},
    ]


def release_labels(tenant: TenantName, user: UserName, pool: str) -> dict[str, str]:
    """Return the labels that accounting reads, as a release sets them."""
    return {
        LABEL_TENANT: label_value(tenant),
        LABEL_USER: label_value(user),
        LABEL_POOL: label_value(pool),
    }


@lru_cache(maxsize=65536)  # asked for every release; there are few names
def label_value(text: str) -> str:
    """Return `text` if it is a legal label value, else a short hash of it."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return "h-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _merge(path: str, wanted: Mapping[str, str], exists: bool) -> Patch:
    if not wanted:
        return []
    if not exists:
        return [{"op": "add", "path": path, "value": dict(wanted)}]
    return [{"op": "add", "path": _at(path, key), "value": value} for key, value in wanted.items()]


def _at(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
