"""Cache of tenants, pools and the Policy's mode for the webhook and the REST API.

Watches update it. Reads never wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.admission.hold import NamespaceOwner
from app.core.admission.priority_class_twins import PriorityClass
from app.core.admission.unsatisfiable import KnownPools
from app.core.events import (
    ClusterEvent,
    PolicyGone,
    PolicyObserved,
    PoolGone,
    PoolObserved,
    PriorityGone,
    PriorityObserved,
    SourceFresh,
    SourceStale,
    TenantGone,
    TenantObserved,
    WatchedSource,
)
from app.core.fairshare.tenants import TenantDirectory
from app.core.model import Amounts, Pool, PoolName, TenantName
from app.core.policy import Mode


class WebhookCache:
    """Tenants, their pending pods, pools and the mode, as last observed. An `EventSink`."""

    def __init__(self, needs: Iterable[WatchedSource] = (WatchedSource.TENANTS,)) -> None:
        """`needs`: the lists that must be received completely before the view is ready."""
        self.tenancy = TenantDirectory()
        self.pending: dict[TenantName, int] = {}
        self.pools: dict[PoolName, Pool] = {}
        self._pool_capacity: dict[PoolName, Amounts] = {}
        self._fresh_sources: set[WatchedSource] = set()
        self._mode: Mode | None = None
        self._default_mode = Mode.ENFORCE
        self._missing_sources = set(needs)
        self.priority_classes: dict[str, PriorityClass] | None = None
        """PriorityClasses by name; None if `needs` does not contain them."""
        if WatchedSource.PRIORITIES in self._missing_sources:
            self.priority_classes = {}

    @property
    def is_ready(self) -> bool:
        """Return whether every list was received completely once.

        It stays true if a watch stops: an old view can still hold pods, and the leader assigns the
        final tenant.
        """
        return not self._missing_sources

    @property
    def is_observing(self) -> bool:
        """Return whether the mode is Observe."""
        return (self._mode or self._default_mode) is Mode.OBSERVE

    def set_default_mode(self, mode: Mode) -> None:
        """Set the mode of the installation. It applies if no Policy sets another."""
        self._default_mode = mode

    async def put(self, event: ClusterEvent, /) -> None:
        """Apply an event of a watch. Ignore events of other kinds."""
        match event:
            case TenantObserved(tenant=tenant, pending=pending):
                self.tenancy.add_tenant(tenant)
                self.pending[tenant.name] = pending
            case TenantGone(name=tenant_name):
                self.tenancy.drop_tenant(tenant_name)
                self.pending.pop(tenant_name, None)
            case PoolObserved(pool=pool, status_capacity=offered):
                self.pools[pool.name] = pool
                self._pool_capacity.pop(pool.name, None)
                if offered is not None:
                    self._pool_capacity[pool.name] = offered
            case PoolGone(name=pool_name):
                self.pools.pop(pool_name, None)
                self._pool_capacity.pop(pool_name, None)
            case PriorityObserved(priority=priority) if self.priority_classes is not None:
                self.priority_classes[priority.name] = priority
            case PriorityGone(name=class_name) if self.priority_classes is not None:
                self.priority_classes.pop(class_name, None)
            case PolicyObserved(policy=policy, has_mode=has_mode):
                self._mode = policy.mode if has_mode else None
            case PolicyGone():
                self._mode = None
            case SourceFresh(source=source):
                self._missing_sources.discard(source)
                self._fresh_sources.add(source)
            case SourceStale(source=source):
                self._fresh_sources.discard(source)
            case _:
                pass

    def known_pools(self, namespace: str) -> KnownPools | None:
        """Return the state that decides whether a pod can ever start; None if it may be stale."""
        if not self._fresh_sources >= {WatchedSource.TENANTS, WatchedSource.POOLS}:
            return None
        lineage = self.tenancy.lineage(self.tenancy.tenant_of(namespace))
        tenants = [self.tenancy.tenants[each] for each in lineage if each in self.tenancy.tenants]
        return KnownPools(self.pools, tenants, self._pool_capacity)

    def namespace_owner(self, namespace: str) -> NamespaceOwner:
        """Return the tenant of a namespace, its pending pods and their maximum."""
        name = self.tenancy.tenant_of(namespace)
        tenant = self.tenancy.tenants.get(name)
        if tenant is None:
            return NamespaceOwner(name)
        return NamespaceOwner(name, self.pending.get(name, 0), tenant.max_pending)
