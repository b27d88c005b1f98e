"""Dependencies that all routes of the REST API share, and the types of path parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path
from pydantic import Field

from app.core.engine import Engine
from app.core.explain.queries import EngineQueries
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis, TenantName
from app.core.quantities import ManagedResources
from app.ports.api import EnforcementResult, PastQuotas, PodEvents, TenantsAndPools
from app.ports.audit import AuditReader, Reporter
from app.ports.forecasts import Forecasts, ProposalReader, Simulations, Trials
from app.ports.store import QueueReader, UsageRecordReader
from app.web.api.auth import Access
from app.web.api.refused import Refused
from app.web.api.schemas import USER_NAME
from app.web.webhook.cache import WebhookCache

LONGEST_NAME = 253
"""Longest name of a Kubernetes object, in characters."""

LONGEST_NAMESPACE = 63
LONGEST_USER = 512
"""Longest name of a user in a Tenant. Its CustomResourceDefinition accepts no longer one."""

# Longer names are refused before the API server reviews rights on them, so no cache gets them.
TenantPath = Annotated[
    str, Path(max_length=LONGEST_NAME, description="Name of a tenant.", examples=["team-a"])
]
UserPath = Annotated[
    str,
    Path(
        max_length=LONGEST_USER,
        pattern=USER_NAME,
        description="Name of a user; slashes may stay.",
        examples=["alice@example.com"],
    ),
]
PoolPath = Annotated[
    str, Path(max_length=LONGEST_NAME, description="Name of a pool.", examples=["h100"])
]
NodePath = Annotated[
    str, Path(max_length=LONGEST_NAME, description="Name of a node.", examples=["gpu-node-0"])
]
NamespacePath = Annotated[
    str,
    Path(max_length=LONGEST_NAMESPACE, description="Namespace of the pod.", examples=["team-a"]),
]
PodPath = Annotated[
    str, Path(max_length=LONGEST_NAME, description="Name of the pod.", examples=["train-0"])
]
NameQuery = Annotated[str, Field(max_length=LONGEST_NAME)]
"""Name of a tenant or pool in a query."""


STARTING = "Fairgate has just started and does not know the cluster yet; try again in a moment."


@dataclass(frozen=True, slots=True)
class RouteContext:
    """Dependencies of the routes. `engine` is read-only; `data_age` returns its age in
    milliseconds.

    Routes that need the engine call `require_synced_state` first. `queues` and `view` answer
    without it.

    `leader_message` returns the last published leader state, None before the first.
    `leader_state_read` returns whether Redis was read since this replica started.
    `store_reachable` returns whether the last read of Redis succeeded. `enforcement` returns the
    last result of the enforcement probes, None before the first.
    """

    access: Access
    engine: Engine
    is_synced: Callable[[], bool]
    data_age: Callable[[], int]
    now: Callable[[], Millis]
    view: WebhookCache
    usage_records: UsageRecordReader
    audit_reader: AuditReader
    resources: TenantsAndPools
    events: PodEvents
    reporter: Reporter
    queues: QueueReader
    managed: ManagedResources
    forecasts: Forecasts
    past_quotas: PastQuotas | None = None
    leader_message: Callable[[], LeaderStateMessage | None] = lambda: None
    simulations: Simulations | None = None
    trials: Trials | None = None
    proposals: ProposalReader | None = None
    leader_state_read: Callable[[], bool] = lambda: True
    store_reachable: Callable[[], bool] = lambda: True
    enforcement: Callable[[], EnforcementResult | None] = lambda: None

    @property
    def queries(self) -> EngineQueries:
        """The queries of the engine."""
        return self.engine.queries

    def require_synced_state(self) -> None:
        """Raise Refused (503) until every source was received completely."""
        if not self.is_synced():
            raise Refused(503, STARTING, {"Retry-After": "2"})

    def require_tenant(self, name: str) -> TenantName:
        """Return the name of an existing tenant; raise Refused (404) if it does not exist."""
        if not self.view.is_ready:
            raise Refused(503, STARTING, {"Retry-After": "2"})
        if not self.view.tenancy.exists(TenantName(name)):
            raise Refused(404, f"There is no tenant {name}; kubectl fairgate tenants lists them.")
        return TenantName(name)
