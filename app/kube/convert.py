"""Converts pods and nodes of the API server to events. `convert_devices` converts the rest of DRA.

No I/O. The only state is a cache of values that pods repeat.

A reader returns None for an irrelevant object, and raises InvalidInput for an invalid one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from app.core import events, model, well_known
from app.core.errors import InvalidInput
from app.core.lifecycle.node_refusals import refusal_reason
from app.core.podspec import resource_claims as devices
from app.core.podspec.annotations import (
    checkpoint_interval,
    declared_runtime,
    may_be_evicted,
    named_placement,
    named_pools,
    named_topology,
    wanted_notice,
)
from app.core.podspec.anti_affinity_terms import AntiAffinityTerm
from app.core.podspec.gpu_memory import declared_memory
from app.core.podspec.granted_claims import read_grants
from app.core.podspec.pod_groups import (
    LONGEST_NAME,
    NATIVE,
    GangMetadata,
    membership,
    restarts_gang,
)
from app.core.podspec.size_limits import BOUNDS, RELEASED, size_limit_message
from app.core.quantities import ManagedResources, parse_amounts
from app.k8s_types import objects
from app.k8s_types.list_sizes import sizes_of
from app.k8s_types.objects import PodObject
from app.kube.convert_constraints import (
    read_affinity,
    read_anti_affinity,
    read_distance_rules,
    read_labels,
    read_readiness_taints,
    read_taints,
    read_tolerations,
)
from app.kube.hami import add_hami_devices
from app.kube.interning import InterningPool, name

_PHASES = {
    "Running": model.Phase.RUNNING,
    "Unknown": model.Phase.RUNNING,  # its node is silent, and the pod may still use its devices
    "Succeeded": model.Phase.FINISHED,
    "Failed": model.Phase.FINISHED,
}

_QOS_CLASSES = {
    "BestEffort": model.QosClass.BEST_EFFORT,
    "Burstable": model.QosClass.BURSTABLE,
    "Guaranteed": model.QosClass.GUARANTEED,
}


MOST_RESOURCES = 150
"""Limit of resources that are read per pod. A held pod may list as many."""

LABEL_TEMPLATE = "pod-template-hash"
"""Label with the suffix that a Deployment appends to its name for each ReplicaSet."""


EPOCH = datetime.fromtimestamp(0, UTC)

DEFAULT_SCHEDULER = "default-scheduler"

MAX_MESSAGE_LENGTH = 500
"""Maximum number of stored characters of the scheduler's message."""


AntiAffinity = tuple[AntiAffinityTerm, ...]


class Pods:
    """Reads pods: managed pods completely, others only for the capacity that they use on a node."""

    def __init__(self, managed: ManagedResources, exempt: frozenset[str]) -> None:
        self._managed = managed
        self._exempt = exempt
        self._shared = InterningPool()
        self._labels = InterningPool()
        """A separate cache: labels that differ per pod would displace the shared values."""

    def read(
        self, pod: PodObject, at: model.Millis
    ) -> events.PodObserved | events.UnmanagedPodObserved | None:
        """Return the event for a pod, or None if it is not relevant."""
        demand = self._limit_resources(pod.demand())
        if pod.metadata.namespace not in self._exempt and self._is_managed(pod, demand):
            return events.PodObserved(at, self._managed_pod(pod, demand))
        node, group = pod.spec.node_name, _native_group(pod)
        if not (node or group) or _phase(pod) is model.Phase.FINISHED:
            return None
        shared = self._shared.intern_mapping(demand)
        uid, where = model.Uid(pod.metadata.uid), model.NodeName(name(node)) if node else None
        walls = self._anti_affinity(pod)
        holder = (name(pod.metadata.namespace), pod.metadata.name) if walls else ("", "")
        return events.UnmanagedPodObserved(
            at, model.UnmanagedPod(uid, where, shared, walls, holder, self._shared.intern(group))
        )

    def _anti_affinity(self, pod: PodObject) -> AntiAffinity:
        if pod.spec.affinity is None or pod.spec.affinity.pod_anti_affinity is None:
            return ()
        meta = pod.metadata
        return self._shared.intern(read_anti_affinity(pod.spec, meta.namespace, meta.labels or {}))

    def _is_managed(self, pod: PodObject, demand: model.Amounts) -> bool:
        """Return whether a pod is held. The amounts of its claims are not known yet."""
        return self._managed.has_managed(demand) or _has_devices(pod, demand)

    def _limit_resources(self, demand: model.Amounts) -> model.Amounts:
        """Return the resources to read: all of an ordinary pod, otherwise managed ones first."""
        if len(demand) <= MOST_RESOURCES:
            return demand
        ranked = sorted(demand, key=lambda r: (r not in self._managed, "/" in r, r))
        return {resource: demand[resource] for resource in ranked[:MOST_RESOURCES]}

    def _managed_pod(self, pod: PodObject, demand: model.Amounts) -> model.Pod:
        is_held = any(each.name == well_known.GATE for each in pod.spec.scheduling_gates or ())
        too_large = size_limit_message(sizes_of(pod), 1 if is_held else RELEASED)
        walls = self._anti_affinity(pod)  # not cut: they affect other pods, and it is linear
        return self._pod(_without_long_lists(pod) if too_large else pod, demand, walls, too_large)

    def _pod(
        self, pod: PodObject, demand: model.Amounts, walls: AntiAffinity, bound: str
    ) -> model.Pod:
        meta, spec, shared = pod.metadata, pod.spec, self._shared
        written, labels = meta.annotations or {}, meta.labels or {}
        has_devices, gang = _has_devices(pod, demand), membership(_words(pod))
        only, affinity = read_affinity(spec.affinity)
        return model.Pod(
            uid=model.Uid(meta.uid),
            namespace=name(meta.namespace),
            name=meta.name,
            user=_submitter(written),
            priority=spec.priority or 0,
            created_at=shared.intern(created(meta)),
            demand=shared.intern_mapping(demand),
            gates=shared.intern(tuple([name(each.name) for each in spec.scheduling_gates or ()])),
            release_annotation=name(written.get(well_known.ANNOTATION_RELEASE, "")),
            node=model.NodeName(name(spec.node_name)) if spec.node_name else None,
            pool=_pool(labels),
            selector=shared.intern_mapping(spec.node_selector or {}),
            node_names=shared.intern(only) if only is not None else None,
            affinity=shared.intern(affinity) if affinity is not None else None,
            tolerations=shared.intern(read_tolerations(spec.tolerations)),
            distance_rules=shared.intern(read_distance_rules(spec, meta.namespace, labels)),
            pools=shared.intern(tuple([model.PoolName(each) for each in named_pools(written)])),
            phase=_phase(pod),
            terminating=meta.deletion_timestamp is not None,
            grace_ends=_time("deletionTimestamp", meta.deletion_timestamp),
            has_labels=meta.labels is not None,
            has_annotations=meta.annotations is not None,
            gang=name(gang.name),
            gang_size=gang.size,
            gang_min_count=gang.min_count,
            replicated_job=name(gang.replicated_job),
            preemption_policy=name(spec.preemption_policy or model.PREEMPTS),
            restart_gang=restarts_gang(written),
            failed=pod.status.phase == "Failed",
            refusal_reason=_refusal_reason(pod),
            owner=shared.intern(_owner(meta)),
            owner_creates_pods=_owner_creates_pods(meta),
            started_at=_time("startTime", pod.status.start_time),
            max_runtime=shared.intern(_max_runtime(written, spec.active_deadline_seconds)),
            preemptible=may_be_evicted(written),
            labels=_stored_labels(labels, self._labels),
            gpu_memory=declared_memory(written),
            qos_class=_QOS_CLASSES.get(pod.status.qos_class or "", model.QosClass.BURSTABLE),
            mirror=well_known.ANNOTATION_MIRROR in written,
            gate_removed_by=name(written.get(well_known.ANNOTATION_CHANGED_BY, "")),
            claims=_claims(pod),
            granted_claims=_granted_claims(written) if has_devices else None,
            container_requests=shared.intern_mapping(demand) if has_devices else None,
            placement_strategy=named_placement(written),
            topology=shared.intern(named_topology(written)),
            affinity_presence=shared.intern(_affinity_presence(spec.affinity)),
            too_large=bound,
            anti_affinity_terms=walls,
            scheduler=_foreign_scheduler(spec),
            scheduler_may_be_silent=_may_be_silent(spec),
            scheduler_condition=_scheduler_condition(pod),
            reclaim_terms=shared.intern(_reclaim_terms(written, spec)),
        )


def _refusal_reason(pod: PodObject) -> str:
    """Return why the node of a failed pod refused it, or ""."""
    return refusal_reason(pod.status.reason or "") if pod.status.phase == "Failed" else ""


def _granted_claims(annotations: Mapping[str, str]) -> tuple[model.GrantedClaim, ...] | None:
    return read_grants(annotations.get(well_known.ANNOTATION_CLAIMS))


def _without_long_lists(pod: PodObject) -> PodObject:
    """Return a pod that is too large without the lists that would cost memory and time."""
    spec, written = pod.spec, pod.metadata.annotations or {}
    ours = [each for each in spec.scheduling_gates or () if each.name == well_known.GATE]
    gates = [*ours, *(each for each in spec.scheduling_gates or () if each.name != well_known.GATE)]
    spec = replace(
        spec,
        node_selector=None,
        affinity=None,
        tolerations=None,
        topology_spread_constraints=None,
        scheduling_gates=gates[: BOUNDS.gates] or None,
        resource_claims=(spec.resource_claims or [])[: BOUNDS.claims] or None,
    )
    short = {k: v for k, v in written.items() if len(v) <= BOUNDS.annotation}
    return replace(pod, spec=spec, metadata=replace(pod.metadata, annotations=short or None))


def _time(field: str, written: str | None) -> model.Millis | None:
    return read_time(field, written) if written else None


def _submitter(annotations: Mapping[str, str]) -> model.UserName:
    """Return the user of a pod. The kubelet creates mirror pods, and no user submits them."""
    if well_known.ANNOTATION_MIRROR in annotations:
        return model.UNKNOWN_USER
    submitter = annotations.get(well_known.ANNOTATION_SUBMITTER)
    return model.UserName(name(submitter)) if submitter else model.UNKNOWN_USER


def _pool(labels: Mapping[str, str]) -> model.PoolName | None:
    pool = labels.get(well_known.LABEL_POOL)
    return model.PoolName(name(pool)) if pool else None


def _may_be_silent(spec: objects.PodSpec) -> bool:
    """Return whether the scheduler may have a good reason to report nothing about the pod."""
    return bool(_foreign_scheduler(spec) or spec.resource_claims or spec.scheduling_group)


def _foreign_scheduler(spec: objects.PodSpec) -> str:
    """Return the name of a scheduler other than the default one, or an empty string."""
    scheduler = spec.scheduler_name or DEFAULT_SCHEDULER
    return name(scheduler) if scheduler != DEFAULT_SCHEDULER else ""


def _stored_labels(labels: Mapping[str, str], shared: InterningPool) -> Mapping[str, str] | None:
    """Return the labels of a pod that other pods may select, or None if they are too many."""
    read = read_labels(labels)
    return None if read is None else shared.intern_mapping(read)


def _native_group(pod: PodObject) -> tuple[str, str] | None:
    """Return the namespace and the gang name of the native PodGroup of a pod."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name or len(group.pod_group_name) > LONGEST_NAME:
        return None
    return name(pod.metadata.namespace), NATIVE + group.pod_group_name


def _words(pod: PodObject) -> GangMetadata:
    meta, group = pod.metadata, pod.spec.scheduling_group
    named = (group.pod_group_name or "") if group else ""
    return GangMetadata(meta.labels or {}, meta.annotations or {}, meta.job, named)


def _owner(meta: objects.OwnedMetadata) -> str:
    """Return the name of the pod's controller, or of the Deployment above it."""
    for each in meta.owner_references or ():
        if each.controller and len(each.name) <= LONGEST_NAME:
            ending = "-" + (meta.labels or {}).get(LABEL_TEMPLATE, "")
            whole = name(each.name)
            made = each.kind == "ReplicaSet" and len(ending) > 1 and whole.endswith(ending)
            return whole.removesuffix(ending) if made else whole
    return ""


def _owner_creates_pods(meta: objects.OwnedMetadata) -> bool:
    """Return whether the kind of the pod's controller may create pods again.

    Users can name any object as the controller of a pod. Kinds of the core group, such as
    ConfigMap and Pod, create none. Of other kinds that is not known.
    """
    kinds = [(o.api_version, o.kind) for o in meta.owner_references or () if o.controller]
    version, kind = kinds[0] if kinds else ("", "")
    return version != "v1" or kind == "ReplicationController"


def _scheduler_condition(pod: PodObject) -> model.SchedulerCondition | None:
    """Return the scheduler's condition of a pod without a gate and without a node, or None."""
    if pod.spec.node_name or pod.spec.scheduling_gates:
        return None
    for each in pod.status.conditions or ():
        if each.type == "PodScheduled" and each.status == "False":
            if each.reason == "SchedulingGated":
                return None  # the API server wrote that at creation
            message = "".join(
                c if c.isprintable() else " " for c in (each.message or "")[:MAX_MESSAGE_LENGTH]
            )
            return model.SchedulerCondition(name((each.reason or "")[:100]), message)
    return None


def _has_devices(pod: PodObject, demand: model.Amounts) -> bool:
    return bool(pod.spec.resource_claims) or devices.has_implicit_claims(demand)


def _claims(pod: PodObject) -> tuple[model.ClaimRef, ...]:
    """Return the claims of a pod. Claims made from templates have the names in its status."""
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
        elif found := made[each.name]:  # no name: no claim was needed
            refs.append(model.ClaimRef(each.name, found, True))
    return tuple(refs)


def read_node(node: objects.NodeObject, at: model.Millis) -> events.NodeObserved:
    """Return the event for a node. A cordoned node counts as not ready."""
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
    return events.NodeObserved(
        at,
        model.Node(
            name=model.NodeName(node.metadata.name),
            labels=node.metadata.labels or {},
            allocatable=add_hami_devices(
                node.metadata.name,
                parse_amounts(node.status.allocatable or {}),
                node.metadata.annotations or {},
            ),
            ready=ready and not node.spec.unschedulable,
            taints=read_taints(node.spec.taints),
            cordoned=node.spec.unschedulable,
            readiness_taints=read_readiness_taints(node.spec.taints),
        ),
    )


def _affinity_presence(affinity: objects.AffinitySpec | None) -> model.AffinityPresence:
    """Return which parents of node affinity exist."""
    if affinity is None:
        return model.NO_AFFINITY
    nodes = affinity.node_affinity
    if nodes is None:
        return model.AffinityPresence(affinity=True)
    required = nodes.required_during_scheduling_ignored_during_execution
    terms = (required.node_selector_terms or ()) if required else ()
    written = nodes.preferred_during_scheduling_ignored_during_execution
    return model.AffinityPresence(
        True, True, bool(written), tuple(_expressions(term) for term in terms)
    )


def _expressions(term: objects.NodeTerm) -> bool | None:
    if not (term.match_expressions or term.match_fields):
        return None
    return bool(term.match_expressions)


def _phase(pod: PodObject) -> model.Phase:
    return _PHASES.get(pod.status.phase or "", model.Phase.PENDING)


def created(meta: objects.Metadata) -> model.Millis:
    """Return the creation time of an object. Raises InvalidInput."""
    written = meta.creation_timestamp
    return read_time("creationTimestamp", written) if written else model.Millis(0)


def read_time(what: str, written: str) -> model.Millis:
    """Return a time in the API server's format, at most the last millisecond of the year 9999.

    Raises InvalidInput, naming the field.
    """
    try:
        # Exact, because a float rounds the last microsecond of a year up to the next year.
        since = datetime.fromisoformat(written).astimezone(UTC) - EPOCH
        return model.Millis(since // timedelta(milliseconds=1))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{what} {written[:40]!r} is not a time.") from error


def _reclaim_terms(written: Mapping[str, str], spec: objects.PodSpec) -> model.ReclaimTerms:
    notice, checkpoint = wanted_notice(written), checkpoint_interval(written)
    given = written.get(well_known.ANNOTATION_RECLAIM_AT)
    if notice is None and checkpoint is None and given is None:
        return model.NO_TERMS
    return model.ReclaimTerms(
        notice or model.Millis(0),
        checkpoint,
        _reclaim_end(given) if given else None,
        # The API server has no EvictionRequest for pods of a native group.
        bool(spec.eviction_responders) and spec.scheduling_group is None,
    )


def _reclaim_end(written: str) -> model.Millis | None:
    """Return the end of a notice. A user may have written any text before Fairgate came."""
    try:
        return read_time(well_known.ANNOTATION_RECLAIM_AT, written)
    except InvalidInput:
        return None


def _max_runtime(written: Mapping[str, str], deadline: int | None) -> model.Millis | None:
    """Return the longest run time of a pod: the shorter of declaration and active deadline."""
    declared = declared_runtime(written)
    if deadline is None:
        return declared
    enforced = model.Millis(deadline * 1000)
    return enforced if declared is None else min(declared, enforced)
