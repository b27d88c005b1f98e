"""The fair shares of all tenants and users, computed at most once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.core.explain.entitlements import Entitlement
from app.core.model import TenantName
from app.web.api.route_context import RouteContext

SHARES_SECONDS = 1.0
"""How long the shares of all users serve further callers, because their computation is slow."""

NO_SHARE = Entitlement(0.0, 0.0, 0.0, None, {})


class FairShares:
    """Cache of the fair shares. `clock` returns monotonic seconds."""

    def __init__(self, context: RouteContext, clock: Callable[[], float]) -> None:
        self._context = context
        self._clock = clock
        self._next_refresh = 0.0
        self._shares: Mapping[TenantName, Entitlement] = {}

    def shares_of(self, tenant: TenantName) -> Entitlement:
        """Return the shares of a tenant and its users."""
        if self._clock() >= self._next_refresh:
            self._shares = self._context.queries.fair_shares()
            self._next_refresh = self._clock() + SHARES_SECONDS
        return self._shares.get(tenant, NO_SHARE)
