"""An overloaded cluster with many users, and the engine that shares it out.

Drives the engine as the leader does, without API server and Redis. Each `Crowd` has one engine.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from fractions import Fraction

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_HELD

GPU = Resource("nvidia.com/gpu")
TENANTS = USERS = 100
NODES, GPUS_A_NODE = 1000, 8
SEED = 1
BATCH = 16
"""Pods that end and pods that arrive between two passes. The leader handles batches under load."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Request of one pod of a crowd."""

    gpus: int

    def demand(self) -> dict[Resource, int]:
        """Return the request in base units."""
        return {GPU: self.gpus, CPU: 4000 * self.gpus, PODS: 1}


class Crowd:
    """A full cluster with `pending` waiting pods. Pods end and new pods arrive.

    Pods share objects as in the leader: names of namespaces and users, and demands.
    """

    def __init__(self, pending: int) -> None:
        self.engine = Engine(
            ManagedResources([GPU]), EngineOptions(follows_binding_rate=False)
        )  # no scheduler binds the pods
        self._random = random.Random(SEED)
        self._now = 1_700_000_000_000
        self._made = 0
        self._running: list[Uid] = []
        self._answers: list[Release] = []
        self._demand = Kind(1).demand()
        self._gates, self._nothing = (GATE,), dict[str, str]()
        self._tenants = [sys.intern(f"team-{i:03}") for i in range(TENANTS)]
        self._users = [UserName(sys.intern(f"user-{i:03}@example.com")) for i in range(USERS)]
        self._open(pending + NODES * GPUS_A_NODE)
        self._fill()

    def churn(self, decisions: int) -> float:
        """End and create pods until there are `decisions` releases; return the seconds taken."""
        began, done = time.perf_counter(), 0
        while done < decisions:
            self._now += 10
            done += self._settle()
            for _ in range(BATCH):
                self._hear(ev.PodGone(Millis(self._now), self._ended()))
                self._hear(ev.PodObserved(Millis(self._now), self._pod()))
            self._pass()
        self._settle()
        return time.perf_counter() - began

    def arrive(self) -> float:
        """Create one more pod while the cluster is full; return the seconds with its pass."""
        self._now += 10
        pod = self._pod()
        began = time.perf_counter()
        self._hear(ev.PodObserved(Millis(self._now), pod))
        self._pass()
        taken = time.perf_counter() - began
        if self._settle():
            raise AssertionError("the cluster was not full")
        return taken

    def _open(self, pods: int) -> None:
        at = Millis(self._now)
        room = {GPU: GPUS_A_NODE, CPU: 64_000, PODS: 110}
        for i in range(NODES):
            self._hear(ev.NodeObserved(at, Node(NodeName(f"node-{i:04}"), {}, room, True)))
        for name in self._tenants:
            tenant = Tenant(TenantName(name), at, Fraction(1), namespaces=(name,))
            self._hear(ev.TenantObserved(at, tenant))
        for _ in range(pods):
            self._hear(ev.PodObserved(at, self._pod()))
        for source in ev.WatchedSource:
            self._hear(ev.SourceFresh(at, source))
        self._hear(ev.LeadershipGained(at, 1))
        self._hear(ev.StoreReady(at))

    def _fill(self) -> None:
        self._pass()
        while self._settle():
            self._pass()

    def _pod(self) -> Pod:
        self._made += 1
        return Pod(
            uid=Uid(f"{self._made:08x}-5eed-4000-8000-{self._made:012x}"),
            namespace=self._random.choice(self._tenants),
            name=f"train-{self._made:07}-x7k2p",
            user=self._random.choice(self._users),
            priority=0,
            created_at=Millis(self._now + self._made),
            demand=self._demand,
            gates=self._gates,
            release_annotation=RELEASE_HELD,
            selector=self._nothing,
            labels=self._nothing,
        )

    def _ended(self) -> Uid:
        """Remove a random running pod and return its uid."""
        place = self._random.randrange(len(self._running))
        ended, self._running[place] = self._running[place], self._running[-1]
        self._running.pop()
        return ended

    def _hear(self, event: ev.NewsEvent) -> None:
        self.engine.handle(event)

    def _pass(self) -> None:
        effects = self.engine.handle(ev.Pass(Millis(self._now)))
        self._answers += [effect for effect in effects if isinstance(effect, Release)]

    def _settle(self) -> int:
        """Answer every open release with success; return their number."""
        answers, self._answers = self._answers, []
        for release in answers:
            uid = release.intent.ref.uid
            self._running.append(uid)
            self._hear(ev.ReleaseAnswered(Millis(self._now), uid, ReleaseOutcome.RELEASED))
        return len(answers)
