"""A leading engine that gangs are fed to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core import events as ev
from app.core.effects import Effect, EmitEvent, EvictPod, Release
from app.core.engine import Engine
from app.core.model import Millis, Node, NodeName, Phase, Pod, ReleaseOutcome, Resource, Uid
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
MINUTE = 60_000
NODE = NodeName("n0")


class Lead:
    """A leading engine. Released pods run at once unless `runs` is false."""

    def __init__(self, gpus: int = 8, *found: Pod, policy: Policy | None = None) -> None:
        self.engine = Engine(ManagedResources([GPU]))
        self.at = Millis(1000)
        self.pods: dict[Uid, Pod] = {}
        self.expelled: list[EvictPod] = []
        self.told: list[EmitEvent] = []
        self.released: list[str] = []
        self.runs = True
        self.refused = set[str]()
        """Pods whose next release is refused."""
        self.hear(ev.PolicyObserved(self.at, policy or Policy()))
        self.room(gpus)
        self.see(*found)
        for source in ev.REQUIRED_SOURCES:
            self.hear(ev.SourceFresh(self.at, source))
        self.hear(ev.Installed(self.at, Millis(0)), ev.LeadershipGained(self.at, 8))
        self.hear(ev.StoreReady(self.at))

    def room(self, gpus: int) -> None:
        self.hear(ev.NodeObserved(self.at, Node(NODE, {}, {GPU: gpus, PODS: 110}, True)))

    def hear(self, *events: ev.Event) -> list[Effect]:
        """Send events to the engine, and carry out its releases."""
        effects = [effect for event in events for effect in self.engine.handle(event)]
        effects += self.engine.handle(ev.Pass(self.at))
        self.expelled += [each for each in effects if isinstance(each, EvictPod)]
        self.told += [each for each in effects if isinstance(each, EmitEvent)]
        orders = [each for each in effects if isinstance(each, Release)]
        self.released += [order.intent.ref.name for order in orders]
        for order in orders:
            if order.intent.ref.name in self.refused:
                self.refused.remove(order.intent.ref.name)
                self.hear(ev.ReleaseAnswered(self.at, order.intent.ref.uid, ReleaseOutcome.HELD))
                continue
            self.hear(ev.ReleaseAnswered(self.at, order.intent.ref.uid, ReleaseOutcome.RELEASED))
            pod = replace(self.pods[order.intent.ref.uid], gates=(), release_annotation=order.stamp)
            self.see(replace(pod, node=NODE, phase=self._phase()))
        return effects

    def _phase(self) -> Phase:
        return Phase.RUNNING if self.runs else Phase.PENDING

    def see(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.uid] = pod
        self.hear(*(ev.PodObserved(self.at, pod) for pod in pods))

    def gone(self, *uids: str) -> None:
        for uid in uids:
            del self.pods[Uid(uid)]
        self.hear(*(ev.PodGone(self.at, Uid(uid)) for uid in uids))

    def finish(self, *uids: str, failed: bool = False) -> None:
        pods = [self.pods[Uid(uid)] for uid in uids]
        self.see(*(replace(pod, phase=Phase.FINISHED, failed=failed) for pod in pods))

    def wait(self, milliseconds: int) -> list[Effect]:
        self.at = Millis(self.at + milliseconds)
        return self.hear()

    def going(self) -> list[str]:
        return sorted(each.ref.name for each in self.expelled)

    def text(self, pod: Pod) -> str:
        why = self.engine.queries.explain_wait(pod.uid)
        assert why is not None
        return why.text


def member(number: int, size: int = 4, gang: str = "train", **more: Any) -> Pod:
    pod = replace(held_pod(f"g{number}", "a", since=900), gang=gang, gang_size=size)
    return replace(pod, **{"owner": "job", **more})


# Backoff of restarts.


def round_of(lead: Lead, number: int) -> None:
    """One pod of a gang crashes before all run, and a controller replaces the gang at once."""
    lead.runs = False
    before = len(lead.released)
    lead.see(*(member(10 * number + n, restart_gang=True) for n in range(4)))
    while len(lead.released) == before:
        lead.wait(1000)
    lead.finish(f"a/g{10 * number}", failed=True)
    lead.gone(*[uid for uid in lead.pods if lead.pods[uid].gang == "train"])
