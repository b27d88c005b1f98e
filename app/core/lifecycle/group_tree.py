"""The minimum of a tree of pod groups: a CompositePodGroup of Kubernetes with its child groups.

A PodGroup is complete with a number of pods, a CompositePodGroup with a number of complete child
groups. kube-scheduler counts in the same way (KEP-6012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupTree:
    """A PodGroup that needs `min_count` pods, or a composite group that needs `min_count` of
    `children`.

    `name` is the gang name of the group. `children` is None for a PodGroup.
    """

    name: str
    min_count: int
    children: tuple[GroupTree, ...] | None = None

    @property
    def min_pods(self) -> int:
        """Return the smallest number of pods that completes it. A missing child counts as one."""
        if self.children is None:
            return self.min_count
        smallest = sorted(child.min_pods for child in self.children)[: self.min_count]
        return sum(smallest) + self.min_count - len(smallest)

    @property
    def is_possible(self) -> bool:
        """Return whether enough child groups exist to complete it."""
        if self.children is None:
            return True
        return sum(child.is_possible for child in self.children) >= self.min_count

    def is_completed_by(self, present: Mapping[str, int]) -> bool:
        """Return whether this number of pods of each PodGroup completes it."""
        return self.pods_to_complete(present, {}) == []

    def pods_to_complete(
        self, present: Mapping[str, int], ready: Mapping[str, Sequence[int]]
    ) -> list[int] | None:
        """Return the first ready pods that complete it, beside those that are present.

        `ready` are the positions of the ready pods of each PodGroup in one order, ascending.
        `present` is the number of pods of each PodGroup that need not be released. None: it cannot
        be completed. Empty: it is complete. Child groups with earlier pods come first.
        """
        if self.children is None:
            count = max(0, self.min_count - present.get(self.name, 0))
            found = ready.get(self.name, ())
            return list(found[:count]) if len(found) >= count else None
        each = (child.pods_to_complete(present, ready) for child in self.children)
        complete = sorted((pods for pods in each if pods is not None), key=lambda pods: pods[:1])
        if len(complete) < self.min_count:
            return None
        return [pod for pods in complete[: self.min_count] for pod in pods]
