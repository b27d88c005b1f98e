"""Which nodes of each pool a pod may go to, by its terms: worked out once, then node by node.

A node that changes is judged anew, and nothing else is; terms that no node tells apart are one
question. Asks nothing about room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from app.core.asks.terms import ANYWHERE, Term, Terms, telling, unborne
from app.core.model import Node, NodeName, Pin, Pod, Pool, PoolName
from app.core.places.gist import Gists, Parted


@dataclass(slots=True)
class _Known:
    """What was found out about some gist: the nodes, and what was made of them since.

    `asked` are the terms it was asked for.
    """

    able: dict[PoolName, set[NodeName]] = field(default_factory=dict)
    pins: dict[PoolName, Pin] = field(default_factory=dict)
    asked: set[Terms] = field(default_factory=set)


class Reach:
    """See the module. `version` changes whenever the answer of `pin` may have changed, `edition`
    whenever the labels or taints of any node did.
    """

    def __init__(self) -> None:
        self.version = 0
        self.edition = 0
        self._pools: Mapping[PoolName, Pool] = {}
        self._nodes: dict[NodeName, tuple[PoolName, Node]] = {}
        self._ready: dict[PoolName, set[NodeName]] = {}
        self._members: dict[PoolName, dict[NodeName, Node]] = {}
        self._known: dict[Terms, _Known] = {}
        self._gists = Gists(self._nodes.keys(), lambda: (node for _, node in self._nodes.values()))
        self._rerouted: set[Terms] = set()

    def begin(self, pools: Mapping[PoolName, Pool]) -> None:
        """Start anew with these pools, and no nodes."""
        self._pools = pools
        self._nodes.clear()
        self._ready = {name: set() for name in pools}
        self._members = {name: {} for name in pools}
        self.edition += 1
        self._gists.clear()
        self._rerouted.clear()
        self.forget()

    def forget(self) -> None:
        """Forget what was found out: some of it may be about pods that are gone."""
        self._known.clear()
        self._gists.forget()
        self.version += 1

    def put(self, node: Node, home: PoolName) -> None:
        """A node of a pool exists in this state."""
        before = self._nodes.get(node.name)
        if before == (home, node):
            return
        if before is not None and before[0] != home:
            self.drop(node.name)
            before = None
        was = before[1] if before else None
        self._nodes[node.name] = (home, node)
        self._fill(home)
        self._members[home][node.name] = node
        (self._ready[home].add if node.ready else self._ready[home].discard)(node.name)
        told = was is None or (was.labels, was.taints) != (node.labels, node.taints)
        if told:
            self.edition += 1
            self._part(self._gists.put(node, was))
        if told or was is None or was.ready != node.ready:
            for gist, known in self._known.items():
                self._judge(gist, known, node.name)

    def drop(self, name: NodeName) -> None:
        """A node belongs to no pool any more; harmless if it is unknown."""
        found = self._nodes.pop(name, None)
        if found is None:
            return
        home, node = found
        self._gists.drop(node)
        self.edition += 1
        self._ready[home].discard(name)
        del self._members[home][name]
        self._fill(home)
        for gist, known in self._known.items():
            self._judge(gist, known, name, left=home)

    def take_rerouted(self) -> frozenset[Terms]:
        """Return, once, the terms that other pools can serve than before."""
        rerouted, self._rerouted = frozenset(self._rerouted), set()
        return rerouted

    def gist(self, terms: Terms) -> Terms:
        """Return what of terms makes a difference on the nodes there are, until some change."""
        return self._gists.of(terms)

    def is_label(self, key: str) -> bool:
        """Tell whether any node of a pool has a label."""
        return bool(self._gists.labelled(key))

    def admits(self, terms: Terms, name: NodeName) -> bool:
        """Tell whether a pod of these terms may go to a node of a pool."""
        return self._admits(self._gists.of(terms), name)

    def bears(self, terms: Terms, name: NodeName) -> bool:
        """Tell whether a pod of these terms tolerates the taints of a node of a pool."""
        home, node = self._nodes[name]
        if not node.taints:
            return True
        borne = (*terms.tolerations, *self._pools[home].tolerations)
        return unborne(node.taints, borne) is None

    def node(self, name: NodeName) -> Node | None:
        """Return a node, if it is in a pool."""
        found = self._nodes.get(name)
        return found[1] if found is not None else None

    def members(self, pool: PoolName) -> list[Node]:
        """Return the nodes of a pool, in no order that matters."""
        return list(self._members.get(pool, {}).values())

    def serves(self, terms: Terms, pool: PoolName) -> bool:
        """Tell whether a pool has a node, ready or not, for pods of these terms, or may get one.

        Of nodes to come only what the pool selects them by is known; if it has any, they are like
        those.
        """
        if self._of(terms).able.get(pool):
            return True
        known = self._pools.get(pool)
        if known is None or not known.max_capacity or self._members[pool]:
            return False
        return terms.suits("", known.selector)

    def pin(self, terms: Terms, only: Pin, pool: PoolName) -> Pin:
        """Return the only nodes of a pool that a pod may go to; None: any that is ready."""
        if only is not None:
            here = (name for name in only if name in self._nodes)
            return tuple(n for n in here if self._nodes[n][0] == pool and self.admits(terms, n))
        known = self._of(terms)
        if pool not in known.pins:
            able = known.able.get(pool, set())
            every = bool(able) and self._ready[pool] <= able
            known.pins[pool] = None if every else tuple(sorted(able))
        return known.pins[pool]

    def _fill(self, pool: PoolName) -> None:
        """A pool gets its first node, or has lost its last: then others may serve, if it grows."""
        if self._pools[pool].max_capacity and not self._members[pool]:
            for known in self._known.values():
                self._rerouted |= known.asked

    def _of(self, terms: Terms) -> _Known:
        gist = self._gists.of(terms)
        known = self._known.get(gist)
        if known is None:
            known = self._known[gist] = _Known()
            for name in self._candidates(gist):
                if self._admits(gist, name):
                    known.able.setdefault(self._nodes[name][0], set()).add(name)
        known.asked.add(terms)
        return known

    def _admits(self, gist: Terms, name: NodeName) -> bool:
        _, node = self._nodes[name]
        return gist.suits(name, node.labels) and self.bears(gist, name)

    def _part(self, parted: Iterable[Parted]) -> None:
        """What was found out about terms together is from now on kept for some of them alone."""
        for terms, before, now in parted:
            known = self._known.get(before)
            if known is None or terms not in known.asked:
                continue
            own = self._known.get(now)
            if own is None:
                able = {pool: set(names) for pool, names in known.able.items()}
                own = self._known[now] = _Known(able, dict(known.pins))
            own.asked.add(terms)
            known.asked.discard(terms)
            if not known.asked:
                del self._known[before]

    def _judge(
        self, gist: Terms, known: _Known, name: NodeName, left: PoolName | None = None
    ) -> None:
        """Correct what is known by one node, which is there or has `left` a pool."""
        home = left or self._nodes[name][0]
        able = known.able.setdefault(home, set())
        before, after = name in able, left is None and self._admits(gist, name)
        if before and after:
            return
        known.pins.pop(home, None)  # it may be ready, or not, and so the only one that is barred
        self.version += 1
        if before != after:
            served = bool(able)
            (able.add if after else able.discard)(name)
            if served != bool(able):
                self._rerouted |= known.asked

    def _candidates(self, gist: Terms) -> Iterable[NodeName]:
        """Return nodes among which are all that have the labels asked for."""
        found: list[Collection[NodeName]] = [
            self._gists.labelled(key).get(value, ()) for key, value in gist.selector
        ]
        if gist.affinity is not None:
            each = [self._candidates_of(term) for term in gist.affinity]
            if all(names is not None for names in each):
                found.append({name for names in each for name in names or ()})
        if not found:
            return self._nodes
        return min(found, key=len)

    def _candidates_of(self, term: Term) -> set[NodeName] | None:
        """The same for one term; None: that is not known without looking at every node."""
        labelled = self._gists.labelled
        found = [
            {name for value in each.values for name in labelled(each.key).get(value, ())}
            for each in term.expressions
            if each.operator == "In"
        ]
        return min(found, key=len) if found else None


def terms_of(pod: Pod) -> Terms:
    """Return all that a pod says about nodes, but for those that its affinity names."""
    if not pod.selector and pod.affinity is None and not pod.tolerations:
        return ANYWHERE
    return Terms(tuple(sorted(pod.selector.items())), pod.affinity, telling(pod.tolerations))


def within(pin: Pin, among: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Return, by name, those of some nodes that a pin allows."""
    return tuple(sorted(among if pin is None else (name for name in pin if name in among)))
