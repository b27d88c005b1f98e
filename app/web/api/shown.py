"""What the REST API shows and takes: camelCase, amounts as quantities, times RFC 3339."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

T = TypeVar("T")

Quantities = dict[str, str]
"""By resource, as Kubernetes writes them: `{"nvidia.com/gpu": "8"}`."""

InPools = dict[str, Quantities]
"""By pool."""

DECIMAL = r"^[0-9]{1,12}(\.[0-9]{1,6})?$"


class Shown(BaseModel):
    """Base of what the API shows."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Taken(Shown):
    """Base of what callers send: a field that is not known is an error, not a silence."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Page(Shown, Generic[T]):
    """Part of a list; `continue` asks for the next part, and is null on the last one."""

    items: list[T]
    more: str | None = Field(None, serialization_alias="continue")


class Weight(Taken):
    """What somebody is owed next to their siblings."""

    weight: str = Field(pattern=DECIMAL, examples=["2"])


class UserWeight(Taken):
    """A user of a tenant, and what they are owed next to its other users."""

    name: str = Field(min_length=1, max_length=512, examples=["alice@example.com"])
    weight: str = Field("1", pattern=DECIMAL)


class QuotaSpec(Taken):
    """What a tenant may always have of a pool, and what it may never exceed there."""

    pool: str = Field(min_length=1, max_length=253, examples=["h100"])
    guarantee: Quantities = {}
    limit: Quantities = {}


class TenantSpec(Taken):
    """All that is configured of a tenant; what is absent is as by default."""

    parent: str | None = None
    weight: str = Field("1", pattern=DECIMAL)
    namespaces: list[str] = []
    users: list[UserWeight] = []
    quotas: list[QuotaSpec] = []
    pools: list[str] = []
    max_pending: int | None = Field(None, ge=0, le=10_000_000)
    paused: bool = False


class TenantShown(TenantSpec):
    """A tenant: what is configured, and how it stands, its child tenants included.

    `share` is the dominant share of the cluster, `weightedShare` that divided by the weight,
    `exists` that there is a Tenant resource (a namespace that nobody mapped has none).
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    exists: bool
    share: str
    weighted_share: str
    used: InPools
    borrowed: InPools
    pending: int


class UserShown(Shown):
    """A user of a tenant: what they are owed, use and wait for. `pending` counts pods."""

    name: str
    weight: str
    used: InPools
    pending: int


class Toleration(Taken):
    """A toleration that a pod gets at release, as on a pod."""

    key: str | None = None
    operator: str | None = Field(None, pattern="^(Exists|Equal)$")
    value: str | None = None
    effect: str | None = Field(None, pattern="^(NoSchedule|PreferNoSchedule|NoExecute)$")
    toleration_seconds: int | None = None


class PoolSpec(Taken):
    """All that is configured of a pool; what is absent is as by default."""

    node_selector: dict[str, str] = {}
    weights: dict[str, str] = {}
    overcommit: dict[str, str] = {}
    placement: str = Field("pack", pattern="^(pack|spread)$")
    tolerations: list[Toleration] = []
    topology: list[str] = []
    paused: bool = False
    gpu_memory: str | None = None
    max_capacity: Quantities = {}


class NodeShown(Shown):
    """A node of a pool, and what of it is used by released pods. Managed resources only."""

    name: str
    ready: bool
    capacity: Quantities
    used: Quantities


class PoolShown(PoolSpec):
    """A pool: what is configured, and how it stands. `nodes` counts those that are ready."""

    model_config = ConfigDict(extra="ignore")

    name: str
    exists: bool
    capacity: Quantities
    used: Quantities
    free: Quantities
    nodes: int


class PoolWhole(PoolShown):
    """A pool and each of its nodes, by name."""

    members: list[NodeShown]


class EstimateShown(Shown):
    """When it is likely to start, in seconds from `at`: half by `p50`, nine of ten by `p90`."""

    p50: int
    p90: int
    at: datetime


class Waiting(Shown):
    """A held workload: one pod, or the waiting pods of a gang, of which the first is named.

    `position` counts from 1 in its user's queue, 0: it is not queued. `rule` is one of a few
    fixed words, `reason` a sentence. No `estimate`: it would be a guess.
    """

    namespace: str
    name: str
    uid: str
    gang: str | None
    pods: int
    user: str
    priority: int
    since: datetime
    request: Quantities
    pools: list[str]
    position: int
    length: int
    rule: str
    reason: str
    estimate: EstimateShown | None


class Queue(Page[Waiting]):
    """What a tenant waits for: user by user, each in their own order. `pending` counts pods."""

    tenant: str
    pending: int


class Ahead(Shown):
    """A sibling that comes first, at the highest level at which one does; never a user or pod.

    Scores are compared: the lower goes first.
    """

    tenant: str
    score: str
    own: str
    own_score: str


class Workload(Waiting):
    """Why a pod waits. `state` is held or released; of a released pod `reason` tells when it
    was released, and where to. What has finished is not found.

    `numbers` are what the rule compared, by their names; `remedies` sentences that say what would
    change it; `estimateWithheld` why there is no estimate.
    """

    tenant: str
    state: str
    numbers: dict[str, str]
    ahead: list[Ahead]
    remedies: list[str]
    estimate_withheld: str | None


class UsageRow(Shown):
    """What was used, by those of `by` that were asked for; the others are absent.

    `resourceSeconds` are exact decimals, by resource, in the resource's own unit times seconds.
    `at` is when the step begins, if steps were asked for. `node` is "" before a node was known.
    """

    tenant: str | None = None
    user: str | None = None
    pool: str | None = None
    node: str | None = None
    workload: str | None = None
    at: datetime | None = None
    resource_seconds: dict[str, str]


class Usage(Page[UsageRow]):
    """Use between two times. Before `completeSince` detail was lost, and rows may be too small."""

    since: datetime = Field(alias="from")
    until: datetime = Field(alias="to")
    complete_since: datetime | None


class QuotaRow(Shown):
    """A tenant in a pool. With `?at=` the last four are null: only what was in force is kept; and
    the pool is "" of a tenant that had no quota in any.
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


class Quotas(Page[QuotaRow]):
    """Quotas in force at a time."""

    at: datetime


class AuditHead(Shown):
    """The newest signed head of the audit chain; `signed` is what `fairgate audit verify` reads."""

    number: int
    hash: str
    at: datetime
    signed: str


WeightText = Annotated[str, Field(pattern=DECIMAL)]


class WhatIf(Taken):
    """What to change before time is let run: weights of tenants, and of users by tenant."""

    weights: dict[str, WeightText] = Field(default={}, max_length=1000, examples=[{"team-a": "3"}])
    users: dict[str, dict[str, WeightText]] = Field(
        default={}, max_length=1000, examples=[{"team-a": {"alice": "2"}}]
    )
    hours: float = Field(4.0, gt=0, le=48)


class Foreseen(Shown):
    """How a tenant fares until the end: its mean share, and waits of what it has pending now.

    Waits count from now on; a pod that is not released by then counts with all of the time.
    """

    share: str
    pending: int
    started: int
    wait_mean_seconds: float
    wait_p90_seconds: float


class TenantForeseen(Shown):
    """A tenant as things are, and with what was asked changed."""

    tenant: str
    weight_now: str
    weight_then: str
    now: Foreseen
    then: Foreseen


class Simulation(Shown):
    """What a change would do to today's backlog; `assumed` says what run times were taken.

    All `pods` that wait took part. Only tenants that the caller may see are shown.
    """

    pods: int
    hours: float
    seconds: float
    assumed: str
    tenants: list[TenantForeseen]


class QueueSum(Shown):
    """How many pods of a queue wait, and for what: rule to pods."""

    tenant: str
    user: str
    pending: int
    rules: dict[str, int]


class PartShown(Shown):
    """Parts of the cluster, 0 to 1: what is used of it, and what is owed among those with work."""

    used: float
    owed: float


class OwedShown(PartShown):
    """Those of a tenant and of its users; `limit` null: there is none, or it does not bind."""

    guarantee: float
    limit: float | None
    users: dict[str, PartShown]


class Hello(Shown):
    """Who listens and what they may see: the event `hello`, first, and when that changes.

    `everyTenant`: all of them; else those whose queue they may get, `queues`.
    """

    caller: str
    every_tenant: bool
    every_queue: bool
    queues: list[str]
    pools: bool


class LeftOut(Shown):
    """How many there are beyond those shown."""

    users: int
    queues: int
    nodes: int


class State(Shown):
    """All that the page at / shows, as the caller may see it: the event `state` of the stream.

    `drift` is the largest drift as part of its bound, and `jain` the index; null if no leader
    tells. `epoch` is the leader's. `owed` is by tenant.
    """

    at: datetime
    epoch: int | None
    drift: float | None
    jain: float | None
    tenants: list[TenantShown]
    users: dict[str, list[UserShown]]
    owed: dict[str, OwedShown]
    queues: list[QueueSum]
    pools: list[PoolWhole]
    left_out: LeftOut
