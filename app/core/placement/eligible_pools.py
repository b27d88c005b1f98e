"""The pools that can serve a pod, cached by its constraints.

Includes the device memory and the node sizes that each pool offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary, WeakSet

from app.core.model import Amounts, Node, Pod, Pool, PoolName, Resource, Tenant
from app.core.placement.node_filter import NodeFilter, node_constraints_of
from app.core.podspec.constraints import NodeConstraints
from app.core.podspec.device_fractions import label_memory
from app.core.podspec.gpu_memory import MemoryNeed, describe_shortage, need_of
from app.core.quantities import ManagedResources, fits

_UNKNOWN = 1 << 62
"""Sort value for unknown device memory: such pools come last."""


class PoolHardware:
    """Hardware of each pool. `pool` returns a pool by name, `nodes` its nodes, ready or not."""

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

    def drop_cache(self) -> None:
        """Drop the cache after nodes came, went or changed."""
        self._memory.clear()
        self._offers.clear()

    def device_memory(self, pool: PoolName) -> int | None:
        """Return the bytes of one device: from the Pool, or the minimum of its node labels.

        None: unknown.
        """
        written = self._pool(pool).gpu_memory
        if written is not None:
            return written
        if pool not in self._memory:
            labels = (label_memory(node.labels) for node in self._nodes(pool))
            self._memory[pool] = min((each for each in labels if each), default=None)
        return self._memory[pool]

    def memory_sort_key(self, pool: PoolName) -> int:
        """Return the bytes of one device as a sort value. Pools with unknown memory come last."""
        known = self.device_memory(pool)
        return _UNKNOWN if known is None else known

    def memory_need(self, pod: Pod) -> MemoryNeed | None:
        """Return the memory need that a pod declares. None: the pod declares no need."""
        if not pod.gpu_memory:
            return None
        need = need_of(pod.gpu_memory, pod.demand, self._managed)
        # A pod that shares a claim requests no own device, and goes to the node of the claim.
        return need if need.own or need.devices or not pod.claims else None

    def memory_shortage(self, pod: Pod, pool: PoolName) -> str:
        """Return why the devices of a pool are too small for a pod; "" if they suffice."""
        need = self.memory_need(pod)
        return describe_shortage(need, self.device_memory(pool)) if need is not None else ""

    def could_fit_on_node(self, pool: PoolName, demand: Amounts) -> bool:
        """Return whether a node like one of the pool could carry a pod. True without any node."""
        if pool not in self._offers:
            kinds = {
                tuple(sorted(overcommitted_capacity(node, self._pool(pool)).items()))
                for node in self._nodes(pool)
            }
            self._offers[pool] = [dict(kind) for kind in sorted(kinds)]
        offers = self._offers[pool]
        return not offers or any(fits(demand, offer) for offer in offers)


def overcommitted_capacity(node: Node, pool: Pool) -> dict[Resource, int]:
    """Return the capacity of a node without unmanaged pods, including overcommitment."""
    return {
        resource: int(value * pool.overcommit.get(resource, 1))
        for resource, value in node.allocatable.items()
    }


MOST_ANSWERS = 1000
"""Maximum number of cached answers for pods with the same terms that name different pools or
declare different memory."""

_Asked = tuple[tuple[PoolName, ...], tuple[PoolName, ...], MemoryNeed | None]
"""The pools that a pod names, the pools of its tenant, and the device memory it needs."""


class EligiblePools:
    """Eligible pools by constraints. `node_filter` and `hardware` must contain the same pools and
    nodes.
    """

    def __init__(self, node_filter: NodeFilter, hardware: PoolHardware) -> None:
        self._node_filter = node_filter
        self._hardware = hardware
        self._pools: Mapping[PoolName, Pool] = {}
        self._barred: frozenset[PoolName] = frozenset()
        self._known: WeakKeyDictionary[NodeConstraints, dict[_Asked, tuple[PoolName, ...]]] = (
            WeakKeyDictionary()
        )
        self._with_memory_need: WeakSet[NodeConstraints] = WeakSet()
        self._partly_cached: WeakSet[NodeConstraints] = WeakSet()
        """Terms for which some answers are not cached."""
        self._memory_by_pool: dict[PoolName, int | None] = {}
        self._changed_constraints: set[NodeConstraints] = set()

    def __len__(self) -> int:
        """Return the number of different terms with cached answers."""
        return len(self._known)

    def reset_pools(self, pools: Mapping[PoolName, Pool], barred: frozenset[PoolName]) -> None:
        """Reset to these pools. No pod is released into `barred` pools."""
        self._pools, self._barred = pools, barred
        self._changed_constraints.clear()
        self.drop_cached_answers()

    def drop_cached_answers(self) -> None:
        """Drop cached answers about pods. Many are for pods that no longer exist."""
        self._known.clear()
        self._with_memory_need.clear()
        self._partly_cached.clear()

    def pools(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the eligible pools of a pod, by name.

        If the pod declares its device memory, pools with the smallest devices come first.
        """
        allowed = tenant.pools if tenant else ()
        named = pod.pools if pod.claim_pool is None else (pod.claim_pool,)
        if named:  # users may name pools that do not exist
            named = tuple(sorted(self._pools.keys() & set(named)))
            if not named:
                return ()
        asked, terms = (named, allowed, self._hardware.memory_need(pod)), node_constraints_of(pod)
        if pod.node_names is not None:
            found = self._compute_pools(terms, asked)
            return tuple(
                name
                for name in found
                if self._node_filter.allowed_nodes(terms, pod.node_names, name)
            )
        known = self._known.setdefault(terms, {})
        answer = known.get(asked)
        if answer is None:
            answer = self._compute_pools(terms, asked)
            if len(known) < MOST_ANSWERS:
                known[asked] = answer
            else:
                self._partly_cached.add(terms)
            if asked[2] is not None:
                self._record_memory_need(terms)
        return answer

    def drain_changed_constraints(self) -> set[NodeConstraints]:
        """Return the terms with different eligible pools since the last call."""
        rerouted, self._changed_constraints = self._changed_constraints, set()
        return rerouted

    def find_changed_constraints(self) -> None:
        """Find the terms with different eligible pools since a node came, went or changed."""
        changed = set(self._node_filter.drain_changed_constraints())
        if self._with_memory_need and self._memory_by_pool != (sizes := self._current_memory()):
            # The device memory of a pool may come from the labels of its nodes.
            self._memory_by_pool = sizes
            for terms in list(self._with_memory_need):
                known = self._known.get(terms, {})
                if terms in self._partly_cached or any(
                    a[2] is not None and self._compute_pools(terms, a) != b
                    for a, b in known.items()
                ):
                    changed.add(terms)
        for terms in [t for t in changed if t in self._known and t not in self._partly_cached]:
            if all(self._compute_pools(terms, a) == b for a, b in self._known[terms].items()):
                changed.discard(terms)  # e.g. a growing pool got its first node or lost its last
        for terms in changed:
            self._known.pop(terms, None)
            self._with_memory_need.discard(terms)
            self._partly_cached.discard(terms)
        self._changed_constraints |= changed

    def _record_memory_need(self, terms: NodeConstraints) -> None:
        if not self._with_memory_need:
            self._memory_by_pool = self._current_memory()
        self._with_memory_need.add(terms)

    def _current_memory(self) -> dict[PoolName, int | None]:
        return {name: self._hardware.device_memory(name) for name in self._pools}

    def _compute_pools(self, terms: NodeConstraints, asked: _Asked) -> tuple[PoolName, ...]:
        named, allowed, need = asked
        found = [
            name
            for name, pool in sorted(self._pools.items())
            if (not named or name in named)
            and (not allowed or name in allowed)
            and name not in self._barred
            and not pool.paused
            and self._node_filter.may_have_matching_node(terms, name)
            and (need is None or need.is_met_by(self._hardware.device_memory(name)) is not False)
        ]
        return tuple(found if need is None else sorted(found, key=self._hardware.memory_sort_key))
