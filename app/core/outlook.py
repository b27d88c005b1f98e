"""What may be asked of an engine: how things stand, and why. Reads only, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.branch import leaves
from app.core.ledger import Owner
from app.core.model import Millis, Resource, TenantName, Uid, UserName
from app.core.overview import overview
from app.core.placement import Placement
from app.core.pools import Pools
from app.core.reservation import Reservations
from app.core.resources import ManagedResources
from app.core.roster import Roster
from app.core.tenancy import Tenancy
from app.core.views import View
from app.core.why import Why, why


@dataclass(frozen=True, slots=True)
class Outlook:
    """Answers as of the last event; ask after a pass."""

    _roster: Roster
    _tenancy: Tenancy
    _pools: Pools
    _placement: Placement
    _reservations: Reservations
    _managed: ManagedResources

    def view(self) -> View:
        """Return what the status of tenants and pools should say now."""
        return overview(self._roster, self._tenancy, self._pools, self._placement, self._managed)

    def why(self, uid: Uid) -> Why | None:
        """Return why a held pod waits; None for any other."""
        tracked = self._roster.pods.get(uid)
        if tracked is None or tracked.uses:
            return None
        return why(tracked, self._roster, self._placement, self._reservations)

    def spent(self, at: Millis) -> Mapping[Owner, Mapping[Resource, int]]:
        """Return resource-milliseconds of every tenant, user and pool, as fairness counts them."""
        usage = self._roster.usage
        return dict(usage.ledger.spent(max(at, usage.now)))

    def busy(self) -> Mapping[TenantName, frozenset[UserName]]:
        """Return the users of each tenant who use or wait for something now."""
        found: dict[TenantName, set[UserName]] = {}
        for leaf in leaves(self._roster.usage.tree.root):
            if leaf.shapes or any(any(held.values()) for held in leaf.uses.values()):
                found.setdefault(leaf.tenant, set()).add(leaf.account[1])
        return {tenant: frozenset(users) for tenant, users in found.items()}

    def user_weights(self, name: TenantName) -> Mapping[UserName, Fraction]:
        """Return the users of a tenant that are weighed by name."""
        tenant = self._tenancy.tenants.get(name)
        return tenant.user_weights if tenant else {}
