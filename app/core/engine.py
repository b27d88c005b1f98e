"""The one place that decides: events in, effects out.

The live leader, its standbys and the simulator drive this same object. It keeps what it heard,
and a pass over it releases, in fair order, whatever fits. It never asks for the time, does no
I/O, and gives the same effects for the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from app.core import events as ev
from app.core.backlog import Shape
from app.core.effects import Effect, Intend, Notice, Rebuild, Refund, Release, StoreWrite, Tell
from app.core.gate import release_labels
from app.core.life import LIVES, Life, Sight, sight
from app.core.model import Answer, Millis, Pod, PoolName, Uid
from app.core.overview import overview
from app.core.placement import Placement
from app.core.resources import ManagedResources
from app.core.roster import Roster, Tracked
from app.core.tenancy import Tenancy
from app.core.views import View

WINDOW = 256
"""Most releases in flight at once: enough to keep the API server busy, few enough that a change
of order takes effect at once."""

FIRST_REST = 1_000
LONGEST_REST = 64_000
"""Milliseconds before a pod whose release was refused is tried again."""


class Engine:
    """Holds, orders and releases. See `handle`."""

    def __init__(self, managed: ManagedResources, window: int = WINDOW) -> None:
        self._managed = managed
        self._window = window
        self._tenancy = Tenancy()
        self._placement = Placement(managed)
        self._roster = Roster(self._tenancy, self._placement)
        self._fresh: set[ev.Source] = set()
        self._epoch: int | None = None
        self._sequence = 0
        self._store_ready = False
        self._in_flight: set[Uid] = set()
        self._resting: dict[Uid, int] = {}
        self._news: list[Tracked] = []
        self._effects: list[Effect] = []

    @property
    def ready(self) -> bool:
        """Whether every source has been heard whole and is fresh."""
        return len(self._fresh) == len(ev.Source)

    def handle(self, event: ev.Event) -> tuple[Effect, ...]:
        """Take one event; return what should be done about it, in this order.

        Releases come with `Pass` only, so that what arrived together is ordered together.
        """
        self._effects = []
        if not isinstance(event, ev.Pass):
            self._note(event)
        elif self.ready:
            self._wake(event.at)
            self._act()
        return tuple(self._effects) if self._epoch is not None else ()

    def writes(self) -> Iterator[StoreWrite]:
        """Return everything a store must hold to equal this engine."""
        return self._roster.writes()

    def held(self) -> Iterator[Pod]:
        """Return the pods that are behind the gate as far as is known."""
        return (t.pod for t in self._roster.pods.values() if t.life is not Life.USING)

    def highest_stamp(self) -> int:
        """Return the highest epoch found in the release annotations of all pods."""
        return max((t.stamp[0] for t in self._roster.pods.values()), default=0)

    def _act(self) -> None:
        self._effects += self._roster.settle()
        if self._epoch is not None and self._store_ready:
            self._release_in_order()
            self._effects += self._roster.settle()
        self._tell_news()

    def _note(self, event: ev.NewsEvent) -> None:
        match event:
            case ev.PodObserved(_, pod):
                self._observe(pod)
            case ev.BystanderObserved(_, bystander):
                self._placement.put_bystander(bystander)
                self._forget(bystander.uid)
            case ev.PodGone(_, uid):
                self._placement.drop_bystander(uid)
                self._forget(uid)
            case ev.NodeObserved(_, node):
                self._placement.put_node(node)
            case ev.NodeGone(_, name):
                self._placement.drop_node(name)
            case ev.TenantObserved(_, tenant, _):
                self._roster.put_tenant(tenant)
            case ev.TenantGone(_, name):
                self._roster.drop_tenant(name)
            case ev.PoolObserved(_, pool):
                self._placement.put_pool(pool)
            case ev.PoolGone(_, name):
                self._placement.drop_pool(name)
            case ev.SourceFresh(_, source):
                self._fresh.add(source)
            case ev.SourceStale(_, source):
                self._fresh.discard(source)
            case ev.ReleaseAnswered(at, uid, answer):
                self._answer(at, uid, answer)
            case ev.StoreReady():
                self._store_ready = True
            case ev.StoreLost():
                self._store_ready = False
            case ev.LeadershipGained(_, epoch):
                self._lead(epoch)
            case ev.LeadershipLost():
                self._follow()
            case _:
                assert_never(event)

    def _observe(self, pod: Pod) -> None:
        self._placement.drop_bystander(pod.uid)
        known = self._roster.pods.get(pod.uid)
        seen = sight(pod)
        life = LIVES[known.life if known else None, seen]
        if life is Life.USING and seen is Sight.GATED:
            return  # a sighting from before the release
        if life is None:
            self._forget(pod.uid)
        elif known is None:
            tracked = self._roster.add(pod, life)
            if life is Life.HELD and self.ready:
                self._news.append(tracked)
        else:
            self._roster.change(known, pod, life)

    def _forget(self, uid: Uid) -> None:
        known = self._roster.pods.get(uid)
        if known is not None:
            self._effects += self._roster.remove(known)

    def _answer(self, at: Millis, uid: Uid, answer: Answer) -> None:
        self._in_flight.discard(uid)
        known = self._roster.pods.get(uid)
        if known is None or known.intent is None:
            return
        intent = known.intent
        match answer:
            case Answer.RELEASED:
                stamp = f"{intent.epoch}.{intent.sequence}"
                pod = replace(known.pod, gates=(), release=stamp, pool=intent.pool)
                self._roster.change(known, pod, Life.USING)
                waited = max(0, at - known.pod.since) // 1000
                self._say(known, Notice.RELEASED, f"to pool {intent.pool} after {waited} s")
            case Answer.GONE:
                self._effects += self._roster.remove(known)
            case Answer.HELD | Answer.UNSENT:
                if known.life is Life.RELEASING:
                    self._roster.change(known, known.pod, Life.HELD)
                    self._effects.append(Refund(uid))
                    if answer is Answer.HELD:
                        self._rest(at, known)
            case _:
                assert_never(answer)
        known.intent = None

    def _rest(self, at: Millis, known: Tracked) -> None:
        """Let others go first for a while, twice as long after each refusal."""
        pause = min(FIRST_REST << known.refusals, LONGEST_REST)
        known.refusals += 1
        self._resting[known.pod.uid] = at + pause
        self._roster.rest(known, True)

    def _wake(self, at: Millis) -> None:
        for uid in [uid for uid, until in self._resting.items() if until <= at]:
            del self._resting[uid]
            if uid in self._roster.pods:
                self._roster.rest(self._roster.pods[uid], False)

    def _lead(self, epoch: int) -> None:
        self._epoch = epoch
        self._sequence = 0
        self._store_ready = False
        self._effects.append(Rebuild(epoch))

    def _follow(self) -> None:
        """Stop deciding. What was in flight shows in the pods themselves, sooner or later."""
        self._epoch = None
        self._in_flight.clear()
        for tracked in self._roster.pods.values():
            if tracked.life is Life.RELEASING:
                self._roster.change(tracked, tracked.pod, Life.HELD)
            tracked.intent = None

    def _release_in_order(self) -> None:
        """Release whatever fits, the next in fair order first, until nothing fits."""
        while len(self._in_flight) < self._window:
            chosen = self._pick()
            if chosen is None:
                return
            self._begin(*chosen)

    def _pick(self) -> tuple[Tracked, PoolName] | None:
        rooms: dict[Shape, PoolName | None] = {}

        def room(shape: Shape) -> PoolName | None:
            if shape not in rooms:
                rooms[shape] = self._placement.room_for(shape.demand, shape.pools)
            return rooms[shape]

        if not any(room(shape) for shape in self._roster.shapes):
            return None
        for leaf in self._roster.tree.in_order():
            for turn, shape in leaf.queue.heads():
                pool = room(shape)
                if pool is not None:
                    return self._roster.pods[turn.uid], pool
        return None

    def _begin(self, tracked: Tracked, pool: PoolName) -> None:
        assert self._epoch is not None
        self._sequence += 1
        pod, leaf = tracked.pod, tracked.leaf
        assert leaf is not None
        tracked.intent = Intend(
            tracked.ref, leaf.tenant, pod.user, pool, pod.demand, self._epoch, self._sequence
        )
        self._roster.change(tracked, pod, Life.RELEASING)
        self._roster.tree.serve(leaf, (self._epoch, self._sequence))
        self._in_flight.add(pod.uid)
        selector = self._placement.pools[pool].selector
        self._effects.append(
            Release(
                intent=tracked.intent,
                tested=pod.release,
                selector={k: v for k, v in selector.items() if k not in pod.selector},
                labels=release_labels(leaf.tenant, pod.user, pool),
                has_selector=bool(pod.selector),
                has_labels=pod.has_labels,
                has_annotations=pod.has_annotations,
                since=pod.since,
            )
        )

    def _tell_news(self) -> None:
        """Tell the owners of pods that came and were not released at once, and why they wait."""
        for tracked in self._news:
            if tracked.life is Life.HELD and self._roster.pods.get(tracked.pod.uid) is tracked:
                self._say(tracked, Notice.HELD, self._roster.explain(tracked))
        self._news.clear()
        for tracked in self._roster.take_changed():
            self._say(tracked, Notice.WAITING, self._roster.explain(tracked))

    def _say(self, tracked: Tracked, notice: Notice, message: str) -> None:
        self._effects.append(Tell(tracked.ref, notice, message))

    def view(self) -> View:
        """Return what the status of tenants and pools should say now."""
        return overview(self._roster, self._tenancy, self._placement, self._managed)
