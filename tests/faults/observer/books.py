"""Usage of released pods per node, pool and tenant, for one layout."""

from __future__ import annotations

from collections.abc import Iterable

from tests.faults.observer.amounts import Amounts, add
from tests.faults.observer.objects import Layout, Pod


class Books:
    """Sums over pods. `on`: pods bound to a node. `loose`: unbound pods of a pool."""

    def __init__(self, layout: Layout, pods: Iterable[Pod] = ()) -> None:
        self.layout = layout
        self.on: dict[str, dict[str, int]] = {}
        self.loose: dict[str, dict[str, int]] = {}
        self.under: dict[tuple[str, str], dict[str, int]] = {}
        for pod in pods:
            self.count(pod)

    def count(self, pod: Pod, sign: int = 1) -> None:
        """Add a pod, or remove it with sign -1. A pod that uses no resources is ignored."""
        if not pod.uses:
            return
        if pod.node:
            add(self.on.setdefault(pod.node, {}), pod.demand, sign)
        pool = self.layout.pool_of(pod)
        if pool is None:
            return
        if not pod.node:
            add(self.loose.setdefault(pool, {}), pod.demand, sign)
        for tenant in self.layout.path(self.layout.tenant_of(pod.namespace)):
            add(self.under.setdefault((tenant, pool), {}), pod.demand, sign)

    def room(self, pool: str) -> dict[str, int]:
        """Return the free capacity of the open nodes of a pool; unbound pods are not subtracted.

        An over-allocated node does not reduce the capacity of other nodes.
        """
        left: dict[str, int] = {}
        for name, offer in self.layout.offers.get(pool, {}).items():
            taken = self.on.get(name, {})
            add(left, {r: max(0, value - taken.get(r, 0)) for r, value in offer.items()})
        return left

    def excess(self, pod: Pod) -> list[str]:
        """Return the bounds exceeded by a pod that was just released and counted."""
        pool = self.layout.pool_of(pod)
        if pool is None:
            return [f"no pool has it: its label says {pod.pool!r}"]
        found = []
        if not pod.node:
            found += _more(self.loose.get(pool, {}), self.room(pool), pod, f"pool {pool}", True)
        for tenant in self.layout.path(self.layout.tenant_of(pod.namespace)):
            mine = self.layout.tenants.get(tenant)
            limit = mine.limits.get(pool, {}) if mine else {}
            used = self.under.get((tenant, pool), {})
            found += _more(used, limit, pod, f"the limit of tenant {tenant} in {pool}", False)
        return found

    def crowded(self, pod: Pod) -> list[str]:
        """Return the bounds of a node exceeded by a pod that was just bound and counted."""
        home = self.layout.homes.get(pod.node)
        offer = self.layout.offers.get(home or "", {}).get(pod.node)
        if offer is None:
            return []
        devices = {r: v for r, v in offer.items() if "/" in r}
        return _more(self.on.get(pod.node, {}), devices, pod, f"node {pod.node}", False)


def _more(used: Amounts, most: Amounts, pod: Pod, what: str, whole: bool) -> list[str]:
    """Return messages where `used` exceeds `most`. `whole`: an absent resource counts as 0."""
    return [
        f"{what}: {used.get(r, 0)} of {r}, of {most.get(r, 0)}"
        for r in sorted(pod.demand)
        if (whole or r in most) and used.get(r, 0) > most.get(r, 0)
    ]
