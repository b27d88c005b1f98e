"""A virtual cluster with slow and refused evictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from app.core import events as ev
from app.core.audit_entry import AuditRecord
from app.core.effects import (
    ClearAuditMarker,
    Effect,
    EvictForReclaim,
    GiveReclaimNotice,
    Release,
    WakeAt,
    WithdrawReclaimNotice,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NODE, POOL = NodeName("n"), PoolName("default")
E = TypeVar("E", bound=Effect)


class EvictionCluster:
    """A node of 9 devices; tenants a, b and d, each with its own guarantee; one engine."""

    def __init__(
        self, notes: dict[str, str] | None = None, epoch: int = 7, at: int = 10**7
    ) -> None:
        self.engine = Engine(
            ManagedResources([GPU]), EngineOptions(evicted_stale_reasons=[StaleReason.IDLE])
        )
        self.now, self.alarm = at, 0
        self.effects: list[Effect] = []
        self.hear(ev.NodeObserved(self.at, Node(NODE, {}, {GPU: 9, PODS: 110}, True)))
        self.rule()
        for name, guarantee in (("a", 4), ("b", 2), ("d", 0)):
            quotas = {POOL: Quota({GPU: guarantee})}
            tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)
            self.hear(ev.TenantObserved(self.at, tenant))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        self.epoch, self.notes, self.count = epoch, notes or {}, 0

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def lead(self) -> None:
        self.hear(ev.LeadershipGained(self.at, self.epoch, self.notes))
        self.hear(ev.StoreReady(self.at))

    def rule(self, **rules: Any) -> None:
        policy = replace(Policy(min_runtime=Millis(0)), **rules)
        self.hear(ev.PolicyObserved(self.at, policy))

    def hear(self, *events: ev.Event) -> None:
        """Send these events in one cycle, and store the effects."""
        for event in (*events, ev.Pass(self.at)):
            for effect in self.engine.handle(event):
                self.effects.append(effect)
                if isinstance(effect, WakeAt):
                    self.alarm = effect.at
                if isinstance(effect, AuditRecord | ClearAuditMarker):
                    self._keep(effect)

    def _keep(self, effect: AuditRecord | ClearAuditMarker) -> None:
        if isinstance(effect, ClearAuditMarker):
            self.notes.pop(effect.key, None)
        else:
            self.notes |= dict(effect.audit_markers)

    def take(self, kind: type[E]) -> list[E]:
        """Return and remove the effects of a kind."""
        found: list[E] = [each for each in self.effects if isinstance(each, kind)]
        self.effects = [each for each in self.effects if not isinstance(each, kind)]
        return found

    def wait(self, span: int) -> None:
        self.now += span
        self.hear()

    def run(self, *names: str, **more: Any) -> list[Pod]:
        """Add pods that an earlier leader released. The first letter of a name is its tenant."""
        pods = []
        for name in names:
            self.count += 1
            pod = replace(
                held_pod(name, name[0], since=1),
                gates=(),
                release_annotation=f"5.{self.count}",
                phase=Phase.RUNNING,
                started_at=Millis(self.count),
                **{"node": NODE, **more},
            )
            pods.append(pod)
        self.hear(*(ev.PodObserved(self.at, pod) for pod in pods))
        return pods

    def submit(self, name: str, gpus: int = 1) -> Uid:
        pod = held_pod(name, name[0], gpus, since=self.now)
        self.hear(ev.PodObserved(self.at, pod))
        return pod.uid

    def write_notices(self, pods: dict[str, Pod]) -> list[str]:
        """Write and remove the ordered notices, and store the pods. Return their names.

        "-" precedes the name of a pod that loses its notice. As in the executor, an order is
        dropped while another one for the same pod is unfinished.
        """
        orders: dict[str, GiveReclaimNotice | WithdrawReclaimNotice] = {}
        for effect in self.effects:
            if isinstance(effect, GiveReclaimNotice | WithdrawReclaimNotice):
                orders.setdefault(effect.ref.name, effect)
        self.take(GiveReclaimNotice)
        self.take(WithdrawReclaimNotice)
        for name, order in orders.items():
            ends = order.ends_at if isinstance(order, GiveReclaimNotice) else None
            terms = replace(pods[name].reclaim_terms, notice_ends_at=ends)
            pods[name] = replace(pods[name], reclaim_terms=terms)
        self.hear(*(ev.PodObserved(self.at, pods[name]) for name in orders))
        return [
            name if isinstance(order, GiveReclaimNotice) else f"-{name}"
            for name, order in orders.items()
        ]

    def evicted(self) -> list[str]:
        return sorted(each.ref.name for each in self.take(EvictForReclaim))

    def released(self) -> list[str]:
        return sorted(each.intent.ref.name for each in self.take(Release))

    def accept(self, *pods: Pod) -> None:
        self.hear(*(ev.EvictionAccepted(self.at, pod.uid) for pod in pods))
        self.leave(*pods)

    def leave(self, *pods: Pod) -> None:
        gone = (replace(pod, terminating=True) for pod in pods)
        self.hear(*(ev.PodObserved(self.at, pod) for pod in gone))

    def end(self, *pods: Pod) -> None:
        self.hear(*(ev.PodGone(self.at, pod.uid) for pod in pods))


def nine(cluster: EvictionCluster) -> list[Pod]:
    """Let b use everything; return its pods in the order of release."""
    return cluster.run(*(f"b{number}" for number in range(9)))
