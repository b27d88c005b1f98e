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
    part: str


def reference_of(pod: Pod) -> GangReference:
    """Return the reference in a pod with a gang."""
    return GangReference(GangSource(pod.namespace, pod.gang), pod.gang_part)


@dataclass(frozen=True, slots=True)
class GangNumbers:
    """The numbers of one gang. `GangDeclaration` and `Gang` have fields of the same names."""

    size: int
    least: int = 0
    total: int | None = None
    succeeded: int = 0
    since: Millis | None = None
    tree: GroupTree | None = None
    preemption: str = ""


class DeclarationChange(NamedTuple):
    """The effect of a declaration.

    `before`, `owner`: the objects that owned the gangs of its pods before, and that own them now.
    `regroups`: the pods of the gangs of `before` may belong to other gangs now.
    """

    before: GangSource
    owner: GangSource
    changed: bool
    regroups: bool


class GangDeclarations:
    """The declarations of all objects that exist now."""

    def __init__(self) -> None:
        self._stated: dict[GangSource, GangDeclaration] = {}
        self._apart: set[GangSource] = set()
        """Groups whose pods are released one by one. There may be one for each Job."""
        self._children: dict[GangSource, dict[GangSource, None]] = {}
        self._outside: dict[GangSource, dict[Uid, None]] = {}
        """Pods of PodGroups that Fairgate does not hold. kube-scheduler counts them as well."""
        self._outside_of: dict[Uid, GangSource] = {}

    def put(self, group: GangDeclaration) -> DeclarationChange:
        """Record the declaration of an object."""
        source = GangSource(group.namespace, group.name)
        before, owner, was_apart = (
            self._stated.get(source),
            self.owner_of(source),
            source in self._apart,
        )
        self._remove(source)
        if group.apart:
            self._apart.add(source)
        else:
            self._stated[source] = group
            if group.parent:
                self._children.setdefault(_parent(group), {})[source] = None
        changed = before != group if not group.apart else not was_apart
        now = self.owner_of(source)
        regroups = owner != now or was_apart != group.apart or _names(before) != _names(group)
        return DeclarationChange(owner, now, changed, regroups)

    def drop(self, source: GangSource) -> None:
        """Record that an object was deleted."""
        self._remove(source)

    def put_outside(self, uid: Uid, source: GangSource) -> bool:
        """Record a pod of a PodGroup that is not managed. Return whether it is new."""
        if uid in self._outside_of:
            return False
        self._outside_of[uid] = source
        self._outside.setdefault(source, {})[uid] = None
        return True

    def drop_outside(self, uid: Uid) -> GangSource | None:
        """Remove a pod that ended. Return its PodGroup, or None if the pod is not known."""
        source = self._outside_of.pop(uid, None)
        if source is not None:
            del self._outside[source][uid]
            if not self._outside[source]:
                del self._outside[source]
        return source

    def is_apart(self, source: GangSource) -> bool:
        """Return whether the object states that each of its pods is released alone."""
        return source in self._apart

    def owner_of(self, source: GangSource) -> GangSource:
        """Return the topmost CompositePodGroup above a PodGroup, or the object itself."""
        for _ in range(DEEPEST):
            group = self._stated.get(source)
            if group is None or not group.parent:
                break
            source = _parent(group)
        return source

    def name_of(self, named: GangReference) -> str:
        """Return the name of the gang of a pod."""
        group = self._stated.get(named.source)
        if group is not None and named.part in dict(group.parts):
            return f"{named.source.name}/{named.part}"
        return self.owner_of(named.source).name

    def declaration_of(self, named: GangReference) -> GangNumbers | None:
        """Return the numbers of the gang of a pod, or None if no object states them."""
        owner = self.owner_of(named.source)
        group = self._stated.get(owner)
        if group is None:
            return None
        if owner.name.startswith(COMPOSITE):
            tree = self._tree(owner, DEEPEST)
            fewest = max(1, tree.fewest)
            return GangNumbers(UNBOUNDED, fewest, tree=tree, preemption=group.preemption)
        size, least = dict(group.parts).get(named.part, group.size), group.least
        if outside := len(self._outside.get(owner, ())):
            least = max(1, least - outside)
        numbers = (size, least, group.total, group.succeeded, group.since)
        return GangNumbers(*numbers, preemption=group.preemption)

    def _tree(self, source: GangSource, depth: int) -> GroupTree:
        least = self._stated[source].least
        if not source.name.startswith(COMPOSITE):
            return GroupTree(source.name, max(0, least - len(self._outside.get(source, ()))))
        below = sorted(self._children.get(source, ())) if depth else []
        return GroupTree(source.name, least, tuple(self._tree(each, depth - 1) for each in below))

    def _remove(self, source: GangSource) -> None:
        self._apart.discard(source)
        before = self._stated.pop(source, None)
        if before is None or not before.parent:
            return
        siblings = self._children[_parent(before)]
        del siblings[source]
        if not siblings:
            del self._children[_parent(before)]


def _parent(group: GangDeclaration) -> GangSource:
    return GangSource(group.namespace, COMPOSITE + group.parent)


def _names(group: GangDeclaration | None) -> frozenset[str]:
    return frozenset(name for name, _ in group.parts) if group is not None else frozenset()
