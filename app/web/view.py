"""The small view in memory that the webhook and the REST API answer from.

Kept by watches; it asks nobody anything and never waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.admission.gate import Owner
from app.core.admission.priorities import PriorityClass
from app.core.admission.prospects import Known
from app.core.events import (
    ClusterEvent,
    PolicyGone,
    PolicyObserved,
    PoolGone,
    PoolObserved,
    PriorityGone,
    PriorityObserved,
    Source,
    SourceFresh,
    SourceStale,
    TenantGone,
    TenantObserved,
)
from app.core.fair.tenancy import Tenancy
from app.core.model import Amounts, Pool, PoolName, TenantName
from app.core.policy import Mode, Policy


class View:
    """Tenants, how much each has pending, pools and the mode, as last observed. An `EventSink`."""

    def __init__(self, needs: Iterable[Source] = (Source.TENANTS,)) -> None:
        """`needs`: the lists that must have been seen whole before the view is ready."""
        self.tenancy = Tenancy()
        self.pending: dict[TenantName, int] = {}
        self.pools: dict[PoolName, Pool] = {}
        self._offered: dict[PoolName, Amounts] = {}
        self._fresh: set[Source] = set()
        self._mode = Policy().mode
        self._missing = set(needs)
        self.classes: dict[str, PriorityClass] | None = None
        """PriorityClasses by name; None where nobody needs them."""
        if Source.PRIORITIES in self._missing:
            self.classes = {}

    @property
    def ready(self) -> bool:
        """Whether every list was seen whole once.

        It stays so when a watch falls silent: an old view holds pods all the same, and it is the
        leader that decides the tenant for good.
        """
        return not self._missing

    @property
    def observing(self) -> bool:
        """Whether nothing is to be held. Without a Policy, or before it was seen: no."""
        return self._mode is Mode.OBSERVE

    async def put(self, event: ClusterEvent, /) -> None:
        """Take in what a watch saw; what does not concern the view is ignored."""
        match event:
            case TenantObserved(tenant=tenant, pending=pending):
                self.tenancy.put(tenant)
                self.pending[tenant.name] = pending
            case TenantGone(name=tenant_name):
                self.tenancy.drop(tenant_name)
                self.pending.pop(tenant_name, None)
            case PoolObserved(pool=pool, offered=offered):
                self.pools[pool.name] = pool
                self._offered.pop(pool.name, None)
                if offered is not None:
                    self._offered[pool.name] = offered
            case PoolGone(name=pool_name):
                self.pools.pop(pool_name, None)
                self._offered.pop(pool_name, None)
            case PriorityObserved(priority=priority) if self.classes is not None:
                self.classes[priority.name] = priority
            case PriorityGone(name=class_name) if self.classes is not None:
                self.classes.pop(class_name, None)
            case PolicyObserved(policy=policy):
                self._mode = policy.mode
            case PolicyGone():
                self._mode = Policy().mode
            case SourceFresh(source=source):
                self._missing.discard(source)
                self._fresh.add(source)
            case SourceStale(source=source):
                self._fresh.discard(source)
            case _:
                pass

    def prospects(self, namespace: str) -> Known | None:
        """Return by what may be judged whether a pod can ever start; None: that may be old."""
        if not self._fresh >= {Source.TENANTS, Source.POOLS}:
            return None
        lineage = self.tenancy.lineage(self.tenancy.tenant_of(namespace))
        tenants = [self.tenancy.tenants[each] for each in lineage if each in self.tenancy.tenants]
        return Known(self.pools, tenants, self._offered)

    def owner_of(self, namespace: str) -> Owner:
        """Return whose a namespace is, and how much more that tenant may queue."""
        name = self.tenancy.tenant_of(namespace)
        tenant = self.tenancy.tenants.get(name)
        if tenant is None:
            return Owner(name)
        return Owner(name, self.pending.get(name, 0), tenant.max_pending)
