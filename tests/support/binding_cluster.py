"""A virtual cluster whose scheduler binds on command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.core import events as ev
from app.core.effects import EmitEvent, EvictForReclaim, EvictPod, Release
from app.core.engine import Engine
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
    SchedulerCondition,
    Uid,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")

FULL = SchedulerCondition(
    "Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
)


class BindingCluster:
    """A leading engine with pools of one large node each, and its releases."""

    def __init__(self, *pools: str, policy: Policy | None = None) -> None:
        self.engine = Engine(ManagedResources([GPU]))
        self.now = 1_000_000
        self.pods: dict[Uid, Pod] = {}
        self.expelled: list[str] = []
        self.reclaimed: list[str] = []
        self.told: list[EmitEvent] = []
        news: list[ev.NewsEvent] = []
        for name in pools or ("default",):
            if pools:
                pool = Pool(PoolName(name), {"pool": name})
                news.append(ev.PoolObserved(self.at, pool))
            offer = {GPU: 4000, PODS: 4000}
            node = Node(NodeName(f"node-{name}"), {"pool": name}, offer, True)
            news.append(ev.NodeObserved(self.at, node))
        if policy is not None:
            news.append(ev.PolicyObserved(self.at, policy))
        news += [ev.SourceFresh(self.at, source) for source in ev.WatchedSource]
        news.append(ev.Installed(self.at, Millis(1)))
        self.hear(*news)
        self.lead(7)

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def lead(self, epoch: int) -> None:
        self.hear(ev.LeadershipGained(self.at, epoch), ev.StoreReady(self.at))

    def hear(self, *news: ev.NewsEvent) -> None:
        """Send events. Every release succeeds at once, and its pod is observed unbound."""
        todo: list[ev.NewsEvent] = list(news)
        while True:
            answers: list[ev.NewsEvent] = []
            for event in (*todo, ev.Pass(self.at)):
                for effect in self.engine.handle(event):
                    match effect:
                        case Release():
                            uid = effect.intent.ref.uid
                            pod = self.pods[uid]
                            selector = {**pod.selector, **effect.selector}
                            after = replace(
                                pod, gates=(), release_annotation=effect.stamp, selector=selector
                            )
                            self.pods[uid] = replace(after, pool=effect.intent.pool)
                            answers.append(
                                ev.ReleaseAnswered(self.at, uid, ReleaseOutcome.RELEASED)
                            )
                            answers.append(ev.PodObserved(self.at, self.pods[uid]))
                        case EvictPod():
                            self.expelled.append(effect.ref.name)
                        case EvictForReclaim():
                            self.reclaimed.append(effect.ref.name)
                        case EmitEvent():
                            self.told.append(effect)
            if not answers:
                return
            todo = answers

    def create(
        self,
        count: int,
        prefix: str = "p",
        *,
        namespace: str = "a",
        user: str = "user",
        gpus: int = 1,
        owner: str = "job",
        gang: str = "",
        gang_size: int = 0,
        pools: tuple[str, ...] = (),
        scheduler_may_be_silent: bool = False,
    ) -> list[Pod]:
        """Create held pods. Their names are the prefix and a number."""
        made = [
            replace(
                held_pod(f"{prefix}-{number:04}", namespace, gpus, user=user, since=self.now),
                owner=owner,
                gang=gang,
                gang_size=gang_size,
                pools=tuple(PoolName(name) for name in pools),
                scheduler_may_be_silent=scheduler_may_be_silent,
            )
            for number in range(count)
        ]
        self.pods |= {pod.uid: pod for pod in made}
        self.hear(*(ev.PodObserved(self.at, pod) for pod in made))
        return made

    def wait(self, span: int) -> None:
        self.now += span
        self.hear()

    def unbound(self, prefix: str = "") -> list[Pod]:
        """Return the released pods without a node, by name."""
        pods = (p for p in self.pods.values() if not p.gates and p.node is None)
        return sorted((p for p in pods if p.name.startswith(prefix)), key=lambda p: p.name)

    def released(self, prefix: str = "") -> int:
        pods = (p for p in self.pods.values() if p.name.startswith(prefix))
        return sum(not pod.gates for pod in pods)

    def bind(self, pods: Iterable[Pod]) -> None:
        """Bind these pods as the scheduler does."""
        for pod in list(pods):
            node = NodeName(f"node-{pod.pool}")
            self.pods[pod.uid] = replace(pod, node=node)
            self.hear(ev.PodObserved(self.at, self.pods[pod.uid]))

    def judge(self, pods: Iterable[Pod], said: SchedulerCondition = FULL) -> None:
        """Report these pods as unschedulable."""
        for pod in list(pods):
            self.pods[pod.uid] = replace(pod, scheduler_condition=said)
            self.hear(ev.PodObserved(self.at, self.pods[pod.uid]))

    def rule(self, policy: Policy) -> None:
        self.hear(ev.PolicyObserved(self.at, policy))
