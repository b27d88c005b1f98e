"""Store sync: the writes that make the store equal the pod registry. All are idempotent."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.effects import Charge, Dequeue, Enqueue, ListOrder, Refund, StoreWrite
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.lifecycle.pod_record import Gang, Listed, PodRecord, Queueing
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Uid, Wait
from app.core.usage.tracker import UsageTracker

Copy = Enqueue | Dequeue | Charge | Refund | UsageStarted | UsageEnded
"""Store writes that follow from the accounting of a pod and from its usage record."""


class StoreSync:
    """The difference between the contents of the store and the state of the engine."""

    def __init__(
        self, registry: PodRegistry, running: UsageTracker, *, silent: bool = False
    ) -> None:
        """`silent`: there is no store."""
        self._silent = silent
        self._registry = registry
        self._running = running
        self._firsts: dict[Gang, tuple[Uid, int]] = {}
        """First held pod and number of held pods of each incomplete gang, while it is needed."""

    def changes(self) -> Iterator[Copy]:
        """Yield, once, the writes that bring the store up to date. Call it only after `settle`."""
        for tracked in () if self._silent else self._registry.touched.values():
            # The usage record comes first: its start is in the intent, which a charge replaces.
            yield from self._running.follow(tracked)
            wanted = self._copy_of(tracked)
            if wanted != tracked.written:
                yield from _turn_into(tracked, wanted)
                if wanted is None and tracked.life is PodState.USING:
                    yield Refund(tracked.pod.uid)  # its intent, if it was just released
                tracked.written = wanted
        self._registry.touched.clear()
        self._firsts.clear()

    def whole(self) -> Iterator[StoreWrite]:
        """Yield the complete contents of the store. Call it only after `settle`."""
        for tracked in self._registry.pods.values():
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

    def _copy_of(self, tracked: PodRecord) -> Queueing | Listed | Charge | None:
        leaf = tracked.leaf
        if leaf is None:
            return None
        if tracked.life is not PodState.USING:
            return self._listing(tracked, leaf.account)
        if tracked.pool is None:
            return None
        pod = tracked.pod
        return Charge(pod.uid, leaf.tenant, pod.user, tracked.pool, pod.demand)

    def _listing(self, tracked: PodRecord, account: Queueing) -> Queueing | Listed:
        """Return how a pending pod is listed. `explain.queue_listing` has the same rules.

        A pod keeps its place while its release is under way, until it is confirmed.
        """
        if tracked.life is PodState.RELEASING:
            before = tracked.written
            stays = isinstance(before, Listed) and before.account == account
            return before if isinstance(before, Listed) and stays else account
        if tracked.gang is not None:
            return self._listing_in(tracked.gang, tracked, account)
        return account if tracked.shape is not None else Listed(account, ListOrder.UNQUEUED)

    def _listing_in(self, gang: Gang, tracked: PodRecord, account: Queueing) -> Listed:
        """Return how a held pod of a gang is listed: its first pod stands for all.

        Each further pod of an elastic gang is listed alone when its minimum was released.
        """
        if gang.steps:
            alone = ListOrder.QUEUED if tracked.shape is not None else ListOrder.UNQUEUED
            return Listed(account, alone, gang.name)
        if gang.queue_key is not None and (tracked.wait is Wait.TURN or not gang.is_elastic):
            order, rank = ListOrder.QUEUED, gang.queue_key.rank
            first, pods = gang.queue_key.uid, len(gang.starting)
        else:
            order, rank = ListOrder.UNQUEUED, ""
            if gang not in self._firsts:
                held = [each for each in gang.pods.values() if not each.uses]
                waiting = [each for each in held if each.wait is not Wait.TURN]
                those = held if gang.queue_key is None else waiting
                self._firsts[gang] = min(each.queue_key for each in those).uid, len(waiting)
            first, pods = self._firsts[gang]
        if tracked.pod.uid != first:
            return Listed(account, ListOrder.MEMBER, gang.name)
        return Listed(account, order, gang.name, rank, pods)


def _write(tracked: PodRecord, copy: Queueing | Listed | Charge) -> Enqueue | Charge:
    if isinstance(copy, Charge):
        return copy
    if isinstance(copy, Listed):
        rank = copy.rank or tracked.queue_key.rank
        return Enqueue(tracked.ref, *copy.account, rank, copy.order, copy.gang, copy.pods)
    return Enqueue(tracked.ref, *copy, tracked.queue_key.rank)


def _turn_into(tracked: PodRecord, wanted: Queueing | Listed | Charge | None) -> Iterator[Copy]:
    """Yield the writes that replace the last write by the wanted one.

    An Enqueue replaces an earlier one.
    """
    old = tracked.written
    if isinstance(old, Charge):
        if not isinstance(wanted, Charge):
            yield Refund(tracked.pod.uid)
    elif old is not None and (wanted is None or isinstance(wanted, Charge)):
        yield Dequeue(tracked.pod.uid)
    if wanted is not None:
        yield _write(tracked, wanted)
