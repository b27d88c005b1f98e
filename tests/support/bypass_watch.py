"""An engine that observes pods with and without the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from app.core import events as ev
from app.core.effects import (
    Effect,
    WakeAt,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Resource,
)
from app.core.policy import Mode, Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NODE = NodeName("n")
SINCE = 100_000
EPOCH = 7
E = TypeVar("E", bound=Effect)


class Watch:
    """An engine in a cluster, with a clock. `effects` are the last effects of the engine.

    `alarm` is the requested wake-up time.
    """

    def __init__(
        self,
        *there: Pod,
        evicts: bool = False,
        lead: bool = True,
        since: int | None = SINCE,
        reclaims: bool = False,
        mode: Mode = Mode.ENFORCE,
    ) -> None:
        self.engine = Engine(
            ManagedResources([GPU]),
            EngineOptions(evicts=reclaims, evicts_bypassed=evicts, mode=mode),
        )
        self.now = 200_000
        self.alarm = Millis(0)
        self.effects: list[Effect] = []
        self.hear(ev.NodeObserved(self.at, Node(NODE, {}, {GPU: 8, PODS: 110}, True)))
        for pod in there:
            self.see(pod)
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        if since is not None:
            self.hear(ev.Installed(self.at, Millis(since)))
        if lead:
            self.lead(EPOCH)

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def lead(self, epoch: int, notes: Mapping[str, str] | None = None) -> None:
        before = self.effects
        self.hear(ev.LeadershipGained(self.at, epoch, notes or {}))
        self.effects += before
        before = self.effects
        self.hear(ev.StoreReady(self.at))
        self.effects = before + self.effects

    def hear(self, event: ev.Event) -> None:
        self.effects = [*self.engine.handle(event), *self.engine.handle(ev.Pass(self.at))]
        for alarm in self.all(WakeAt):
            self.alarm = alarm.at

    def see(self, pod: Pod) -> None:
        self.hear(ev.PodObserved(self.at, pod))

    def rule(self, mode: Mode) -> None:
        self.hear(ev.PolicyObserved(self.at, Policy(mode=mode)))

    def wait(self, span: int) -> None:
        self.now += span
        self.hear(ev.Pass(self.at))

    def all(self, kind: type[E]) -> list[E]:
        return [each for each in self.effects if isinstance(each, kind)]


def free(name: str, since: int = 150_000, release: str = "", **more: Any) -> Pod:
    """Return a running pod without a gate."""
    pod = replace(held_pod(name, "a", since=since), gates=(), release_annotation=release, node=NODE)
    return replace(pod, phase=Phase.RUNNING, **more)
