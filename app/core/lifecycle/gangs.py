"""Gang membership, and when the held pods of a gang wait as one workload.

A gang is complete when enough of its pods are held or run. The held pods are then one workload, so
a replacement takes the position of a lost member. A pod beyond the gang size is not a member and
waits alone.

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
        self._asking: dict[tuple[str, str], dict[GangKey, Gang]] = {}
        self._done: dict[GangKey, dict[Uid, frozenset[str]]] = {}
        self._done_of: dict[Uid, GangKey] = {}
        self._surplus: list[PodRecord] = []

    def record_size(self, group: GangDeclaration) -> None:
        """Record the size that an object states. A gang keeps the first size that it reads."""
        where = group.namespace, group.name
        if self._groups.get(where) == group:
            return
        self._groups[where] = group
        for gang in self._asking.get(where, {}).values():
            gang.succeeded = group.succeeded
            if gang.size == ASKED:
                gang.size, gang.total = group.size, group.total
                self._part(gang)
            self.loosen(gang)

    def drop(self, namespace: str, name: str) -> None:
        """Record that the object of a gang was deleted."""
        self._groups.pop((namespace, name), None)

    def join(self, tracked: PodRecord) -> None:
        """Add a pod to its gang. The size on the first pod applies to all pods.

        A held pod beyond this size is not added for now.
        """
        pod = tracked.pod
        gang = self._known.get(_key(pod)) or self._begin(pod)
        goes_on = tracked.uses or tracked.begun
        if not goes_on and gang.size != ASKED and gang.there >= gang.size:
            return
        gang.pods[pod.uid] = tracked
        gang.found = gang.found or tracked.life is PodState.USING
        tracked.gang = gang
        self.muster.seen(tracked)
        self.loosen(gang)

    def seen(self, tracked: PodRecord) -> None:
        """Update the gang of a pod after an observation or a change of its state."""
        if tracked.gang is not None and self.muster.seen(tracked):
            self.loosen(tracked.gang)

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
            return
        self.unready(tracked)
        self.muster.left(tracked)
        self._drop(gang, tracked)

    def defer(self, deferred: Mapping[GangKey, Millis]) -> None:
        """Let exactly these gangs wait until the given times, even if they are complete."""
        before, self.deferred = self.deferred, deferred
        for key in [*before, *deferred]:
            if key in self._known and (key in before) is not (key in deferred):
                self.loosen(self._known[key])

    def started(self, key: GangKey) -> bool:
        """Return whether all pods of a gang have run at the same time."""
        return key in self._known and self._known[key].started

    def take_surplus(self) -> list[PodRecord]:
        """Return, once, the pods that turned out to exceed the size of their gang."""
        surplus, self._surplus = self._surplus, []
        return surplus

    def wait(self, tracked: PodRecord, pools: tuple[PoolName, ...]) -> None:
        """Record that a held pod waits only for its gang, with its eligible pools."""
        assert tracked.gang is not None
        self._ready[tracked.pod.uid] = pools
        self.loosen(tracked.gang)

    def unready(self, tracked: PodRecord) -> None:
        """Record that a pod leaves its position: it may wait for another reason, or end."""
        if tracked.gang is not None:
            self.loosen(tracked.gang)
            self._ready.pop(tracked.pod.uid, None)

    def loosen(self, gang: Gang) -> None:
        """Take a changed gang out of its queue until `settle`."""
        if gang.shape is not None and gang.leaf is not None and gang.turn is not None:
            self._usage.tree.dequeue(gang.leaf, gang.turn, gang.shape)
            del self.waiting[gang.turn.uid]
            self.half.pop(gang.turn.uid, None)
        gang.shape = gang.leaf = gang.turn = None
        gang.starting, gang.half = (), False
        self._loose[gang.key] = gang

    def clear(self) -> None:
        """Reset every gang for a new share tree. `settle` adds complete gangs again."""
        self.waiting.clear()
        self.half.clear()
        self._ready.clear()
        for key, gang in self._known.items():
            gang.shape = gang.leaf = gang.turn = None
            gang.starting, gang.half = (), False
            self._loose[key] = gang

    def settle(self) -> list[PodRecord]:
        """Add every complete gang to its queue. Return the held pods of all changed gangs."""
        loose, self._loose = list(self._loose.values()), {}
        for gang in loose:
            self._gather(gang)
        return [m for gang in loose for m in gang.members if m.life is PodState.HELD]

    def _gather(self, gang: Gang) -> None:
        members = gang.members
        held = [m for m in members if m.life is PodState.HELD]
        ready = [m for m in held if m.pod.uid in self._ready]
        for member in ready:
            member.wait = Wait.GANG_INCOMPLETE
        self.muster.assess(gang, ready, self._usage.now)
        if gang.leaving:
            return
        used = {m.pool for m in members if m.uses}
        rest = [m for m in ready if m.begun] if used else []
        if rest:
            self._join_queue(gang, rest, used)
            return
        complete = gang.size != ASKED and len(ready) == len(held) and gang.there >= gang.need
        if held and complete and gang.key in self.deferred:
            for member in ready:
                member.wait = Wait.GANG_DEFERRED
        elif held and complete:
            self._join_queue(gang, ready, set())

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
        gang = self._known[key] = Gang(key, pod.gang_size)
        gang.done = self._done.setdefault(key, {})
        if pod.gang_size == ASKED:
            group = self._groups.get(where)
            gang.asks = True
            if group is not None:
                gang.size, gang.total = group.size, group.total
                gang.succeeded = group.succeeded
            self._asking.setdefault(where, {})[key] = gang
        return gang

    def _part(self, gang: Gang) -> None:
        """Remove the last held pods if they exceed a size that has just become known."""
        surplus = gang.there - gang.size
        if surplus <= 0:
            return
        held = [m for m in gang.members if not (m.uses or m.begun or m.pod.terminating)]
        for tracked in sorted(held, key=lambda m: m.turn)[-surplus:]:
            self.unready(tracked)
            self._drop(gang, tracked)
            self._surplus.append(tracked)

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


def _manner(gang: Gang) -> GangLayout:
    """Return the layout of a gang. It does not depend on which of the pods still wait."""
    members = gang.members
    beside = [m.node for m in members if m.uses and m.node is not None]
    return manner_of([m.pod.style for m in members], [m.pod.near for m in members], beside)
