"""The rights of a caller on the state of the cluster, read by one access review per tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.core.model import TenantName
from app.ports.auth import Identity
from app.ports.expiring_cache import ExpiringCache
from app.web.api.route_context import RouteContext
from app.web.api.stream_schemas import Hello

MOST_ASKED = 500
"""Most tenants to check one by one, if the caller lacks the right on all queues.

Grant the right on all queues to callers with rights on more tenants.
"""

AT_ONCE = 16

KNOWN_SECONDS = 2.0
"""How long read rights serve further requests. Denials of the API server are cached as long."""

MOST_KNOWN = 1000
"""Most callers with cached rights."""


@dataclass(frozen=True, slots=True)
class VisibleState:
    """Rights of a caller. Callers with equal rights get equal state."""

    every_tenant: bool
    every_queue: bool
    queues: frozenset[TenantName]
    pools: bool
    audit: bool

    def may_see_tenant(self, name: TenantName) -> bool:
        """Return whether the caller may see the shares of a tenant."""
        return self.every_tenant or self.may_see_queue(name)

    def may_see_queue(self, name: TenantName) -> bool:
        """Return whether the caller may see a tenant's users and queue."""
        return self.every_queue or name in self.queues

    def hello_event(self, identity: Identity) -> Hello:
        """Return the event that reports these rights to the caller."""
        return Hello(
            caller=identity.name,
            every_tenant=self.every_tenant,
            every_queue=self.every_queue,
            queues=sorted(self.queues),
            pools=self.pools,
            audit=self.audit,
        )


class VisibleStates:
    """Reads the rights of callers. `clock` returns monotonic seconds.

    A caller without the right on all queues costs the API server hundreds of reviews. Service
    accounts of one namespace count as one caller, but each has reviews of its own. So reviews count
    as requests.
    """

    def __init__(self, context: RouteContext, clock: Callable[[], float]) -> None:
        self._context = context
        self._cached_rights: ExpiringCache[Identity, VisibleState]
        self._cached_rights = ExpiringCache(clock, KNOWN_SECONDS, MOST_KNOWN)

    async def rights_of(self, identity: Identity) -> VisibleState:
        """Return the rights of a caller, at most `KNOWN_SECONDS` old. Raises Refused (429)."""
        known = self._cached_rights.get(identity)
        return known or await self._read_rights(identity, counts=True)

    async def renew_rights(self, identity: Identity) -> VisibleState:
        """Return the present rights of the caller of an open stream. They do not count."""
        return await self._read_rights(identity, counts=False)

    async def _read_rights(self, identity: Identity, *, counts: bool) -> VisibleState:
        access = self._context.access
        every_queue, every_tenant, pools, audit = await asyncio.gather(
            access.is_allowed(identity, "get", "tenants", "queue"),
            access.is_allowed(identity, "list", "tenants"),
            access.is_allowed(identity, "list", "pools"),
            access.is_allowed(identity, "get", "audit"),
        )
        asked = [] if every_queue else self._tenants_to_check()[:MOST_ASKED]
        if counts:
            access.count_reviews(identity, len(asked))
        mine: set[TenantName] = set()
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            answers = await asyncio.gather(
                *(access.is_allowed(identity, "get", "tenants", "queue", name) for name in some)
            )
            mine |= {name for name, yes in zip(some, answers, strict=True) if yes}
        found = VisibleState(every_tenant, every_queue, frozenset(mine), pools, audit)
        self._cached_rights.put(identity, found)
        return found

    def _tenants_to_check(self) -> list[TenantName]:
        """Return all tenants, those with a Tenant object first.

        Their admins have rights by name, and the number of checks is limited.
        """
        tenants = self._context.queries.view().tenants
        return sorted(tenants, key=lambda name: (not tenants[name].exists, name))
