"""A leader term with gangs."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import EmitEvent, Release
from app.core.engine import Engine
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Resource,
)
from app.core.quantities import PODS, ManagedResources

GPU = Resource("nvidia.com/gpu")
EPOCH = 8


class Term:
    """An engine that leads under epoch 8, with the pods that earlier leaders left."""

    def __init__(self, *found: Pod, gpus: int = 8, lead: bool = True) -> None:
        self.engine = Engine(ManagedResources([GPU]))
        self.released: list[Release] = []
        self.told: list[EmitEvent] = []
        self.node(gpus)
        for pod in found:
            self.hear(ev.PodObserved(Millis(1000), pod))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(Millis(1000), source))
        if lead:
            self.hear(ev.LeadershipGained(Millis(1000), EPOCH))
            self.hear(ev.StoreReady(Millis(1000)))

    def node(self, gpus: int) -> None:
        node = Node(NodeName("n0"), {}, {GPU: gpus, PODS: 110}, True)
        self.hear(ev.NodeObserved(Millis(1000), node))

    def hear(self, *events: ev.Event, at: int = 1000) -> list[str]:
        """Send events to the engine; return the names of the pods it releases."""
        effects = [effect for event in events for effect in self.engine.handle(event)]
        effects += self.engine.handle(ev.Pass(Millis(at)))
        now = [effect for effect in effects if isinstance(effect, Release)]
        self.released += now
        self.told += [effect for effect in effects if isinstance(effect, EmitEvent)]
        return [order.intent.ref.name for order in now]

    def bind_all(self, at: int) -> None:
        """Bind all released pods, as the scheduler does."""
        for order in self.released:
            tracked = self.engine._registry.pods[order.intent.ref.uid]
            if tracked.counts_as_used:
                pod = replace(tracked.pod, node=NodeName("n0"))
                self.hear(ev.PodObserved(Millis(at), pod), at=at)

    def names(self) -> list[str]:
        return [order.intent.ref.name for order in self.released]

    def text(self, pod: Pod) -> str:
        why = self.engine.queries.explain_wait(pod.uid)
        assert why is not None
        return why.text
