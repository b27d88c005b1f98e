"""What the store must be told, so that it equals the roster. Every write is idempotent."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.accounts.running import Running
from app.core.effects import Charge, Dequeue, Enqueue, Refund, StoreWrite
from app.core.fair.runs import Begun, Ran
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Queueing, Tracked

Copy = Enqueue | Dequeue | Charge | Refund | Begun | Ran
"""The store writes that follow from a pod's place, and from how long it has it."""


class Copies:
    """The difference between what the store was told and what is so."""

    def __init__(self, roster: Roster, running: Running, *, silent: bool = False) -> None:
        """`silent`: there is no store."""
        self._silent = silent
        self._roster = roster
        self._running = running

    def changes(self) -> Iterator[Copy]:
        """Return, once, the writes that bring the store up to date. Only after `settle`."""
        for tracked in () if self._silent else self._roster.touched.values():
            # First, for only its intent tells since when it counts, and a charge takes its place.
            yield from self._running.follow(tracked)
            wanted = _copy_of(tracked)
            if wanted != tracked.written:
                yield from _turn_into(tracked, wanted)
                if wanted is None and tracked.life is Life.USING:
                    yield Refund(tracked.pod.uid)  # its intent, if it was just released
                tracked.written = wanted
        self._roster.touched.clear()

    def whole(self) -> Iterator[StoreWrite]:
        """Return all that the store must hold. Only after `settle`."""
        for tracked in self._roster.pods.values():
            if tracked.run is not None:
                yield Begun(tracked.run)
            if tracked.written is not None:
                yield _write(tracked, tracked.written)
            if tracked.life is Life.RELEASING and tracked.intent is not None:
                yield tracked.intent

    def gone(self, tracked: Tracked) -> Iterator[Copy]:
        """Return what the store must forget of a pod that is dropped."""
        if self._silent:
            return
        yield from self._running.gone(tracked)
        yield from _turn_into(tracked, None)
        if tracked.life is not Life.HELD and not isinstance(tracked.written, Charge):
            yield Refund(tracked.pod.uid)  # its intent, which no charge has taken the place of


def _copy_of(tracked: Tracked) -> Queueing | Charge | None:
    leaf = tracked.leaf
    if leaf is None:
        return None
    if tracked.life is not Life.USING:
        return leaf.account
    if tracked.pool is None:
        return None
    pod = tracked.pod
    return Charge(pod.uid, leaf.tenant, pod.user, tracked.pool, pod.demand)


def _write(tracked: Tracked, copy: Queueing | Charge) -> Enqueue | Charge:
    if isinstance(copy, Charge):
        return copy
    return Enqueue(tracked.ref, *copy, tracked.turn.rank)


def _turn_into(tracked: Tracked, wanted: Queueing | Charge | None) -> Iterator[Copy]:
    """Return the writes that turn what was written into what is wanted."""
    old = tracked.written
    if isinstance(old, Charge):
        if not isinstance(wanted, Charge):
            yield Refund(tracked.pod.uid)
    elif old is not None:
        yield Dequeue(tracked.pod.uid)
    if wanted is not None:
        yield _write(tracked, wanted)
