"""Stale pods: held pods whose owner is gone, and running pods whose devices are idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from app.core.effects import Effect, EmitEvent, EventReason, EvictPod
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Pod, TenantName, Uid
from app.core.policy import Mode


class StaleReason(Enum):
    """Why a pod uses its queue position or its capacity without benefit."""

    OWNERLESS = "ownerless"
    """It is held, and its controller no longer exists."""
    IDLE = "idle"
    """It runs, and its devices are idle."""


SURE_MS = 60_000
"""Minimum time between two findings before an eviction, because one sample may be wrong."""
PAUSE_MS = 3_600_000
"""Minimum time between two events for an owner."""
AGAIN_MS = 300_000
"""Minimum time between two eviction requests."""


@dataclass(slots=True)
class _StaleEntry:
    reason: StaleReason
    why: str
    since: Millis
    reported_at: Millis
    requested_at: Millis | None = None


class StalePods:
    """Pods that were found stale, until they are gone or cleared."""

    def __init__(
        self,
        registry: PodRegistry,
        reclaims: Collection[StaleReason],
        is_accepted: Callable[[Uid], bool],
    ) -> None:
        """`is_accepted` returns whether an eviction was accepted, even if it is not visible yet."""
        self._registry = registry
        self._is_accepted = is_accepted
        self._reclaims = frozenset(reclaims)
        self._entries: dict[Uid, _StaleEntry] = {}

    def record_stale_pod(self, uid: Uid, kind: StaleReason, why: str) -> list[Effect]:
        """Record a pod as stale. `why` is a sentence for its owner."""
        tracked, now = self._registry.pods.get(uid), self._registry.usage.now
        if tracked is None or not _could_be(tracked, kind):
            return []
        effects: list[Effect] = []
        found = self._entries.get(uid)
        if found is None or found.reason is not kind:
            found = self._entries[uid] = _StaleEntry(kind, why, now, now)
            effects.append(EmitEvent(tracked.ref, EventReason.USELESS, why))
        elif now - found.reported_at >= PAUSE_MS:
            found.reported_at = now
            effects.append(EmitEvent(tracked.ref, EventReason.USELESS, why))
        found.why = why
        return effects + self._reclaim(tracked, found, now)

    def clear_finding(self, uid: Uid, kind: StaleReason | None = None) -> list[Uid]:
        """Clear the finding of a pod, for one reason or for any.

        Return the pods with an obsolete eviction: the pod and its gang. Empty if a pod of the gang
        is already being evicted.
        """
        found = self._entries.get(uid)
        if found is None or kind not in (None, found.reason):
            return []
        del self._entries[uid]
        tracked = self._registry.pods.get(uid)
        if found.requested_at is None or tracked is None:
            return []
        mates = tracked.gang.members if tracked.gang is not None else (tracked,)
        if any(mate.pod.terminating or self._is_accepted(mate.pod.uid) for mate in mates):
            return []
        for mate in mates:
            if (known := self._entries.get(mate.pod.uid)) is not None:
                known.requested_at = None
        return [mate.pod.uid for mate in mates]

    def idle_candidates(self) -> Iterator[Pod]:
        """Return the pods that may have idle devices: ungated pods with managed requests."""
        using = (t for t in self._registry.pods.values() if _could_be(t, StaleReason.IDLE))
        return (tracked.pod for tracked in using)

    def count_by_tenant(self) -> Counter[tuple[TenantName, str]]:
        """Return the number of stale pods by tenant and kind."""
        return Counter(
            (leaf.tenant, found.reason.value)
            for uid, found in self._entries.items()
            if (known := self._registry.pods.get(uid)) and (leaf := known.leaf)
        )

    def end_term(self) -> None:
        """End a leader term."""
        self._entries.clear()

    def _reclaim(self, tracked: PodRecord, entry: _StaleEntry, now: Millis) -> list[Effect]:
        """Return the permitted evictions. A gang is evicted only if all its pods are stale."""
        if entry.reason not in self._reclaims or self._registry.usage.policy.mode is Mode.OBSERVE:
            return []
        mates = tracked.gang.members if tracked.gang is not None else (tracked,)
        effects: list[Effect] = []
        for mate in mates:
            known = self._entries.get(mate.pod.uid)
            if known is None or known.reason is not entry.reason or now - known.since < SURE_MS:
                return []
            if not (mate.pod.preemptible or entry.reason is StaleReason.OWNERLESS):
                return []
            if known.requested_at is None or now - known.requested_at >= AGAIN_MS:
                effects.append(EvictPod(mate.ref, known.why, known.reason.value))
        for mate in mates if effects else ():
            self._entries[mate.pod.uid].requested_at = now
        return effects


def _could_be(tracked: PodRecord, kind: StaleReason) -> bool:
    """Return whether a finding can apply to a pod. The finding may be outdated."""
    if tracked.pod.terminating:
        return False
    if kind is StaleReason.OWNERLESS:
        return tracked.state is PodState.HELD
    return tracked.state is PodState.USING and tracked.pod.needs_managed
