"""A leading engine with its releases and evictions."""

from __future__ import annotations

from app.core import events as ev
from app.core.effects import EvictForReclaim, Release
from app.core.engine import Engine
from app.core.model import Millis, Node, Pod, Pool, ReleaseOutcome, Resource
from app.core.quantities import ManagedResources

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1)


class Bench:
    """A leading engine. Every release is answered at once."""

    def __init__(
        self,
        *cluster: Node,
        pools: tuple[Pool, ...] = (),
        managed: tuple[Resource, ...] = (GPU,),
    ) -> None:
        self.engine = Engine(ManagedResources(managed))
        self.orders: dict[str, Release] = {}
        self.evicted: list[str] = []
        for pool in pools:
            self.engine.handle(ev.PoolObserved(Millis(0), pool))
        for item in cluster:
            self.engine.handle(ev.NodeObserved(Millis(0), item))
        for source in ev.WatchedSource:
            self.engine.handle(ev.SourceFresh(Millis(0), source))
        self.hear(ev.LeadershipGained(Millis(0), 7), ev.StoreReady(Millis(0)))

    def hear(self, *events: ev.NewsEvent) -> None:
        for event in events:
            self.engine.handle(event)
        for effect in self.engine.handle(ev.Pass(events[-1].at)):
            if isinstance(effect, Release):
                ref = effect.intent.ref
                self.orders[ref.name] = effect
                self.engine.handle(ev.ReleaseAnswered(NOW, ref.uid, ReleaseOutcome.RELEASED))
            elif isinstance(effect, EvictForReclaim):
                self.evicted.append(effect.ref.name)

    def see(self, *pods: Pod) -> None:
        self.hear(*(ev.PodObserved(NOW, pod) for pod in pods))

    def gone(self, pod: Pod) -> None:
        self.hear(ev.PodGone(NOW, pod.uid))

    def put(self, *nodes: Node) -> None:
        self.hear(*(ev.NodeObserved(NOW, each) for each in nodes))

    @property
    def released(self) -> dict[str, str | None]:
        """The target nodes of the releases."""
        return {name: order.node for name, order in self.orders.items()}

    @property
    def pools(self) -> dict[str, str]:
        return {name: order.intent.pool for name, order in self.orders.items()}

    def text(self, pod: Pod) -> str:
        """Return the reason why a pod waits."""
        why = self.engine.queries.explain_wait(pod.uid)
        assert why is not None
        return why.text
