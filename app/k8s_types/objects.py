"""msgspec structs of the Kubernetes objects that Fairgate reads, with the needed fields only.

The webhook and the watches share them, so that both read a pod the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from app.core.model import Resource
from app.core.podspec import requests as pod_requests
from app.k8s_types.scheduling import AffinitySpec as AffinitySpec
from app.k8s_types.scheduling import KubeStruct as KubeStruct
from app.k8s_types.scheduling import LabelSelector as LabelSelector
from app.k8s_types.scheduling import NodeAffinity as NodeAffinity
from app.k8s_types.scheduling import NodeTerm as NodeTerm
from app.k8s_types.scheduling import NodeTerms as NodeTerms
from app.k8s_types.scheduling import PodAffinity as PodAffinity
from app.k8s_types.scheduling import PodTerm as PodTerm
from app.k8s_types.scheduling import RequirementSpec as RequirementSpec
from app.k8s_types.scheduling import Spread as Spread
from app.k8s_types.scheduling import TaintSpec as TaintSpec
from app.k8s_types.scheduling import TolerationSpec as TolerationSpec

Quantities = dict[str, str | int | float]

T = TypeVar("T")

NULL_VALUES: dict[str, object] = {
    **dict.fromkeys(("labels", "annotations", "nodeSelector", "matchLabels"), ""),
    **dict.fromkeys(("requests", "limits", "overhead"), 0),
}
"""Maps in which null is a value, as in the API server, with that value."""


def convert(document: Any, kind: type[T]) -> T:
    """Return a decoded document as a struct. Null counts as absent. Raises ValidationError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert(without_nulls(document), kind)
        except RecursionError:
            raise error from None


def without_nulls(document: Any) -> Any:
    """Return the document without null fields, as the API server reads it."""
    if isinstance(document, list):
        return [without_nulls(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {key: _filled(key, value) for key, value in document.items() if value is not None}


def _filled(key: str, value: Any) -> Any:
    if key in NULL_VALUES and isinstance(value, dict):
        return {name: NULL_VALUES[key] if each is None else each for name, each in value.items()}
    return without_nulls(value)


class ResourceRequirements(KubeStruct, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None


class ContainerObject(KubeStruct, frozen=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None


class Gate(KubeStruct, frozen=True):
    name: str = ""


class PodClaim(KubeStruct, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGroup(KubeStruct, frozen=True):
    pod_group_name: str | None = None


@dataclass(frozen=True, slots=True)
class ResizeStatus:
    """Resources granted by the node, by container and at pod level. See `ContainerRequest`."""

    containers: Mapping[str, tuple[Quantities, ...]]
    level: tuple[Quantities, ...] = ()
    infeasible: bool = False


class PodSpec(KubeStruct, frozen=True):
    containers: list[ContainerObject] | None = None
    init_containers: list[ContainerObject] | None = None
    resources: ResourceRequirements | None = None
    overhead: Quantities | None = None
    scheduling_gates: list[Gate] | None = None
    resource_claims: list[PodClaim] | None = None
    node_selector: dict[str, str] | None = None
    node_name: str | None = None
    affinity: AffinitySpec | None = None
    tolerations: list[TolerationSpec] | None = None
    topology_spread_constraints: list[Spread] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    active_deadline_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None
    eviction_responders: list[object] | None = None
    scheduler_name: str | None = None

    def demand(self) -> dict[Resource, int]:
        """Return the resources that the pod reserves, in base units. Raises InvalidQuantity."""
        return self.charged(_NO_STATUS)

    def charged(self, status: ResizeStatus) -> dict[Resource, int]:
        """Return the same during a resize: what the pod requests, or still has."""
        level = self.resources
        return pod_requests.effective_requests(
            [_ask(c, status) for c in self.containers or ()],
            [_ask(c, status) for c in self.init_containers or ()],
            _request(level, granted=status.level, infeasible=status.infeasible) if level else None,
            self.overhead,
        )


class Metadata(KubeStruct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class OwnerReference(KubeStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class OwnedMetadata(Metadata, frozen=True):
    owner_references: list[OwnerReference] | None = None

    @property
    def job(self) -> str:
        """Return the name of the Job that controls the object, "" if there is no Job."""
        owners = self.owner_references or ()
        return next((o.name for o in owners if o.controller and o.kind == "Job"), "")


class PodCondition(KubeStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    observed_generation: int = 0


class ContainerStatus(KubeStruct, frozen=True):
    name: str = ""
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class PodStatus(KubeStruct, frozen=True):
    phase: str | None = None
    reason: str | None = None
    conditions: list[PodCondition] | None = None
    start_time: str | None = None
    qos_class: str | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class PodObject(KubeStruct, frozen=True):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def demand(self) -> dict[Resource, int]:
        """Return the resources to charge, in base units. Raises InvalidQuantity.

        During an in-place resize this is the maximum of spec and status, but what the node has
        granted if it refused the resize.
        """
        return self._charged(infeasible=self._is_infeasible())

    def demand_of_new_spec(self) -> dict[Resource, int]:
        """Return the resources to charge for a spec that no node has judged yet, in base units.

        The conditions are about an earlier spec. Raises InvalidQuantity.
        """
        return self._charged(infeasible=False)

    def _charged(self, *, infeasible: bool) -> dict[Resource, int]:
        status = self.status
        written = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
        granted = {each.name: found for each in written if (found := _granted(each))}
        level = _granted(status)
        if not (granted or level):
            return self.spec.demand()
        return self.spec.charged(ResizeStatus(granted, level, infeasible))

    def _is_infeasible(self) -> bool:
        """Return whether the node refused the resize to the present spec."""
        return any(
            each.type == "PodResizePending"
            and each.status == "True"
            and each.reason == "Infeasible"
            and each.observed_generation in (0, self.metadata.generation)
            for each in self.status.conditions or ()
        )


class ConditionObject(KubeStruct, frozen=True):
    type: str = ""
    status: str = ""


class NodeSpec(KubeStruct, frozen=True):
    unschedulable: bool = False
    taints: list[TaintSpec] | None = None


class NodeStatus(KubeStruct, frozen=True):
    allocatable: Quantities | None = None
    conditions: list[ConditionObject] | None = None


class NodeObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class WeightedUser(KubeStruct, frozen=True):
    name: str = ""
    weight: str = "1"


class QuotaObject(KubeStruct, frozen=True):
    pool: str = ""
    guarantee: Quantities | None = None
    limit: Quantities | None = None


class TenantObjectSpec(KubeStruct, frozen=True):
    parent: str | None = None
    weight: str = "1"
    namespaces: list[str] | None = None
    users: list[WeightedUser] | None = None
    quotas: list[QuotaObject] | None = None
    pools: list[str] | None = None
    max_pending: int | None = None
    paused: bool = False


class KeptUser(KubeStruct, frozen=True):
    """Checkpoint of one user. `spent`: resource-seconds by pool, as decimal text."""

    name: str = ""
    served: str = ""
    history: dict[str, str] | None = None
    spent: dict[str, dict[str, str]] | None = None


class CheckpointObject(KubeStruct, frozen=True):
    """Checkpoint of a tenant. `others`: usage of the users that are not listed by name."""

    time: str = ""
    epoch: int = 0
    served: str = ""
    history: dict[str, str] | None = None
    users: list[KeptUser] | None = None
    others: dict[str, dict[str, str]] | None = None


class TenantStatus(KubeStruct, frozen=True):
    pending: int = 0
    checkpoint: CheckpointObject | None = None


class TenantObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: TenantObjectSpec = TenantObjectSpec()
    status: TenantStatus = TenantStatus()


class PoolObjectSpec(KubeStruct, frozen=True):
    node_selector: dict[str, str] | None = None
    weights: dict[str, str] | None = None
    overcommit: dict[str, str] | None = None
    placement: str = "pack"
    tolerations: list[TolerationSpec] | None = None
    topology: list[str] | None = None
    paused: bool = False
    gpu_memory: str | int | float | None = None
    max_capacity: Quantities | None = None


class PoolStatus(KubeStruct, frozen=True):
    capacity: Quantities | None = None


class PoolObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PoolObjectSpec = PoolObjectSpec()
    status: PoolStatus = PoolStatus()


class PolicySpec(KubeStruct, frozen=True):
    """An absent field is None. The core has the defaults."""

    history: str | None = None
    half_life: str | None = None
    min_charge: str | None = None
    reserve_after: str | None = None
    backfill: bool | None = None
    reclaim: str | None = None
    within_queue: str | None = None
    disruption_budgets: str | None = None
    min_runtime: str | None = None
    max_reclaim_notice: str | None = None
    gang_timeout: str | None = None
    scheduling_timeout: str | None = None
    evict_unowned: bool | None = None
    max_unbound: int | None = None
    max_unowned_unbound: int | None = None
    mode: str | None = None


class PolicyObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PolicySpec = PolicySpec()


class PriorityClassObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class LeaseSpec(KubeStruct, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ListMeta(KubeStruct, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListPage(KubeStruct, Generic[T], frozen=True):
    """One page of a list. `Page[msgspec.Raw]` leaves the items undecoded."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchEvent(KubeStruct, Generic[T], frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: T


class MetadataOnly(KubeStruct, frozen=True):
    """Any object, reduced to its metadata."""

    metadata: Metadata = Metadata()


class SecretObject(KubeStruct, frozen=True):
    """A Secret. `data` is base64, as in the API."""

    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


class ConfigMap(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


class ApiServiceSpec(KubeStruct, frozen=True):
    ca_bundle: str | None = None


class ApiServiceObject(KubeStruct, frozen=True):
    spec: ApiServiceSpec = ApiServiceSpec()


class StatusObject(KubeStruct, frozen=True):
    """Error response of the API server."""

    code: int = 0
    message: str = ""
    reason: str = ""


def _ask(container: ContainerObject, status: ResizeStatus) -> pod_requests.ContainerRequest:
    granted = status.containers.get(container.name, ())
    if container.resources is None and not granted:
        return _NOTHING_ASKED
    restartable = container.restart_policy == "Always"
    resources = container.resources or _NO_RESOURCES
    return _request(resources, restartable, granted, status.infeasible)


def _request(
    resources: ResourceRequirements,
    restartable: bool = False,
    granted: tuple[Quantities, ...] = (),
    infeasible: bool = False,
) -> pod_requests.ContainerRequest:
    requests, limits = resources.requests or {}, resources.limits or {}
    return pod_requests.ContainerRequest(requests, limits, restartable, granted, infeasible)


def _granted(status: ContainerStatus | PodStatus) -> tuple[Quantities, ...]:
    """Return the requests that the node has allocated and applied, without empty ones."""
    applied = status.resources.requests if status.resources else None
    return tuple(each for each in (status.allocated_resources, applied) if each)


_NOTHING_ASKED = pod_requests.ContainerRequest()
_NO_RESOURCES = ResourceRequirements()
_NO_STATUS = ResizeStatus({})
