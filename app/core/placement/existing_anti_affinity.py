"""Released or unmanaged pods with required anti-affinity that closes nodes to other pods.

A pod is compared with the terms only before its release. So a term that comes or goes causes no
work for waiting pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.core.model import Holder, NodeName, Pod, Uid
from app.core.placement.pod_affinity import PodPeers
from app.core.podspec.anti_affinity_terms import AntiAffinityTerm, coarse_term, is_same_exclusion
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule

MAX_TERMS = 256
"""Maximum number of distinct terms that select pods of one namespace. A further term counts as
selecting every pod of the namespace, up to `MAX_TERMS` such terms. Further terms that select other
namespaces are ignored: kube-scheduler evaluates them and reports the result on the pod."""
MAX_CACHED_ANSWERS = 1000
"""Maximum number of cached answers."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A pod with terms: its node if bound, its terms, and the groups in which it counts there."""

    node: NodeName | None
    anti_affinity_terms: tuple[AntiAffinityTerm, ...]
    groups: tuple[str, ...]


class ExistingAntiAffinity:
    """Terms of existing pods, by the namespaces that they select."""

    def __init__(self, pod_peers: PodPeers) -> None:
        self._pod_peers = pod_peers
        self._pods: dict[Uid, _Held] = {}
        self._terms_by_namespace: dict[str, dict[str, AntiAffinityTerm]] = {}
        self._all_namespaces_terms: dict[str, AntiAffinityTerm] = {}
        self._holders: dict[str, dict[Uid, Holder]] = {}
        self._known: dict[
            tuple[str, int], tuple[Mapping[str, str] | None, tuple[AntiAffinityTerm, ...]]
        ] = {}

    def add_pod(
        self,
        uid: Uid,
        holder: Holder,
        node: NodeName | None,
        walls: tuple[AntiAffinityTerm, ...],
        *,
        managed: bool,
    ) -> None:
        """Add a released or unmanaged pod with these terms. `node` None: it is not bound.

        A pod that is not `managed` also counts among the pods with the same rule.
        """
        known = self._pods.get(uid)
        if known is not None and known.node == node:
            return
        self.drop_pod(uid)
        if not walls:
            return
        kept = tuple(filter(None, (self._add_term(wall, uid, holder) for wall in walls)))
        groups = {wall.group for wall in kept}
        if not managed:
            groups |= {wall.own_group for wall in walls if wall.own_group}
        self._pods[uid] = _Held(node, kept, tuple(sorted(groups)))
        if node is not None:
            self._pod_peers.count_bound(self._pods[uid].groups, node, 1)

    def drop_pod(self, uid: Uid) -> None:
        """Remove a pod that is gone, or held again. An unknown uid is ignored."""
        known = self._pods.pop(uid, None)
        if known is None:
            return
        if known.node is not None:
            self._pod_peers.count_bound(known.groups, known.node, -1)
        for wall in known.anti_affinity_terms:
            holders = self._holders[wall.group]
            holders.pop(uid, None)
            if not holders:
                del self._holders[wall.group]
                self._remove_term(wall)

    def rules_excluding(
        self, pod: Pod, mates: Iterable[AntiAffinityTerm] = ()
    ) -> tuple[PodDistanceRule, ...]:
        """Return the rules by which existing pods, or `mates`, close nodes to a pod."""
        found = {wall.group: wall for wall in self._selecting(pod)}
        found |= {w.group: w for w in mates if w.selects(pod.namespace, pod.labels)}
        return tuple(
            found[group].exclusion_rule
            for group in sorted(found)
            if not any(is_same_exclusion(each, found[group]) for each in pod.distance_rules)
        )

    def _selecting(self, pod: Pod) -> tuple[AntiAffinityTerm, ...]:
        """Return the terms that select a pod. Cached until terms come or go."""
        near = self._terms_by_namespace.get(pod.namespace)
        if not (near or self._all_namespaces_terms):
            return ()
        key = (pod.namespace, id(pod.labels))
        known = self._known.get(key)
        if known is None or known[0] is not pod.labels:
            if len(self._known) >= MAX_CACHED_ANSWERS:
                self._known.clear()
            terms = {**(near or {}), **self._all_namespaces_terms}.values()
            found = tuple(wall for wall in terms if wall.selects(pod.namespace, pod.labels))
            known = self._known[key] = pod.labels, found
        return known[1]

    def causing_pods(self, spacings: Iterable[PodDistanceRule]) -> tuple[Holder, ...]:
        """Return the pods that cause these rules, by namespace and name."""
        groups = {each.group for each in spacings if each.kind is DistanceRuleKind.AVOIDED}
        return tuple(sorted({h for g in groups for h in self._holders.get(g, {}).values()}))

    def _add_term(
        self, wall: AntiAffinityTerm, uid: Uid, holder: Holder
    ) -> AntiAffinityTerm | None:
        """Add a term within the bounds. Return the term that it counts as. None: ignored."""
        homes = self._terms_in_namespaces(wall)
        if wall.group not in self._holders and any(len(home) >= MAX_TERMS for home in homes):
            if wall.namespace_selector is not None or len(wall.namespaces) != 1:
                return None
            wall = coarse_term(wall.topology_key, wall.namespaces, everywhere=False)
            homes = self._terms_in_namespaces(wall)
            if wall.group not in self._holders and len(homes[0]) >= 2 * MAX_TERMS:
                return None
        if wall.group not in self._holders:
            self._known.clear()
        if wall.namespace_selector is not None:
            self._all_namespaces_terms[wall.group] = wall
        else:
            for namespace in sorted(wall.namespaces):
                self._terms_by_namespace.setdefault(namespace, {})[wall.group] = wall
        self._holders.setdefault(wall.group, {})[uid] = holder
        return wall

    def _remove_term(self, wall: AntiAffinityTerm) -> None:
        self._known.clear()
        self._all_namespaces_terms.pop(wall.group, None)
        for namespace in wall.namespaces:
            near = self._terms_by_namespace.get(namespace)
            if near is not None:
                near.pop(wall.group, None)
                if not near:
                    del self._terms_by_namespace[namespace]

    def _terms_in_namespaces(self, wall: AntiAffinityTerm) -> list[Mapping[str, AntiAffinityTerm]]:
        """Return the terms of each namespace that a term selects. Users may name any namespace."""
        if wall.namespace_selector is not None:
            return [self._all_namespaces_terms]
        return [self._terms_by_namespace.get(each, {}) for each in wall.namespaces]
