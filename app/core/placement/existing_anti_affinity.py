"""Released or unmanaged pods with required anti-affinity that closes nodes to other pods.

A pod is compared with the terms only before its release. So a term that comes or goes causes no
work for waiting pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.core.model import Holder, NodeName, Pod, Uid
from app.core.placement.pod_affinity import PodPeers
from app.core.podspec.anti_affinity_terms import AntiAffinityTerm, coarse, same_bar
from app.core.podspec.constraints import PodDistanceRule, PodDistanceRules

MOST = 256
"""Maximum number of distinct terms that select pods of one namespace. A further term counts as
selecting every pod of the namespace, up to `MOST` such terms. Further terms that select other
namespaces are ignored: kube-scheduler evaluates them and reports the result on the pod."""
FEW = 1000
"""Maximum number of cached answers."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A pod with terms: its node if bound, its terms, and the groups in which it counts there."""

    node: NodeName | None
    walls: tuple[AntiAffinityTerm, ...]
    groups: tuple[str, ...]


class ExistingAntiAffinity:
    """Terms of existing pods, by the namespaces that they select."""

    def __init__(self, company: PodPeers) -> None:
        self._company = company
        self._held: dict[Uid, _Held] = {}
        self._near: dict[str, dict[str, AntiAffinityTerm]] = {}
        self._wide: dict[str, AntiAffinityTerm] = {}
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
        known = self._held.get(uid)
        if known is not None and known.node == node:
            return
        self.drop(uid)
        if not walls:
            return
        kept = tuple(filter(None, (self._admit(wall, uid, holder) for wall in walls)))
        groups = {wall.group for wall in kept}
        if not managed:
            groups |= {wall.like for wall in walls if wall.like}
        self._held[uid] = _Held(node, kept, tuple(sorted(groups)))
        if node is not None:
            self._company.count_bound(self._held[uid].groups, node, 1)

    def drop(self, uid: Uid) -> None:
        """Remove a pod that is gone, or held again. An unknown uid is ignored."""
        known = self._held.pop(uid, None)
        if known is None:
            return
        if known.node is not None:
            self._company.count_bound(known.groups, known.node, -1)
        for wall in known.walls:
            holders = self._holders[wall.group]
            holders.pop(uid, None)
            if not holders:
                del self._holders[wall.group]
                self._forget(wall)

    def against(
        self, pod: Pod, mates: Iterable[AntiAffinityTerm] = ()
    ) -> tuple[PodDistanceRules, ...]:
        """Return the rules by which existing pods, or `mates`, close nodes to a pod."""
        found = {wall.group: wall for wall in self._selecting(pod)}
        found |= {w.group: w for w in mates if w.selects(pod.namespace, pod.labels)}
        return tuple(
            found[group].bar
            for group in sorted(found)
            if not any(same_bar(each, found[group]) for each in pod.spacings)
        )

    def _selecting(self, pod: Pod) -> tuple[AntiAffinityTerm, ...]:
        """Return the terms that select a pod. Cached until terms come or go."""
        near = self._near.get(pod.namespace)
        if not (near or self._wide):
            return ()
        key = (pod.namespace, id(pod.labels))
        known = self._known.get(key)
        if known is None or known[0] is not pod.labels:
            if len(self._known) >= FEW:
                self._known.clear()
            terms = {**(near or {}), **self._wide}.values()
            found = tuple(wall for wall in terms if wall.selects(pod.namespace, pod.labels))
            known = self._known[key] = pod.labels, found
        return known[1]

    def holders(self, spacings: Iterable[PodDistanceRules]) -> tuple[Holder, ...]:
        """Return the pods that cause these rules, by namespace and name."""
        groups = {each.group for each in spacings if each.distance is PodDistanceRule.AVOIDED}
        return tuple(sorted({h for g in groups for h in self._holders.get(g, {}).values()}))

    def _admit(self, wall: AntiAffinityTerm, uid: Uid, holder: Holder) -> AntiAffinityTerm | None:
        """Add a term within the bounds. Return the term that it counts as. None: ignored."""
        homes = self._homes(wall)
        if wall.group not in self._holders and any(len(home) >= MOST for home in homes):
            if wall.everywhere is not None or len(wall.namespaces) != 1:
                return None
            wall = coarse(wall.key, wall.namespaces, everywhere=False)
            homes = self._homes(wall)
            if wall.group not in self._holders and len(homes[0]) >= 2 * MOST:
                return None
        if wall.group not in self._holders:
            self._known.clear()
        if wall.everywhere is not None:
            self._wide[wall.group] = wall
        else:
            for namespace in sorted(wall.namespaces):
                self._near.setdefault(namespace, {})[wall.group] = wall
        self._holders.setdefault(wall.group, {})[uid] = holder
        return wall

    def _forget(self, wall: AntiAffinityTerm) -> None:
        self._known.clear()
        self._wide.pop(wall.group, None)
        for namespace in wall.namespaces:
            near = self._near.get(namespace)
            if near is not None:
                near.pop(wall.group, None)
                if not near:
                    del self._near[namespace]

    def _homes(self, wall: AntiAffinityTerm) -> list[Mapping[str, AntiAffinityTerm]]:
        """Return the terms of each namespace that a term selects. Users may name any namespace."""
        if wall.everywhere is not None:
            return [self._wide]
        return [self._near.get(each, {}) for each in wall.namespaces]
