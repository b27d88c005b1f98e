"""Gang membership, and when the held pods of a gang wait as one workload.

A gang is complete when enough of its pods are held or run. The held pods are then one workload, so
a replacement takes the position of a lost member. A pod beyond the gang size is not a member and
waits alone.

An elastic gang needs a minimum of its pods only. The minimum is one workload. Once it is released,
each further member is a workload of its own. The numbers are read live.

The release of a gang may stop halfway, because the leader died or its answer was lost. The gang is
then half released: the rest waits for no replacement and is released first.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.gang_readiness import GangReadiness
from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Phase, Pod, PoolName, Uid, Wait
from app.core.placement.equivalence_table import EquivalenceTable
from app.core.podspec.annotations import manner_of
from app.core.podspec.equivalence_class import GangLayout
from app.core.podspec.pod_groups import ASKED, GangDeclaration


class Gangs:
    """All gangs with at least one known pod."""

    def __init__(self, usage: LiveUsage, shapes: EquivalenceTable) -> None:
        self.waiting: dict[Uid, Gang] = {}
        self.half: dict[Uid, Gang] = {}
        self.deferred: Mapping[GangKey, Millis] = {}
        """Gangs that lost a pod and restart later, with the time of the restart."""
        self.muster = GangReadiness()
        self._known: dict[GangKey, Gang] = {}
        self._usage = usage
        self._shapes = shapes
        self._ready: dict[Uid, tuple[PoolName, ...]] = {}
        self._loose: dict[GangKey, Gang] = {}
        self._groups: dict[tuple[str, str], GangDeclaration] = {}
        self._apart: set[tuple[str, str]] = set()
        """Groups whose pods are released one by one. There may be one for each Job."""
        self._asking: dict[tuple[str, str], dict[GangKey, Gang]] = {}
        self._done: dict[GangKey, dict[Uid, frozenset[str]]] = {}
        self._done_of: dict[Uid, GangKey] = {}
        self._beyond: dict[GangKey, dict[Uid, PodRecord]] = {}
        """Pods that wait alone because their gang has all its pods without them."""
        self._moved: list[PodRecord] = []
        self._stepped: dict[Uid, PodRecord] = {}
        """Members that begin to wait alone at the next `settle`."""

    def record_size(self, group: GangDeclaration) -> None:
        """Record the numbers that an object states. They apply at once, and evict no pod."""
        where = group.namespace, group.name
        if group.apart:
            self._groups.pop(where, None)
            self._separate(where)
            return
        self._apart.discard(where)
        if self._groups.get(where) == group:
            return
        self._groups[where] = group
        for gang in list(self._asking.get(where, {}).values()):
            self._apply(gang, group)

    def drop(self, namespace: str, name: str) -> None:
        """Record that the object of a gang was deleted."""
        self._groups.pop((namespace, name), None)
        self._apart.discard((namespace, name))

    def is_apart(self, pod: Pod) -> bool:
        """Return whether the group of a pod states that each pod is released alone."""
        return (pod.namespace, pod.gang) in self._apart

    def join(self, tracked: PodRecord) -> None:
        """Add a pod to its gang. The numbers on the newest pod apply to all its pods.

        A held pod beyond the size is not added for now.
        """
        pod = tracked.pod
        if self.is_apart(pod):
            return
        gang = self._known.get(_key(pod)) or self._begin(pod)
        goes_on = tracked.uses or tracked.begun
        self._state(gang, pod)
        if not goes_on and gang.size != ASKED and gang.there >= gang.size:
            self._beyond.setdefault(gang.key, {})[pod.uid] = tracked
            return
        gang.pods[pod.uid] = tracked
        gang.found = gang.found or tracked.life is PodState.USING
        tracked.gang = gang
        self._beyond.get(gang.key, {}).pop(pod.uid, None)
        self.muster.seen(tracked)
        self._renew(gang)

    def _state(self, gang: Gang, pod: Pod) -> None:
        """Apply the numbers that a pod states, unless a newer pod stated others."""
        if gang.stated is not None and (pod.since, pod.uid) <= gang.stated:
            return
        gang.stated = pod.since, pod.uid
        group = self._groups.get((pod.namespace, pod.gang))
        if gang.asks and group is not None:
            self._resize(gang, group.size, group.least or pod.gang_least)
        elif not gang.asks:
            self._resize(gang, pod.gang_size, pod.gang_least)

    def _apply(self, gang: Gang, group: GangDeclaration) -> None:
        """Apply the numbers that the object of a gang states."""
        newest = max(gang.pods.values(), key=lambda m: (m.pod.since, m.pod.uid))
        gang.succeeded, gang.total = group.succeeded, group.total
        self._resize(gang, group.size, group.least or newest.pod.gang_least)
        self.loosen(gang)

    def _resize(self, gang: Gang, size: int, least: int) -> None:
        """Change the numbers of a gang. Members beyond the size leave it, or others join it."""
        least = min(least, size) or size
        if (gang.size, gang.least) == (size, least):
            return
        grows = size > gang.size
        gang.size, gang.least = size, least
        self._part(gang)
        if grows:
            self._moved += self._beyond.pop(gang.key, {}).values()
        self.loosen(gang)

    def _separate(self, where: tuple[str, str]) -> None:
        """Dissolve the gangs of a group, because its pods are released one by one."""
        self._apart.add(where)
        for gang in list(self._asking.get(where, {}).values()):
            self.loosen(gang)
            self._moved += self._beyond.pop(gang.key, {}).values()
            for tracked in gang.members:
                self.unready(tracked)
                self.muster.left(tracked)
                self._drop(gang, tracked)
                self._moved.append(tracked)

    def seen(self, tracked: PodRecord) -> None:
        """Update the gang of a pod after an observation or a change of its state."""
        gang = tracked.gang
        if gang is None:
            return
        changed = self.muster.seen(tracked)
        if self._steps(gang):
            changed = changed and not gang.started
        if changed or (gang.steps and not self._steps(gang)):
            self.loosen(gang)

    def over(self, pod: Pod) -> None:
        """Record a finished pod. If it succeeded, its gang no longer requires it."""
        if not pod.gang or pod.failed or pod.phase is not Phase.FINISHED:
            return
        key = _key(pod)
        self._done_of[pod.uid] = key
        gang = self._known.get(key)
        mates = gang.pods.values() if gang is not None and pod.uid in gang.pods else ()
        makers = frozenset({pod.owner, *(mate.pod.owner for mate in mates)})
        self._done.setdefault(key, {}).setdefault(pod.uid, makers)

    def gone(self, uid: Uid) -> None:
        """Remove a pod that no longer exists. A uid without a gang is ignored."""
        key = self._done_of.pop(uid, None)
        if key is None:
            return
        self._done[key].pop(uid, None)
        if key in self._known:
            self.loosen(self._known[key])
        elif not self._done[key]:
            del self._done[key]

    def leave(self, tracked: PodRecord) -> None:
        """Remove a deleted pod from its gang."""
        gang = tracked.gang
        if gang is None:
            key = _key(tracked.pod)
            beyond = self._beyond.get(key, {})
            beyond.pop(tracked.pod.uid, None)
            if not beyond:
                self._beyond.pop(key, None)
            return
        self.unready(tracked)
        self.muster.left(tracked)
        self._drop(gang, tracked)
        if gang.pods:
            self._renew(gang)

    def defer(self, deferred: Mapping[GangKey, Millis]) -> None:
        """Let exactly these gangs wait until the given times, even if they are complete."""
        before, self.deferred = self.deferred, deferred
        for key in [*before, *deferred]:
            if key in self._known and (key in before) is not (key in deferred):
                self.loosen(self._known[key])

    def started(self, key: GangKey) -> bool:
        """Return whether all pods of a gang have run at the same time."""
        return key in self._known and self._known[key].started

    def take_moved(self) -> list[PodRecord]:
        """Return, once, the pods to account again because the size of their gang changed."""
        moved, self._moved = self._moved, []
        return moved

    def wait(self, tracked: PodRecord, pools: tuple[PoolName, ...]) -> None:
        """Record that a held pod waits only for its gang, with its eligible pools."""
        assert tracked.gang is not None
        self._ready[tracked.pod.uid] = pools
        if self._steps(tracked.gang):
            self._stepped[tracked.pod.uid] = tracked
        else:
            self.loosen(tracked.gang)

    def unready(self, tracked: PodRecord) -> None:
        """Record that a pod leaves its position: it may wait for another reason, or end."""
        gang = tracked.gang
        if gang is not None:
            self._renew(gang)
            self._ready.pop(tracked.pod.uid, None)
            self._stepped.pop(tracked.pod.uid, None)
            gang.further.pop(tracked.pod.uid, None)

    def _steps(self, gang: Gang) -> bool:
        """Return whether a change concerns one pod of a gang only, because its minimum runs.

        A gang may have thousands of further pods. They are not assessed again for each other.
        """
        return gang.is_elastic and gang.steps and gang.released_count >= gang.need

    def _renew(self, gang: Gang) -> None:
        if not self._steps(gang):
            self.loosen(gang)

    def loosen(self, gang: Gang) -> None:
        """Take a changed gang out of its queue until `settle`."""
        if gang.shape is not None and gang.leaf is not None and gang.turn is not None:
            self._usage.tree.dequeue(gang.leaf, gang.turn, gang.shape)
            del self.waiting[gang.turn.uid]
            self.half.pop(gang.turn.uid, None)
        gang.shape = gang.leaf = gang.turn = None
        gang.starting, gang.half, gang.steps = (), False, False
        self._loose[gang.key] = gang

    def clear(self) -> None:
        """Reset every gang for a new share tree. `settle` adds complete gangs again."""
        self.waiting.clear()
        self.half.clear()
        self._ready.clear()
        self._stepped.clear()
        for key, gang in self._known.items():
            gang.shape = gang.leaf = gang.turn = None
            gang.starting, gang.half, gang.steps = (), False, False
            gang.further.clear()
            self._loose[key] = gang

    def settle(self) -> list[PodRecord]:
        """Add every complete gang to its queue. Return the held pods of all changed gangs."""
        loose, self._loose = list(self._loose.values()), {}
        for gang in loose:
            self._gather(gang)
        stepped, self._stepped = list(self._stepped.values()), {}
        for tracked in stepped:
            if tracked.gang is not None and tracked.gang.steps:
                self._step(tracked.gang, tracked)
        return [m for gang in loose for m in gang.members if m.life is PodState.HELD] + stepped

    def _gather(self, gang: Gang) -> None:
        members = gang.members
        held = [m for m in members if m.life is PodState.HELD]
        ready = [m for m in held if m.pod.uid in self._ready]
        for member in ready:
            member.wait = Wait.GANG_INCOMPLETE
        self._step_back(gang)
        self.muster.assess(gang, ready, self._usage.now)
        if gang.leaving:
            return
        used = {m.pool for m in members if m.uses}
        lacking = gang.need - gang.released_count if gang.is_elastic else len(ready)
        if gang.is_elastic and used and lacking <= 0:
            gang.steps, gang.base = True, _base(gang, used)
            for member in ready:
                self._step(gang, member)
            return
        rest = [m for m in ready if m.begun] if used else []
        if rest:
            self._join_queue(gang, _first(rest, lacking), used)
            return
        complete = gang.size != ASKED and len(ready) == len(held) and gang.there >= gang.need
        if gang.is_elastic:
            complete = len(ready) >= lacking
        if held and complete and gang.key in self.deferred:
            for member in ready:
                member.wait = Wait.GANG_DEFERRED
        elif held and complete:
            self._join_queue(gang, _first(ready, lacking), set())

    def _step(self, gang: Gang, tracked: PodRecord) -> None:
        """Add one further pod of an elastic gang to its queue, in the pool of the gang."""
        mates, manner = gang.base
        pools = tuple(p for p in self._ready[tracked.pod.uid] if p in mates or not mates)
        if not pools:
            tracked.wait = Wait.NO_POOL
            return
        assert tracked.leaf is not None
        tracked.wait = Wait.TURN
        tracked.shape = self._shapes.of([tracked.pod], pools, manner)
        gang.further[tracked.pod.uid] = tracked
        self._usage.tree.enqueue(tracked.leaf, tracked.turn, tracked.shape)

    def _step_back(self, gang: Gang) -> None:
        """Take the further pods of a gang out of their queue."""
        for tracked in gang.further.values():
            assert tracked.leaf is not None
            assert tracked.shape is not None
            self._usage.tree.dequeue(tracked.leaf, tracked.turn, tracked.shape)
            tracked.shape = None
        gang.further.clear()

    def _join_queue(self, gang: Gang, ready: list[PodRecord], used: set[PoolName | None]) -> None:
        """Add these pods to the queue as one workload. `used`: the pools of the other pods."""
        pools = self._ready[ready[0].pod.uid]
        for member in ready[1:]:
            pools = tuple(pool for pool in pools if pool in self._ready[member.pod.uid])
        manner = _manner(gang)
        mates = used or ({m.pool for m in gang.members if m.uses} if manner.confined else used)
        theirs = tuple(pool for pool in pools if pool in mates)
        pools = theirs if mates and manner.confined else theirs or pools
        if not pools:
            for member in ready:
                member.wait = Wait.NO_POOL
            return
        first = min(ready, key=lambda member: member.turn)
        leaf, turn = first.leaf, first.turn
        assert isinstance(leaf, UserNode)
        oldest = min(member.turn.since for member in ready)
        gang.turn = QueueKey(turn.precedence, oldest, turn.uid)
        gang.leaf = leaf
        gang.shape = self._shapes.of(
            [member.pod for member in ready], pools, manner, is_rest=bool(used)
        )
        gang.starting, gang.half = tuple(ready), bool(used)
        self.waiting[turn.uid] = gang
        if gang.half:
            self.half[turn.uid] = gang
        for member in ready:
            member.wait = Wait.TURN
        self._usage.tree.enqueue(leaf, gang.turn, gang.shape)

    def _begin(self, pod: Pod) -> Gang:
        """Create the gang of this pod, which is its first known pod."""
        key, where = _key(pod), (pod.namespace, pod.gang)
        gang = self._known[key] = Gang(key, ASKED)
        gang.done = self._done.setdefault(key, {})
        if pod.gang_size == ASKED:
            group = self._groups.get(where)
            gang.asks = True
            if group is not None:
                gang.total, gang.succeeded = group.total, group.succeeded
            self._asking.setdefault(where, {})[key] = gang
        return gang

    def _part(self, gang: Gang) -> None:
        """Remove the last held pods if they exceed a size that was just read."""
        surplus = gang.there - gang.size
        if surplus <= 0 or not gang.pods:
            return
        held = [m for m in gang.members if not (m.uses or m.begun or m.pod.terminating)]
        for tracked in sorted(held, key=lambda m: m.turn)[-surplus:]:
            self.unready(tracked)
            self._drop(gang, tracked)
            self._beyond.setdefault(gang.key, {})[tracked.pod.uid] = tracked
            self._moved.append(tracked)

    def _drop(self, gang: Gang, tracked: PodRecord) -> None:
        """Remove a pod from its gang, and the gang if it was the last pod."""
        del gang.pods[tracked.pod.uid]
        gang.ending.discard(tracked.pod.uid)
        tracked.gang = None
        if gang.pods:
            return
        key, where = gang.key, (gang.key[0], gang.name)
        del self._known[key]
        self._loose.pop(key, None)
        self.muster.remove_gang(gang)
        if not gang.done:
            self._done.pop(key, None)
        asking = self._asking.get(where)
        if asking is not None:
            asking.pop(key, None)
            if not asking:
                del self._asking[where]


def _key(pod: Pod) -> GangKey:
    return pod.namespace, pod.user, pod.gang


def _first(ready: list[PodRecord], count: int) -> list[PodRecord]:
    """Return this many pods, the first in queue order. All of them if there are not more."""
    if len(ready) <= count:
        return ready
    return sorted(ready, key=lambda member: member.turn)[:count]


def _base(gang: Gang, used: set[PoolName | None]) -> tuple[frozenset[PoolName], GangLayout]:
    """Return the pools of the released pods of a gang, and the layout of its further pods."""
    manner = _manner(gang)
    return frozenset(pool for pool in used if pool is not None), manner


def _manner(gang: Gang) -> GangLayout:
    """Return the layout of a gang. It does not depend on which of the pods still wait."""
    members = gang.members
    beside = [m.node for m in members if m.uses and m.node is not None]
    return manner_of([m.pod.style for m in members], [m.pod.near for m in members], beside)
