"""Node filter: the nodes of each pool that the constraints of a pod allow.

If a node changes, only that node is evaluated again. Constraints that match the same nodes share
one cache entry. Free capacity does not matter here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from weakref import ref

from app.core.model import Node, NodeName, NodeSet, Pod, Pool, PoolName
from app.core.placement.constraint_signature import ConstraintSignatures, SignatureChange
from app.core.placement.node_bitsets import NodeBitset
from app.core.podspec.constraints import (
    ANYWHERE,
    NodeConstraints,
    Taint,
    first_untolerated_taint,
    relevant_tolerations,
)


@dataclass(slots=True)
class _Known:
    """The cached result for one signature: the allowed nodes, and the pins computed from them.

    `term_numbers`: numbers of the terms with this signature. The entry is removed with the last
    number.
    """

    signature: ref[NodeConstraints]
    allowed_nodes: dict[PoolName, set[NodeName]] = field(default_factory=dict)
    pins: dict[PoolName, NodeSet] = field(default_factory=dict)
    term_numbers: set[int] = field(default_factory=set)

    @property
    def served_pools(self) -> frozenset[PoolName]:
        """The pools with an allowed node."""
        return frozenset(pool for pool, names in self.allowed_nodes.items() if names)


class _Joined(NamedTuple):
    """Terms that joined the entry of other terms, with the pools that served them before."""

    number: int
    known: _Known
    served_pools: frozenset[PoolName]
    was_changed: bool


class NodeFilter:
    """The node filter of all pools.

    `version` changes whenever the result of `allowed_nodes` may have changed. `labels_version`
    changes whenever the labels or taints of any node change, `readiness_version` whenever the
    readiness taints do.
    """

    def __init__(self) -> None:
        self.version = 0
        self.labels_version = 0
        self.readiness_version = 0
        self._pools: Mapping[PoolName, Pool] = {}
        self._nodes: dict[NodeName, tuple[PoolName, Node]] = {}
        self._ready: dict[PoolName, set[NodeName]] = {}
        self._members: dict[PoolName, dict[NodeName, Node]] = {}
        self._known: dict[int, _Known] = {}
        self._pool_bitsets: dict[PoolName, NodeBitset] = {}
        self._signatures = ConstraintSignatures(self._remove_terms)
        self._changed_constraints: set[int] = set()

    def reset_pools(self, pools: Mapping[PoolName, Pool]) -> None:
        """Reset to these pools, without nodes."""
        self._pools = pools
        self._nodes.clear()
        self._ready = {name: set() for name in pools}
        self._members = {name: {} for name in pools}
        self._pool_bitsets = dict.fromkeys(pools, 0)
        self.labels_version += 1
        self._signatures.clear()
        self._changed_constraints.clear()
        self.drop_cache_entries()

    def drop_unused_entries(self) -> None:
        """Drop cache entries of terms that are no longer in use. Cheap without such terms."""
        self._signatures.drop_unused_terms()

    def drop_cache_entries(self) -> None:
        """Drop all cache entries. Some may be for pods that no longer exist."""
        self._known.clear()
        self._signatures.drop_terms()
        self.version += 1

    def update_node(self, node: Node, home: PoolName) -> None:
        """Add or update a node of a pool."""
        self.update_readiness_taints(node)
        before = self._nodes.get(node.name)
        if before == (home, node):
            return
        if before is not None and before[0] != home:
            self.drop_node(node.name)
            before = None
        was = before[1] if before else None
        self._nodes[node.name] = (home, node)
        self._mark_if_pool_empty(home)
        self._members[home][node.name] = node
        (self._ready[home].add if node.ready else self._ready[home].discard)(node.name)
        told = was is None or (was.labels, was.taints) != (node.labels, node.taints)
        joined: list[_Joined] = []
        if told:
            self.labels_version += 1
            joined = self._split_entries(self._signatures.update_node(node, was))
            self._pool_bitsets[home] |= self._signatures.bit_of(node.name)
        if told or was is None or was.ready != node.ready:
            for known in self._known.values():
                self._update_entry(known, node.name)
        for each in joined:
            rerouted = each.was_changed or each.served_pools != each.known.served_pools
            (self._changed_constraints.add if rerouted else self._changed_constraints.discard)(
                each.number
            )

    def update_readiness_taints(self, node: Node) -> None:
        """Update the readiness taints of a node. A node in no pool is ignored."""
        found = self._nodes.get(node.name)
        if found is not None and found[1].readiness_taints != node.readiness_taints:
            self.readiness_version += 1
            changed = replace(found[1], readiness_taints=node.readiness_taints)
            self._nodes[node.name] = (found[0], changed)
            self._members[found[0]][node.name] = changed

    def drop_node(self, name: NodeName) -> None:
        """Remove a node from its pool. An unknown name is ignored."""
        found = self._nodes.pop(name, None)
        if found is None:
            return
        home, node = found
        self._pool_bitsets[home] &= ~self._signatures.bit_of(name)
        self._signatures.drop_node(node)
        self.labels_version += 1
        self._ready[home].discard(name)
        del self._members[home][name]
        self._mark_if_pool_empty(home)
        for known in self._known.values():
            self._update_entry(known, name, left=home)

    def drain_changed_constraints(self) -> frozenset[NodeConstraints]:
        """Return the terms with different eligible pools since the last call."""
        found = [self._signatures.terms_by_number(number) for number in self._changed_constraints]
        self._changed_constraints.clear()
        return frozenset(terms for terms in found if terms is not None)

    def signature(self, terms: NodeConstraints) -> NodeConstraints:
        """Return the signature of terms: the part that distinguishes the current nodes."""
        return self._signatures.signature_of(terms)

    def is_label(self, key: str) -> bool:
        """Return whether any node of a pool has this label."""
        return self._signatures.is_label(key)

    def is_node_allowed(self, terms: NodeConstraints, name: NodeName) -> bool:
        """Return whether a pod with these terms may use a node of a pool."""
        return self._is_node_allowed(self._signatures.signature_of(terms), name)

    def tolerates_taints(self, terms: NodeConstraints, name: NodeName) -> bool:
        """Return whether a pod with these terms tolerates the taints of a node of a pool."""
        home, node = self._nodes[name]
        if not node.taints:
            return True
        borne = (*terms.tolerations, *self._pools[home].tolerations)
        return first_untolerated_taint(node.taints, borne) is None

    def tolerates_readiness_taints(self, tolerated: Collection[Taint], node: Node) -> bool:
        """Return whether a pod tolerates the readiness taints of a node of a pool.

        `tolerated`: those that the pod tolerates by itself. The release adds those of the pool.
        """
        home, _ = self._nodes[node.name]
        borne = self._pools[home].tolerations
        return all(
            taint in tolerated or any(each.tolerates(taint) for each in borne)
            for taint in node.readiness_taints
        )

    def node(self, name: NodeName) -> Node | None:
        """Return a node. None if it is in no pool."""
        found = self._nodes.get(name)
        return found[1] if found is not None else None

    def members(self, pool: PoolName) -> list[Node]:
        """Return the nodes of a pool, unordered."""
        return list(self._members.get(pool, {}).values())

    def may_have_matching_node(self, terms: NodeConstraints, pool: PoolName) -> bool:
        """Return whether a pool has a node, ready or not, for these terms, or may get one.

        If a growing pool has no node, only its selector labels are known. Otherwise new nodes are
        assumed to be like its existing nodes.
        """
        if self._entry_of(terms).allowed_nodes.get(pool):
            return True
        known = self._pools.get(pool)
        if known is None or not known.max_capacity or self._members[pool]:
            return False
        return terms.matches_node("", known.selector)

    def allowed_nodes(self, terms: NodeConstraints, only: NodeSet, pool: PoolName) -> NodeSet:
        """Return the allowed nodes of a pool. None: any ready node."""
        if only is not None:
            here = (name for name in only if name in self._nodes)
            return tuple(
                n for n in here if self._nodes[n][0] == pool and self.is_node_allowed(terms, n)
            )
        known = self._entry_of(terms)
        if pool not in known.pins:
            able = known.allowed_nodes.get(pool, set())
            every = bool(able) and self._ready[pool] <= able
            known.pins[pool] = None if every else tuple(sorted(able))
        return known.pins[pool]

    def _mark_if_pool_empty(self, pool: PoolName) -> None:
        """Mark all terms if a growing pool has no nodes: the result of `may_have_matching_node` may
        change.
        """
        if self._pools[pool].max_capacity and not self._members[pool]:
            for known in self._known.values():
                self._changed_constraints |= known.term_numbers

    def _entry_of(self, terms: NodeConstraints) -> _Known:
        signature = self._signatures.signature_of(terms)
        known = self._known.get(signature.number)
        if known is None:
            known = self._known[signature.number] = _Known(ref(signature))
            for name in self._signatures.nodes_in(
                self._signatures.matching_nodes(signature)
                & ~self._find_untolerated_nodes(signature)
            ):
                known.allowed_nodes.setdefault(self._nodes[name][0], set()).add(name)
        known.term_numbers.add(terms.number)
        return known

    def _find_untolerated_nodes(self, signature: NodeConstraints) -> NodeBitset:
        """Return the nodes with a taint that neither the signature nor their pool tolerates."""
        barred = 0
        for taint, marks in self._signatures.untolerated_taints(signature):
            for name, pool in self._pools.items():
                if any(each.tolerates(taint) for each in pool.tolerations):
                    marks &= ~self._pool_bitsets[name]
            barred |= marks
        return barred

    def _is_node_allowed(self, signature: NodeConstraints, name: NodeName) -> bool:
        _, node = self._nodes[name]
        return signature.matches_node(name, node.labels) and self.tolerates_taints(signature, name)

    def _split_entries(self, parted: Iterable[SignatureChange]) -> list[_Joined]:
        """Split the cache entries of terms that got another signature.

        Return the terms that joined the entry of other terms: it may allow other nodes.
        """
        joined = []
        for terms, before, now in parted:
            known = self._known.get(before.number)
            if known is None or terms.number not in known.term_numbers:
                continue
            own = self._known.get(now.number)
            if own is None:
                able = {pool: set(names) for pool, names in known.allowed_nodes.items()}
                own = self._known[now.number] = _Known(ref(now), able, dict(known.pins))
            else:
                marked = terms.number in self._changed_constraints
                joined.append(_Joined(terms.number, own, known.served_pools, marked))
                self.version += 1
            own.term_numbers.add(terms.number)
            self._remove_terms(terms.number, before.number)
        return joined

    def _remove_terms(self, number: int, signature: int) -> None:
        """Remove terms from the entry of a signature. They are unused or have another signature."""
        known = self._known.get(signature)
        if known is not None:
            known.term_numbers.discard(number)
            if not known.term_numbers:
                del self._known[signature]

    def _update_entry(self, known: _Known, name: NodeName, left: PoolName | None = None) -> None:
        """Update a cache entry for one node, which exists or has `left` a pool."""
        signature = known.signature()
        if signature is None:
            return  # the terms are no longer in use
        home = left or self._nodes[name][0]
        able = known.allowed_nodes.setdefault(home, set())
        before, after = name in able, left is None and self._is_node_allowed(signature, name)
        if before and after:
            return
        known.pins.pop(home, None)  # its readiness may decide whether the pin is None
        self.version += 1
        if before != after:
            served = bool(able)
            (able.add if after else able.discard)(name)
            if served != bool(able):
                self._changed_constraints |= known.term_numbers


def node_constraints_of(pod: Pod) -> NodeConstraints:
    """Return the node constraints of a pod, without node names in its affinity."""
    terms = pod.node_constraints
    if terms is None:
        terms = ANYWHERE
        borne = relevant_tolerations(pod.tolerations)
        if pod.selector or pod.affinity is not None or borne:
            terms = NodeConstraints(tuple(sorted(pod.selector.items())), pod.affinity, borne)
            object.__setattr__(
                pod, "affinity", terms.affinity
            )  # an equal value that all pods share
        object.__setattr__(
            pod, "node_constraints", terms
        )  # cached: this is called often for each pod
    return terms


def filter_allowed(pin: NodeSet, among: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Return, by name, the given nodes that a pin allows."""
    return tuple(sorted(among if pin is None else (name for name in pin if name in among)))
