"""What the nodes of each pool are like: the memory of their devices, and what a node offers.

Read from the nodes when first asked, and kept until `forget`. Takes nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.core.asks.gpu_memory import MemoryNeed, lack, need_of
from app.core.asks.parts import label_memory
from app.core.model import Amounts, Node, Pod, Pool, PoolName, Resource
from app.core.resources import ManagedResources, fits

_UNKNOWN = 1 << 62
"""Stands for the memory of devices that nobody knows: such pools come last."""


class Makes:
    """`pool` returns a pool by name, `nodes` those that belong to it, ready or not."""

    def __init__(
        self,
        managed: ManagedResources,
        pool: Callable[[PoolName], Pool],
        nodes: Callable[[PoolName], Iterable[Node]],
    ) -> None:
        self._managed = managed
        self._pool = pool
        self._nodes = nodes
        self._memory: dict[PoolName, int | None] = {}
        self._offers: dict[PoolName, list[Amounts]] = {}

    def forget(self) -> None:
        """Nodes came, went or changed."""
        self._memory.clear()
        self._offers.clear()

    def memory(self, pool: PoolName) -> int | None:
        """Return the bytes of one device: as the pool says, or the least that its nodes tell.

        None: nobody knows.
        """
        written = self._pool(pool).gpu_memory
        if written is not None:
            return written
        if pool not in self._memory:
            labels = (label_memory(node.labels) for node in self._nodes(pool))
            self._memory[pool] = min((each for each in labels if each), default=None)
        return self._memory[pool]

    def size(self, pool: PoolName) -> int:
        """Return the bytes of one device, to compare pools by: unknown ones come last."""
        known = self.memory(pool)
        return _UNKNOWN if known is None else known

    def need(self, pod: Pod) -> MemoryNeed | None:
        """Return what a pod says it needs; None: nothing."""
        if not pod.gpu_memory:
            return None
        need = need_of(pod.gpu_memory, pod.demand, self._managed)
        # Who shares a claim asks for no device of its own, and goes where the claim is.
        return need if need.own or need.devices or not pod.claims else None

    def lack(self, pod: Pod, pool: PoolName) -> str:
        """Return why a pod's devices would be too small in a pool; "" if they would not."""
        need = self.need(pod)
        return lack(need, self.memory(pool)) if need is not None else ""

    def could_carry(self, pool: PoolName, demand: Amounts) -> bool:
        """Tell whether a node like one of the pool could carry a pod; yes if it has none."""
        if pool not in self._offers:
            kinds = {
                tuple(sorted(sold(node, self._pool(pool)).items())) for node in self._nodes(pool)
            }
            self._offers[pool] = [dict(kind) for kind in sorted(kinds)]
        offers = self._offers[pool]
        return not offers or any(fits(demand, offer) for offer in offers)


def sold(node: Node, pool: Pool) -> dict[Resource, int]:
    """Return what a node would offer if nothing ran there that Fairgate does not release."""
    return {
        resource: int(value * pool.overcommit.get(resource, 1))
        for resource, value in node.allocatable.items()
    }
