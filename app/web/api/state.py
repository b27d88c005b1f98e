"""The state of the cluster as a caller may see it, for the page at /. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model import Millis, PoolName, TenantName
from app.core.telling.owed import Owed
from app.core.telling.views import Bulletin, UserView, View
from app.ports import Identity
from app.web.access import Access
from app.web.api.ground import Ground
from app.web.api.pools import pool_whole
from app.web.api.rules import Rules, Sums
from app.web.api.shown import (
    Hello,
    LeftOut,
    OwedShown,
    PartShown,
    PoolWhole,
    QueueSum,
    State,
    TenantShown,
)
from app.web.api.tenants import tenant_shown, user_shown
from app.web.api.texts import moment
from app.web.metrics import jain

MOST_ASKED = 500
"""Tenants whose queue a caller is asked about who may not see them all. Whoever has rights on
more of them is better given the right on all."""

AT_ONCE = 16

MOST_USERS = 100
"""Shown of one tenant: those who hold and wait most."""

MOST_QUEUES = 1000
MOST_NODES = 500
"""Shown of one pool."""

OLD_MS = 60_000
"""What a leader told longer ago than this is not shown: nobody leads, or Redis is away."""

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
    people: Mapping[TenantName, tuple[UserView, ...]]
    sums: Sums
    pools: tuple[PoolWhole, ...]
    bulletin: Bulletin | None


def facts(ground: Ground, rules: Rules) -> Facts:
    """Return how things stand; `rules` remembers from call to call."""
    outlook = ground.outlook
    view = outlook.view()
    return Facts(
        at=ground.now(),
        view=view,
        owed=outlook.owed(),
        people={name: outlook.people(name) for name in view.tenants},
        sums=rules.sums(outlook),
        pools=tuple(_pool(name, ground) for name in view.pools),
        bulletin=ground.bulletin(),
    )


def state(known: Facts, ground: Ground, sight: Sight) -> State:
    """Return what somebody with this sight is shown."""
    tenants = {name: seen for name, seen in known.view.tenants.items() if sight.tenant(name)}
    people = {name: known.people[name] for name in tenants if sight.queue(name)}
    queues = [
        QueueSum(tenant=tenant, user=user, pending=sum(rules.values()), rules=dict(rules))
        for (tenant, user), rules in known.sums.items()
        if sight.queue(tenant)
    ]
    pools = known.pools if sight.pools else ()
    told = known.bulletin
    if told is not None and known.at - told.at > OLD_MS:
        told = None
    return State(
        at=moment(known.at),
        epoch=told.epoch if told is not None else None,
        drift=round(told.drift, ROUND) if told is not None else None,
        jain=round(jain(known.view), ROUND),
        tenants=[_tenant(name, ground, sight) for name in tenants],
        users={name: [user_shown(user) for user in _busiest(known, name)] for name in people},
        owed={
            name: _owed(known.owed[name], sight.queue(name))
            for name in tenants
            if name in known.owed
        },
        queues=queues[:MOST_QUEUES],
        pools=list(pools),
        left_out=LeftOut(
            users=sum(max(0, len(users) - MOST_USERS) for users in people.values()),
            queues=max(0, len(queues) - MOST_QUEUES),
            nodes=sum(
                max(0, known.view.pools[PoolName(each.name)].nodes - MOST_NODES) for each in pools
            ),
        ),
    )


def _busiest(known: Facts, name: TenantName) -> list[UserView]:
    """Return the users of a tenant who use and wait for most, no more than are shown, by name."""
    users = known.people[name]
    if len(users) <= MOST_USERS:
        return list(users)
    parts = known.owed[name].users if name in known.owed else {}
    used = {user: part.used for user, part in parts.items()}
    first = sorted(users, key=lambda u: (-used.get(u.name, 0.0), -u.pending, u.name))
    return sorted(first[:MOST_USERS], key=lambda user: user.name)


def _owed(owed: Owed, with_users: bool) -> OwedShown:
    users = {
        str(name): PartShown(used=round(part.used, ROUND), owed=round(part.owed, ROUND))
        for name, part in (owed.users.items() if with_users else ())
    }
    return OwedShown(
        used=round(owed.used, ROUND),
        owed=round(owed.owed, ROUND),
        guarantee=round(owed.guarantee, ROUND),
        limit=None if owed.limit is None else round(owed.limit, ROUND),
        users=users,
    )


def _tenant(name: TenantName, ground: Ground, sight: Sight) -> TenantShown:
    shown = tenant_shown(ground, name)
    return shown if sight.queue(name) else shown.model_copy(update={"users": []})


def _pool(name: PoolName, ground: Ground) -> PoolWhole:
    shown = pool_whole(ground, name)
    return shown.model_copy(update={"members": shown.members[:MOST_NODES]})
