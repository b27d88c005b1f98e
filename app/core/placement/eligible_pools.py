"""The pools that can serve a pod, cached by its constraints.

Includes the device memory and the node sizes that each pool offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary, WeakSet

from app.core.model import Amounts, Node, Pod, Pool, PoolName, Resource, Tenant
from app.core.placement.node_filter import NodeFilter, terms_of
from app.core.podspec.constraints import NodeConstraints
from app.core.podspec.device_fractions import label_memory
from app.core.podspec.gpu_memory import MemoryNeed, lack, need_of
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

    def memory(self, pool: PoolName) -> int | None:
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

    def size(self, pool: PoolName) -> int:
        """Return the bytes of one device as a sort value. Pools with unknown memory come last."""
        known = self.memory(pool)
        return _UNKNOWN if known is None else known

    def need(self, pod: Pod) -> MemoryNeed | None:
        """Return the memory need that a pod declares. None: the pod declares no need."""
        if not pod.gpu_memory:
            return None
        need = need_of(pod.gpu_memory, pod.demand, self._managed)
        # A pod that shares a claim requests no own device, and goes to the node of the claim.
        return need if need.own or need.devices or not pod.claims else None

    def lack(self, pod: Pod, pool: PoolName) -> str:
        """Return why the devices of a pool are too small for a pod; "" if they suffice."""
        need = self.need(pod)
        return lack(need, self.memory(pool)) if need is not None else ""

    def could_carry(self, pool: PoolName, demand: Amounts) -> bool:
        """Return whether a node like one of the pool could carry a pod. True without any node."""
        if pool not in self._offers:
            kinds = {
                tuple(sorted(sold(node, self._pool(pool)).items())) for node in self._nodes(pool)
            }
            self._offers[pool] = [dict(kind) for kind in sorted(kinds)]
        offers = self._offers[pool]
        return not offers or any(fits(demand, offer) for offer in offers)


def sold(node: Node, pool: Pool) -> dict[Resource, int]:
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
    """Eligible pools by constraints. `reach` and `makes` must contain the same pools and nodes."""

    def __init__(self, reach: NodeFilter, makes: PoolHardware) -> None:
        self._reach = reach
        self._makes = makes
        self._pools: Mapping[PoolName, Pool] = {}
        self._barred: frozenset[PoolName] = frozenset()
        self._known: WeakKeyDictionary[NodeConstraints, dict[_Asked, tuple[PoolName, ...]]] = (
            WeakKeyDictionary()
        )
        self._sized: WeakSet[NodeConstraints] = WeakSet()
        self._cut: WeakSet[NodeConstraints] = WeakSet()
        """Terms for which some answers are not cached."""
        self._sizes: dict[PoolName, int | None] = {}
        self._rerouted: set[NodeConstraints] = set()

    def __len__(self) -> int:
        """Return the number of different terms with cached answers."""
        return len(self._known)

    def reset_pools(self, pools: Mapping[PoolName, Pool], barred: frozenset[PoolName]) -> None:
        """Reset to these pools. No pod is released into `barred` pools."""
        self._pools, self._barred = pools, barred
        self._rerouted.clear()
        self.drop_cached_answers()

    def drop_cached_answers(self) -> None:
        """Drop cached answers about pods. Many are for pods that no longer exist."""
        self._known.clear()
        self._sized.clear()
        self._cut.clear()

    def pools(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the eligible pools of a pod, by name.

        If the pod declares its device memory, pools with the smallest devices come first.
        """
        allowed = tenant.pools if tenant else ()
        named = pod.pools if pod.tied is None else (pod.tied,)
        if named:  # users may name pools that do not exist
            named = tuple(sorted(self._pools.keys() & set(named)))
            if not named:
                return ()
        asked, terms = (named, allowed, self._makes.need(pod)), terms_of(pod)
        if pod.only is not None:
            found = self._answer(terms, asked)
            return tuple(name for name in found if self._reach.pin(terms, pod.only, name))
        known = self._known.setdefault(terms, {})
        answer = known.get(asked)
        if answer is None:
            answer = self._answer(terms, asked)
            if len(known) < MOST_ANSWERS:
                known[asked] = answer
            else:
                self._cut.add(terms)
            if asked[2] is not None:
                self._size(terms)
        return answer

    def take_rerouted(self) -> set[NodeConstraints]:
        """Return the terms with different eligible pools since the last call."""
        rerouted, self._rerouted = self._rerouted, set()
        return rerouted

    def reroute(self) -> None:
        """Find the terms with different eligible pools since a node came, went or changed."""
        changed = set(self._reach.take_rerouted())
        if self._sized and self._sizes != (sizes := self._memories()):
            # The device memory of a pool may come from the labels of its nodes.
            self._sizes = sizes
            for terms in list(self._sized):
                known = self._known.get(terms, {})
                if terms in self._cut or any(
                    a[2] is not None and self._answer(terms, a) != b for a, b in known.items()
                ):
                    changed.add(terms)
        for terms in [t for t in changed if t in self._known and t not in self._cut]:
            if all(self._answer(terms, a) == b for a, b in self._known[terms].items()):
                changed.discard(terms)  # e.g. a growing pool got its first node or lost its last
        for terms in changed:
            self._known.pop(terms, None)
            self._sized.discard(terms)
            self._cut.discard(terms)
        self._rerouted |= changed

    def _size(self, terms: NodeConstraints) -> None:
        if not self._sized:
            self._sizes = self._memories()
        self._sized.add(terms)

    def _memories(self) -> dict[PoolName, int | None]:
        return {name: self._makes.memory(name) for name in self._pools}

    def _answer(self, terms: NodeConstraints, asked: _Asked) -> tuple[PoolName, ...]:
        named, allowed, need = asked
        found = [
            name
            for name, pool in sorted(self._pools.items())
            if (not named or name in named)
            and (not allowed or name in allowed)
            and name not in self._barred
            and not pool.paused
            and self._reach.serves(terms, name)
            and (need is None or need.holds(self._makes.memory(name)) is not False)
        ]
        return tuple(found if need is None else sorted(found, key=self._makes.size))
