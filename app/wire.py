"""The few fields of Kubernetes objects that Fairgate reads, as typed structs for msgspec.

Shared by the webhook and the watches, so that both read a pod the same way. Holds no rules.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from app.core.asks import demand
from app.core.model import Resource
from app.wire_terms import Affinity as Affinity
from app.wire_terms import LabelSelector as LabelSelector
from app.wire_terms import NodeAffinity as NodeAffinity
from app.wire_terms import NodeTerm as NodeTerm
from app.wire_terms import NodeTerms as NodeTerms
from app.wire_terms import PodAffinity as PodAffinity
from app.wire_terms import PodTerm as PodTerm
from app.wire_terms import Requirement as Requirement
from app.wire_terms import Spread as Spread
from app.wire_terms import Taint as Taint
from app.wire_terms import Toleration as Toleration
from app.wire_terms import Wire as Wire

Quantities = dict[str, str | int | float]

T = TypeVar("T")


class Resources(Wire, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(Wire, frozen=True):
    resources: Resources | None = None
    restart_policy: str | None = None


class Gate(Wire, frozen=True):
    name: str = ""


class PodClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str | None = None


class PodSpec(Wire, frozen=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: Quantities | None = None
    scheduling_gates: list[Gate] | None = None
    resource_claims: list[PodClaim] | None = None
    node_selector: dict[str, str] | None = None
    node_name: str | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Spread] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    active_deadline_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None

    def demand(self) -> dict[Resource, int]:
        """Return what the pod reserves, in base units. Raises InvalidQuantity."""
        return demand.reserved(
            [_ask(c) for c in self.containers or ()],
            [_ask(c) for c in self.init_containers or ()],
            _level(self.resources) if self.resources else None,
            self.overhead,
        )


class Metadata(Wire, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class OwnerReference(Wire, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class OwnedMetadata(Metadata, frozen=True):
    owner_references: list[OwnerReference] | None = None

    @property
    def job(self) -> str:
        """The Job that made it; "" for none."""
        owners = self.owner_references or ()
        return next((o.name for o in owners if o.controller and o.kind == "Job"), "")


class PodStatus(Wire, frozen=True):
    phase: str | None = None
    start_time: str | None = None
    qos_class: str | None = None
    resource_claim_statuses: list[PodClaim] | None = None


class Pod(Wire, frozen=True):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Wire, frozen=True):
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None


class Node(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class WeightedUser(Wire, frozen=True):
    name: str = ""
    weight: str = "1"


class Quota(Wire, frozen=True):
    pool: str = ""
    guarantee: Quantities | None = None
    limit: Quantities | None = None


class TenantSpec(Wire, frozen=True):
    parent: str | None = None
    weight: str = "1"
    namespaces: list[str] | None = None
    users: list[WeightedUser] | None = None
    quotas: list[Quota] | None = None
    pools: list[str] | None = None
    max_pending: int | None = None
    paused: bool = False


class KeptUser(Wire, frozen=True):
    """`spent`: resource-seconds by pool, as decimal text."""

    name: str = ""
    served: str = ""
    history: dict[str, str] | None = None
    spent: dict[str, dict[str, str]] | None = None


class Checkpoint(Wire, frozen=True):
    """`others`: what was spent by users who are not named one by one."""

    time: str = ""
    epoch: int = 0
    served: str = ""
    history: dict[str, str] | None = None
    users: list[KeptUser] | None = None
    others: dict[str, dict[str, str]] | None = None


class TenantStatus(Wire, frozen=True):
    pending: int = 0
    checkpoint: Checkpoint | None = None


class Tenant(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()


class PoolSpec(Wire, frozen=True):
    node_selector: dict[str, str] | None = None
    weights: dict[str, str] | None = None
    overcommit: dict[str, str] | None = None
    placement: str = "pack"
    tolerations: list[Toleration] | None = None
    topology: list[str] | None = None
    paused: bool = False
    gpu_memory: str | int | float | None = None
    max_capacity: Quantities | None = None


class PoolStatus(Wire, frozen=True):
    capacity: Quantities | None = None


class Pool(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PoolSpec = PoolSpec()
    status: PoolStatus = PoolStatus()


class PolicySpec(Wire, frozen=True):
    """An absent field is None: its default is the core's business."""

    history: str | None = None
    half_life: str | None = None
    min_charge: str | None = None
    reserve_after: str | None = None
    backfill: bool | None = None
    reclaim: str | None = None
    within_queue: str | None = None
    min_runtime: str | None = None
    gang_timeout: str | None = None
    scheduling_timeout: str | None = None
    mode: str | None = None


class Policy(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PolicySpec = PolicySpec()


class PriorityClass(Wire, frozen=True):
    metadata: Metadata = Metadata()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class DeviceAsk(Wire, frozen=True):
    """`exactly`, or one of `firstAvailable`. The API server writes the defaults."""

    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1


class DeviceRequest(Wire, frozen=True):
    name: str = ""
    exactly: DeviceAsk | None = None
    first_available: list[DeviceAsk] | None = None


class DeviceClaim(Wire, frozen=True):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(Wire, frozen=True):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class DeviceClassSpec(Wire, frozen=True):
    extended_resource_name: str | None = None


class DeviceClass(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class UserInfo(Wire, frozen=True):
    username: str = ""
    groups: list[str] = msgspec.field(default_factory=list)


class Asked(Wire, frozen=True):
    """Which resource a review is about."""

    group: str = ""
    resource: str = ""


class AdmissionRequest(Wire, Generic[T], frozen=True):
    uid: str
    operation: str = ""
    resource: Asked = Asked()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    dry_run: bool = False
    object: T | None = None
    old_object: T | None = None


class AdmissionReview(Wire, Generic[T], frozen=True):
    request: AdmissionRequest[T]
    api_version: str = ""
    kind: str = ""


class LeaseSpec(Wire, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ListMeta(Wire, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T], frozen=True):
    """One page of a list. `Page[msgspec.Raw]` leaves the items to be read one by one."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Change(Wire, Generic[T], frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: T


class Bare(Wire, frozen=True):
    """Any object, for its metadata only."""

    metadata: Metadata = Metadata()


class Secret(Wire, frozen=True):
    """`data` in base64, as on the wire."""

    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


class ConfigMap(Wire, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


class ApiServiceSpec(Wire, frozen=True):
    ca_bundle: str | None = None


class ApiService(Wire, frozen=True):
    spec: ApiServiceSpec = ApiServiceSpec()


class Status(Wire, frozen=True):
    """What the API server answers when it says no."""

    code: int = 0
    message: str = ""
    reason: str = ""


def _ask(container: Container) -> demand.Ask:
    resources = container.resources
    if resources is None:
        return _NOTHING_ASKED
    restartable = container.restart_policy == "Always"
    return demand.Ask(resources.requests or {}, resources.limits or {}, restartable)


def _level(resources: Resources) -> demand.Ask:
    return demand.Ask(resources.requests or {}, resources.limits or {})


_NOTHING_ASKED = demand.Ask()
