"""Which pools can serve a pod: found once for all that ask alike, and again once that changes.

Whether a pool has room is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.gpu_memory import MemoryNeed
from app.core.asks.terms import Terms
from app.core.model import Pod, Pool, PoolName, Tenant
from app.core.places.makes import Makes
from app.core.places.reach import Reach, terms_of

_Asked = tuple[tuple[PoolName, ...], tuple[PoolName, ...], MemoryNeed | None]
"""The pools that a pod names, those its tenant may use, and the memory it needs."""


class Serving:
    """See the module. `reach` and `makes` must know the same pools and nodes."""

    def __init__(self, reach: Reach, makes: Makes) -> None:
        self._reach = reach
        self._makes = makes
        self._pools: Mapping[PoolName, Pool] = {}
        self._barred: frozenset[PoolName] = frozenset()
        self._known: dict[Terms, dict[_Asked, tuple[PoolName, ...]]] = {}
        self._sized: set[Terms] = set()
        self._sizes: dict[PoolName, int | None] = {}
        self._rerouted: set[Terms] = set()

    def __len__(self) -> int:
        """Return how many different terms are remembered."""
        return len(self._known)

    def begin(self, pools: Mapping[PoolName, Pool], barred: frozenset[PoolName]) -> None:
        """Start anew with these pools; nothing is released into those that are `barred`."""
        self._pools, self._barred = pools, barred
        self._rerouted.clear()
        self.forget()

    def forget(self) -> None:
        """Forget what was worked out for pods, many of which are gone."""
        self._known.clear()
        self._sized.clear()

    def pools(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the pools that could serve a pod, by name.

        If it says what memory it needs, those with the smallest devices first.
        """
        allowed = tenant.pools if tenant else ()
        named = pod.pools if pod.tied is None else (pod.tied,)
        asked, terms = (named, allowed, self._makes.need(pod)), terms_of(pod)
        if pod.only is not None:
            found = self._answer(terms, asked)
            return tuple(name for name in found if self._reach.pin(terms, pod.only, name))
        known = self._known.setdefault(terms, {})
        answer = known.get(asked)
        if answer is None:
            answer = known[asked] = self._answer(terms, asked)
            if asked[2] is not None:
                self._size(terms)
        return answer

    def take_rerouted(self) -> set[Terms]:
        """Return, once, the terms that other pools can serve than before."""
        rerouted, self._rerouted = self._rerouted, set()
        return rerouted

    def reroute(self) -> None:
        """Note whom other pools serve since a node came, went or changed."""
        changed = set(self._reach.take_rerouted())
        if self._sized and self._sizes != (sizes := self._memories()):
            # What memory the devices of a pool have, its nodes may tell.
            self._sizes = sizes
            for terms in self._sized:
                known = self._known.get(terms, {})
                if any(a[2] is not None and self._answer(terms, a) != b for a, b in known.items()):
                    changed.add(terms)
        for terms in [t for t in changed if t in self._known]:
            if all(self._answer(terms, a) == b for a, b in self._known[terms].items()):
                changed.discard(terms)  # a pool that grows got its first node, or lost its last
        for terms in changed:
            self._known.pop(terms, None)
            self._sized.discard(terms)
        self._rerouted |= changed

    def _size(self, terms: Terms) -> None:
        if not self._sized:
            self._sizes = self._memories()
        self._sized.add(terms)

    def _memories(self) -> dict[PoolName, int | None]:
        return {name: self._makes.memory(name) for name in self._pools}

    def _answer(self, terms: Terms, asked: _Asked) -> tuple[PoolName, ...]:
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
