"""Pods and nodes of the API server become events of the core.

No I/O, and no memory between calls but of values that pods repeat.

A reader returns None for an object that does not concern us, and raises InvalidInput for one
that it cannot understand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from app import wire
from app.core import events, model
from app.core.asks import claims as devices
from app.core.asks.annotations import declared_runtime, may_be_evicted, named_pools
from app.core.asks.gpu_memory import stated
from app.core.asks.groups import Words, membership, starts_anew
from app.core.asks.levels import named_level, named_style
from app.core.errors import InvalidInput
from app.core.resources import ManagedResources, amounts
from app.kube.constraints import read_affinity, read_taints, read_tolerations
from app.kube.distances import read_spacings
from app.kube.hami import with_hami
from app.kube.sharing import Shared, name

_PHASES = {
    "Running": model.Phase.RUNNING,
    "Unknown": model.Phase.RUNNING,  # its node is silent: it may still hold its devices
    "Succeeded": model.Phase.FINISHED,
    "Failed": model.Phase.FINISHED,
}

_QUALITIES = {
    "BestEffort": model.Quality.BEST_EFFORT,
    "Burstable": model.Quality.BURSTABLE,
    "Guaranteed": model.Quality.GUARANTEED,
}


LABEL_TEMPLATE = "pod-template-hash"
"""What the Deployment controller appends to its own name, for each version of the template."""


class Pods:
    """Reads pods: managed ones whole, others only for the room they take on a node."""

    def __init__(self, managed: ManagedResources, exempt: frozenset[str]) -> None:
        self._managed = managed
        self._exempt = exempt
        self._shared = Shared()

    def read(
        self, pod: wire.Pod, at: model.Millis
    ) -> events.PodObserved | events.BystanderObserved | None:
        """Return what is to be known of a pod."""
        demand = pod.spec.demand()
        if pod.metadata.namespace not in self._exempt and self._concerns_us(pod, demand):
            return events.PodObserved(at, self._managed_pod(pod, demand))
        node = pod.spec.node_name
        if not node or _phase(pod) is model.Phase.FINISHED:
            return None
        shared = self._shared.mapping(demand)
        uid, where = model.Uid(pod.metadata.uid), model.NodeName(name(node))
        return events.BystanderObserved(at, model.Bystander(uid, where, shared))

    def _concerns_us(self, pod: wire.Pod, demand: model.Amounts) -> bool:
        """Tell whether a pod is held. What its claims come to is only known later."""
        return self._managed.asked(demand) or _has_devices(pod, demand)

    def _managed_pod(self, pod: wire.Pod, demand: model.Amounts) -> model.Pod:
        meta, spec, shared = pod.metadata, pod.spec, self._shared
        has_devices = _has_devices(pod, demand)
        written, labels = meta.annotations or {}, meta.labels or {}
        is_mirror = model.ANNOTATION_MIRROR in written
        # Only its node speaks for a static pod, and it speaks for nobody.
        submitter = None if is_mirror else written.get(model.ANNOTATION_SUBMITTER)
        pool = labels.get(model.LABEL_POOL)
        gang, size = membership(_words(pod))
        started = pod.status.start_time
        only, affinity = read_affinity(spec.affinity)
        return model.Pod(
            uid=model.Uid(meta.uid),
            namespace=name(meta.namespace),
            name=meta.name,
            user=model.UserName(name(submitter)) if submitter else model.UNKNOWN_USER,
            priority=spec.priority or 0,
            since=shared.value(created(meta)),
            demand=shared.mapping(demand),
            gates=shared.value(tuple([name(each.name) for each in spec.scheduling_gates or ()])),
            release=name(written.get(model.ANNOTATION_RELEASE, "")),
            node=model.NodeName(name(spec.node_name)) if spec.node_name else None,
            pool=model.PoolName(name(pool)) if pool else None,
            selector=shared.mapping(spec.node_selector or {}),
            only=shared.value(only) if only is not None else None,
            affinity=shared.value(affinity) if affinity is not None else None,
            tolerations=shared.value(read_tolerations(spec.tolerations)),
            spacings=shared.value(read_spacings(spec, meta.namespace, labels)),
            pools=shared.value(tuple([model.PoolName(each) for each in named_pools(written)])),
            phase=_phase(pod),
            terminating=meta.deletion_timestamp is not None,
            has_labels=meta.labels is not None,
            has_annotations=meta.annotations is not None,
            gang=name(gang),
            gang_size=size,
            gang_anew=starts_anew(written),
            failed=pod.status.phase == "Failed",
            owner=shared.value(_owner(meta)),
            started=read_time("startTime", started) if started else None,
            max_runtime=shared.value(_longest_life(written, spec.active_deadline_seconds)),
            preemptible=may_be_evicted(written),
            gpu_memory=stated(written),
            quality=_QUALITIES.get(pod.status.qos_class or "", model.Quality.BURSTABLE),
            mirror=is_mirror,
            freed_by=name(written.get(model.ANNOTATION_CHANGED_BY, "")),
            claims=_claims(pod),
            plain=shared.mapping(demand) if has_devices else None,
            style=named_style(written),
            near=shared.value(named_level(written)),
            bounds=shared.value(_bounds(spec.affinity)) if spec.affinity else model.NO_BOUNDS,
        )


def _words(pod: wire.Pod) -> Words:
    meta, group = pod.metadata, pod.spec.scheduling_group
    named = (group.pod_group_name or "") if group else ""
    return Words(meta.labels or {}, meta.annotations or {}, meta.job, named)


def _owner(meta: wire.OwnedMetadata) -> str:
    """Return the name of who controls a pod; of a Deployment's pod, that of the Deployment."""
    for each in meta.owner_references or ():
        if each.controller:
            ending = "-" + (meta.labels or {}).get(LABEL_TEMPLATE, "")
            whole = name(each.name)
            made = each.kind == "ReplicaSet" and len(ending) > 1 and whole.endswith(ending)
            return whole.removesuffix(ending) if made else whole
    return ""


def _has_devices(pod: wire.Pod, demand: model.Amounts) -> bool:
    return bool(pod.spec.resource_claims) or devices.needs_counting(demand)


def _claims(pod: wire.Pod) -> tuple[model.ClaimRef, ...]:
    """Return the claims of a pod; those made from templates by the names its status tells."""
    if not pod.spec.resource_claims:
        return ()
    made = {
        each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()
    }
    refs = []
    for each in pod.spec.resource_claims:
        if each.resource_claim_name:
            refs.append(model.ClaimRef(each.name, each.resource_claim_name))
        elif each.name not in made:
            refs.append(model.ClaimRef(each.name, "", True))
        elif found := made[each.name]:  # without a name, none was needed
            refs.append(model.ClaimRef(each.name, found, True))
    return tuple(refs)


def read_claim(claim: wire.ResourceClaim, at: model.Millis) -> events.ClaimObserved:
    """Return a claim as the core knows it. Raises InvalidInput for requests of an unknown kind."""
    meta = claim.metadata
    owners = meta.owner_references or ()
    pods = [each.uid for each in owners if each.kind == "Pod" and each.controller]
    return events.ClaimObserved(
        at,
        devices.ResourceClaim(
            meta.namespace,
            meta.name,
            tuple(_alternatives(each) for each in claim.spec.devices.requests or ()),
            model.Uid(pods[0]) if pods else None,
            any(each.kind == "PodGroup" for each in owners),
        ),
    )


def _alternatives(request: wire.DeviceRequest) -> devices.Alternatives:
    asks = [request.exactly] if request.exactly else request.first_available
    if not asks:
        raise InvalidInput(f"request {request.name[:80]!r} is of a kind that is not known.")
    return tuple(
        devices.DeviceAsk(
            name(ask.device_class_name),
            # A mode that is not known may be worth as much as any.
            max(0, ask.count) if ask.allocation_mode in ("", "ExactCount") else None,
        )
        for ask in asks
    )


def read_class(device_class: wire.DeviceClass, at: model.Millis) -> events.ClassObserved:
    """Return a DeviceClass as the core knows it."""
    stated = device_class.spec.extended_resource_name
    resource = model.Resource(stated) if stated else None
    return events.ClassObserved(at, device_class.metadata.name, resource)


def read_node(node: wire.Node, at: model.Millis) -> events.NodeObserved:
    """Return a node as the core knows it. A cordoned node counts as not ready."""
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
    return events.NodeObserved(
        at,
        model.Node(
            name=model.NodeName(node.metadata.name),
            labels=node.metadata.labels or {},
            allocatable=with_hami(
                amounts(node.status.allocatable or {}), node.metadata.annotations or {}
            ),
            ready=ready and not node.spec.unschedulable,
            taints=read_taints(node.spec.taints),
        ),
    )


def _bounds(affinity: wire.Affinity) -> model.Bounds:
    """Return what a release finds written where it adds node affinity."""
    nodes = affinity.node_affinity
    if nodes is None:
        return model.Bounds(affinity=True)
    required = nodes.required_during_scheduling_ignored_during_execution
    terms = (required.node_selector_terms or ()) if required else ()
    written = nodes.preferred_during_scheduling_ignored_during_execution
    return model.Bounds(True, True, bool(written), tuple(_expressions(term) for term in terms))


def _expressions(term: wire.NodeTerm) -> bool | None:
    if not (term.match_expressions or term.match_fields):
        return None
    return bool(term.match_expressions)


def _phase(pod: wire.Pod) -> model.Phase:
    return _PHASES.get(pod.status.phase or "", model.Phase.PENDING)


def created(meta: wire.Metadata) -> model.Millis:
    """Return when an object was created. Raises InvalidInput."""
    written = meta.creation_timestamp
    return read_time("creationTimestamp", written) if written else model.Millis(0)


def read_time(what: str, written: str) -> model.Millis:
    """Return a time as the API server writes it. Raises InvalidInput, naming what it is."""
    try:
        return model.Millis(int(datetime.fromisoformat(written).timestamp() * 1000))
    except ValueError as error:
        raise InvalidInput(f"{what} {written[:40]!r} is not a time.") from error


def _longest_life(written: Mapping[str, str], deadline: int | None) -> model.Millis | None:
    """Return how long a pod runs at most: as declared, or until its deadline kills it."""
    declared = declared_runtime(written)
    if deadline is None:
        return declared
    enforced = model.Millis(deadline * 1000)
    return enforced if declared is None else min(declared, enforced)
