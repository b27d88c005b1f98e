"""Store sync: the writes that make the store equal the pod registry. All are idempotent."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.effects import Charge, Dequeue, Enqueue, ListOrder, Refund, StoreWrite
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.lifecycle.pod_record import Gang, PodRecord, Queueing, StoreListing
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
        self._first_held: dict[Gang, tuple[Uid, int]] = {}
        """First held pod and number of held pods of each incomplete gang, while it is needed."""

    def drain_writes(self) -> Iterator[Copy]:
        """Yield, once, the writes that bring the store up to date. Call it only after `settle`."""
        for tracked in () if self._silent else self._registry.changed_pods.values():
            # The usage record comes first: its start is in the intent, which a charge replaces.
            yield from self._running.update_record(tracked)
            wanted = self._wanted_entry(tracked)
            if wanted != tracked.store_state:
                yield from _replacing_writes(tracked, wanted)
                if wanted is None and tracked.state is PodState.USING:
                    yield Refund(tracked.pod.uid)  # its intent, if it was just released
                tracked.store_state = wanted
        self._registry.changed_pods.clear()
        self._first_held.clear()

    def all_writes(self) -> Iterator[StoreWrite]:
        """Yield the complete contents of the store. Call it only after `settle`."""
        for tracked in self._registry.pods.values():
            if tracked.usage_record is not None:
                yield UsageStarted(tracked.usage_record)
            if tracked.store_state is not None:
                yield _write(tracked, tracked.store_state)
            if tracked.state is PodState.RELEASING and tracked.intent is not None:
                yield tracked.intent

    def removal_writes(self, tracked: PodRecord) -> Iterator[Copy]:
        """Yield the writes that remove a pod from the store."""
        if self._silent:
            return
        yield from self._running.close_record(tracked)
        yield from _replacing_writes(tracked, None)
        if tracked.state is not PodState.HELD and not isinstance(tracked.store_state, Charge):
            yield Refund(tracked.pod.uid)  # its intent, which no charge has replaced

    def _wanted_entry(self, tracked: PodRecord) -> Queueing | StoreListing | Charge | None:
        leaf = tracked.leaf
        if leaf is None:
            return None
        if tracked.state is not PodState.USING:
            return self._listing(tracked, leaf.account)
        if tracked.pool is None:
            return None
        pod = tracked.pod
        return Charge(pod.uid, leaf.tenant, pod.user, tracked.pool, pod.demand)

    def _listing(self, tracked: PodRecord, account: Queueing) -> Queueing | StoreListing:
        """Return how a pending pod is listed. `explain.queue_listing` has the same rules.

        A pod keeps its place while its release is under way, until it is confirmed.
        """
        if tracked.state is PodState.RELEASING:
            before = tracked.store_state
            stays = isinstance(before, StoreListing) and before.account == account
            return before if isinstance(before, StoreListing) and stays else account
        if tracked.gang is not None:
            return self._listing_in(tracked.gang, tracked, account)
        return (
            account
            if tracked.equivalence_class is not None
            else StoreListing(account, ListOrder.UNQUEUED)
        )

    def _listing_in(self, gang: Gang, tracked: PodRecord, account: Queueing) -> StoreListing:
        """Return how a held pod of a gang is listed: its first pod stands for all.

        Each further pod of an elastic gang is listed alone when its minimum was released.
        """
        if gang.releases_singly:
            alone = (
                ListOrder.QUEUED if tracked.equivalence_class is not None else ListOrder.UNQUEUED
            )
            return StoreListing(account, alone, gang.name)
        if gang.queue_key is not None and (tracked.wait_reason is Wait.TURN or not gang.is_elastic):
            order, rank = ListOrder.QUEUED, gang.queue_key.rank
            first, pods = gang.queue_key.uid, len(gang.pods_to_release)
        else:
            order, rank = ListOrder.UNQUEUED, ""
            if gang not in self._first_held:
                held = [each for each in gang.pods.values() if not each.counts_as_used]
                waiting = [each for each in held if each.wait_reason is not Wait.TURN]
                those = held if gang.queue_key is None else waiting
                self._first_held[gang] = min(each.queue_key for each in those).uid, len(waiting)
            first, pods = self._first_held[gang]
        if tracked.pod.uid != first:
            return StoreListing(account, ListOrder.MEMBER, gang.name)
        return StoreListing(account, order, gang.name, rank, pods)


def _write(tracked: PodRecord, copy: Queueing | StoreListing | Charge) -> Enqueue | Charge:
    if isinstance(copy, Charge):
        return copy
    if isinstance(copy, StoreListing):
        rank = copy.rank or tracked.queue_key.rank
        return Enqueue(tracked.ref, *copy.account, rank, copy.order, copy.gang, copy.pods)
    return Enqueue(tracked.ref, *copy, tracked.queue_key.rank)


def _replacing_writes(
    tracked: PodRecord, wanted: Queueing | StoreListing | Charge | None
) -> Iterator[Copy]:
    """Yield the writes that replace the last write by the wanted one.

    An Enqueue replaces an earlier one.
    """
    old = tracked.store_state
    if isinstance(old, Charge):
        if not isinstance(wanted, Charge):
            yield Refund(tracked.pod.uid)
    elif old is not None and (wanted is None or isinstance(wanted, Charge)):
        yield Dequeue(tracked.pod.uid)
    if wanted is not None:
        yield _write(tracked, wanted)
