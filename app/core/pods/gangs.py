"""Gangs: which pods belong together, and when those that are held wait as one workload.

A gang is complete when as many of its pods are held or run as it needs. The pods of it that
still wait are then one workload; so a replacement takes the place of a member that is gone. Pods
beyond its size are none of it, and wait each alone.

A gang of which some were released while the release of others was begun in vain, because the
leader died or its answer was lost, is half: the rest waits for no replacement, and goes first.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.groups import ASKED, Group
from app.core.asks.levels import manner_of
from app.core.asks.shape import Manner
from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.fair.usage import Usage
from app.core.model import Millis, Phase, Pod, PoolName, Uid, Wait
from app.core.places.shapes import Shapes
from app.core.pods.life import Life
from app.core.pods.muster import Muster
from app.core.pods.tracked import Gang, GangKey, Tracked


class Gangs:
    """All gangs of which a pod is known."""

    def __init__(self, usage: Usage, shapes: Shapes) -> None:
        self.waiting: dict[Uid, Gang] = {}
        self.half: dict[Uid, Gang] = {}
        self.deferred: Mapping[GangKey, Millis] = {}
        """Gangs that lost a pod and begin anew later, and when."""
        self.muster = Muster()
        self._known: dict[GangKey, Gang] = {}
        self._usage = usage
        self._shapes = shapes
        self._ready: dict[Uid, tuple[PoolName, ...]] = {}
        self._loose: dict[GangKey, Gang] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._asking: dict[tuple[str, str], dict[GangKey, Gang]] = {}
        self._done: dict[GangKey, dict[Uid, frozenset[str]]] = {}
        self._done_of: dict[Uid, GangKey] = {}
        self._surplus: list[Tracked] = []

    def put(self, group: Group) -> None:
        """An object says how many pods a gang has. Who has heard it once keeps the size."""
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
        """That object exists no more."""
        self._groups.pop((namespace, name), None)

    def join(self, tracked: Tracked) -> None:
        """A pod names its gang. The size that its first pod tells holds for all.

        One that is held, and one too many, is none of it for now.
        """
        pod = tracked.pod
        gang = self._known.get(_key(pod)) or self._begin(pod)
        goes_on = tracked.uses or tracked.begun
        if not goes_on and gang.size != ASKED and gang.there >= gang.size:
            return
        gang.pods[pod.uid] = tracked
        gang.found = gang.found or tracked.life is Life.USING
        tracked.gang = gang
        self.muster.seen(tracked)
        self.loosen(gang)

    def seen(self, tracked: Tracked) -> None:
        """A pod was seen, or became, something else."""
        if tracked.gang is not None and self.muster.seen(tracked):
            self.loosen(tracked.gang)

    def over(self, pod: Pod) -> None:
        """A pod is finished: if it succeeded, its gang can do without it."""
        if not pod.gang or pod.failed or pod.phase is not Phase.FINISHED:
            return
        key = _key(pod)
        self._done_of[pod.uid] = key
        gang = self._known.get(key)
        mates = gang.pods.values() if gang is not None and pod.uid in gang.pods else ()
        makers = frozenset({pod.owner, *(mate.pod.owner for mate in mates)})
        self._done.setdefault(key, {}).setdefault(pod.uid, makers)

    def gone(self, uid: Uid) -> None:
        """There is no pod of this uid any more; harmless if it was in no gang."""
        key = self._done_of.pop(uid, None)
        if key is None:
            return
        self._done[key].pop(uid, None)
        if key in self._known:
            self.loosen(self._known[key])
        elif not self._done[key]:
            del self._done[key]

    def leave(self, tracked: Tracked) -> None:
        """A pod is gone."""
        gang = tracked.gang
        if gang is None:
            return
        self.unready(tracked)
        self.muster.left(tracked)
        self._drop(gang, tracked)

    def defer(self, deferred: Mapping[GangKey, Millis]) -> None:
        """These gangs, and no others, wait until then though they are complete."""
        before, self.deferred = self.deferred, deferred
        for key in [*before, *deferred]:
            if key in self._known and (key in before) is not (key in deferred):
                self.loosen(self._known[key])

    def started(self, key: GangKey) -> bool:
        """Tell whether all pods of a gang have run at once."""
        return key in self._known and self._known[key].started

    def take_surplus(self) -> list[Tracked]:
        """Return, once, those of which it turned out that they are one too many."""
        surplus, self._surplus = self._surplus, []
        return surplus

    def wait(self, tracked: Tracked, pools: tuple[PoolName, ...]) -> None:
        """A held pod waits for nothing but its gang, and may go to these pools."""
        assert tracked.gang is not None
        self._ready[tracked.pod.uid] = pools
        self.loosen(tracked.gang)

    def unready(self, tracked: Tracked) -> None:
        """A pod leaves its place: it may wait for something else from now on, or not at all."""
        if tracked.gang is not None:
            self.loosen(tracked.gang)
            self._ready.pop(tracked.pod.uid, None)

    def loosen(self, gang: Gang) -> None:
        """Something about a gang changes: it leaves its queue until `settle`."""
        if gang.shape is not None and gang.leaf is not None and gang.turn is not None:
            self._usage.tree.dequeue(gang.leaf, gang.turn, gang.shape)
            del self.waiting[gang.turn.uid]
            self.half.pop(gang.turn.uid, None)
        gang.shape = gang.leaf = gang.turn = None
        gang.starting, gang.half = (), False
        self._loose[gang.key] = gang

    def clear(self) -> None:
        """The tree is new: every gang waits anew."""
        self.waiting.clear()
        self.half.clear()
        self._ready.clear()
        for key, gang in self._known.items():
            gang.shape = gang.leaf = gang.turn = None
            gang.starting, gang.half = (), False
            self._loose[key] = gang

    def settle(self) -> list[Tracked]:
        """Let every complete gang wait in its queue; return the held pods of all that changed."""
        loose, self._loose = list(self._loose.values()), {}
        for gang in loose:
            self._gather(gang)
        return [m for gang in loose for m in gang.members if m.life is Life.HELD]

    def _gather(self, gang: Gang) -> None:
        members = gang.members
        held = [m for m in members if m.life is Life.HELD]
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

    def _join_queue(self, gang: Gang, ready: list[Tracked], used: set[PoolName | None]) -> None:
        """Let these wait as one workload; `used`: the pools where the others are already."""
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
        assert isinstance(leaf, Leaf)
        oldest = min(member.turn.since for member in ready)
        gang.turn = Turn(turn.precedence, oldest, turn.uid)
        gang.leaf = leaf
        gang.shape = self._shapes.of([member.pod for member in ready], pools, manner)
        gang.starting, gang.half = tuple(ready), bool(used)
        self.waiting[turn.uid] = gang
        if gang.half:
            self.half[turn.uid] = gang
        for member in ready:
            member.wait = Wait.TURN
        self._usage.tree.enqueue(leaf, gang.turn, gang.shape)

    def _begin(self, pod: Pod) -> Gang:
        """Take up a gang of which this pod is the first to be heard of."""
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
        """The size of a gang is known at last: the last of those that are held may be too many."""
        surplus = gang.there - gang.size
        if surplus <= 0:
            return
        held = [m for m in gang.members if not (m.uses or m.begun or m.pod.terminating)]
        for tracked in sorted(held, key=lambda m: m.turn)[-surplus:]:
            self.unready(tracked)
            self._drop(gang, tracked)
            self._surplus.append(tracked)

    def _drop(self, gang: Gang, tracked: Tracked) -> None:
        """A pod is none of a gang any more."""
        del gang.pods[tracked.pod.uid]
        gang.ending.discard(tracked.pod.uid)
        tracked.gang = None
        if gang.pods:
            return
        key, where = gang.key, (gang.key[0], gang.name)
        del self._known[key]
        self._loose.pop(key, None)
        self.muster.forget(gang)
        if not gang.done:
            self._done.pop(key, None)
        asking = self._asking.get(where)
        if asking is not None:
            asking.pop(key, None)
            if not asking:
                del self._asking[where]


def _key(pod: Pod) -> GangKey:
    return pod.namespace, pod.user, pod.gang


def _manner(gang: Gang) -> Manner:
    """Return how a gang is laid out, whoever of it still waits."""
    members = gang.members
    beside = [m.node for m in members if m.uses and m.node is not None]
    return manner_of([m.pod.style for m in members], [m.pod.near for m in members], beside)
