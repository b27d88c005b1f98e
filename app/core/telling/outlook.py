"""What may be asked of an engine: how things stand, and why. Reads only, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from app.core.accounts.running import Running
from app.core.fair.backlog import Turn
from app.core.fair.ledger import Owner
from app.core.fair.runs import Run
from app.core.fair.tenancy import Tenancy
from app.core.model import (
    DEFAULT_TENANT,
    UNMAPPED_PREFIX,
    Millis,
    PoolName,
    Resource,
    TenantName,
    Uid,
    UserName,
)
from app.core.places.placement import Placement, Withheld
from app.core.places.pools import Pools
from app.core.places.scale import Scale
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.resources import ManagedResources
from app.core.telling import overview, queues
from app.core.telling.hearsay import Hearsay, bulletin
from app.core.telling.owed import Owed, owed
from app.core.telling.pressure import Pressure, pressure
from app.core.telling.queues import Mark
from app.core.telling.reasons import Why
from app.core.telling.scene import Scene
from app.core.telling.sentences import explain
from app.core.telling.snapshot import Snapshot, snapshot
from app.core.telling.sums import Group, groups
from app.core.telling.views import Bulletin, HeldView, NodeView, ReleasedView, UserView, View
from app.core.telling.why import why
from app.core.turns.reservation import Reservations
from app.core.turns.resting import Resting

IN_FULL = 100
"""Pods of a crowd whose owners are told in full: more are not told in time, or at all."""


class Outlook:
    """Answers as of the last event; ask after a pass.

    What was answered is kept until `stale` says that something may have changed.
    """

    def __init__(
        self,
        roster: Roster,
        tenancy: Tenancy,
        pools: Pools,
        placement: Placement,
        reservations: Reservations,
        managed: ManagedResources,
        hearsay: Hearsay,
        resting: Resting,
        running: Running,
    ) -> None:
        self._roster = roster
        self._tenancy = tenancy
        self._pools = pools
        self._placement = placement
        self._reservations = reservations
        self._managed = managed
        self._hearsay = hearsay
        self._resting = resting
        self._running = running
        self._settled = False
        self._view: View | None = None
        self._known: Scene | None = None

    def stale(self) -> None:
        """Something may have changed: think again."""
        self._settled = False
        self._view = self._known = None

    def view(self) -> View:
        """Return what the status of tenants and pools should say now."""
        self._settle()
        if self._view is None:
            self._view = overview.overview(
                self._roster, self._tenancy, self._pools, self._placement, self._managed
            )
        return self._view

    def snapshot(self, at: Millis) -> Snapshot:
        """Return all that a forecast needs to know, as of a time not before the last event."""
        return snapshot(at, self._roster, self._tenancy, self._pools, self._managed)

    def scale(self) -> Scale:
        """Return what shares are measured against."""
        return self._roster.usage.tree.scale

    def owed(self) -> Mapping[TenantName, Owed]:
        """Return what every tenant and user holds of the cluster, and what they are owed."""
        return owed(self._roster, self._tenancy, self._pools)

    def groups(self) -> tuple[Group, ...]:
        """Return how many pods wait in each queue, in groups that one rule holds back."""
        return groups(self._roster)

    def pressure(self) -> Mapping[TenantName, Pressure]:
        """Return how much each tenant has queued, and for how long."""
        return pressure(self._roster)

    def fragmentation(self) -> Mapping[PoolName, float]:
        """Return the part of what is free in each pool that pods like the latest could not use."""
        parts = {name: floor.fragmentation() for name, floor in self._pools.floors.items()}
        return {name: part for name, part in parts.items() if part is not None}

    def why(self, uid: Uid) -> Why | None:
        """Return why a held pod waits; None for any other."""
        tracked = self._held(uid)
        return why(tracked, self._scene()) if tracked is not None else None

    def texts(self, held: Iterable[Tracked]) -> Iterator[tuple[Tracked, str]]:
        """Return, for their owners, what held pods wait for; of a crowd the first in full."""
        for number, tracked in enumerate(held):
            if number < IN_FULL:
                yield tracked, why(tracked, self._scene()).text
            else:
                yield tracked, explain(tracked, self._roster)

    def held(self, uid: Uid) -> HeldView | None:
        """Return how a held pod waits, as part of its gang if it has one; None for any other."""
        tracked = self._held(uid)
        return queues.held(tracked, self._scene()) if tracked is not None else None

    def queue(
        self, tenant: TenantName, user: UserName | None = None, after: Mark | None = None
    ) -> Iterator[tuple[Mark, HeldView]]:
        """Return what a tenant's users wait for, in order, from the start or after a mark."""
        return queues.queue(tenant, user, after, self._scene())

    def pending(self, tenant: TenantName, user: UserName | None = None) -> int:
        """Return how many pods of a tenant's users, or of one of them, are not released."""
        leaves = queues.users(tenant, user, self._scene())
        return sum(len(self._roster.waiting.get(leaf, ())) for leaf in leaves)

    def people(self, tenant: TenantName) -> tuple[UserView, ...]:
        """Return the users of a tenant that are weighed, use or wait, by name."""
        self._settle()
        return overview.people(tenant, self._roster, self._tenancy, self._managed)

    def nodes(self, pool: PoolName) -> tuple[NodeView, ...]:
        """Return the nodes of a pool, by name."""
        self._settle()
        return overview.nodes(pool, self._pools, self._placement, self._managed)

    def ready_nodes(self, pool: PoolName) -> int:
        """Return how many nodes of a pool are ready."""
        self._settle()
        return len(self._placement.open_nodes(pool))

    def find(self, namespace: str, name: str) -> Uid | None:
        """Return the managed pod of this name that waits or runs, if there is one."""
        tracked = self._roster.find(namespace, name)
        return tracked.pod.uid if tracked is not None else None

    def released(self, uid: Uid) -> ReleasedView | None:
        """Return where a pod runs, or will, that is past the gate; None for any other."""
        self._settle()
        tracked = self._roster.pods.get(uid)
        if tracked is None or not tracked.uses:
            return None
        return queues.released(tracked, self._roster.usage.awaited(tracked.stay) is not None)

    def exists(self, tenant: TenantName) -> bool:
        """Tell whether there is a tenant: as a resource, or for a namespace that nobody mapped."""
        if tenant.startswith(UNMAPPED_PREFIX):
            return self._tenancy.tenant_of(tenant.removeprefix(UNMAPPED_PREFIX)) == tenant
        return tenant in self._tenancy.tenants or tenant == DEFAULT_TENANT

    def bulletin(self, at: Millis, epoch: int, drift: float) -> Bulletin:
        """Return what only this engine knows, if it leads: see `Engine.hear`."""
        growth = self._pools.growth
        return bulletin(at, epoch, drift, self._roster, self._reservations, self._resting, growth)

    def running(self) -> Iterator[Run]:
        """Return the runs that go on. Who does not lead may not know when they really began."""
        return self._running.runs()

    def spent(self, at: Millis) -> Mapping[Owner, Mapping[Resource, int]]:
        """Return resource-milliseconds of every tenant, user and pool, as fairness counts them."""
        usage = self._roster.usage
        return dict(usage.ledger.spent(max(at, usage.now)))

    def _held(self, uid: Uid) -> Tracked | None:
        tracked = self._roster.pods.get(uid)
        return tracked if tracked is not None and not tracked.uses else None

    def _settle(self) -> None:
        """Put all in its place: who does not lead never picks, and while a watch is silent no
        pass does it either.
        """
        if not self._settled:
            self._settled = True
            self._roster.reckon()
            self._roster.settle()
            self._roster.usage.tree.settle()

    def _scene(self) -> Scene:
        self._settle()
        if self._known is None:
            heard = self._hearsay.heard
            own = (each.owner.uid for each in self._reservations.owners())
            self._known = Scene(
                self._roster,
                self._tenancy,
                self._pools,
                self._placement,
                self._reservations,
                self._kept,
                frozenset(own) | self._hearsay.owners,
                heard.at if heard is not None else None,
            )
        return self._known

    def _kept(self, pool: PoolName, turn: Turn) -> tuple[TenantName, Withheld] | None:
        """Return whom room of a pool is kept free for: by this engine, or by the one that leads."""
        owners = [r for r in self._reservations.owners() if r.pool == pool]
        owners = [r for r in owners if r.owner.uid != turn.uid]
        if owners:
            return owners[0].leaf.tenant, self._reservations.withheld(owners)
        return self._hearsay.kept(pool, turn.uid)
