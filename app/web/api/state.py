"""The state of the cluster as a caller may see it, for the page at /. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model import Millis, Pool, PoolName, Tenant, TenantName
from app.core.owed import Owed
from app.core.sums import QueueName
from app.core.views import PoolView, TenantView, View
from app.ports import Identity
from app.web.access import Access
from app.web.api.ground import Ground
from app.web.api.shown import (
    Hello,
    OwedShown,
    PartShown,
    PoolWhole,
    QueueSum,
    QuotaSpec,
    State,
    TenantShown,
)
from app.web.api.texts import decimal, decimals, in_pools, moment, quantities
from app.web.metrics import jain

MOST_ASKED = 500
"""Tenants whose queue a caller is asked about who may not see them all. Whoever has rights on
more of them is better given the right on all."""

AT_ONCE = 16

ROUND = 4
"""Decimals of shares: a change nobody can see is none."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller may see: two with the same sight are shown the same."""

    every_tenant: bool
    every_queue: bool
    queues: frozenset[TenantName]
    pools: bool

    def tenant(self, name: TenantName) -> bool:
        """Tell whether they may see what a tenant is owed and uses."""
        return self.every_tenant or self.queue(name)

    def queue(self, name: TenantName) -> bool:
        """Tell whether they may see a tenant's users, and what waits."""
        return self.every_queue or name in self.queues

    def hello(self, identity: Identity) -> Hello:
        """Return what the caller is told of it."""
        return Hello(
            caller=identity.name,
            every_tenant=self.every_tenant,
            every_queue=self.every_queue,
            queues=sorted(self.queues),
            pools=self.pools,
        )


async def sight_of(access: Access, identity: Identity, tenants: list[TenantName]) -> Sight:
    """Ask what a caller may see. Raises Refused (403) unless they may get the stream."""
    await access.need(identity, "get", "stream")
    every_queue, every_tenant, pools = await asyncio.gather(
        access.may(identity, "get", "tenants", "queue"),
        access.may(identity, "list", "tenants"),
        access.may(identity, "list", "pools"),
    )
    mine: set[TenantName] = set()
    asked = [] if every_queue else tenants[:MOST_ASKED]
    for first in range(0, len(asked), AT_ONCE):
        some = asked[first : first + AT_ONCE]
        answers = await asyncio.gather(
            *(access.may(identity, "get", "tenants", "queue", name) for name in some)
        )
        mine |= {name for name, yes in zip(some, answers, strict=True) if yes}
    return Sight(every_tenant, every_queue, frozenset(mine), pools)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything there is to show, before anybody's sight is considered."""

    at: Millis
    view: View
    owed: Mapping[TenantName, Owed]
    sums: Mapping[QueueName, Mapping[str, int]]


def facts(ground: Ground) -> Facts:
    """Return how things stand."""
    outlook = ground.engine.outlook
    return Facts(ground.now(), outlook.view(), outlook.owed(), outlook.sums())


def state(known: Facts, ground: Ground, sight: Sight) -> State:
    """Return what somebody with this sight is shown."""
    tenants = {name: seen for name, seen in known.view.tenants.items() if sight.tenant(name)}
    return State(
        at=moment(known.at),
        epoch=None,
        drift=None,
        jain=round(jain(known.view), ROUND),
        tenants=[_tenant(name, seen, ground) for name, seen in tenants.items()],
        users={},
        owed={
            name: _owed(known.owed[name], sight.queue(name))
            for name in tenants
            if name in known.owed
        },
        queues=[
            QueueSum(tenant=tenant, user=user, pending=sum(rules.values()), rules=dict(rules))
            for (tenant, user), rules in known.sums.items()
            if sight.queue(tenant)
        ],
        pools=[_pool(name, seen, ground) for name, seen in known.view.pools.items()]
        if sight.pools
        else [],
    )


def _owed(owed: Owed, with_users: bool) -> OwedShown:
    users = {
        str(name): PartShown(held=round(part.held, ROUND), owed=round(part.owed, ROUND))
        for name, part in (owed.users.items() if with_users else ())
    }
    return OwedShown(
        held=round(owed.held, ROUND),
        owed=round(owed.owed, ROUND),
        guarantee=round(owed.guarantee, ROUND),
        limit=None if owed.limit is None else round(owed.limit, ROUND),
        users=users,
    )


def _tenant(name: TenantName, seen: TenantView, ground: Ground) -> TenantShown:
    tenant = ground.view.tenancy.tenants.get(name, Tenant(name, Millis(0)))
    return TenantShown(
        name=name,
        parent=seen.parent,
        weight=decimal(seen.weight),
        namespaces=list(tenant.namespaces),
        quotas=[
            QuotaSpec(
                pool=pool, guarantee=quantities(quota.guarantee), limit=quantities(quota.limit)
            )
            for pool, quota in sorted(tenant.quotas.items())
        ],
        pools=list(tenant.pools),
        max_pending=tenant.max_pending,
        paused=seen.paused,
        exists=seen.exists,
        share=decimal(seen.share),
        weighted_share=decimal(seen.share / seen.weight) if seen.weight else "0",
        used=in_pools(seen.used),
        borrowed=in_pools(seen.borrowed),
        pending=seen.pending,
    )


def _pool(name: PoolName, seen: PoolView, ground: Ground) -> PoolWhole:
    pool = ground.view.pools.get(name, Pool(name))
    free = {r: max(0, v - seen.used.get(r, 0)) for r, v in seen.capacity.items()}
    return PoolWhole(
        name=name,
        node_selector=dict(pool.selector),
        weights=decimals(pool.weights),
        overcommit=decimals(pool.overcommit),
        placement=pool.placement.value,
        paused=seen.paused,
        exists=seen.exists,
        capacity=quantities(seen.capacity),
        used=quantities(seen.used),
        free=quantities(free),
        nodes=seen.nodes,
        members=[],
    )
