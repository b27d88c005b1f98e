"""The runs that go on, and those that end: of every pod, while this replica leads and before.

What Redis keeps of a run outlives whoever leads, so its beginning is the same for all of them. Of
what ended while nobody led, those who followed have seen the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from app.core.effects import Intend
from app.core.fair.runs import NO_NODE, Begun, Ran, Run
from app.core.model import Amounts, Millis, Resource, Uid
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.resources import ManagedResources

MOST_SEEN = 10_000
"""Pods whose ends are remembered, in case that nobody has written them down ..."""
MOST_PARTS = 16
"""... and how many of each."""


class Running:
    """Follows what pods use. The times are those by which the ledger charges."""

    def __init__(self, roster: Roster, managed: ManagedResources) -> None:
        self._roster = roster
        self._managed = managed
        self._seen: dict[Uid, list[Run]] = {}
        """Runs that ended, by pod, in order."""
        self._demands: dict[tuple[tuple[Resource, int], ...], Amounts] = {}

    def follow(self, tracked: Tracked) -> Iterator[Begun | Ran]:
        """A pod may have another place than before: return what is to be kept of it."""
        old = tracked.run
        if old is None and tracked.life is not Life.USING:
            if tracked.life is Life.HELD:
                tracked.entered = None
            return
        wanted = self._wanted(tracked)
        if wanted is old:
            return
        tracked.run = wanted
        if wanted is None:
            tracked.entered = None
        else:
            yield Begun(wanted)
        if old is not None and (wanted is None or wanted.begin != old.begin):
            yield self._end(old, self._now)

    def gone(self, tracked: Tracked) -> Iterator[Ran]:
        """A pod is dropped."""
        if tracked.run is not None:
            yield self._end(tracked.run, self._now)
            tracked.run = None

    def take_up(self, kept: Iterable[Run], intents: Iterable[Intend]) -> Iterator[Ran]:
        """A term begins: go on with what was kept, and end what ended since.

        `intents`: releases of which nobody has told what became of them.
        """
        begun = {intent.ref.uid: intent.begin for intent in intents}
        known = {run.uid: run for run in kept}
        for uid in {**known, **begun}:
            tracked = self._roster.pods.get(uid)
            parts = self._parts(uid, known.get(uid), begun)
            if tracked is not None and tracked.life is Life.USING:
                if not parts:
                    self._go_on(tracked, known.get(uid), begun.get(uid))
            elif uid in known and not parts:
                run = known[uid]
                parts = [replace(run, end=max(run.begin, self._now), assumed=True)]
            yield from map(Ran, parts)

    def runs(self) -> Iterator[Run]:
        """Return those that go on."""
        return (t.run for t in self._roster.pods.values() if t.run is not None)

    @property
    def _now(self) -> Millis:
        return self._roster.usage.now

    def _go_on(self, tracked: Tracked, kept: Run | None, begun: Millis | None) -> None:
        """Nothing of a pod that uses something has ended since it was kept."""
        seen = tracked.run
        if kept is not None:
            tracked.run = kept if seen is None else _continued(kept, kept.begin, seen)
        elif seen is not None and begun:
            tracked.run = _continued(None, begun, seen)
        elif begun:
            tracked.entered = begun
        self._roster.touched[tracked.pod.uid] = tracked

    def _wanted(self, tracked: Tracked) -> Run | None:
        """Return what a pod's run is now: the one it was, if nothing is otherwise."""
        if tracked.life is not Life.USING or tracked.pool is None or tracked.leaf is None:
            return None
        pod, old, now = tracked.pod, tracked.run, self._now
        whose = tracked.leaf.tenant, pod.user, tracked.pool, pod.gang or pod.owner or pod.name
        amounts = self._managed_of(pod.demand)
        begin = now if tracked.entered is None else tracked.entered
        bound = pod.started
        if old is not None:
            goes_on = old.whose == whose and old.amounts == amounts
            if goes_on and old.node == (pod.node or NO_NODE):
                return old
            begin = old.begin if goes_on else max(old.begin, now)
            bound = old.bound if old.node == pod.node else None
        tenant, user, pool, workload = whose
        if pod.node is not None:
            bound = max(begin, now if bound is None else bound)
        return Run(
            pod.uid, pod.namespace, pod.name, workload, tenant, user, pool, amounts, begin,
            pod.node or NO_NODE, bound if pod.node is not None else None,
        )  # fmt: skip

    def _managed_of(self, demand: Amounts) -> Amounts:
        """Return what of a demand is managed: the one copy of it, for many pods ask alike."""
        found = tuple((r, v) for r, v in demand.items() if v and r in self._managed)
        if len(self._demands) >= MOST_SEEN:
            self._demands.clear()
        return self._demands.setdefault(found, dict(found))

    def _end(self, run: Run, at: Millis) -> Ran:
        ended = replace(run, end=max(run.begin, at))
        if run.uid not in self._seen and len(self._seen) >= MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        seen = self._seen.setdefault(run.uid, [])
        seen.append(ended)
        del seen[:-MOST_PARTS]
        return Ran(ended)

    def _parts(self, uid: Uid, kept: Run | None, begun: Mapping[Uid, Millis]) -> list[Run]:
        """Return the runs of a pod that ended since, the first of them from when it was kept."""
        since = kept.begin if kept is not None else begun[uid]
        parts = [run for run in self._seen.get(uid, ()) if (run.end or 0) > since]
        if parts:
            parts[0] = _continued(kept, since or parts[0].begin, parts[0])
        return parts


def _continued(kept: Run | None, begin: Millis, seen: Run) -> Run:
    """Return a run as it was kept, with what was seen of it since."""
    run = replace(seen if kept is None else kept, begin=begin, end=seen.end)
    if run.node == NO_NODE and seen.bound is not None:
        run = replace(run, node=seen.node, bound=max(begin, seen.bound))
    return run
