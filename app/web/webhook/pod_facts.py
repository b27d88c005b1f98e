"""Converts pods and claims of a review into the fields that `core.admission.validation` checks.

Only requests that may violate a rule reach it, so clarity matters more than speed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.core.admission.validation import AntiAffinityFacts, ClaimOwner, ClaimSheet, PodFacts
from app.core.errors import InvalidQuantity
from app.core.podspec.resource_claims import DELETE_PROTECTION, FINALIZER
from app.core.podspec.size_limits import size_limit_message
from app.core.quantities import ManagedResources
from app.k8s_types import admission, objects
from app.k8s_types.list_sizes import sizes_of

DEFAULT_GRACE = 30
"""Seconds. The API server's default grace period of a pod."""


class Variable(objects.KubeStruct, frozen=True):
    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class ClaimStatusFacts(objects.KubeStruct, frozen=True):
    allocation: Any = None


class ClaimFacts(objects.KubeStruct, frozen=True):
    metadata: objects.OwnedMetadata = objects.OwnedMetadata()
    status: ClaimStatusFacts = ClaimStatusFacts()


class Security(objects.KubeStruct, frozen=True):
    privileged: bool | None = None


class ContainerFacts(objects.KubeStruct, frozen=True):
    env: list[Variable] | None = None
    security_context: Security | None = None


class HostPath(objects.KubeStruct, frozen=True):
    path: str = ""


class Volume(objects.KubeStruct, frozen=True):
    host_path: HostPath | None = None


class TolerationFacts(objects.KubeStruct, frozen=True):
    key: str | None = None


class PodSpecFacts(objects.KubeStruct, frozen=True):
    containers: list[ContainerFacts] | None = None
    init_containers: list[ContainerFacts] | None = None
    ephemeral_containers: list[ContainerFacts] | None = None
    volumes: list[Volume] | None = None
    tolerations: list[TolerationFacts] | None = None
    scheduler_name: str | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None


class Eviction(objects.KubeStruct, frozen=True):
    delete_options: admission.DeleteOptions | None = None


class PodStatusFacts(objects.KubeStruct, frozen=True):
    nominated_node_name: str | None = None
    resource_claim_statuses: list[Any] | None = None
    extended_resource_claim_status: Any = None


class PodReach(objects.KubeStruct, frozen=True):
    spec: PodSpecFacts = PodSpecFacts()
    status: PodStatusFacts = PodStatusFacts()


def read_claim_facts(document: Any) -> ClaimSheet:
    """Return the fields of a resource claim for the rules. Raises msgspec.ValidationError."""
    claim = msgspec.convert(document, ClaimFacts)
    meta, finalizers = claim.metadata, claim.metadata.finalizers or ()
    return ClaimSheet(
        tuple(ClaimOwner(o.kind, o.uid, o.controller) for o in meta.owner_references or ()),
        meta.annotations or {},
        FINALIZER in finalizers,
        DELETE_PROTECTION in finalizers,
        claim.status.allocation is not None,
    )


def read_pod_facts(document: Any, managed: ManagedResources) -> PodFacts:
    """Return the fields of a pod for the rules. Raises msgspec.ValidationError, InvalidQuantity."""
    pod = objects.convert(document, objects.PodObject)
    reach = objects.convert(document, PodReach)
    spec = reach.spec
    kinds = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    own = spec.termination_grace_period_seconds
    containers = [container for many in kinds for container in many or ()]
    variables = [container.env or () for container in containers]
    return PodFacts(
        needs_managed=requests_managed(pod.spec, managed),
        mentions_managed=names_managed(pod.spec, managed),
        gates=tuple(gate.name for gate in pod.spec.scheduling_gates or ()),
        labels=pod.metadata.labels or {},
        annotations=pod.metadata.annotations or {},
        scheduler=spec.scheduler_name or "",
        preemption=spec.preemption_policy or "",
        node=pod.spec.node_name or "",
        phase=pod.status.phase or "",
        start_time=pod.status.start_time or "",
        generated_claims=(
            reach.status.resource_claim_statuses,
            reach.status.extended_resource_claim_status,
        ),
        nominated_node=reach.status.nominated_node_name or "",
        variables=tuple(
            (each.name, None if each.value_from is not None else each.value or "")
            for many in variables
            for each in many
        ),
        paths=tuple(v.host_path.path for v in spec.volumes or () if v.host_path),
        privileged=any(c.security_context and c.security_context.privileged for c in containers),
        tolerated_taints=tuple(t.key or "" for t in spec.tolerations or ()),
        anti_affinity_terms=_anti_affinity_terms(pod.spec.affinity),
        grace=DEFAULT_GRACE if own is None else own,
        too_large_message=size_limit_message(sizes_of(pod)),
        longest_list=max(map(len, (spec.volumes or (), spec.tolerations or (), *variables))),
    )


def _anti_affinity_terms(affinity: objects.AffinitySpec | None) -> tuple[AntiAffinityFacts, ...]:
    rule = affinity.pod_anti_affinity if affinity else None
    terms = rule.required_during_scheduling_ignored_during_execution if rule else None
    return tuple(
        AntiAffinityFacts(
            tuple(term.namespaces or ()),
            term.namespace_selector is not None,
            (
                *_keys(term.label_selector),
                *(term.match_label_keys or ()),
                *(term.mismatch_label_keys or ()),
            ),
        )
        for term in terms or ()
    )


def _keys(selector: objects.LabelSelector | None) -> tuple[str, ...]:
    if selector is None:
        return ()
    expressions = selector.match_expressions or ()
    return (*(selector.match_labels or {}), *(each.key for each in expressions))


def requests_managed(spec: objects.PodSpec, managed: ManagedResources) -> bool:
    """Return whether a pod requests a managed resource or has resource claims."""
    return bool(spec.resource_claims) or managed.has_managed(spec.demand())


def spec_requests_managed(spec: Any, managed: ManagedResources, *, if_invalid: bool) -> bool:
    """Return whether the JSON of a pod spec asks for managed resources.

    Return `if_invalid` if it is no pod spec: a custom resource may contain anything.
    """
    try:
        return requests_managed(objects.convert(spec, objects.PodSpec), managed)
    except (msgspec.ValidationError, InvalidQuantity):
        return if_invalid


def names_managed(spec: objects.PodSpec, managed: ManagedResources) -> bool:
    """Return whether a pod names a managed resource, even with amount 0, or has claims."""
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    written = [each.resources for each in containers if each.resources]
    named = [name for each in written for name in {**(each.limits or {}), **(each.requests or {})}]
    return bool(spec.resource_claims) or any(name in managed for name in named)
