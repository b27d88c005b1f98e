"""A cluster in virtual time that drives the production engine.

It plays the API server, the scheduler and the store, all of them perfect and instant. It takes
no decision of its own and never looks at a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.core import events as ev
from app.core.effects import Effect, Release
from app.core.engine import Engine
from app.core.model import (
    GATE,
    HELD,
    Answer,
    Millis,
    Node,
    Phase,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    Uid,
    UserName,
)
from app.core.resources import PODS, ManagedResources
from app.core.views import View

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True)
class Started:
    """One release, as it happened."""

    at: Millis
    pod: Pod
    pool: PoolName


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    at: Millis
    order: int
    event: ev.Event


class World:
    """A cluster of nodes, tenants and pools, and the engine that shares it out."""

    def __init__(
        self,
        managed: ManagedResources,
        nodes: Iterable[Node],
        tenants: Iterable[Tenant] = (),
        pools: Iterable[Pool] = (),
        window: int = 256,
    ) -> None:
        self.now = Millis(0)
        self.started: list[Started] = []
        self.using: dict[Uid, Pod] = {}
        self.effects: list[Effect] = []
        self._engine = Engine(managed, window)
        self._due: list[_Due] = []
        self._order = 0
        self._runs: dict[Uid, tuple[Pod, int | None]] = {}
        self.hear(*self._opening(nodes, tenants, pools))

    def submit(self, pod: Pod, at: Millis, duration: int | None) -> None:
        """Create a pod at a time; once released it runs for `duration` ms, or for ever."""
        self._runs[pod.uid] = (pod, duration)
        self._schedule(at, ev.PodObserved(at, pod))

    def hear(self, *news: ev.Event) -> None:
        """Tell the engine what happened at this instant, and play out what it answers."""
        todo = list(news)
        while todo:
            answers: list[ev.Event] = []
            for event in (*todo, ev.Pass(self.now)):
                effects = self._engine.handle(event)
                self.effects += effects
                answers += [self._release(e) for e in effects if isinstance(e, Release)]
            todo = answers

    def run(self, until: Millis) -> None:
        """Let time pass up to and with `until`."""
        while self._due and self._due[0].at <= until:
            self.now = self._due[0].at
            news: list[ev.Event] = []
            while self._due and self._due[0].at == self.now:
                event = heapq.heappop(self._due).event
                if isinstance(event, ev.PodGone):
                    self.using.pop(event.uid, None)
                news.append(event)
            self.hear(*news)
        self.now = until

    def view(self) -> View:
        """Return the engine's own view."""
        return self._engine.view()

    def _opening(
        self, nodes: Iterable[Node], tenants: Iterable[Tenant], pools: Iterable[Pool]
    ) -> Iterator[ev.Event]:
        yield from (ev.NodeObserved(self.now, node) for node in nodes)
        yield from (ev.TenantObserved(self.now, tenant) for tenant in tenants)
        yield from (ev.PoolObserved(self.now, pool) for pool in pools)
        yield from (ev.SourceFresh(self.now, source) for source in ev.Source)
        yield ev.LeadershipGained(self.now, FIRST_EPOCH)
        yield ev.StoreReady(self.now)

    def _release(self, order: Release) -> ev.Event:
        pod, duration = self._runs[order.intent.ref.uid]
        running = replace(
            pod, gates=(), release=order.stamp, pool=order.intent.pool, phase=Phase.RUNNING
        )
        self.using[pod.uid] = running
        self.started.append(Started(self.now, pod, order.intent.pool))
        if duration is not None:
            ends = Millis(self.now + duration)
            self._schedule(ends, ev.PodGone(ends, pod.uid))
        return ev.ReleaseAnswered(self.now, pod.uid, Answer.RELEASED)

    def _schedule(self, at: Millis, event: ev.Event) -> None:
        self._order += 1
        heapq.heappush(self._due, _Due(at, self._order, event))


def held_pod(
    name: str,
    namespace: str,
    devices: int = 1,
    *,
    user: str = "user",
    priority: int = 0,
    since: int = 0,
    resource: str = "nvidia.com/gpu",
) -> Pod:
    """Return a pod as the webhook leaves it: gated, stamped, asking for devices."""
    return Pod(
        uid=Uid(f"{namespace}/{name}"),
        namespace=namespace,
        name=name,
        user=UserName(user),
        priority=priority,
        since=Millis(since),
        demand={Resource(resource): devices, PODS: 1},
        gates=(GATE,),
        release=HELD,
    )
