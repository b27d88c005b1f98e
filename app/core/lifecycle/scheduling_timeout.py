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
from app.core.lifecycle.pod_record import PodRecord, kind_of
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.lifecycle.unschedulable_cause import Blame, blame_of
from app.core.model import BackoffKey, Millis, PoolName, Said, Uid
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


def words_of(said: Said | None) -> str:
    """Return a clause with the scheduler's message, or an empty string."""
    if said is None:
        return ""
    text = said.message if len(said.message) <= SHOWN else said.message[:SHOWN] + "..."
    return f"; the scheduler says: {text or said.reason}"


@dataclass(frozen=True, slots=True)
class _Hope:
    """A pod that waits for new nodes of a pool. `arrivals`: new nodes in any pool at its start."""

    pool: PoolName
    arrivals: int


class SchedulingTimeouts:
    """Released pods without a node, and the backoffs after failed scheduling."""

    def __init__(
        self, registry: PodRegistry, growth: AutoscalingBackoff, restraint: EvictionLimit
    ) -> None:
        self._registry = registry
        self._growth = growth
        self._restraint = restraint
        self._hoping: dict[Uid, _Hope] = {}
        self._late: dict[Uid, Millis] = {}
        """Pods with an expired time-out and no decision, and when it expired."""
        self._homeless: dict[Uid, Millis] = {}
        """Pods with an expired time-out and no possible node, and when this was last observed."""
        self._landed: dict[Uid, Millis] = {}
        """When a pod without an expected node got one again."""
        self._due: dict[Uid, str] = {}
        """Pods to evict, with the reason. The eviction is not requested yet."""
        self._texts: dict[Uid, str] = {}
        self._spared: dict[Uid, str] = {}
        self._leaving = RetrySchedule()
        self._bans = Backoff[BackoffKey]()

    def start_term(self) -> None:
        """Start a leader term: every time-out restarts."""
        self._late.clear()
        self._homeless.clear()
        self._landed.clear()
        self._due.clear()
        self._spared.clear()
        self._texts.clear()
        self._leaving.clear()

    def see(self, tracked: PodRecord) -> list[Uid]:
        """Process an observed released pod. Return it if it got a node before its eviction."""
        uid, pod = tracked.pod.uid, tracked.pod
        if pod.node is None and pod.asks and not pod.terminating:
            if uid not in self._leaving:
                pool = self._registry.usage.awaited(tracked.allocation)
                if pool is not None:
                    self._hoping.setdefault(uid, _Hope(pool, self._growth.arrivals))
            return []
        stays = uid in self._leaving and pod.node is not None
        if pod.node is not None and tracked.leaf is not None:
            hope = self._hoping.get(uid)
            if hope is not None and self._growth.is_newer(pod.node, hope.arrivals):
                self._growth.came(hope.pool, tracked.leaf.account)
            if len(self._bans):
                self._bans.forgive(kind_of(tracked.leaf, pod))
        self.forget_pod(uid)
        return [uid] if stays else []

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        for each in (self._late, self._homeless, self._landed):
            each.pop(uid, None)
        for text in (self._due, self._texts, self._spared):
            text.pop(uid, None)
        self._hoping.pop(uid, None)
        self._leaving.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `check_unbound` has work without a new event."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        timeout = policy.scheduling_timeout if _applies(policy) else Millis(0)
        due = [self._registry.binding.due(timeout)]
        if timeout:
            due += [self._leaving.due(), self._growth.due(now), self._bans.due(now)]
        return min((at for at in due if at is not None), default=None)

    def check_unbound(self) -> list[Effect]:
        """Return evictions of pods that found no node in time, and update the backoffs."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        if not _applies(policy):
            self._registry.ban(frozenset())
            self._growth.clear()
            return []
        for tracked in self._registry.binding.overdue(policy.scheduling_timeout):
            self._late[tracked.pod.uid] = now
        effects = self._judge(policy, now)
        for uid, text in list(self._due.items()):
            pool = self._registry.pods[uid].pool
            if pool is None or self._restraint.allows(pool, 1, now):
                self._texts[uid] = text
                del self._due[uid]
                self._leaving.add(uid, now)
        self._forgive(now)
        self._growth.advance(now)
        self._registry.ban(frozenset(self._bans.waiting(now)))
        return effects + self._expel(now)

    def _expel(self, now: Millis) -> list[Effect]:
        """Return due evictions. While binding is stalled, a node may still accept the pods."""
        found: list[Effect] = []
        for uid in self._leaving.take_due(now):
            tracked = self._registry.pods[uid]
            if tracked.pool is None or not self._registry.binding.is_quiet(tracked.pool):
                found.append(EvictPod(tracked.ref, self._texts[uid], CAUSE))
        return found

    def _judge(self, policy: Policy, now: Millis) -> list[Effect]:
        """Decide about pods with an expired time-out. Return events for their owners."""
        effects: list[Effect] = []
        for uid in list(self._late):
            tracked = self._registry.pods[uid]
            if not self._is_certain(tracked):
                continue
            del self._late[uid]
            text = self._blame(tracked, policy.scheduling_timeout, now)
            text += words_of(tracked.pod.said)
            if tracked.pod.is_owned or policy.evict_unowned:
                self._due[uid] = text
                continue
            self._spared[uid] = text
            stays = STAYS.format(seconds=policy.scheduling_timeout // 1000)
            message = stays + words_of(tracked.pod.said)
            effects.append(EmitEvent(tracked.ref, EventReason.WAITING, message))
        if policy.evict_unowned:
            self._due.update(self._spared)
            self._spared.clear()
        return effects

    def _is_certain(self, tracked: PodRecord) -> bool:
        """Return whether the scheduler judged a pod in the present situation.

        It did not if the node of the pod is not ready and no other is left: the node may come back.
        If the pod has an expected node again, its time-out restarts, and the scheduler must judge
        or bind a pod first.
        """
        uid, allocation, usage = tracked.pod.uid, tracked.allocation, self._registry.usage
        if usage.awaited(allocation) is not None:
            return True
        is_lost = (
            allocation is not None
            and allocation.node is None
            and usage.lost(allocation, tracked.aimed)
        )
        if is_lost and usage.may_return(tracked.aimed):
            self._homeless[uid] = usage.now
            return False
        if uid in self._hoping or uid in self._homeless:
            self._hoping.pop(uid, None)
            self._homeless.pop(uid, None)
            self._landed[uid] = usage.now
            del self._late[uid]
            self._registry.binding.restart(uid)
            return False
        landed = self._landed.get(uid)
        return landed is None or self._registry.binding.has_spoken_since(tracked, landed)

    def _blame(self, tracked: PodRecord, timeout: Millis, now: Millis) -> str:
        """Start the backoff that fits the cause of a failed scheduling. Return the message."""
        usage, uid, seconds = self._registry.usage, tracked.pod.uid, timeout // 1000
        assert tracked.leaf is not None, "asked before every pod had its place"
        pool = usage.awaited(tracked.allocation)
        if usage.lost(tracked.allocation, tracked.aimed):
            self._hoping.pop(uid, None)  # its node was lost: no backoff
            return LOST.format(seconds=seconds)
        if pool is None:
            self._hoping.pop(uid, None)  # it has an expected node that does not accept it
            if blame_of(tracked.pod.said) is not Blame.POD:
                return REFUSED.format(seconds=seconds)
            self._bans.fail(kind_of(tracked.leaf, tracked.pod), now, timeout)
            return UNTAKEN.format(seconds=seconds)
        self._hoping.setdefault(uid, _Hope(pool, self._growth.arrivals))
        self._growth.failed(pool, tracked.leaf.account, now, timeout)
        return MISSING.format(pool=pool, seconds=seconds)

    def _forgive(self, now: Millis) -> None:
        """End the old backoffs that concern no waiting or unbound pod."""
        old = self._bans.old(now)
        if not old:
            return
        wanted = set(self._kinds(self._registry.pods.values()))
        for kind in old:
            if kind in wanted:
                self._bans.keep(kind, now)
            else:
                self._bans.forgive(kind)

    def _kinds(self, pods: Iterable[PodRecord]) -> Iterable[BackoffKey]:
        return (
            kind_of(tracked.leaf, tracked.pod)
            for tracked in pods
            if tracked.leaf is not None
            and (tracked.life is not PodState.USING or self._looks_for_a_node(tracked))
        )

    def _looks_for_a_node(self, tracked: PodRecord) -> bool:
        """Return whether a pod is unbound and its time-out has not expired."""
        known = self._registry.binding.loose.get(tracked.pod.uid)
        return known is not None and not known.overdue


def _applies(policy: Policy) -> bool:
    return policy.scheduling_timeout > 0 and policy.mode is Mode.ENFORCE
