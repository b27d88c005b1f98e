"""Gaps between two owners of a namespace, in which no Tenant limits its pods.

A namespace that moves from one Tenant to another may lack a Tenant in between. A Tenant that moves
below another may lose its parent in between. `PodRegistry` holds the pods meanwhile.
"""

from __future__ import annotations

from app.core.fairshare.tenants import TenantDirectory
from app.core.model import UNMAPPED_PREFIX, Millis, Tenant, TenantName

GAP_MS = 30_000
"""Time that the pods of a namespace wait after it lost its Tenant, for another to list it."""


class TenantGaps:
    """The namespaces that lost their Tenant less than `GAP_MS` ago, and Tenants without parent."""

    def __init__(self, tenancy: TenantDirectory) -> None:
        self._tenancy = tenancy
        self._lost: dict[str, tuple[TenantName, Millis]] = {}

    def record_change(self, before: Tenant, now: Millis) -> None:
        """Record a Tenant that was changed or deleted. `before` is its former state."""
        for namespace in before.namespaces:
            if self._is_unmapped(namespace):
                self._lost[namespace] = before.name, Millis(now + GAP_MS)

    def gap_reason(self, namespace: str) -> str:
        """Return why the pods of a namespace wait for a Tenant; "" if they do not."""
        lost = self._lost.get(namespace)
        if lost is not None and self._is_unmapped(namespace):
            name = lost[0]
            exists = name in self._tenancy.tenants
            change = f"no longer lists namespace {namespace}" if exists else "was deleted"
            return f"tenant {name} {change}"
        fault = self._tenancy.parent_fault(self._tenancy.tenant_of(namespace))
        return fault.reason if fault is not None else ""

    def due(self) -> Millis | None:
        """Return when the next gap ends."""
        return min((until for _, until in self._lost.values()), default=None)

    def drain_ended(self, now: Millis) -> frozenset[str]:
        """Return, once, the namespaces with a gap that has ended."""
        ended = frozenset(name for name, (_, until) in self._lost.items() if until <= now)
        if ended:  # a new dict, because an emptied one keeps its memory
            self._lost = {name: lost for name, lost in self._lost.items() if name not in ended}
        return ended

    def _is_unmapped(self, namespace: str) -> bool:
        return self._tenancy.tenant_of(namespace).startswith(UNMAPPED_PREFIX)
