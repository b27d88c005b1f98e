"""Gang time-outs: reports incomplete gangs, and evicts the released part of such a gang.

Part of a gang is useless, so after `gangTimeout` the gang gives back its capacity and waits again
as a whole. A gang may ask to restart as soon as it loses a pod before all pods ran. The pause
before the restart doubles each time, because the failure may be permanent.
"""

from __future__ import annotations

from app.core.effects import Effect, EmitEvent, EventReason, EvictPod
from app.core.lifecycle.eviction_limit import EvictionLimit
from app.core.lifecycle.gang_readiness import GangReadiness, released_uids
from app.core.lifecycle.pod_record import Gang, GangKey
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Uid
from app.core.policy import Mode, Policy
from app.core.retry import Backoff, RetrySchedule

CAUSE = "gang"
"""Cause of evictions by this module in metrics and in the audit chain."""

PAUSE = 10_000
"""First pause in milliseconds between the loss of a pod and the restart of its gang."""

MAX_REPORTED_PODS = 10
"""Maximum number of pods of an overdue gang that get an event. All belong to one user."""


class GangTimeouts:
    """Evicts incomplete gangs. It acts only while this engine leads."""

    def __init__(self, registry: PodRegistry, eviction_limit: EvictionLimit) -> None:
        self._registry = registry
        self._eviction_limit = eviction_limit
        self._stalled_since: Millis | None = None
        """Since when binding is stalled and gangs are not judged, or None."""
        self._planned_evictions: dict[GangKey, tuple[Gang, str, bool]] = {}
        """Gangs to evict as soon as it is allowed: the reason, and whether the gang lost a pod."""
        self._evicting = RetrySchedule()
        self._restart_backoff = Backoff[GangKey]()
        self._enforces = True

    def start_term(self) -> None:
        """Start a leader term."""
        self._stalled_since = None
        self._planned_evictions.clear()
        self._evicting.clear()

    @property
    def _readiness(self) -> GangReadiness:
        return self._registry.gangs.readiness

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._evicting.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `check_gangs` has work without a new event."""
        due = [self._evicting.due(), self._restart_backoff.due(self._registry.usage.now)]
        first, timeout = (
            self._readiness.earliest_incomplete_since(),
            self._registry.usage.policy.gang_timeout,
        )
        if timeout and first is not None and self._stalled_since is None:
            due.append(Millis(first + timeout))
        return min((at for at in due if at is not None), default=None)

    def check_gangs(self) -> list[Effect]:
        """Report gangs that are incomplete for too long, and return due evictions."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        self._pause_while_stalled(now)
        lost = [gang for gang in self._readiness.drain_lost() if _restarts_as_whole(gang)]
        late: list[Gang] = []
        if policy.gang_timeout and self._stalled_since is None:
            late = self._drain_overdue(Millis(now - policy.gang_timeout))
        effects: list[Effect] = [tell for gang in late for tell in self._report(gang)]
        if policy.mode is not Mode.ENFORCE:
            self._stop_evictions()
            return effects
        if not self._enforces:
            self._enforces = True
            self._readiness.restart_reported(now)
        for gang in lost:
            self._planned_evictions[gang.key] = gang, _explain_lost(gang), True
        for gang in late:
            if not gang.has_started:
                why = _explain_late(gang, policy.gang_timeout)
                self._planned_evictions.setdefault(gang.key, (gang, why, False))
        for key, (gang, why, anew) in list(self._planned_evictions.items()):
            if self._is_settled(gang, anew):
                del self._planned_evictions[key]
            elif self._may_evict(gang, policy):
                del self._planned_evictions[key]
                if self._start_eviction(gang, why) and anew:
                    self._restart_backoff.record_failure(key, now, PAUSE)
        self._end_backoffs(now)
        self._registry.gangs.set_deferred(self._restart_backoff.active_delays(now))
        return effects + self._evict_due(now)

    def _stop_evictions(self) -> None:
        """Evict no gang while the mode is Observe: waiting pods of gangs may be released."""
        self._enforces = False
        self._planned_evictions.clear()
        self._evicting.clear()
        self._restart_backoff.clear()
        for gang in self._readiness.cancel_evictions():
            self._registry.gangs.dequeue_until_settle(gang)
        self._registry.gangs.set_deferred({})

    def _drain_overdue(self, until: Millis) -> list[Gang]:
        """Return, once, the gangs that are incomplete since `until` or longer.

        The time-out of a gang without a Tenant starts again: others took its Tenant away.
        """
        late = []
        for gang in self._readiness.drain_overdue(until):
            if self._registry.tenant_gaps.gap_reason(gang.key[0]):
                self._readiness.restart_timeout(gang, self._registry.usage.now)
            else:
                late.append(gang)
        return late

    def _report(self, gang: Gang) -> list[EmitEvent]:
        held = [m for m in gang.members if m.state is PodState.HELD][:MAX_REPORTED_PODS]
        return [EmitEvent(m.ref, EventReason.WAITING) for m in held]

    def _pause_while_stalled(self, now: Millis) -> None:
        """Stop the gang time-outs while binding is stalled."""
        halted = self._registry.binding.is_gang_timeout_paused
        if halted and self._stalled_since is None:
            self._stalled_since = now
        elif not halted and self._stalled_since is not None:
            self._readiness.exclude_stall(self._stalled_since, now)
            self._stalled_since = None

    def _is_settled(self, gang: Gang, anew: bool) -> bool:
        """Return whether a planned eviction is obsolete: the gang is gone or complete again."""
        if not gang.pods or not gang.released:
            return True
        return gang.has_started or (not anew and gang.incomplete_since is None)

    def _may_evict(self, gang: Gang, policy: Policy) -> bool:
        """Return whether the released pods of a gang may be evicted now."""
        there = [gang.pods[uid] for uid in released_uids(gang)]
        if not (policy.evict_unowned or all(each.pod.is_owned for each in there)):
            return False
        pool = next((each.pool for each in there if each.pool is not None), None)
        now = self._registry.usage.now
        return pool is None or self._eviction_limit.reserve_evictions(pool, len(there), now)

    def _start_eviction(self, gang: Gang, why: str) -> bool:
        """Start to evict the released pods of a gang. Return whether it had any."""
        if gang.eviction_reason or not any(m.counts_as_used for m in gang.members):
            return False
        self._readiness.start_eviction(gang, why)
        self._registry.gangs.dequeue_until_settle(gang)
        return True

    def _end_backoffs(self, now: Millis) -> None:
        """End the backoff of gangs that ran completely, and of gangs that lost no pod for long."""
        for key in [
            *self._restart_backoff.expired_keys(now),
            *filter(self._registry.gangs.has_started, self._restart_backoff),
        ]:
            self._restart_backoff.clear_failures(key)

    def _evict_due(self, now: Millis) -> list[Effect]:
        for each in self._readiness.evicting.values():
            for uid in released_uids(each):
                self._evicting.add(uid, now)
        effects: list[Effect] = []
        for uid in self._evicting.take_due(now):
            tracked = self._registry.pods[uid]
            gang = tracked.gang
            if gang is None or not gang.eviction_reason or tracked.state is not PodState.USING:
                self._evicting.drop(uid)
            elif not tracked.pod.terminating:
                effects.append(EvictPod(tracked.ref, gang.eviction_reason, CAUSE))
        return effects


def _restarts_as_whole(gang: Gang) -> bool:
    return any(m.pod.restart_gang for m in gang.members)


def _explain_lost(gang: Gang) -> str:
    return (
        f"a pod of its gang {gang.name} failed or was deleted before all of the gang ran, and "
        "fairgate.io/gang-failure: restart starts the whole gang again, later each time; set it "
        "to keep to let the others run while a replacement is awaited"
    )


def _explain_late(gang: Gang, timeout: Millis) -> str:
    run = sum(m.counts_as_used for m in gang.members)
    part = f"only {run} of the {gang.required} pods"
    if gang.group_tree is not None:
        part = "too few pods of the pod groups"
    return (
        f"{part} of its gang {gang.name} were released within {timeout // 1000} s, so their "
        "place goes to others and the gang waits again as a whole; "
        "check its other pods, or ask a cluster admin to raise gangTimeout in the Policy"
    )
