"""Gang membership, and when the held pods of a gang wait as one workload.

A gang is complete when enough of its pods are held or run. The held pods are then one workload, so
a replacement takes the position of a lost member. A pod beyond the gang size is not a member and
waits alone.

An elastic gang needs a minimum of its pods only. The minimum is one workload. Once it is released,
each further member is a workload of its own. The numbers are read live.

The release of a gang may stop halfway, because the leader died or its answer was lost. The gang is
then partially released: the rest waits for no replacement and is released first.

The module has more than 500 lines because all its methods change the queues of the same gangs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.gang_declarations import (
    GangDeclarations,
    GangSource,
    reference_of,
)
from app.core.lifecycle.gang_readiness import GangReadiness
from app.core.lifecycle.group_tree import GroupTree
from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.lifecycle.pod_state import PodState
from app.core.lifecycle.succeeded_pods import SucceededPods
from app.core.model import Millis, Phase, Pod, PoolName, Uid, UnmanagedPod, Wait
from app.core.placement.equivalence_table import EquivalenceTable
from app.core.podspec.annotations import gang_layout_of
from app.core.podspec.equivalence_class import GangLayout
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, GangDeclaration


class Gangs:
    """All gangs with at least one known pod."""

    def __init__(self, usage: LiveUsage, equivalence_table: EquivalenceTable) -> None:
        self.waiting: dict[Uid, Gang] = {}
        self.partially_released: dict[Uid, Gang] = {}
        self.deferred: Mapping[GangKey, Millis] = {}
        """Gangs that lost a pod and restart later, with the time of the restart."""
        self._succeeded = SucceededPods()
        self.readiness = GangReadiness(self._succeeded)
        self._known: dict[GangKey, Gang] = {}
        self._usage = usage
        self._equivalence_table = equivalence_table
        self._ready: dict[Uid, tuple[PoolName, ...]] = {}
        self._unsettled: dict[GangKey, Gang] = {}
        self._declared = GangDeclarations()
        self._sized_from_group: dict[GangSource, dict[GangKey, Gang]] = {}
        self._surplus: dict[GangKey, dict[Uid, PodRecord]] = {}
        """Pods that wait alone because their gang has all its pods without them."""
        self._surplus_gang_of: dict[Uid, GangKey] = {}
        self._single_pods: dict[GangSource, dict[Uid, PodRecord]] = {}
        """The pods of groups that release each pod alone. Such a group may become a gang."""
        self._single_pod_source: dict[Uid, GangSource] = {}
        self._moved: list[PodRecord] = []
        self._new_extra_pods: dict[Uid, PodRecord] = {}
        """Members that begin to wait alone at the next `settle`."""

    def record_declaration(self, group: GangDeclaration) -> None:
        """Record the numbers that an object states. They apply at once, and evict no pod."""
        change = self._declared.record_declaration(group)
        for owner in change.before:
            self._regroup(owner)
        if not group.is_released_singly:
            self._gather_single_pods(GangSource(group.namespace, group.name))
        if change.changed:
            self._apply_all(change.owner)

    def drop_declaration(self, namespace: str, name: str) -> None:
        """Record that the object of a gang was deleted."""
        source = GangSource(namespace, name)
        owner = self._declared.drop_declaration(source)
        if owner not in self._sized_from_group:
            self._declared.forget_owner(owner)

    def observe_unmanaged_pod(self, pod: UnmanagedPod) -> None:
        """Count a pod that Fairgate does not hold in its PodGroup."""
        if pod.group is not None:
            source = GangSource(*pod.group)
            if self._declared.add_unmanaged_pod(pod.uid, source):
                self._apply_all(self._declared.owner_of(source))

    def is_released_singly(self, pod: Pod) -> bool:
        """Return whether the group of a pod states that each pod is released alone."""
        return self._declared.is_released_singly(reference_of(pod).source)

    def add_pod(self, tracked: PodRecord) -> None:
        """Add a pod to its gang. The numbers on the newest pod apply to all its pods.

        A held pod beyond the size is not added for now.
        """
        pod = tracked.pod
        self._forget_single_pod(pod.uid)
        if self.is_released_singly(pod):
            source = self._single_pod_source[pod.uid] = reference_of(pod).source
            self._single_pods.setdefault(source, {})[pod.uid] = tracked
            return
        key = self._key(pod)
        if (before := self._surplus_gang_of.get(pod.uid)) is not None:
            self._drop_surplus_pod(before, pod.uid)
        gang = self._known.get(key) or self._create_gang(pod, key)
        goes_on = tracked.counts_as_used or tracked.release_attempted
        self._apply_stated_numbers(gang, pod)
        if not goes_on and gang.size != SIZE_FROM_GROUP and gang.present >= gang.size:
            self._add_surplus_pod(gang, tracked)
            return
        gang.pods[pod.uid] = tracked
        gang.had_released_pods = gang.had_released_pods or tracked.state is PodState.USING
        tracked.gang = gang
        self.readiness.observe_pod(tracked)
        self._dequeue_unless_single(gang)

    def _apply_stated_numbers(self, gang: Gang, pod: Pod) -> None:
        """Apply the numbers that a pod states, unless a newer pod stated others."""
        if gang.newest_statement is not None and (pod.created_at, pod.uid) <= gang.newest_statement:
            return
        gang.newest_statement = pod.created_at, pod.uid
        if gang.size_from_group:
            self._apply(gang, pod)
        else:
            self._resize(gang, pod.gang_size, pod.gang_min_count)

    def _apply_all(self, source: GangSource) -> None:
        """Apply the numbers that an object states to its gangs."""
        for gang in list(self._sized_from_group.get(source, {}).values()):
            newest = max(gang.pods.values(), key=lambda m: (m.pod.created_at, m.pod.uid))
            self._apply(gang, newest.pod)
            self.dequeue_until_settle(gang)

    def _apply(self, gang: Gang, newest: Pod) -> None:
        """Apply the numbers that the object of a gang states. `newest`: its newest pod."""
        found = self._declared.declaration_of(reference_of(newest))
        if found is None:
            return
        gang.succeeded_count, gang.required_successes = (
            found.succeeded_count,
            found.required_successes,
        )
        gang.waiting_since, gang.group_tree, gang.preemption_policy = (
            found.waiting_since,
            found.group_tree,
            found.preemption_policy,
        )
        self._resize(gang, found.size, found.min_count or newest.gang_min_count)

    def _resize(self, gang: Gang, size: int, least: int) -> None:
        """Change the numbers of a gang. Members beyond the size leave it, or others join it.

        No pod is beyond an unknown size.
        """
        least = min(least, size) or size
        if (gang.size, gang.min_count) == (size, least):
            return
        is_unknown = size == SIZE_FROM_GROUP
        grows = size > gang.size or is_unknown
        gang.size, gang.min_count = size, least
        if not is_unknown:
            self._move_excess_to_surplus(gang)
        if grows:
            self._readmit_surplus_pods(gang)
        self.dequeue_until_settle(gang)

    def _regroup(self, source: GangSource) -> None:
        """Dissolve the gangs of an object, because its pods now form other gangs or none.

        Released pods join their new gang at once, so that it is complete when it is next judged.
        """
        released: list[PodRecord] = []
        for gang in list(self._sized_from_group.get(source, {}).values()):
            self.dequeue_until_settle(gang)
            self._readmit_surplus_pods(gang)
            for tracked in gang.members:
                self.unmark_ready(tracked)
                self.readiness.record_pod_gone(tracked)
                self._drop(gang, tracked)
                (released if tracked.counts_as_used else self._moved).append(tracked)
        self._succeeded.regroup(source, self._declared)
        for tracked in released:
            self.add_pod(tracked)

    def _gather_single_pods(self, source: GangSource) -> None:
        """Form a gang of the pods that an object let be released alone before."""
        for uid, tracked in list(self._single_pods.get(source, {}).items()):
            self._forget_single_pod(uid)
            if tracked.counts_as_used:
                self.add_pod(tracked)
            else:
                self._moved.append(tracked)

    def _forget_single_pod(self, uid: Uid) -> None:
        source = self._single_pod_source.pop(uid, None)
        if source is not None:
            del self._single_pods[source][uid]
            if not self._single_pods[source]:
                del self._single_pods[source]

    def _add_surplus_pod(self, gang: Gang, tracked: PodRecord) -> None:
        self._surplus.setdefault(gang.key, {})[tracked.pod.uid] = tracked
        self._surplus_gang_of[tracked.pod.uid] = gang.key

    def _drop_surplus_pod(self, key: GangKey, uid: Uid) -> None:
        del self._surplus_gang_of[uid], self._surplus[key][uid]
        if not self._surplus[key]:
            del self._surplus[key]

    def _readmit_surplus_pods(self, gang: Gang, most: int | None = None) -> None:
        """Let the pods beyond the size of a gang, or the first `most`, be accounted again."""
        surplus = self._surplus.get(gang.key, {})
        for uid, tracked in list(itertools.islice(surplus.items(), most)):
            self._drop_surplus_pod(gang.key, uid)
            self._moved.append(tracked)

    def observe_pod(self, tracked: PodRecord) -> None:
        """Update the gang of a pod after an observation or a change of its state."""
        gang = tracked.gang
        if gang is None:
            return
        changed = self.readiness.observe_pod(tracked)
        if self._has_released_minimum(gang):
            changed = changed and not gang.has_started
        if changed or (gang.releases_singly and not self._has_released_minimum(gang)):
            self.dequeue_until_settle(gang)

    def record_finished_pod(self, pod: Pod) -> None:
        """Record a finished pod. If it succeeded, its gang no longer requires it."""
        if not pod.gang or pod.failed or pod.phase is not Phase.FINISHED:
            return
        key = self._key(pod)
        gang = self._known.get(key)
        mates = gang.pods.values() if gang is not None and pod.uid in gang.pods else ()
        makers = frozenset({pod.owner, *(mate.pod.owner for mate in mates)})
        named = reference_of(pod)
        owner = self._declared.owner_of(named.source)
        self._succeeded.record(key, owner, named, pod.uid, makers)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a pod that no longer exists. A uid without a gang is ignored."""
        if (source := self._declared.remove_unmanaged_pod(uid)) is not None:
            self._apply_all(self._declared.owner_of(source))
        key = self._succeeded.remove(uid)
        if key in self._known:
            self.dequeue_until_settle(self._known[key])
        elif key is not None:
            self._succeeded.forget_gang(key)

    def remove_member(self, tracked: PodRecord) -> None:
        """Remove a deleted pod from its gang."""
        gang = tracked.gang
        self._forget_single_pod(tracked.pod.uid)
        if gang is None:
            if (key := self._surplus_gang_of.get(tracked.pod.uid)) is not None:
                self._drop_surplus_pod(key, tracked.pod.uid)
            return
        self.unmark_ready(tracked)
        self.readiness.record_pod_gone(tracked)
        self._drop(gang, tracked)
        missing = gang.size - gang.present - len(gang.succeeded_pods)
        if missing > 0:
            self._readmit_surplus_pods(gang, missing)
        if gang.pods:
            self._dequeue_unless_single(gang)

    def leave_former_gang(self, tracked: PodRecord, pod: Pod) -> None:
        """Remove a held pod from its gang if its new state `pod` names another gang, or none."""
        former = tracked.pod
        is_held = tracked.state is PodState.HELD
        if is_held and former.gang and reference_of(former) != reference_of(pod):
            self.remove_member(tracked)

    def set_deferred(self, deferred: Mapping[GangKey, Millis]) -> None:
        """Let exactly these gangs wait until the given times, even if they are complete."""
        before, self.deferred = self.deferred, deferred
        for key in [*before, *deferred]:
            if key in self._known and (key in before) is not (key in deferred):
                self.dequeue_until_settle(self._known[key])

    def has_started(self, key: GangKey) -> bool:
        """Return whether the minimum of a gang has run at the same time."""
        return key in self._known and self._known[key].has_started

    def drain_moved_pods(self) -> list[PodRecord]:
        """Return, once, the pods to account again because the size of their gang changed."""
        moved, self._moved = self._moved, []
        return moved

    def mark_ready(self, tracked: PodRecord, pools: tuple[PoolName, ...]) -> None:
        """Record that a held pod waits only for its gang, with its eligible pools."""
        assert tracked.gang is not None
        self._ready[tracked.pod.uid] = pools
        if self._has_released_minimum(tracked.gang):
            self._new_extra_pods[tracked.pod.uid] = tracked
        else:
            self.dequeue_until_settle(tracked.gang)

    def unmark_ready(self, tracked: PodRecord) -> None:
        """Record that a pod leaves its position: it may wait for another reason, or end."""
        gang = tracked.gang
        if gang is not None:
            self._dequeue_unless_single(gang)
            self._ready.pop(tracked.pod.uid, None)
            self._new_extra_pods.pop(tracked.pod.uid, None)
            gang.extra_pods.pop(tracked.pod.uid, None)

    def _has_released_minimum(self, gang: Gang) -> bool:
        """Return whether a change concerns one pod of a gang only, because its minimum runs.

        A gang may have thousands of further pods. They are not assessed again for each other. The
        loss of a released pod may break any group of a tree, so the tree is assessed again.
        """
        if gang.group_tree is not None and gang.has_lost_released_pod:
            return False
        return gang.is_elastic and gang.releases_singly and gang.released_count >= gang.required

    def _dequeue_unless_single(self, gang: Gang) -> None:
        if not self._has_released_minimum(gang):
            self.dequeue_until_settle(gang)

    def dequeue_until_settle(self, gang: Gang) -> None:
        """Take a changed gang out of its queue until `settle`."""
        if (
            gang.equivalence_class is not None
            and gang.leaf is not None
            and gang.queue_key is not None
        ):
            self._usage.tree.dequeue(gang.leaf, gang.queue_key, gang.equivalence_class)
            del self.waiting[gang.queue_key.uid]
            self.partially_released.pop(gang.queue_key.uid, None)
        gang.equivalence_class = gang.leaf = gang.queue_key = None
        gang.pods_to_release, gang.is_partially_released, gang.releases_singly = (), False, False
        self._unsettled[gang.key] = gang

    def reset_for_new_tree(self) -> None:
        """Reset every gang for a new share tree. `settle` adds complete gangs again."""
        self.waiting.clear()
        self.partially_released.clear()
        self._ready.clear()
        self._new_extra_pods.clear()
        for key, gang in self._known.items():
            gang.equivalence_class = gang.leaf = gang.queue_key = None
            gang.pods_to_release, gang.is_partially_released, gang.releases_singly = (
                (),
                False,
                False,
            )
            gang.extra_pods.clear()
            self._unsettled[key] = gang

    def settle(self) -> list[PodRecord]:
        """Add every complete gang to its queue. Return the held pods of all changed gangs."""
        loose, self._unsettled = list(self._unsettled.values()), {}
        for gang in loose:
            self._settle_gang(gang)
        stepped, self._new_extra_pods = list(self._new_extra_pods.values()), {}
        for tracked in stepped:
            its = tracked.gang
            # A gang that was settled now has enqueued all its pods.
            if its is not None and its.releases_singly and tracked.pod.uid not in its.extra_pods:
                self._enqueue_extra_pod(its, tracked)
        return [m for gang in loose for m in gang.members if m.state is PodState.HELD] + stepped

    def _settle_gang(self, gang: Gang) -> None:
        members = gang.members
        held = [m for m in members if m.state is PodState.HELD]
        ready = [m for m in held if m.pod.uid in self._ready]
        for member in ready:
            member.wait_reason = Wait.GANG_INCOMPLETE
        self._dequeue_extra_pods(gang)
        gang.has_lost_released_pod = False
        self.readiness.assess(gang, ready, self._usage.now)
        if gang.eviction_reason or gang.conflicting_policy:
            return
        used = {m.pool for m in members if m.counts_as_used}
        lacking = self._pods_to_complete(gang, ready) if gang.is_elastic else ready
        if gang.is_elastic and lacking == []:
            gang.releases_singly, gang.extra_pods_layout = True, _extra_pods_layout_of(gang, used)
            for member in ready:
                self._enqueue_extra_pod(gang, member)
            return
        rest = [m for m in ready if m.release_attempted] if used else []
        if rest:
            begun = self._pods_to_complete(gang, rest) if gang.is_elastic else rest
            self._join_queue(gang, begun or rest, used)
            return
        complete = (
            gang.size != SIZE_FROM_GROUP
            and len(ready) == len(held)
            and gang.present >= gang.required
        )
        if gang.is_elastic:
            complete = lacking is not None
        if held and complete and gang.key in self.deferred:
            for member in ready:
                member.wait_reason = Wait.GANG_DEFERRED
        elif held and complete:
            self._join_queue(gang, lacking or ready, set())

    def _pods_to_complete(self, gang: Gang, ready: list[PodRecord]) -> list[PodRecord] | None:
        """Return the first of these pods that complete the minimum of an elastic gang.

        The list is empty if the minimum is released. None: there are too few.
        """
        if gang.group_tree is None:
            count = max(0, gang.required - gang.released_count)
            return _first(ready, count) if len(ready) >= count else None
        present = self._succeeded.count_by_group(gang.key)
        present.update(
            m.pod.gang for m in gang.members if m.counts_as_used and not m.pod.terminating
        )
        ordered = sorted(ready, key=lambda member: member.queue_key)
        return _first_of_tree(gang.group_tree, present, ordered)

    def pods_beyond_minimum(self, gang: Gang, ordered: Sequence[PodRecord]) -> list[PodRecord]:
        """Return the pods that an elastic gang can do without, in this order.

        The first of the pods are its minimum. There are none beyond a minimum that is not complete.
        """
        if gang.group_tree is None:
            return list(ordered[max(gang.min_count, gang.required) :])
        succeeded = self._succeeded.count_by_group(gang.key)
        found = _first_of_tree(gang.group_tree, succeeded, ordered)
        if found is None:
            return []
        needed = {tracked.pod.uid for tracked in found}
        return [tracked for tracked in ordered if tracked.pod.uid not in needed]

    def _enqueue_extra_pod(self, gang: Gang, tracked: PodRecord) -> None:
        """Add one further pod of an elastic gang to its queue, in the pool of the gang."""
        mates, manner = gang.extra_pods_layout
        pools = tuple(p for p in self._ready[tracked.pod.uid] if p in mates or not mates)
        if not pools:
            tracked.wait_reason = Wait.NO_POOL
            return
        assert tracked.leaf is not None
        tracked.wait_reason = Wait.TURN
        tracked.equivalence_class = self._equivalence_table.class_of([tracked.pod], pools, manner)
        gang.extra_pods[tracked.pod.uid] = tracked
        self._usage.tree.enqueue(tracked.leaf, tracked.queue_key, tracked.equivalence_class)

    def _dequeue_extra_pods(self, gang: Gang) -> None:
        """Take the further pods of a gang out of their queue."""
        for tracked in gang.extra_pods.values():
            assert tracked.leaf is not None
            assert tracked.equivalence_class is not None
            self._usage.tree.dequeue(tracked.leaf, tracked.queue_key, tracked.equivalence_class)
            tracked.equivalence_class = None
        gang.extra_pods.clear()

    def _join_queue(self, gang: Gang, ready: list[PodRecord], used: set[PoolName | None]) -> None:
        """Add these pods to the queue as one workload. `used`: the pools of the other pods."""
        pools = self._ready[ready[0].pod.uid]
        for member in ready[1:]:
            pools = tuple(pool for pool in pools if pool in self._ready[member.pod.uid])
        manner = _layout_of(gang)
        mates = used or (
            {m.pool for m in gang.members if m.counts_as_used}
            if manner.required_topology_label
            else used
        )
        theirs = tuple(pool for pool in pools if pool in mates)
        pools = theirs if mates and manner.required_topology_label else theirs or pools
        if not pools:
            for member in ready:
                member.wait_reason = Wait.NO_POOL
            return
        first = min(ready, key=lambda member: member.queue_key)
        leaf, queue_key = first.leaf, first.queue_key
        assert isinstance(leaf, UserNode)
        oldest = min(member.queue_key.since for member in ready)
        if gang.waiting_since is not None:
            oldest = min(oldest, gang.waiting_since)
        gang.queue_key = QueueKey(queue_key.precedence, oldest, queue_key.uid)
        gang.leaf = leaf
        gang.equivalence_class = self._equivalence_table.class_of(
            [member.pod for member in ready], pools, manner, is_rest=bool(used)
        )
        gang.pods_to_release, gang.is_partially_released = tuple(ready), bool(used)
        self.waiting[queue_key.uid] = gang
        if gang.is_partially_released:
            self.partially_released[queue_key.uid] = gang
        for member in ready:
            member.wait_reason = Wait.TURN
        self._usage.tree.enqueue(leaf, gang.queue_key, gang.equivalence_class)

    def _create_gang(self, pod: Pod, key: GangKey) -> Gang:
        """Create the gang of this pod, which is its first known pod."""
        source = self._declared.owner_of(reference_of(pod).source)
        gang = self._known[key] = Gang(key, SIZE_FROM_GROUP, source)
        gang.succeeded_pods = self._succeeded.pods_of(key)
        if pod.gang_size == SIZE_FROM_GROUP:
            gang.size_from_group = True
            self._sized_from_group.setdefault(source, {})[key] = gang
        return gang

    def _key(self, pod: Pod) -> GangKey:
        return pod.namespace, pod.user, self._declared.name_of(reference_of(pod))

    def _move_excess_to_surplus(self, gang: Gang) -> None:
        """Remove the last held pods if they exceed a size that was just read."""
        surplus = gang.present - gang.size
        if surplus <= 0 or not gang.pods:
            return
        held = [
            m
            for m in gang.members
            if not (m.counts_as_used or m.release_attempted or m.pod.terminating)
        ]
        for tracked in sorted(held, key=lambda m: m.queue_key)[-surplus:]:
            self.unmark_ready(tracked)
            self._drop(gang, tracked)
            self._add_surplus_pod(gang, tracked)
            self._moved.append(tracked)

    def _drop(self, gang: Gang, tracked: PodRecord) -> None:
        """Remove a pod from its gang, and the gang if it was the last pod."""
        del gang.pods[tracked.pod.uid]
        gang.terminating.discard(tracked.pod.uid)
        tracked.gang = None
        if gang.pods:
            return
        key = gang.key
        del self._known[key]
        self._unsettled.pop(key, None)
        self.readiness.remove_gang(gang)
        self._succeeded.forget_gang(key)
        asking = self._sized_from_group.get(gang.source)
        if asking is not None:
            asking.pop(key, None)
            if not asking:
                del self._sized_from_group[gang.source]
                self._declared.forget_owner(gang.source)


def _first(ready: list[PodRecord], count: int) -> list[PodRecord]:
    """Return this many pods, the first in queue order. All of them if there are not more."""
    if len(ready) <= count:
        return ready
    return sorted(ready, key=lambda member: member.queue_key)[:count]


def _first_of_tree(
    tree: GroupTree, present: Mapping[str, int], ordered: Sequence[PodRecord]
) -> list[PodRecord] | None:
    """Return the first pods that complete a group tree beside those present; None: too few."""
    positions: dict[str, list[int]] = {}
    for position, tracked in enumerate(ordered):
        positions.setdefault(tracked.pod.gang, []).append(position)
    found = tree.pods_to_complete(present, positions)
    return None if found is None else [ordered[position] for position in found]


def _extra_pods_layout_of(
    gang: Gang, used: set[PoolName | None]
) -> tuple[frozenset[PoolName], GangLayout]:
    """Return the pools of the released pods of a gang, and the layout of its further pods."""
    manner = _layout_of(gang)
    return frozenset(pool for pool in used if pool is not None), manner


def _layout_of(gang: Gang) -> GangLayout:
    """Return the layout of a gang. It does not depend on which of the pods still wait."""
    members = gang.members
    beside = [m.node for m in members if m.counts_as_used and m.node is not None]
    return gang_layout_of(
        [m.pod.placement_strategy for m in members], [m.pod.topology for m in members], beside
    )
