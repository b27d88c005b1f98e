"""The numbers of gangs in Jobs, JobSets and pod groups, and the gang of each pod.

A pod names an object, its source. Usually the gang has the name of the source. There are two
exceptions. If a JobSet starts its replicated jobs one after another, each replicated job is a gang.
All PodGroups below a CompositePodGroup are one gang, with the name of the topmost one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from app.core.lifecycle.group_tree import GroupTree
from app.core.model import Millis, Pod, Uid
from app.core.podspec.pod_groups import COMPOSITE, UNBOUNDED, GangDeclaration

DEEPEST = 8
"""Limit of the levels of a tree that are followed. Kubernetes allows four."""


class GangSource(NamedTuple):
    """An object that states something about gangs, by namespace and gang name."""

    namespace: str
    name: str


class GangReference(NamedTuple):
    """The object that a pod names as its gang, and the replicated job that made the pod, or ""."""

    source: GangSource
    replicated_job: str


def reference_of(pod: Pod) -> GangReference:
    """Return the reference in a pod with a gang."""
    return GangReference(GangSource(pod.namespace, pod.gang), pod.replicated_job)


@dataclass(frozen=True, slots=True)
class GangNumbers:
    """The numbers of one gang. `GangDeclaration` and `Gang` have fields of the same names."""

    size: int
    min_count: int = 0
    required_successes: int | None = None
    succeeded_count: int = 0
    waiting_since: Millis | None = None
    group_tree: GroupTree | None = None
    preemption_policy: str = ""


class DeclarationChange(NamedTuple):
    """The effect of a declaration.

    `before`, `owner`: the objects that owned the gangs of its pods before, and that owns them now.
    The pods of the gangs of `before` may belong to other gangs now.
    """

    before: tuple[GangSource, ...]
    owner: GangSource
    changed: bool


class GangDeclarations:
    """The declarations of all objects that exist now."""

    def __init__(self) -> None:
        self._declarations: dict[GangSource, GangDeclaration] = {}
        self._dropped_below: dict[GangSource, dict[GangSource, None]] = {}
        """Deleted child groups whose pods are still in the gang of this object."""
        self._released_singly: set[GangSource] = set()
        """Groups whose pods are released one by one. There may be one for each Job."""
        self._children: dict[GangSource, dict[GangSource, None]] = {}
        self._unmanaged_pods: dict[GangSource, dict[Uid, None]] = {}
        """Pods of PodGroups that Fairgate does not hold. kube-scheduler counts them as well."""
        self._unmanaged_pod_source: dict[Uid, GangSource] = {}

    def record_declaration(self, group: GangDeclaration) -> DeclarationChange:
        """Record the declaration of an object."""
        source = GangSource(group.namespace, group.name)
        before, owner, was_apart = (
            self._declarations.get(source),
            self.owner_of(source),
            source in self._released_singly,
        )
        self._remove(source)
        if group.is_released_singly:
            self._released_singly.add(source)
        else:
            self._declarations[source] = group
            if group.parent:
                self._children.setdefault(_parent(group), {})[source] = None
        changed = before != group if not group.is_released_singly else not was_apart
        now = self.owner_of(source)
        dropped = self._recall_dropped(source) if before is None else []
        left = tuple(each for each in dropped if each not in (now, owner))
        regroups = (
            owner != now or was_apart != group.is_released_singly or _names(before) != _names(group)
        )
        return DeclarationChange((owner, *left) if regroups else left, now, changed)

    def drop_declaration(self, source: GangSource) -> GangSource:
        """Record that an object was deleted. Return the owner of the gang that keeps its pods."""
        owner = self.owner_of(source)
        if owner != source:
            self._dropped_below.setdefault(owner, {})[source] = None
        self._remove(source)
        return owner

    def forget_owner(self, owner: GangSource) -> None:
        """Record that the gangs of an object have no pods any more."""
        self._dropped_below.pop(owner, None)

    def _recall_dropped(self, source: GangSource) -> list[GangSource]:
        """Return, once, the objects that owned the gangs of the pods of a deleted group."""
        owners = [owner for owner, groups in self._dropped_below.items() if source in groups]
        for owner in owners:
            del self._dropped_below[owner][source]
            if not self._dropped_below[owner]:
                del self._dropped_below[owner]
        return owners

    def add_unmanaged_pod(self, uid: Uid, source: GangSource) -> bool:
        """Record a pod of a PodGroup that is not managed. Return whether it is new."""
        if uid in self._unmanaged_pod_source:
            return False
        self._unmanaged_pod_source[uid] = source
        self._unmanaged_pods.setdefault(source, {})[uid] = None
        return True

    def remove_unmanaged_pod(self, uid: Uid) -> GangSource | None:
        """Remove a pod that ended. Return its PodGroup, or None if the pod is not known."""
        source = self._unmanaged_pod_source.pop(uid, None)
        if source is not None:
            del self._unmanaged_pods[source][uid]
            if not self._unmanaged_pods[source]:
                del self._unmanaged_pods[source]
        return source

    def is_released_singly(self, source: GangSource) -> bool:
        """Return whether the object states that each of its pods is released alone."""
        return source in self._released_singly

    def owner_of(self, source: GangSource) -> GangSource:
        """Return the topmost CompositePodGroup above a PodGroup, or the object itself."""
        for _ in range(DEEPEST):
            group = self._declarations.get(source)
            if group is None or not group.parent:
                break
            source = _parent(group)
        return source

    def name_of(self, named: GangReference) -> str:
        """Return the name of the gang of a pod."""
        group = self._declarations.get(named.source)
        if group is not None and named.replicated_job in dict(group.replicated_jobs):
            return f"{named.source.name}/{named.replicated_job}"
        return self.owner_of(named.source).name

    def declaration_of(self, named: GangReference) -> GangNumbers | None:
        """Return the numbers of the gang of a pod, or None if no object states them."""
        owner = self.owner_of(named.source)
        group = self._declarations.get(owner)
        if group is None:
            return None
        if owner.name.startswith(COMPOSITE):
            tree = self._tree(owner, DEEPEST)
            fewest = max(1, tree.min_pods)
            return GangNumbers(
                UNBOUNDED, fewest, group_tree=tree, preemption_policy=group.preemption_policy
            )
        size, least = (
            dict(group.replicated_jobs).get(named.replicated_job, group.size),
            group.min_count,
        )
        if outside := len(self._unmanaged_pods.get(owner, ())):
            least = max(1, least - outside)
        numbers = (
            size,
            least,
            group.required_successes,
            group.succeeded_count,
            group.waiting_since,
        )
        return GangNumbers(*numbers, preemption_policy=group.preemption_policy)

    def _tree(self, source: GangSource, depth: int) -> GroupTree:
        least = self._declarations[source].min_count
        if not source.name.startswith(COMPOSITE):
            return GroupTree(source.name, max(0, least - len(self._unmanaged_pods.get(source, ()))))
        below = sorted(self._children.get(source, ())) if depth else []
        return GroupTree(source.name, least, tuple(self._tree(each, depth - 1) for each in below))

    def _remove(self, source: GangSource) -> None:
        self._released_singly.discard(source)
        before = self._declarations.pop(source, None)
        if before is None or not before.parent:
            return
        siblings = self._children[_parent(before)]
        del siblings[source]
        if not siblings:
            del self._children[_parent(before)]


def _parent(group: GangDeclaration) -> GangSource:
    return GangSource(group.namespace, COMPOSITE + group.parent)


def _names(group: GangDeclaration | None) -> frozenset[str]:
    return (
        frozenset(name for name, _ in group.replicated_jobs) if group is not None else frozenset()
    )
