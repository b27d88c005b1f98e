"""State of the cluster for the dashboard, limited to the caller's rights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.explain import leader_state
from app.core.explain.entitlements import Entitlement
from app.core.explain.views import ClusterView, LeaderStateMessage, UserView
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName
from app.core.placement.pools import add_to
from app.core.policy import Mode
from app.core.safe_text import escape_hidden
from app.web.api.formatting import format_time, quantities, to_datetime
from app.web.api.pools import pool_with_nodes_model
from app.web.api.route_context import RouteContext
from app.web.api.schemas import PoolWhole, TenantShown
from app.web.api.stream_schemas import (
    DashboardState,
    LeftOut,
    NodeWithTenants,
    OwedShown,
    PartShown,
    PoolWithTenants,
    ProblemShown,
    QueueSum,
    WaitingShown,
)
from app.web.api.tenants import tenant_model, user_model
from app.web.api.visible_state import VisibleState
from app.web.api.wait_reason_cache import Backlogs, QueueBacklog, WaitReasonCache
from app.web.metrics import jain

MOST_USERS = 100
"""Most users of one tenant in the answer: those with the most use and pending pods."""

MOST_QUEUES = 10_000
MOST_NODES = 5000
"""Most nodes of one pool in the answer. Kubernetes supports clusters of this size."""

STALE_MS = 60_000
"""Time without data of the API server until the data of this replica counts as stale."""

SILENT_MS = 15_000
"""Time without a report of any webhook replica until the webhook counts as silent."""

PAUSES = {
    "RedisUnreachable": "Redis is unreachable. Releases are paused, and nothing is lost.",
    "NoLeader": "No controller leads. Releases are paused, and held pods keep their order.",
}
"""Faults during which no pod can be released. A `Warning` begins with the text.

The page has the same table, because a header has no code.
"""

SHARE_DECIMALS = 4
"""Decimals of shares, so that an invisible change is not sent."""


@dataclass(frozen=True, slots=True)
class DashboardFacts:
    """The complete data, before it is limited to a caller's rights."""

    at: Millis
    view: ClusterView
    entitlements: Mapping[TenantName, Entitlement]
    users: Mapping[TenantName, tuple[UserView, ...]]
    backlogs: Backlogs
    allocations: Mapping[NodeName, Mapping[TenantName, Amounts]]
    pools: tuple[PoolWhole, ...]
    leader_message: LeaderStateMessage | None


def collect_facts(context: RouteContext, rules: WaitReasonCache) -> DashboardFacts:
    """Return the current data. `rules` caches wait reasons between calls."""
    queries = context.queries
    view = queries.view()
    return DashboardFacts(
        at=context.now(),
        view=view,
        entitlements=queries.fair_shares(),
        users={name: queries.user_views(name) for name in view.tenants},
        backlogs=rules.backlogs(queries),
        allocations=queries.usage_by_node(),
        pools=tuple(_pool(name, context) for name in view.pools),
        leader_message=context.leader_message(),
    )


def state_for_rights(
    known: DashboardFacts, context: RouteContext, rights: VisibleState
) -> DashboardState:
    """Return the state for callers with these rights."""
    tenants = {
        name: seen for name, seen in known.view.tenants.items() if rights.may_see_tenant(name)
    }
    people = {name: known.users[name] for name in tenants if rights.may_see_queue(name)}
    queues = [
        QueueSum(
            tenant=tenant,
            user=user,
            pending=backlog.pods,
            rules=dict(sorted(backlog.rules.items())),
            **_backlog_model(backlog).model_dump(),
        )
        for (tenant, user), backlog in known.backlogs.items()
        if rights.may_see_queue(tenant)
    ]
    pools = [_visible(pool, known, rights) for pool in known.pools] if rights.pools else []
    message = leader_state.recent_message(known.leader_message, known.at)
    return DashboardState(
        at=to_datetime(known.at),
        epoch=message.epoch if message is not None else None,
        drift=round(message.drift, SHARE_DECIMALS) if message is not None else None,
        jain=round(jain(known.view), SHARE_DECIMALS),
        tenants=[_tenant(name, context, rights) for name in tenants],
        users={name: [user_model(user) for user in _busiest_users(known, name)] for name in people},
        owed={
            name: _entitlement_model(known.entitlements[name], rights.may_see_queue(name))
            for name in tenants
            if name in known.entitlements
        },
        queues=queues[:MOST_QUEUES],
        waiting=_backlog_by_tenant(known, context, tenants),
        pools=pools,
        mode=context.queries.mode().value,
        problems=find_problems(message, context),
        left_out=LeftOut(
            users=sum(max(0, len(users) - MOST_USERS) for users in people.values()),
            queues=max(0, len(queues) - MOST_QUEUES),
            nodes=sum(
                max(0, known.view.pools[PoolName(each.name)].nodes - MOST_NODES) for each in pools
            ),
        ),
    )


def find_pause(message: LeaderStateMessage | None, context: RouteContext) -> ProblemShown | None:
    """Return why no pod can be released, or None.

    `message`: the leader state, None if it is old.
    """
    if not context.store_reachable():
        text = PAUSES["RedisUnreachable"]
        return ProblemShown(code="RedisUnreachable", text=text, since=None)
    if message is None:
        last = context.leader_message()
        since = to_datetime(last.at) if last is not None else None
        return ProblemShown(code="NoLeader", text=PAUSES["NoLeader"], since=since)
    return None


def pause_text(context: RouteContext) -> str:
    """Return why no pod can be released, as text, or ""."""
    if not context.leader_state_read() and context.store_reachable():
        return ""  # this replica has just started
    last = context.leader_message()
    pause = find_pause(leader_state.recent_message(last, context.now()), context)
    if pause is None:
        return ""
    return pause.text + (f" This began at {format_time(last.at)}." if last and pause.since else "")


def find_problems(message: LeaderStateMessage | None, context: RouteContext) -> list[ProblemShown]:
    """Return the faults that this replica knows, the most important first.

    `message`: the leader state, None if it is old.
    """
    pause = find_pause(message, context)
    found = [pause] if pause is not None else []
    if context.data_age() > STALE_MS:
        found.append(
            ProblemShown(
                code="StaleData",
                text="The API server has sent no changes to this replica.",
                since=to_datetime(Millis(context.now() - context.data_age())),
            )
        )
    return found + _enforcement_problems(context)


def _enforcement_problems(context: RouteContext) -> list[ProblemShown]:
    """Return the faults that the enforcement probes of the webhook replicas show."""
    result = context.enforcement()
    is_tested = result is not None and result.seconds > 0
    if result is None or not is_tested or context.queries.mode() is not Mode.ENFORCE:
        return []
    last = max(result.at, result.last_heartbeat)
    # A webhook of an older version stores results alone, one each round.
    more = 1000 * result.seconds if result.last_heartbeat < result.at else 0
    if context.now() - last > SILENT_MS + more:
        if not context.store_reachable():
            return []  # the webhook cannot report either
        text = (
            "No webhook replica reports, so pods that request GPUs may not be created. "
            "See the pods and the log of Deployment fairgate-webhook."
        )
        return [ProblemShown(code="WebhookSilent", text=text, since=to_datetime(last))]
    return [
        ProblemShown(
            code="EnforcementFails",
            text=f"Enforcement does not work: {escape_hidden(hole)} "
            "See the log of Deployment fairgate-webhook.",
            since=None,
        )
        for _, hole in sorted(result.holes.items())
    ]


def _backlog_by_tenant(
    known: DashboardFacts, context: RouteContext, tenants: Mapping[TenantName, object]
) -> dict[str, WaitingShown]:
    """Return the backlog of each tenant, child tenants included."""
    sums: dict[TenantName, QueueBacklog] = {}
    for (tenant, _), backlog in known.backlogs.items():
        for name in context.queries.lineage(tenant):
            whole = sums.setdefault(name, QueueBacklog({}, {}, backlog.since))
            add_to(whole.request, backlog.request, 1)
            whole.since = min(whole.since, backlog.since)
    return {name: _backlog_model(sums[name]) for name in tenants if name in sums}


def _backlog_model(backlog: QueueBacklog) -> WaitingShown:
    return WaitingShown(request=quantities(backlog.request), since=to_datetime(backlog.since))


def _visible(pool: PoolWhole, known: DashboardFacts, rights: VisibleState) -> PoolWithTenants:
    """Return a pool with the tenants on its nodes that the caller may see."""
    reserved = _reserved(known.leader_message)
    members = [
        NodeWithTenants(
            **node.model_dump(),
            reserved=quantities(reserved.get(NodeName(node.name), {})),
            tenants={
                str(tenant): quantities(amounts)
                for tenant, amounts in sorted(
                    known.allocations.get(NodeName(node.name), {}).items()
                )
                if rights.may_see_tenant(tenant)
            },
        )
        for node in pool.members
    ]
    return PoolWithTenants(**pool.model_dump(exclude={"members"}), members=members)


def _reserved(message: LeaderStateMessage | None) -> dict[NodeName, dict[Resource, int]]:
    """Return the reserved capacity of each node."""
    found: dict[NodeName, dict[Resource, int]] = {}
    for reservation in message.reservations if message is not None else ():
        for node, amounts in reservation.capacity_by_node.items():
            add_to(found.setdefault(node, {}), amounts, 1)
    return found


def _busiest_users(known: DashboardFacts, name: TenantName) -> list[UserView]:
    """Return at most `MOST_USERS` users with the most use and pending pods, ordered by name."""
    users = known.users[name]
    if len(users) <= MOST_USERS:
        return list(users)
    parts = known.entitlements[name].users if name in known.entitlements else {}
    used = {user: part.used_share for user, part in parts.items()}
    first = sorted(users, key=lambda u: (-used.get(u.name, 0.0), -u.pending, u.name))
    return sorted(first[:MOST_USERS], key=lambda user: user.name)


def _entitlement_model(owed: Entitlement, with_users: bool) -> OwedShown:
    users = {
        str(name): PartShown(
            used=round(part.used_share, SHARE_DECIMALS), owed=round(part.fair_share, SHARE_DECIMALS)
        )
        for name, part in (owed.users.items() if with_users else ())
    }
    return OwedShown(
        used=round(owed.used_share, SHARE_DECIMALS),
        owed=round(owed.fair_share, SHARE_DECIMALS),
        guarantee=round(owed.guarantee, SHARE_DECIMALS),
        limit=None if owed.limit is None else round(owed.limit, SHARE_DECIMALS),
        users=users,
    )


def _tenant(name: TenantName, context: RouteContext, rights: VisibleState) -> TenantShown:
    shown = tenant_model(context, name)
    return shown if rights.may_see_queue(name) else shown.model_copy(update={"users": []})


def _pool(name: PoolName, context: RouteContext) -> PoolWhole:
    shown = pool_with_nodes_model(context, name)
    return shown.model_copy(update={"members": shown.members[:MOST_NODES]})
