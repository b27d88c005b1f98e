"""The minimum of a tree of pod groups: a CompositePodGroup of Kubernetes with its child groups.

A PodGroup is complete with a number of pods, a CompositePodGroup with a number of complete child
groups. kube-scheduler counts in the same way (KEP-6012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.fairshare.user_queue import QueueKey


@dataclass(frozen=True, slots=True)
class GroupTree:
    """A PodGroup that needs `least` pods, or a composite group that needs `least` of `children`.

    `name` is the gang name of the group. `children` is None for a PodGroup.
    """

    name: str
    least: int
    children: tuple[GroupTree, ...] | None = None

    @property
    def fewest(self) -> int:
        """Return the smallest number of pods that completes it. A missing child counts as one."""
        if self.children is None:
            return self.least
        smallest = sorted(child.fewest for child in self.children)[: self.least]
        return sum(smallest) + self.least - len(smallest)

    def lacking(
        self, present: Mapping[str, int], ready: Mapping[str, Sequence[QueueKey]]
    ) -> list[QueueKey] | None:
        """Return the first ready pods that complete it, beside those that are present.

        `present` is the number of pods of each PodGroup that need not be released. None: it cannot
        be completed. Empty: it is complete. Child groups with older pods come first.
        """
        if self.children is None:
            count = max(0, self.least - present.get(self.name, 0))
            found = ready.get(self.name, ())
            return list(found[:count]) if len(found) >= count else None
        each = (child.lacking(present, ready) for child in self.children)
        complete = sorted((pods for pods in each if pods is not None), key=lambda pods: pods[:1])
        if len(complete) < self.least:
            return None
        return [pod for pods in complete[: self.least] for pod in pods]
