"""Opens and closes usage records as pods change, across leader terms.

Redis stores an open usage record, so its start is the same for all leaders. If a pod ended while
there was no leader, the followers recorded its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from app.core.effects import Intend
from app.core.fairshare.usage_record import NO_NODE, UsageEnded, UsageRecord, UsageStarted
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Amounts, Millis, Resource, Uid
from app.core.quantities import ManagedResources

MOST_SEEN = 10_000
"""Maximum number of pods with remembered ends, in case no leader has stored them ..."""
MOST_PARTS = 16
"""... and maximum number of ends per pod."""


class UsageTracker:
    """Tracks the usage of pods. Its times are those by which `UsageTotals` charges."""

    def __init__(self, registry: PodRegistry, managed: ManagedResources) -> None:
        self._registry = registry
        self._managed = managed
        self._ended_records: dict[Uid, list[UsageRecord]] = {}
        """Ended usage records by pod, in order."""
        self._demands: dict[tuple[tuple[Resource, int], ...], Amounts] = {}

    def update_record(self, tracked: PodRecord) -> Iterator[UsageStarted | UsageEnded]:
        """Process a pod that may be accounted differently. Yield the records to store."""
        old = tracked.usage_record
        if old is None and tracked.state is not PodState.USING:
            if tracked.state is PodState.HELD:
                tracked.counted_since = None
            return
        wanted = self._present_record(tracked)
        if wanted is old:
            return
        tracked.usage_record = wanted
        if wanted is None:
            tracked.counted_since = None
        else:
            yield UsageStarted(wanted)
        if old is not None and (wanted is None or wanted.begin != old.begin):
            yield self._end(old, self._now)

    def close_record(self, tracked: PodRecord) -> Iterator[UsageEnded]:
        """Yield the ended record of a pod that is removed."""
        if tracked.usage_record is not None:
            yield self._end(tracked.usage_record, self._now)
            tracked.usage_record = None

    def start_term(
        self, kept: Iterable[UsageRecord], intents: Iterable[Intend]
    ) -> Iterator[UsageEnded]:
        """Start a leader term: continue the stored records, and end those of ended pods.

        `intents`: releases with an unknown outcome.
        """
        begun = {intent.ref.uid: intent.begin for intent in intents}
        known = {run.uid: run for run in kept}
        for uid in {**known, **begun}:
            tracked = self._registry.pods.get(uid)
            parts = self._parts(uid, known.get(uid), begun)
            if tracked is not None and tracked.state is PodState.USING:
                if not parts:
                    self._continue_record(tracked, known.get(uid), begun.get(uid))
            elif uid in known and not parts:
                run = known[uid]
                parts = [replace(run, end=max(run.begin, self._now), assumed=True)]
            yield from map(UsageEnded, parts)

    def open_records(self) -> Iterator[UsageRecord]:
        """Yield the open usage records."""
        return (t.usage_record for t in self._registry.pods.values() if t.usage_record is not None)

    @property
    def _now(self) -> Millis:
        return self._registry.usage.now

    def _continue_record(
        self, tracked: PodRecord, kept: UsageRecord | None, begun: Millis | None
    ) -> None:
        """Continue the stored record of a pod, because no part has ended since."""
        seen = tracked.usage_record
        if kept is not None:
            tracked.usage_record = kept if seen is None else _continued(kept, kept.begin, seen)
        elif seen is not None and begun:
            tracked.usage_record = _continued(None, begun, seen)
        elif begun:
            tracked.counted_since = begun
        self._registry.changed_pods[tracked.pod.uid] = tracked

    def _present_record(self, tracked: PodRecord) -> UsageRecord | None:
        """Return the present usage record of a pod: the previous one if it did not change."""
        if tracked.state is not PodState.USING or tracked.pool is None or tracked.leaf is None:
            return None
        pod, old, now = tracked.pod, tracked.usage_record, self._now
        whose = tracked.leaf.tenant, pod.user, tracked.pool, pod.gang or pod.owner or pod.name
        amounts = self._managed_of(pod.demand)
        begin = now if tracked.counted_since is None else tracked.counted_since
        bound = pod.started_at
        if old is not None:
            goes_on = old.account_and_workload == whose and old.amounts == amounts
            if goes_on and old.node == (pod.node or NO_NODE):
                return old
            begin = old.begin if goes_on else max(old.begin, now)
            bound = old.bound if old.node == pod.node else None
        tenant, user, pool, workload = whose
        if pod.node is not None:
            bound = max(begin, now if bound is None else bound)
        return UsageRecord(
            pod.uid, pod.namespace, pod.name, workload, tenant, user, pool, amounts, begin,
            pod.node or NO_NODE, bound if pod.node is not None else None,
        )  # fmt: skip

    def _managed_of(self, demand: Amounts) -> Amounts:
        """Return the managed part of the requests. Equal results share one object."""
        found = tuple((r, v) for r, v in demand.items() if v and r in self._managed)
        if len(self._demands) >= MOST_SEEN:
            self._demands.clear()
        return self._demands.setdefault(found, dict(found))

    def _end(self, run: UsageRecord, at: Millis) -> UsageEnded:
        ended = replace(run, end=max(run.begin, at))
        if run.uid not in self._ended_records and len(self._ended_records) >= MOST_SEEN:
            del self._ended_records[next(iter(self._ended_records))]
        seen = self._ended_records.setdefault(run.uid, [])
        seen.append(ended)
        del seen[:-MOST_PARTS]
        return UsageEnded(ended)

    def _parts(
        self, uid: Uid, kept: UsageRecord | None, begun: Mapping[Uid, Millis]
    ) -> list[UsageRecord]:
        """Return the records of a pod that ended since its stored start, beginning there."""
        since = kept.begin if kept is not None else begun[uid]
        parts = [run for run in self._ended_records.get(uid, ()) if (run.end or 0) > since]
        if parts:
            parts[0] = _continued(kept, since or parts[0].begin, parts[0])
        return parts


def _continued(kept: UsageRecord | None, begin: Millis, seen: UsageRecord) -> UsageRecord:
    """Return a stored record with later observations of the pod."""
    run = replace(seen if kept is None else kept, begin=begin, end=seen.end)
    if run.node == NO_NODE and seen.bound is not None:
        run = replace(run, node=seen.node, bound=max(begin, seen.bound))
    return run
