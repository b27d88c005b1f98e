"""Store sync: the writes that make the store equal the pod registry. All are idempotent."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.effects import Charge, Dequeue, Enqueue, Refund, StoreWrite
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.lifecycle.pod_record import PodRecord, Queueing
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.usage.tracker import UsageTracker

Copy = Enqueue | Dequeue | Charge | Refund | UsageStarted | UsageEnded
"""Store writes that follow from the accounting of a pod and from its usage record."""


class StoreSync:
    """The difference between the contents of the store and the state of the engine."""

    def __init__(self, roster: PodRegistry, running: UsageTracker, *, silent: bool = False) -> None:
        """`silent`: there is no store."""
        self._silent = silent
        self._roster = roster
        self._running = running

    def changes(self) -> Iterator[Copy]:
        """Yield, once, the writes that bring the store up to date. Call it only after `settle`."""
        for tracked in () if self._silent else self._roster.touched.values():
            # The usage record comes first: its start is in the intent, which a charge replaces.
            yield from self._running.follow(tracked)
            wanted = _copy_of(tracked)
            if wanted != tracked.written:
                yield from _turn_into(tracked, wanted)
                if wanted is None and tracked.life is PodState.USING:
                    yield Refund(tracked.pod.uid)  # its intent, if it was just released
                tracked.written = wanted
        self._roster.touched.clear()

    def whole(self) -> Iterator[StoreWrite]:
        """Yield the complete contents of the store. Call it only after `settle`."""
        for tracked in self._roster.pods.values():
            if tracked.run is not None:
                yield UsageStarted(tracked.run)
            if tracked.written is not None:
                yield _write(tracked, tracked.written)
            if tracked.life is PodState.RELEASING and tracked.intent is not None:
                yield tracked.intent

    def gone(self, tracked: PodRecord) -> Iterator[Copy]:
        """Yield the writes that remove a pod from the store."""
        if self._silent:
            return
        yield from self._running.gone(tracked)
        yield from _turn_into(tracked, None)
        if tracked.life is not PodState.HELD and not isinstance(tracked.written, Charge):
            yield Refund(tracked.pod.uid)  # its intent, which no charge has replaced


def _copy_of(tracked: PodRecord) -> Queueing | Charge | None:
    leaf = tracked.leaf
    if leaf is None:
        return None
    if tracked.life is not PodState.USING:
        return leaf.account
    if tracked.pool is None:
        return None
    pod = tracked.pod
    return Charge(pod.uid, leaf.tenant, pod.user, tracked.pool, pod.demand)


def _write(tracked: PodRecord, copy: Queueing | Charge) -> Enqueue | Charge:
    if isinstance(copy, Charge):
        return copy
    return Enqueue(tracked.ref, *copy, tracked.turn.rank)


def _turn_into(tracked: PodRecord, wanted: Queueing | Charge | None) -> Iterator[Copy]:
    """Yield the writes that replace the last write by the wanted one."""
    old = tracked.written
    if isinstance(old, Charge):
        if not isinstance(wanted, Charge):
            yield Refund(tracked.pod.uid)
    elif old is not None:
        yield Dequeue(tracked.pod.uid)
    if wanted is not None:
        yield _write(tracked, wanted)
