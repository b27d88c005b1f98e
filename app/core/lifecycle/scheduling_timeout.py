"""Scheduling time-outs: evicts released pods that stay unbound, and delays identical pods.

The time-out runs only while the scheduler works and after it judged the pod: see
`binding_progress`. A controller's pod is evicted after `schedulingTimeout`. An unowned pod stays
unless `evictUnowned` is set, because no controller would create a new one. If the pod's own spec is
the cause, pods of the user with the same requests must wait for a backoff. If it waited for new
nodes of a pool, the user's pods may not wait for these during a backoff.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.effects import Effect, EmitEvent, EventReason, EvictPod
from app.core.lifecycle.eviction_limit import EvictionLimit
from app.core.lifecycle.pod_record import PodRecord, backoff_key_of
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.lifecycle.unschedulable_cause import UnschedulableCause, unschedulable_cause_of
from app.core.model import BackoffKey, Millis, PoolName, SchedulerCondition, Uid
from app.core.placement.autoscaling_backoff import AutoscalingBackoff
from app.core.policy import Mode, Policy
from app.core.retry import Backoff, RetrySchedule

CAUSE = "unbound"
"""Cause of evictions by this module in metrics and in the audit chain."""

LOST = (
    "the node that it was released for was lost or became unsuitable, and it was bound to no "
    "other node within {seconds} s, so it is evicted; the pod itself is not the cause, and a new "
    "pod like it may be released at once"
)
MISSING = (
    "no new node of pool {pool} came within {seconds} s of its release, so it is evicted; a "
    "cluster admin can check the autoscaler, lower maxCapacity of the pool, or raise "
    "schedulingTimeout in the Policy if nodes take longer"
)
UNTAKEN = (
    "it was not bound within {seconds} s of its release, so it is evicted; check its constraints "
    "other than devices (volumes, host ports, affinity to other pods), or ask a cluster admin to "
    "raise schedulingTimeout in the Policy if nodes take longer; pods like it wait for a while"
)
REFUSED = (
    "it was not bound within {seconds} s of its release, so it is evicted; its own spec is not "
    "known to be the cause, and a new pod like it may be released at once"
)
STAYS = (
    "it was not bound within {seconds} s of its release; it has no controller, so it is not "
    "evicted and keeps its capacity; delete it if it is not needed, or check its constraints"
)

SHOWN = 200
"""Maximum number of characters shown of the scheduler's message."""


def scheduler_message_clause(said: SchedulerCondition | None) -> str:
    """Return a clause with the scheduler's message, or an empty string."""
    if said is None:
        return ""
    text = said.message if len(said.message) <= SHOWN else said.message[:SHOWN] + "..."
    return f"; the scheduler says: {text or said.reason}"


@dataclass(frozen=True, slots=True)
class _AwaitedNodes:
    """A pod that waits for new nodes of a pool. `arrivals`: new nodes in any pool at its start."""

    pool: PoolName
    arrivals: int


class SchedulingTimeouts:
    """Released pods without a node, and the backoffs after failed scheduling."""

    def __init__(
        self, registry: PodRegistry, growth: AutoscalingBackoff, eviction_limit: EvictionLimit
    ) -> None:
        self._registry = registry
        self._growth = growth
        self._eviction_limit = eviction_limit
        self._awaited_nodes: dict[Uid, _AwaitedNodes] = {}
        self._expired: dict[Uid, Millis] = {}
        """Pods with an expired time-out and no decision, and when it expired."""
        self._without_node: dict[Uid, Millis] = {}
        """Pods with an expired time-out and no possible node, and when this was last observed."""
        self._node_found_at: dict[Uid, Millis] = {}
        """When a pod without an expected node got one again."""
        self._to_evict: dict[Uid, str] = {}
        """Pods to evict, with the reason. The eviction is not requested yet."""
        self._texts: dict[Uid, str] = {}
        self._unowned_messages: dict[Uid, str] = {}
        self._evicting = RetrySchedule()
        self._backoffs = Backoff[BackoffKey]()

    def start_term(self) -> None:
        """Start a leader term: every time-out restarts."""
        self._expired.clear()
        self._without_node.clear()
        self._node_found_at.clear()
        self._to_evict.clear()
        self._unowned_messages.clear()
        self._texts.clear()
        self._evicting.clear()

    def observe_pod(self, tracked: PodRecord) -> list[Uid]:
        """Process an observed released pod. Return it if it got a node before its eviction."""
        uid, pod = tracked.pod.uid, tracked.pod
        if pod.node is None and pod.needs_managed and not pod.terminating:
            if uid not in self._evicting:
                pool = self._registry.usage.awaited_pool(tracked.allocation)
                if pool is not None:
                    self._awaited_nodes.setdefault(
                        uid, _AwaitedNodes(pool, self._growth.nodes_added)
                    )
            return []
        stays = uid in self._evicting and pod.node is not None
        if pod.node is not None and tracked.leaf is not None:
            hope = self._awaited_nodes.get(uid)
            if hope is not None and self._growth.is_newer(pod.node, hope.arrivals):
                self._growth.record_success(hope.pool, tracked.leaf.account)
            if len(self._backoffs):
                self._backoffs.clear_failures(backoff_key_of(tracked.leaf, pod))
        self.forget_pod(uid)
        return [uid] if stays else []

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        for each in (self._expired, self._without_node, self._node_found_at):
            each.pop(uid, None)
        for text in (self._to_evict, self._texts, self._unowned_messages):
            text.pop(uid, None)
        self._awaited_nodes.pop(uid, None)
        self._evicting.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `check_unbound` has work without a new event."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        timeout = policy.scheduling_timeout if _applies(policy) else Millis(0)
        due = [self._registry.binding.due(timeout)]
        if timeout:
            due += [self._evicting.due(), self._growth.due(now), self._backoffs.due(now)]
        return min((at for at in due if at is not None), default=None)

    def check_unbound(self) -> list[Effect]:
        """Return evictions of pods that found no node in time, and update the backoffs."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        if not _applies(policy):
            self._registry.set_banned(frozenset())
            self._growth.clear()
            return []
        for tracked in self._registry.binding.drain_overdue(policy.scheduling_timeout):
            self._expired[tracked.pod.uid] = now
        effects = self._judge(policy, now)
        for uid, text in list(self._to_evict.items()):
            pool = self._registry.pods[uid].pool
            if pool is None or self._eviction_limit.reserve_evictions(pool, 1, now):
                self._texts[uid] = text
                del self._to_evict[uid]
                self._evicting.add(uid, now)
        self._end_backoffs(now)
        self._growth.advance(now)
        self._registry.set_banned(frozenset(self._backoffs.active_delays(now)))
        return effects + self._evict_due(now)

    def _evict_due(self, now: Millis) -> list[Effect]:
        """Return due evictions. While binding is stalled, a node may still accept the pods."""
        found: list[Effect] = []
        for uid in self._evicting.take_due(now):
            tracked = self._registry.pods[uid]
            if tracked.pool is None or not self._registry.binding.is_timeout_paused(tracked.pool):
                found.append(EvictPod(tracked.ref, self._texts[uid], CAUSE))
        return found

    def _judge(self, policy: Policy, now: Millis) -> list[Effect]:
        """Decide about pods with an expired time-out. Return events for their owners."""
        effects: list[Effect] = []
        for uid in list(self._expired):
            tracked = self._registry.pods[uid]
            if not self._is_certain(tracked):
                continue
            del self._expired[uid]
            text = self._start_backoff(tracked, policy.scheduling_timeout, now)
            text += scheduler_message_clause(tracked.pod.scheduler_condition)
            if tracked.pod.is_owned or policy.evict_unowned:
                self._to_evict[uid] = text
                continue
            self._unowned_messages[uid] = text
            stays = STAYS.format(seconds=policy.scheduling_timeout // 1000)
            message = stays + scheduler_message_clause(tracked.pod.scheduler_condition)
            effects.append(EmitEvent(tracked.ref, EventReason.WAITING, message))
        if policy.evict_unowned:
            self._to_evict.update(self._unowned_messages)
            self._unowned_messages.clear()
        return effects

    def _is_certain(self, tracked: PodRecord) -> bool:
        """Return whether the scheduler judged a pod in the present situation.

        It did not if the node of the pod is not ready and no other is left: the node may come back.
        If the pod has an expected node again, its time-out restarts, and the scheduler must judge
        or bind a pod first.
        """
        uid, allocation, usage = tracked.pod.uid, tracked.allocation, self._registry.usage
        if usage.awaited_pool(allocation) is not None:
            return True
        is_lost = (
            allocation is not None
            and allocation.node is None
            and usage.has_lost_node(allocation, tracked.target_node)
        )
        if is_lost and usage.may_node_return(tracked.target_node):
            self._without_node[uid] = usage.now
            return False
        if uid in self._awaited_nodes or uid in self._without_node:
            self._awaited_nodes.pop(uid, None)
            self._without_node.pop(uid, None)
            self._node_found_at[uid] = usage.now
            del self._expired[uid]
            self._registry.binding.restart_timeout(uid)
            return False
        landed = self._node_found_at.get(uid)
        return landed is None or self._registry.binding.has_scheduler_acted_since(tracked, landed)

    def _start_backoff(self, tracked: PodRecord, timeout: Millis, now: Millis) -> str:
        """Start the backoff that fits the cause of a failed scheduling. Return the message."""
        usage, uid, seconds = self._registry.usage, tracked.pod.uid, timeout // 1000
        assert tracked.leaf is not None, "asked before every pod had its place"
        pool = usage.awaited_pool(tracked.allocation)
        if usage.has_lost_node(tracked.allocation, tracked.target_node):
            self._awaited_nodes.pop(uid, None)  # its node was lost: no backoff
            return LOST.format(seconds=seconds)
        if pool is None:
            self._awaited_nodes.pop(uid, None)  # it has an expected node that does not accept it
            if (
                unschedulable_cause_of(tracked.pod.scheduler_condition)
                is not UnschedulableCause.POD
            ):
                return REFUSED.format(seconds=seconds)
            self._backoffs.record_failure(backoff_key_of(tracked.leaf, tracked.pod), now, timeout)
            return UNTAKEN.format(seconds=seconds)
        self._awaited_nodes.setdefault(uid, _AwaitedNodes(pool, self._growth.nodes_added))
        self._growth.record_failure(pool, tracked.leaf.account, now, timeout)
        return MISSING.format(pool=pool, seconds=seconds)

    def _end_backoffs(self, now: Millis) -> None:
        """End the old backoffs that concern no waiting or unbound pod."""
        old = self._backoffs.expired_keys(now)
        if not old:
            return
        wanted = set(self._backoff_keys(self._registry.pods.values()))
        for kind in old:
            if kind in wanted:
                self._backoffs.postpone_expiry(kind, now)
            else:
                self._backoffs.clear_failures(kind)

    def _backoff_keys(self, pods: Iterable[PodRecord]) -> Iterable[BackoffKey]:
        return (
            backoff_key_of(tracked.leaf, tracked.pod)
            for tracked in pods
            if tracked.leaf is not None
            and (tracked.state is not PodState.USING or self._looks_for_a_node(tracked))
        )

    def _looks_for_a_node(self, tracked: PodRecord) -> bool:
        """Return whether a pod is unbound and its time-out has not expired."""
        known = self._registry.binding.unbound.get(tracked.pod.uid)
        return known is not None and not known.is_overdue


def _applies(policy: Policy) -> bool:
    return policy.scheduling_timeout > 0 and policy.mode is Mode.ENFORCE
