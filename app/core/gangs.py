"""Gangs: which pods belong together, and when those that are held wait as one workload.

A gang is complete when as many of its pods are held or run as it has members. The pods of it that
still wait are then one workload; so a replacement takes the place of a member that is gone.

A gang of which some were released while the release of others was begun in vain, because the
leader died or its answer was lost, is half: the rest waits for no replacement, and goes first.
"""

from __future__ import annotations

from app.core.backlog import Turn
from app.core.branch import Leaf
from app.core.life import Life
from app.core.model import PoolName, Uid, Wait
from app.core.shapes import Shapes
from app.core.tracked import Gang, GangKey, Tracked
from app.core.usage import Usage


class Gangs:
    """All gangs of which a pod is known."""

    def __init__(self, usage: Usage, shapes: Shapes) -> None:
        self.waiting: dict[Uid, Gang] = {}
        self.half: dict[Uid, Gang] = {}
        self._known: dict[GangKey, Gang] = {}
        self._usage = usage
        self._shapes = shapes
        self._ready: dict[Uid, tuple[PoolName, ...]] = {}
        self._loose: dict[GangKey, Gang] = {}

    def join(self, tracked: Tracked) -> None:
        """A pod names its gang. The size that its first pod tells holds for all."""
        key = (tracked.pod.namespace, tracked.pod.user, tracked.pod.gang)
        gang = self._known.setdefault(key, Gang(key, tracked.pod.gang_size))
        gang.pods[tracked.pod.uid] = tracked
        tracked.gang = gang
        self.loosen(gang)

    def leave(self, tracked: Tracked) -> None:
        """A pod is gone."""
        gang = tracked.gang
        if gang is None:
            return
        self.unready(tracked)
        del gang.pods[tracked.pod.uid]
        tracked.gang = None
        if not gang.pods:
            del self._known[gang.key]
            self._loose.pop(gang.key, None)

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
        used = {m.pool for m in members if m.uses}
        rest = [m for m in ready if m.begun] if used else []
        if rest:
            self._join_queue(gang, rest, used)
            return
        there = sum(not m.pod.terminating for m in members)
        if held and len(ready) == len(held) and there >= gang.size:
            self._join_queue(gang, ready, set())

    def _join_queue(self, gang: Gang, ready: list[Tracked], used: set[PoolName | None]) -> None:
        """Let these wait as one workload; `used`: the pools where the others are already."""
        pools = self._ready[ready[0].pod.uid]
        for member in ready[1:]:
            pools = tuple(pool for pool in pools if pool in self._ready[member.pod.uid])
        pools = tuple(pool for pool in pools if pool in used) or pools
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
        gang.shape = self._shapes.of([member.pod for member in ready], pools)
        gang.starting, gang.half = tuple(ready), bool(used)
        self.waiting[turn.uid] = gang
        if gang.half:
            self.half[turn.uid] = gang
        for member in ready:
            member.wait = Wait.TURN
        self._usage.tree.enqueue(leaf, gang.turn, gang.shape)
