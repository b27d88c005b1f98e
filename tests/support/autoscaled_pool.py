"""A pool that an autoscaler grows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core import events as ev
from app.core.effects import Effect, EmitEvent, EvictForReclaim, EvictPod, Release
from app.core.explain.views import PoolView
from app.core.model import (
    Amounts,
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Resource,
    SchedulerCondition,
    Tenant,
    TenantName,
    UserName,
)
from app.core.policy import Policy
from app.core.quantities import PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.bypass_watch import Watch

GPU = Resource("nvidia.com/gpu")
AUTO = PoolName("auto")
TIMEOUT = 300_000
LABELS = {"pool": "auto"}
FULL = SchedulerCondition(
    "Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
)
OFFER: Amounts = {GPU: 8, PODS: 110}


class Farm(Watch):
    """An engine with one pool that grows to `most` devices, and a perfect scheduler.

    `where` is the node of each released pod, None if not yet known.
    """

    def __init__(self, most: int, nodes: int = 1, *, reclaims: bool = False) -> None:
        self.pods: dict[str, Pod] = {}
        self.where: dict[str, NodeName | None] = {}
        self.orders: dict[str, Release] = {}
        self.told: list[EmitEvent] = []
        self.evicted: list[str] = []
        self.taken: list[str] = []
        self.judges = True
        """The scheduler reports released pods without a node as unschedulable."""
        super().__init__(reclaims=reclaims)
        self.hear(ev.NodeGone(self.at, NodeName("n")))
        self.grow(most)
        for number in range(nodes):
            self.add(number)

    def hear(self, event: ev.Event) -> None:
        super().hear(event)
        effects: list[Effect] = list(self.effects)
        for effect in effects:
            if isinstance(effect, EmitEvent):
                self.told.append(effect)
            elif isinstance(effect, EvictPod):
                self.evicted.append(effect.ref.name)
            elif isinstance(effect, EvictForReclaim):
                self.taken.append(effect.ref.name)
        for order in effects:
            if isinstance(order, Release):
                name = order.intent.ref.name
                pod = replace(self.pods[name], gates=(), release_annotation=order.stamp, pool=AUTO)
                self.where[name], self.orders[name] = order.node, order
                said = FULL if order.node is None and self.judges else None
                self.pods[name] = replace(pod, node=order.node)
                self.hear(ev.ReleaseAnswered(self.at, pod.uid, ReleaseOutcome.RELEASED))
                self.see(self.pods[name])
                if said is not None:
                    self.pods[name] = replace(self.pods[name], scheduler_condition=said)
                    self.see(self.pods[name])

    def grow(self, most: int, paused: bool = False) -> None:
        pool = Pool(AUTO, LABELS, max_capacity={GPU: most} if most else {}, paused=paused)
        self.hear(ev.PoolObserved(self.at, pool))

    def add(self, number: int, offer: Amounts = OFFER) -> NodeName:
        """Add a node."""
        name = NodeName(f"auto-{number}")
        self.hear(ev.NodeObserved(self.at, Node(name, LABELS, offer, True)))
        return name

    def create(self, name: str, devices: int = 8, **more: Any) -> None:
        pod = held_pod(name, "a", devices, since=self.now)
        pod = replace(pod, **{"owner": "job", **more})
        self.pods[name] = pod
        self.see(pod)

    def bind(self, name: str, node: NodeName) -> None:
        """Bind a pod to a node."""
        self.pods[name] = replace(self.pods[name], node=node)
        self.see(self.pods[name])

    def delete(self, name: str) -> None:
        self.hear(ev.PodGone(self.at, self.pods.pop(name).uid))

    def pool(self) -> PoolView:
        return self.engine.queries.view().pools[AUTO]

    def why(self, name: str) -> str:
        found = self.engine.queries.explain_wait(self.pods[name].uid)
        assert found is not None
        return found.text


def fail(farm: Farm, *users: str, namespace: str = "a") -> None:
    """Release pods for nodes that never appear, one pod per user."""
    for user in users:
        farm.create(f"vain-{user}", user=UserName(user), namespace=namespace)
        assert farm.where[f"vain-{user}"] is None
    farm.wait(TIMEOUT)
    for user in users:
        farm.delete(f"vain-{user}")


def owed(farm: Farm) -> None:
    """The owner has a guarantee of the maximum capacity. The guest uses all existing nodes."""
    quotas = {AUTO: Quota(guarantee={GPU: 24})}
    for name, own in (("owner", quotas), ("guest", {})):
        farm.hear(
            ev.TenantObserved(
                farm.at, Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=own)
            )
        )
    farm.hear(ev.PolicyObserved(farm.at, Policy(min_runtime=Millis(0))))
    for name in ("g0", "g1"):
        farm.create(name, namespace="guest")
