"""Models of the events `hello` and `state` of the stream, for the page."""

from __future__ import annotations

from datetime import datetime

from app.web.api.schemas import (
    InPools,
    NodeShown,
    PoolShown,
    Quantities,
    ResponseModel,
    TenantShown,
    UserShown,
)


class WaitingShown(ResponseModel):
    """Requests of pending pods, and the creation time of the oldest one."""

    request: Quantities
    since: datetime


class QueueSum(WaitingShown):
    """Pending pods of one queue. `rules`: the number of pods by wait reason."""

    tenant: str
    user: str
    pending: int
    rules: dict[str, int]


class NodeWithTenants(NodeShown):
    """A node, and its use by the tenants that the caller may see.

    `reserved`: free capacity that is kept for a large workload.
    """

    tenants: InPools
    reserved: Quantities


class PoolWithTenants(PoolShown):
    """A pool, and its nodes ordered by name."""

    members: list[NodeWithTenants]


class ProblemShown(ResponseModel):
    """A fault of Fairgate. `since`: null if unknown."""

    code: str
    text: str
    since: datetime | None


class PartShown(ResponseModel):
    """Fractions of the cluster, 0 to 1: used, and the fair share among active siblings."""

    used: float
    owed: float


class OwedShown(PartShown):
    """Fractions of a tenant and of its users. `limit`: null if absent or without effect."""

    guarantee: float
    limit: float | None
    users: dict[str, PartShown]


class Hello(ResponseModel):
    """The event `hello`: the caller and its rights. It is the first event, and sent on changes.

    `everyTenant`: the caller sees all tenants; otherwise only the tenants in `queues`, with the
    right to get their queue. `pools`, `audit`: the rights to list pools and to get the audit chain.
    """

    caller: str
    every_tenant: bool
    every_queue: bool
    queues: list[str]
    pools: bool
    audit: bool


class LeftOut(ResponseModel):
    """Numbers of objects beyond the limits of the answer."""

    users: int
    queues: int
    nodes: int


class DashboardState(ResponseModel):
    """The event `state` of the stream: the data of the dashboard, limited to the caller's rights.

    `drift`: the largest drift as a fraction of its bound. `jain`: Jain's index. `epoch`: the
    leader's epoch. `drift` and `epoch` are null without fresh leader state. `owed`, `waiting`: by
    tenant, child tenants included. `mode`: `Enforce` or `Observe`. `problems`: empty if there are
    none.
    """

    at: datetime
    epoch: int | None
    drift: float | None
    jain: float | None
    tenants: list[TenantShown]
    users: dict[str, list[UserShown]]
    owed: dict[str, OwedShown]
    waiting: dict[str, WaitingShown]
    queues: list[QueueSum]
    pools: list[PoolWithTenants]
    mode: str
    problems: list[ProblemShown]
    left_out: LeftOut
