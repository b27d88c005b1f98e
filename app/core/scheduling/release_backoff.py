"""Backoff of held pods after a refused release patch or an expensive evaluation."""

from __future__ import annotations

from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, Uid

FIRST = 1_000
LONGEST = 64_000
"""First and longest backoff in milliseconds after a refused release."""


FIRST_POSTPONEMENT = 60_000
LONGEST_POSTPONEMENT = 3_600_000
"""First and longest backoff in milliseconds after an expensive evaluation."""

MOST_DOUBLINGS = 6

FIRST_RECLAIM_PAUSE = 60_000
LONGEST_RECLAIM_PAUSE = 600_000
"""First and longest time in milliseconds in which no pod is evicted for a pod after a refused
release. What refused it may refuse it again, and the eviction would be useless."""


class ReleaseBackoff:
    """The pods in backoff, and when it ends."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._until: dict[Uid, Millis] = {}

    def start_backoff(self, at: Millis, tracked: PodRecord) -> None:
        """Start the backoff of a pod. It doubles with each refusal."""
        pause = min(FIRST << tracked.release_refusals, LONGEST)
        longer = min(FIRST_RECLAIM_PAUSE << tracked.release_refusals, LONGEST_RECLAIM_PAUSE)
        self._registry.reclaim_pauses[tracked.pod.uid] = Millis(at + longer)
        tracked.release_refusals += 1
        self._until[tracked.pod.uid] = Millis(at + pause)
        self._registry.set_backing_off(tracked, True)

    def postpone(self, at: Millis, tracked: PodRecord) -> None:
        """Start the backoff of a pod with an expensive evaluation. It doubles each time."""
        pause = min(FIRST_POSTPONEMENT << tracked.postponements, LONGEST_POSTPONEMENT)
        tracked.postponements = min(tracked.postponements + 1, MOST_DOUBLINGS)
        tracked.is_postponed = True
        self._until[tracked.pod.uid] = Millis(at + pause)
        self._registry.set_backing_off(tracked, True)

    def expire(self, at: Millis) -> None:
        """Return the pods with an expired backoff to their queues."""
        for uid in [uid for uid, until in self._until.items() if until <= at]:
            del self._until[uid]
            if uid in self._registry.pods:
                self._registry.set_backing_off(self._registry.pods[uid], False)

    def pods_in_backoff(self) -> list[Uid]:
        """Return the pods in backoff."""
        return list(self._until)

    def due(self) -> Millis | None:
        """Return when the next backoff ends, or None."""
        return min(self._until.values(), default=None)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._until.pop(uid, None)
        self._registry.reclaim_pauses.pop(uid, None)
