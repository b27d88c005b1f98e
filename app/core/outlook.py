"""What may be asked of an engine: how things stand, and why. Reads only, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.ledger import Owner
from app.core.model import Millis, Resource, Uid
from app.core.overview import overview
from app.core.placement import Placement
from app.core.pools import Pools
from app.core.reservation import Reservations
from app.core.resources import ManagedResources
from app.core.roster import Roster
from app.core.scale import Scale
from app.core.snapshot import Snapshot, snapshot
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

    def snapshot(self, at: Millis) -> Snapshot:
        """Return all that a forecast needs to know, as of a time not before the last event."""
        return snapshot(at, self._roster, self._tenancy, self._pools, self._managed)

    def scale(self) -> Scale:
        """Return what shares are measured against."""
        return self._roster.usage.tree.scale

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
