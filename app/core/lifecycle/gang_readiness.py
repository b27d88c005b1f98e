"""Readiness of gangs: since when one is incomplete, and whether it lost a pod before it started.

A gang is complete while it waits with all its pods, and after its minimum has run at the same time.
`gang_timeouts` acts on the result. `Gangs` decides separately whether a gang may queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from sortedcontainers import SortedList

from app.core.lifecycle.group_tree import GroupTree
from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.lifecycle.succeeded_pods import SucceededPods
from app.core.model import Millis, Phase, Uid


class GangReadiness:
    """Records the readiness of each gang in fields of the gang.

    `incomplete_since` is the start of the incomplete state. `has_lost_pod`: a pod left before all
    ran. `eviction_reason` is why its released pods are evicted, or an empty string.
    """

    def __init__(self, succeeded: SucceededPods) -> None:
        self._succeeded = succeeded
        self._incomplete_since: SortedList[tuple[Millis, GangKey]] = SortedList()
        self._incomplete: dict[GangKey, Gang] = {}
        """The gangs in `_incomplete_since`: incomplete and not reported."""
        self._reported: dict[GangKey, tuple[Gang, bool]] = {}
        """Gangs that `drain_overdue` returned, and whether they had released pods then."""
        self._lost: dict[GangKey, Gang] = {}
        self.evicting: dict[GangKey, Gang] = {}

    def observe_pod(self, tracked: PodRecord) -> bool:
        """Process the state of a gang pod. Return whether the gang must be assessed again."""
        gang, pod = tracked.gang, tracked.pod
        assert gang is not None
        uid, ended = pod.uid, pod.terminating
        if ended or not tracked.counts_as_used:
            _record_loss(gang, uid)
        if tracked.counts_as_used:
            gang.released.add(uid)
        else:
            gang.released.discard(uid)
        if tracked.counts_as_used and pod.phase is Phase.RUNNING and not ended:
            gang.running.add(uid)
        else:
            gang.running.discard(uid)
        changed = ended is not (uid in gang.terminating)
        if ended:
            gang.terminating.add(uid)
        elif changed:
            gang.terminating.discard(uid)
        return (
            changed
            or (not gang.has_started and gang.incomplete_since is not None)
            or _may_start(gang)
        )

    def record_pod_gone(self, tracked: PodRecord) -> None:
        """Record that a gang pod is gone. Call it before the gang removes the pod."""
        gang, uid = tracked.gang, tracked.pod.uid
        assert gang is not None
        _record_loss(gang, uid)
        for those in (gang.terminating, gang.released, gang.running):
            those.discard(uid)
        if (
            gang.released
            and not (gang.has_started or gang.eviction_reason or uid in gang.succeeded_pods)
            and not (gang.size > 0 and self._completes_release(gang, gang.released_pods))
        ):
            gang.has_lost_pod = True
            self._lost[gang.key] = gang

    def assess(self, gang: Gang, ready: Sequence[PodRecord], now: Millis) -> None:
        """Assess a gang after a change. `ready` are the pods that wait only for the gang."""
        using = [m for m in gang.pods.values() if m.counts_as_used]
        held = len(gang.pods) - len(using)
        if using and gang.size:
            _record_smallest_minimum(gang)
        if not using:
            gang.has_started = gang.has_lost_pod = False
            gang.eviction_reason, gang.min_count_since_release = "", None
            gang.tree_since_release = None
            self._lost.pop(gang.key, None)
            self.evicting.pop(gang.key, None)
        elif _was_running_before(gang) or (
            _may_start(gang) and self._completes_release(gang, gang.running)
        ):
            gang.has_started = True
        gang.had_released_pods = False
        if gang.is_elastic and using and not gang.has_started:
            whole = self._completes_release(gang, gang.released_pods)
        elif gang.is_elastic:
            whole = not held or self.completes(
                gang, gang.released_pods | {m.pod.uid for m in ready}
            )
        elif using and not gang.has_started:
            whole = not held and gang.present >= gang.required_of_released
        else:
            whole = not held or (
                len(ready) == held and gang.size > 0 and gang.present >= gang.required
            )
        if whole:
            self._end_incomplete(gang)
        elif gang.incomplete_since is None:
            since = now if using else min(m.pod.created_at for m in gang.pods.values())
            self.restart_timeout(gang, min(now, since))
        elif using and not self._reported.get(gang.key, (gang, True))[1]:
            self.restart_timeout(gang, now)  # another actor released a pod of it

    def completes(self, gang: Gang, uids: AbstractSet[Uid]) -> bool:
        """Return whether these pods of an elastic gang are its minimum."""
        if gang.group_tree is None:
            return len(uids) >= gang.required
        return self._completes_tree(gang, gang.group_tree, uids)

    def _completes_release(self, gang: Gang, uids: AbstractSet[Uid]) -> bool:
        """Return whether these pods are the present minimum, or one since the first release."""
        if gang.group_tree is None:
            return len(uids) >= gang.required_of_released
        before = gang.tree_since_release
        return self._completes_tree(gang, gang.group_tree, uids) or (
            before is not None and self._completes_tree(gang, before, uids)
        )

    def _completes_tree(self, gang: Gang, tree: GroupTree, uids: AbstractSet[Uid]) -> bool:
        present = self._succeeded.count_by_group(gang.key)
        present.update(gang.pods[uid].pod.gang for uid in uids)
        return tree.is_completed_by(present)

    def start_term(self, now: Millis) -> None:
        """Start a leader term: the time-outs of partially released gangs restart."""
        self._restart_incomplete_since(now, lambda gang: now)
        self.restart_reported(now)

    def restart_reported(self, now: Millis) -> None:
        """Start the time-outs of overdue gangs with released pods again."""
        for gang, _ in list(self._reported.values()):
            if gang.released:
                self.restart_timeout(gang, now)

    def exclude_stall(self, since: Millis, now: Millis) -> None:
        """Exclude the time since `since` from the time-outs, because no gang was judged."""
        self._restart_incomplete_since(
            now, lambda gang: Millis(now - max(0, since - (gang.incomplete_since or now)))
        )

    def restart_timeout(self, gang: Gang, now: Millis) -> None:
        """Start the time-out of a gang that is not being timed."""
        self._reported.pop(gang.key, None)
        gang.incomplete_since = now
        self._incomplete_since.add((now, gang.key))
        self._incomplete[gang.key] = gang

    def _restart_incomplete_since(self, now: Millis, lacks: Callable[[Gang], Millis]) -> None:
        for gang in [gang for gang in self._incomplete.values() if gang.released]:
            self._incomplete_since.remove((gang.incomplete_since, gang.key))
            gang.incomplete_since = min(now, lacks(gang))
            self._incomplete_since.add((gang.incomplete_since, gang.key))

    def remove_gang(self, gang: Gang) -> None:
        """Remove a gang without pods."""
        self._end_incomplete(gang)
        self._lost.pop(gang.key, None)
        self.evicting.pop(gang.key, None)

    def start_eviction(self, gang: Gang, why: str) -> None:
        """Mark the released pods of a gang for eviction, until no such pod is left."""
        gang.eviction_reason = why
        self.evicting[gang.key] = gang

    def earliest_incomplete_since(self) -> Millis | None:
        """Return the earliest start of an unreported incomplete state, or None."""
        return self._incomplete_since[0][0] if self._incomplete_since else None

    def drain_overdue(self, until: Millis) -> list[Gang]:
        """Return, once, the gangs that have been incomplete since this time or longer."""
        found = []
        while self._incomplete_since and self._incomplete_since[0][0] <= until:
            gang = self._incomplete.pop(self._incomplete_since.pop(0)[1])
            self._reported[gang.key] = gang, bool(gang.released)
            found.append(gang)
        return found

    def cancel_evictions(self) -> list[Gang]:
        """End all evictions, also those that are ordered. Return the gangs.

        They must settle again.
        """
        gangs = list(self.evicting.values())
        for gang in gangs:
            for tracked in gang.members:
                if tracked.eviction_reason == gang.eviction_reason:
                    tracked.eviction_reason = ""
            gang.eviction_reason = ""
        self.evicting.clear()
        return gangs

    def drain_lost(self) -> list[Gang]:
        """Return, once, the gangs that lost a pod before all pods ran."""
        lost, self._lost = [g for g in self._lost.values() if g.has_lost_pod], {}
        for gang in lost:
            gang.has_lost_pod = False
        return lost

    def _end_incomplete(self, gang: Gang) -> None:
        """End the incomplete state of a gang that is complete or gone."""
        if self._incomplete.pop(gang.key, None) is not None:
            self._incomplete_since.remove((gang.incomplete_since, gang.key))
        self._reported.pop(gang.key, None)
        gang.incomplete_since = None


def released_uids(gang: Gang) -> list[Uid]:
    """Return the released pods of a gang that are not terminating."""
    return [m.pod.uid for m in gang.members if m.counts_as_used and not m.pod.terminating]


def _was_running_before(gang: Gang) -> bool:
    """Return whether the gang already ran when it was first observed.

    It did not if an earlier leader left its release unfinished. It did not if no pod runs either,
    because such pods may be the rest of a gang that is being evicted.
    """
    begun = any(m.release_attempted and not m.counts_as_used for m in gang.pods.values())
    return gang.had_released_pods and bool(gang.running) and not begun


def _record_loss(gang: Gang, uid: Uid) -> None:
    if uid in gang.released and uid not in gang.terminating:
        gang.has_lost_released_pod = True


def _record_smallest_minimum(gang: Gang) -> None:
    least, before, tree = gang.min_count_since_release, gang.tree_since_release, gang.group_tree
    gang.min_count_since_release = gang.min_count if least is None else min(least, gang.min_count)
    # A tree without enough child groups, because some were deleted, is no smaller minimum.
    if tree is not None and (
        before is None
        or (not tree.is_possible, tree.min_pods) < (not before.is_possible, before.min_pods)
    ):
        gang.tree_since_release = tree


def _may_start(gang: Gang) -> bool:
    """Return whether enough pods run. The pods of a group tree may be of too few groups."""
    return (
        not gang.has_started
        and gang.size > 0
        and len(gang.running) >= max(1, gang.required_of_released)
    )
