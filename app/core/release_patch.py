"""JSON patches of pods: release, adoption stamp, and the fence against an old leader."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.core.effects import Release
from app.core.model import TenantName, UserName
from app.core.placement.scheduler_hints import node_hint_patch
from app.core.podspec.constraints import Toleration
from app.core.podspec.granted_claims import write_grants
from app.core.well_known import (
    ANNOTATION_CLAIMS,
    ANNOTATION_PREEMPTIBLE,
    ANNOTATION_RELEASE,
    GATE,
    LABEL_POOL,
    LABEL_TENANT,
    LABEL_USER,
    RELEASE_HELD,
)

Patch = list[dict[str, Any]]
"""A JSON Patch (RFC 6902)."""

TEMPLATE_LABEL = (
    "Fairgate: the pod template has the label {0}, which Fairgate writes; take it out of the "
    "template and of the selector."
)

_LABEL_VALUE = re.compile(r"(?!.{64})([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)


def release_patch(order: Release) -> Patch:
    """Return the single patch that releases a pod, or fails as a whole.

    It tests the uid, that Fairgate's gate is the only one, and that no other leader has fenced the
    pod. Then it restricts the pod to its pool and removes the gate.
    """
    release_at = json_pointer("/metadata/annotations", ANNOTATION_RELEASE)
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": order.intent.ref.uid},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
        {"op": "test", "path": release_at, "value": order.expected_annotation},
    ]
    patch += _merge("/spec/nodeSelector", order.selector, order.has_selector)
    patch += _toleration_patch(order)
    patch += node_hint_patch(order.node_hint) if order.node_hint else []
    patch += _merge("/metadata/labels", order.labels, order.has_labels)
    patch.append({"op": "replace", "path": release_at, "value": order.stamp})
    # The user may have written "false" after the decision, which let the pod borrow. A pod that was
    # released with one that is not preemptible started within the guarantee, like that one.
    preemptible_at = json_pointer("/metadata/annotations", ANNOTATION_PREEMPTIBLE)
    preemptible = "true" if order.preemptible else "false"
    patch.append({"op": "add", "path": preemptible_at, "value": preemptible})
    if order.claims:
        claims_at = json_pointer("/metadata/annotations", ANNOTATION_CLAIMS)
        patch.append({"op": "add", "path": claims_at, "value": write_grants(order.claims)})
    patch.append({"op": "remove", "path": "/spec/schedulingGates"})
    return patch


def _toleration_patch(order: Release) -> Patch:
    """Return the part of a release patch that adds tolerations. Kubernetes permits no removal."""
    written = [_toleration_json(each) for each in order.tolerations]
    if written and not order.has_tolerations:
        return [{"op": "add", "path": "/spec/tolerations", "value": written}]
    return [{"op": "add", "path": "/spec/tolerations/-", "value": each} for each in written]


def _toleration_json(toleration: Toleration) -> dict[str, Any]:
    fields = {name: getattr(toleration, name) for name in ("key", "operator", "value", "effect")}
    found: dict[str, Any] = {name: value for name, value in fields.items() if value}
    if toleration.seconds is not None:
        found["tolerationSeconds"] = toleration.seconds
    return found


def restore_annotation_patch(order: Release) -> Patch:
    """Return the patch that restores a removed release annotation."""
    wanted = {ANNOTATION_RELEASE: restored_annotation(order)}
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": order.intent.ref.uid},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
    ]
    return patch + _merge("/metadata/annotations", wanted, order.has_annotations)


def fence_annotation(epoch: int) -> str:
    """Return the release annotation of a held pod that a leader of this epoch has fenced."""
    return f"{RELEASE_HELD}@{epoch}"


def release_fence(order: Release) -> str:
    """Return the release annotation after which one release of this leader cannot succeed.

    No other release of the leader is ever tested against this value.
    """
    return f"{fence_annotation(order.intent.epoch)}.{order.intent.sequence}"


def restored_annotation(order: Release) -> str:
    """Return the annotation that a release first writes, and then tests, if it is missing."""
    return f"{release_fence(order)}.0"


def fence_patch(uid: str, tested: str, fence: str) -> Patch:
    """Return the patch that makes a release tested against `tested` fail."""
    release_at = json_pointer("/metadata/annotations", ANNOTATION_RELEASE)
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": release_at, "value": tested},
        {"op": "replace", "path": release_at, "value": fence},
    ]


def release_labels(tenant: TenantName, user: UserName, pool: str) -> dict[str, str]:
    """Return the labels for accounting, as a release sets them."""
    return {
        LABEL_TENANT: label_value(tenant),
        LABEL_USER: label_value(user),
        LABEL_POOL: label_value(pool),
    }


@lru_cache(maxsize=65536)  # called for every release, with few distinct names
def label_value(text: str) -> str:
    """Return `text` if it is a valid label value, else its short hash."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return "h-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _merge(path: str, wanted: Mapping[str, str], exists: bool) -> Patch:
    if not wanted:
        return []
    if not exists:
        return [{"op": "add", "path": path, "value": dict(wanted)}]
    return [
        {"op": "add", "path": json_pointer(path, key), "value": value}
        for key, value in wanted.items()
    ]


def json_pointer(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
