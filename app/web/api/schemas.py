"""Request and response models of the REST API.

It has more than 500 lines, because the whole contract of the API is read in one place.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

T = TypeVar("T")

Quantities = dict[str, str]
"""Kubernetes quantities by resource: `{"nvidia.com/gpu": "8"}`."""

InPools = dict[str, Quantities]
"""Quantities by pool."""

DECIMAL = r"^[0-9]{1,12}(\.[0-9]{1,6})?$"

USER_NAME = r"^([^.]|\.[^.]|\.\.[\s\S])"
"""Every name but `.` and `..`. Clients remove a segment `..` with the one before it, so the path of
a user's weight would become that of the tenant's weight.

Only requests have this rule: a Tenant that was stored before it must remain readable."""

USER_NAME_RULE = "must be a name other than . and .., because no path can name such a user"


class ResponseModel(BaseModel):
    """Base of response models."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class RequestModel(ResponseModel):
    """Base of request models. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class PageModel(ResponseModel, Generic[T]):
    """One page of a list. `continue`: the token of the next page, null on the last page."""

    items: list[T]
    more: str | None = Field(default=None, serialization_alias="continue")


class Weight(RequestModel):
    """Weight of a tenant or user, relative to its siblings."""

    weight: str = Field(pattern=DECIMAL, examples=["2"])


class UserWeight(RequestModel):
    """A user of a tenant, and the weight relative to the tenant's other users."""

    name: str = Field(min_length=1, max_length=512, examples=["alice@example.com"])
    weight: str = Field(default="1", pattern=DECIMAL)


class QuotaSpec(RequestModel):
    """Guarantee and limit of a tenant in a pool."""

    pool: str = Field(min_length=1, max_length=253, examples=["h100"])
    guarantee: Quantities = Field(default={}, max_length=16)
    limit: Quantities = Field(default={}, max_length=16)


class TenantSpecModel(RequestModel):
    """Configuration of a tenant. Absent fields have their default.

    Lists and names have the limits of the CustomResourceDefinition: the API server needs seconds to
    refuse tens of thousands of items.
    """

    parent: str | None = Field(default=None, max_length=253)
    weight: str = Field(default="1", pattern=DECIMAL)
    namespaces: list[Annotated[str, Field(max_length=63)]] = Field(default=[], max_length=500)
    users: list[UserWeight] = Field(default=[], max_length=1000)
    quotas: list[QuotaSpec] = Field(default=[], max_length=32)
    pools: list[Annotated[str, Field(max_length=253)]] = Field(default=[], max_length=64)
    max_pending: int | None = Field(default=None, ge=0, le=10_000_000)
    paused: bool = False


class TenantShown(TenantSpecModel):
    """Configuration and current state of a tenant, its child tenants included.

    `share`: the dominant share of the cluster. `weightedShare`: the share divided by the weight.
    `fairShare`: the part of the cluster to which its weight entitles the tenant now; null in the
    stream.
    `exists`: there is a Tenant resource. A namespace that belongs to no Tenant has no such object.
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    exists: bool
    share: str
    weighted_share: str
    used: InPools
    borrowed: InPools
    pending: int
    fair_share: str | None = None


class UserShown(ResponseModel):
    """A user of a tenant: weight, used amounts, and the number of pending pods.

    `share` and `fairShare` are parts of the cluster; null for a user without pods, while the
    replica starts, and in the stream.
    """

    name: str
    weight: str
    used: InPools
    pending: int
    share: str | None = None
    fair_share: str | None = None


class ServerVersion(ResponseModel):
    """The version of the replica that answers."""

    version: str = Field(examples=["0.1.0"])


class TolerationModel(RequestModel):
    """A toleration that a pod gets at release, in the form of a pod's toleration."""

    key: str | None = None
    operator: str | None = Field(default=None, pattern="^(Exists|Equal)$")
    value: str | None = None
    effect: str | None = Field(default=None, pattern="^(NoSchedule|PreferNoSchedule|NoExecute)$")
    toleration_seconds: int | None = None


class PoolSpecModel(RequestModel):
    """Configuration of a pool. Absent fields have their default.

    Lists and maps have the limits of the CustomResourceDefinition.
    """

    node_selector: dict[str, str] = Field(default={}, max_length=16)
    weights: dict[str, str] = Field(default={}, max_length=16)
    overcommit: dict[str, str] = Field(default={}, max_length=16)
    placement: str = Field(default="pack", pattern="^(pack|spread)$")
    tolerations: list[TolerationModel] = Field(default=[], max_length=32)
    topology: list[str] = Field(default=[], max_length=8)
    paused: bool = False
    gpu_memory: str | None = None
    max_capacity: Quantities = Field(default={}, max_length=16)


class NodeShown(ResponseModel):
    """A node of a pool, and its use by released pods. Managed resources only.

    A cordoned node is not ready. `domain`: the value of the first topology label of the pool, else
    of the zone; "" without such a label.
    """

    name: str
    ready: bool
    cordoned: bool
    domain: str
    capacity: Quantities
    used: Quantities


class PoolShown(PoolSpecModel):
    """Configuration and current state of a pool. `nodes`: the number of ready nodes."""

    model_config = ConfigDict(extra="ignore")

    name: str
    exists: bool
    capacity: Quantities
    used: Quantities
    free: Quantities
    nodes: int


class PoolWhole(PoolShown):
    """A pool, and each of its nodes, ordered by name."""

    members: list[NodeShown]


class EstimateShown(ResponseModel):
    """Estimated start, in seconds from `at`: 50 % chance by `p50`, 90 % by `p90`."""

    p50: int
    p90: int
    at: datetime


class QueuedWorkload(ResponseModel):
    """A held workload: one pod, or the waiting pods of a gang, named by its first pod.

    `position` counts from 1 in the user's queue; 0: it is not queued. `rule` is one of a few fixed
    words, `reason` a sentence. `estimate` is null if it would be a guess, and `estimateWithheld`
    gives the reason. `request`, `pools`, `rule` and `reason` are null while this replica has not
    seen the pod.
    """

    namespace: str
    name: str
    uid: str
    gang: str | None
    pods: int
    user: str
    priority: int
    since: datetime
    request: Quantities | None
    pools: list[str] | None
    position: int
    length: int
    rule: str | None
    reason: str | None
    estimate: EstimateShown | None
    estimate_withheld: str | None


class QueueModel(PageModel[QueuedWorkload]):
    """Held workloads of a tenant, by user, in the order of each user's queue. `pending`: pods."""

    tenant: str
    pending: int


class AheadModel(ResponseModel):
    """A sibling that goes first, at the highest level of the tree that has such a sibling.

    It never names a user or pod. `reason`: the rule by which it goes first, as a sentence.
    """

    tenant: str
    score: str
    own: str
    own_score: str
    reason: str


class WorkloadModel(QueuedWorkload):
    """Why a pod waits. `state` is `held` or `released`. Finished pods are not found.

    `reason`: for a released pod, the time and place of the release. `numbers`: the values that the
    rule compared, by name. `remedies`: changes that would help.
    """

    request: Quantities
    pools: list[str]
    rule: str
    reason: str
    tenant: str
    state: str
    numbers: dict[str, str]
    ahead: list[AheadModel]
    remedies: list[str]


class EventShown(ResponseModel):
    """A Kubernetes event of a pod.

    `at`: when it was last sent. `count`: how often. `source`: the component that sent it.
    """

    at: datetime
    reason: str
    message: str
    source: str
    warning: bool
    count: int


class EventsModel(ResponseModel):
    """Events of all pods that had this name, newest first. `more`: there are others."""

    items: list[EventShown]
    more: bool


class UsageRow(ResponseModel):
    """Usage, grouped by the requested keys. Keys that were not requested are absent.

    `resourceSeconds`: exact decimals by resource, in the resource's own unit times seconds. `at`:
    the begin of the step, if steps were requested. `node` is "" for the time without a node.
    """

    tenant: str | None = None
    user: str | None = None
    pool: str | None = None
    node: str | None = None
    workload: str | None = None
    at: datetime | None = None
    resource_seconds: dict[str, str]


class UsageModel(PageModel[UsageRow]):
    """Usage between two times. Records before `completeSince` are incomplete.

    `from` is null for totals, which count since the installation.
    """

    since: datetime | None = Field(alias="from")
    until: datetime = Field(alias="to")
    complete_since: datetime | None


class QuotaRow(ResponseModel):
    """A tenant in a pool.

    The last four fields are null with `?at=`, because only configuration is recorded. `pool` is ""
    for a tenant without any quota at that time.
    """

    tenant: str
    parent: str | None
    weight: str
    pool: str
    guarantee: Quantities
    limit: Quantities
    used: Quantities | None
    borrowed: Quantities | None
    pending: int | None
    weighted_share: str | None


class Quotas(PageModel[QuotaRow]):
    """Quotas in force at a time."""

    at: datetime


class AuditHead(ResponseModel):
    """The newest signed head of the audit chain. `fairgate audit verify` reads `signed`."""

    number: int
    hash: str
    at: datetime
    signed: str


WeightText = Annotated[str, Field(pattern=DECIMAL)]


class WhatIf(RequestModel):
    """Changes to simulate: weights of tenants, and weights of users by tenant."""

    weights: dict[str, WeightText] = Field(default={}, max_length=1000, examples=[{"team-a": "3"}])
    users: dict[str, dict[str, WeightText]] = Field(
        default={}, max_length=1000, examples=[{"team-a": {"alice": "2"}}]
    )
    hours: float = Field(default=4.0, gt=0, le=48)


class TenantForecastModel(ResponseModel):
    """Result for a tenant: its mean share, and the waits of the pods that are pending now.

    Waits start now. A pod that is not released by the end counts with the whole time.
    """

    share: str
    pending: int
    started: int
    wait_mean_seconds: float
    wait_p90_seconds: float


class TenantForeseen(ResponseModel):
    """Results for a tenant without (`now`) and with (`then`) the requested changes."""

    tenant: str
    weight_now: str
    weight_then: str
    now: TenantForecastModel
    then: TenantForecastModel


class Simulation(ResponseModel):
    """Effect of a change on the current backlog. `assumed`: the source of the run times.

    `pods`: all pending pods, which all took part. The list has only tenants visible to the caller.
    """

    pods: int
    hours: float
    seconds: float
    assumed: str
    tenants: list[TenantForeseen]


class TrialPods(RequestModel):
    """A pod, as the API server answers its creation with `dryRun=All`, and the number of copies.

    `claims`: the specs of ResourceClaims that do not exist yet, by the name of the entry in
    `spec.resourceClaims`.
    """

    count: int = Field(default=1, ge=1, le=1000)
    pod: dict[str, Any]
    claims: dict[str, dict[str, Any]] = Field(default={}, max_length=50)


class TrialRequest(RequestModel):
    """Pods that the caller may create. `kind` and `name`: the object that will create them.

    `inOrder`: a JobSet that starts its replicated jobs one after another. Each of them is a gang of
    its own. The label `jobset.sigs.k8s.io/replicatedjob-name` of a pod names its replicated job.
    """

    namespace: str = Field(min_length=1, max_length=63, examples=["team-a"])
    kind: Literal["Pod", "Job", "Deployment", "StatefulSet", "JobSet"] = "Pod"
    name: str = Field(default="", max_length=253, examples=["train"])
    in_order: bool = False
    pods: list[TrialPods] = Field(min_length=1, max_length=50)


class TrialModel(ResponseModel):
    """Result of a trial of proposed pods. `state`: `fits`, `waits` or `unmanaged`.

    `unmanaged`: Fairgate would not hold the pods. `startsNow`: the number of pods that start at
    once. `rule` to `remedies` explain the first pod that waits, as for an existing pod.
    `simulatedSeconds`: when the last pod starts in a simulation; null if it does not, or if the
    simulation took too long. `assumed`: the source of its run times. `estimate` is the calibrated
    result. If it is null, `estimateWithheld` says why.
    """

    namespace: str
    tenant: str
    user: str
    state: str
    pods: int
    starts_now: int
    gang: str | None
    request: Quantities
    pools: list[str]
    position: int
    length: int
    rule: str | None
    reason: str
    numbers: dict[str, str]
    ahead: list[AheadModel]
    remedies: list[str]
    simulated_seconds: float | None
    assumed: str
    estimate: EstimateShown | None
    estimate_withheld: str | None


class OwnTenant(ResponseModel):
    """A tenant in which the caller has pods.

    `used` and `fairShare` are fractions of the cluster, 0 to 1, of the caller. `amounts` are used
    now. `tenantUsed` and `tenantFairShare` are those of the tenant.
    """

    tenant: str
    weight: str
    used: float
    fair_share: float
    tenant_used: float
    tenant_fair_share: float
    amounts: InPools
    pending: int


class OwnWorkload(QueuedWorkload):
    """A workload of the caller. `state` is `held` or `released`."""

    tenant: str
    state: str


class Me(ResponseModel):
    """The caller, its tenants and its workloads: held ones in queue order, then released ones.

    `leftOut`: the number of pods beyond the limit.
    """

    name: str
    tenants: list[OwnTenant]
    workloads: list[OwnWorkload]
    left_out: int


class HitShown(ResponseModel):
    """An object that a search found. `kind`: tenant, user, job, pod, namespace or node.

    Fields that do not apply to the kind are empty.
    """

    kind: str
    name: str
    namespace: str
    tenant: str
    user: str


class SearchModel(ResponseModel):
    """Found objects by kind, the best match first."""

    items: list[HitShown]


class TenantWritten(TenantSpecModel):
    """A tenant as stored in the API server. Its current state follows a moment later."""

    model_config = ConfigDict(extra="ignore")

    name: str


class PoolWritten(PoolSpecModel):
    """A pool as stored in the API server. Its current state follows a moment later."""

    model_config = ConfigDict(extra="ignore")

    name: str


class ShareChange(ResponseModel):
    """Share by weight of a tenant or user, 0 to 1, if all tenants and users had requests.

    `before` null: it is new. `after` null: it is deleted.
    """

    tenant: str
    user: str | None
    before: str | None
    after: str | None


class TenantChange(ResponseModel):
    """Effect of a dry run on a tenant. `before` null: it is new. `after` null: it is deleted."""

    before: TenantWritten | None
    after: TenantWritten | None
    shares: list[ShareChange]


class PoolChange(ResponseModel):
    """Effect of a dry run on a pool. `before` null: it is new. `after` null: it is deleted."""

    before: PoolWritten | None
    after: PoolWritten | None
