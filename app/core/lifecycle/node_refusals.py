"""Excludes nodes for a while if their kubelet refuses pods that the scheduler bound there.

A refused pod is Failed for good, and its node looks free at once, so it would attract the next
pods. A tenant can cause a refusal with unusual requests. So refusals of one tenant's pods close a
node to that tenant only. Refusals for two users of two tenants close it to all tenants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.effects import Effect, EmitEvent, EventReason, NodeRefused, PodRef
from app.core.model import (
    Amounts,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    TenantName,
    Uid,
    UserName,
)
from app.core.placement.allocations import Allocations
from app.core.placement.pools import Pools, node_devices

FIRST_MS = 30_000
"""Exclusion of a node after its first refusal. It doubles with each later refusal."""
LONGEST_MS = 300_000
TRIAL_MS = 60_000
"""Maximum duration of a trial: after the exclusion one pod is released to the node, and no other
pod until the kubelet accepts or refuses it."""
MEMORY_MS = 3_600_000
"""A refusal is forgotten this long after its exclusion if no other refusal followed."""

REASONS = frozenset(
    {
        "UnexpectedAdmissionError",
        "TopologyAffinityError",
        "NodeAffinity",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
    }
)
"""Values of `status.reason` with which a kubelet refuses a bound pod because of the node."""
OUT_OF = "OutOf"
OUT_OF_RESOURCE = "OutOfResource"
"""Represents any other resource, so that metrics have few labels."""


def refusal_reason(reason: str) -> str:
    """Return the refusal reason of a Failed pod; "" if its node did not refuse it."""
    if reason in REASONS:
        return reason
    return OUT_OF_RESOURCE if reason.startswith(OUT_OF) else ""


@dataclass(slots=True)
class _Record:
    """Refusals by a node since it last accepted a pod, and its devices at the first one."""

    devices: Amounts
    until: Millis
    trial_until: Millis
    wait: int = FIRST_MS
    tenants: set[TenantName] = field(default_factory=set)
    users: set[UserName] = field(default_factory=set)
    trial: Uid | None = None

    @property
    def is_common(self) -> bool:
        """Return whether it closes the node to all tenants. One user may have several tenants."""
        return len(self.tenants) > 1 and len(self.users) > 1

    def is_closed(self, now: Millis) -> bool:
        """Return whether no pod may be released to the node now."""
        return now < self.until or (self.trial is not None and now < self.trial_until)


class NodeRefusals:
    """Records refusals by nodes. `update_nodes` closes and opens nodes accordingly."""

    def __init__(self, pools: Pools, placement: Allocations) -> None:
        self._pools = pools
        self._placement = placement
        self._records: dict[NodeName, _Record] = {}
        self._trials: dict[Uid, NodeName] = {}

    def observe_pod(
        self, ref: PodRef, known: Pod, pod: Pod, tenant: TenantName, now: Millis
    ) -> list[Effect]:
        """Process an observed released pod; `known` is its previous state. Return reports."""
        if pod.node is None:
            return []
        if pod.phase is not Phase.FINISHED:
            if pod.started_at is not None and known.started_at is None:
                self._forget(pod.node)  # its kubelet accepted a pod
            return []
        if not pod.refusal_reason or known.started_at is not None:
            return []
        pool = self._pools.pool_of_node(pod.node)
        if pool is None:
            return []
        record = self._record(pod.node, tenant, now)
        record.users.add(pod.user)
        self._end_trial(record)
        return _reports(ref, pod, tenant, pool, record, now)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod. A pod without a trial is ignored."""
        node = self._trials.get(uid)
        if node is not None:
            self._end_trial(self._records[node])

    def observe_node(self, node: Node) -> None:
        """Process an observed node. If its devices changed, it may accept pods again."""
        record = self._records.get(node.name)
        if record is not None and node_devices(node) != record.devices:
            self._forget(node.name)

    def forget_node(self, name: NodeName) -> None:
        """Remove a deleted node."""
        self._forget(name)

    def record_release(
        self, uid: Uid, node: NodeName | None, tenant: TenantName, now: Millis
    ) -> bool:
        """Record a release to a node. Return whether it starts a trial, which closes the node."""
        record = self._records.get(node) if node is not None else None
        if record is None or node is None or record.trial is not None:
            return False
        if tenant not in record.tenants and not record.is_common:
            return False
        record.trial, record.trial_until = uid, Millis(now + TRIAL_MS)
        self._trials[uid] = node
        return True

    def due(self, now: Millis) -> Millis | None:
        """Return the next time at which `update_nodes` has work, or None."""
        times = (t for r in self._records.values() for t in (r.until, r.trial_until) if t > now)
        return min(times, default=None)

    def update_nodes(self, now: Millis) -> None:
        """Close and open nodes according to refusals and time."""
        for name, record in list(self._records.items()):
            if record.trial is not None and record.trial_until <= now:
                self._end_trial(record)
            if now - record.until > MEMORY_MS:
                self._forget(name)
        closed = {n: r for n, r in self._records.items() if r.is_closed(now)}
        self._pools.set_avoided_nodes({n: r.until for n, r in closed.items() if r.is_common})
        some = ((t, n) for n, r in closed.items() if not r.is_common for t in r.tenants)
        self._placement.set_closed_nodes(frozenset(some))

    def _record(self, name: NodeName, tenant: TenantName, now: Millis) -> _Record:
        record = self._records.get(name)
        if record is None:
            until = Millis(now + FIRST_MS)
            record = self._records[name] = _Record(self._pools.devices_of(name), until, until)
        elif now >= record.until:
            record.wait = min(2 * record.wait, LONGEST_MS)
        record.until = Millis(now + record.wait)
        record.tenants.add(tenant)
        return record

    def _forget(self, name: NodeName) -> None:
        record = self._records.pop(name, None)
        if record is not None:
            self._end_trial(record)

    def _end_trial(self, record: _Record) -> None:
        if record.trial is not None:
            self._trials.pop(record.trial, None)
            record.trial = None


def _reports(
    ref: PodRef, pod: Pod, tenant: TenantName, pool: PoolName, record: _Record, now: Millis
) -> list[Effect]:
    assert pod.node is not None
    whose = "no pod" if record.is_common else f"no pod of tenant {tenant}"
    text = (
        f"node {pod.node} refused it ({pod.refusal_reason}), so {whose} is released to that node "
        f"for {(record.until - now) // 1000} s; create the pod again if no controller does"
    )
    found = NodeRefused(ref, tenant, pod.node, pool, pod.refusal_reason, record.until)
    return [found, EmitEvent(ref, EventReason.NODE_REFUSED, text)]
