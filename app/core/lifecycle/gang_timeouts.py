"""Gang time-outs: reports incomplete gangs, and evicts the released part of such a gang.

Part of a gang is useless, so after `gangTimeout` the gang gives back its capacity and waits again
as a whole. A gang may ask to restart as soon as it loses a pod before all pods ran. The pause
before the restart doubles each time, because the failure may be permanent.
"""

from __future__ import annotations

from app.core.effects import Effect, EmitEvent, EventReason, EvictPod
from app.core.lifecycle.eviction_limit import EvictionLimit
from app.core.lifecycle.gang_readiness import GangReadiness, released
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

TOLD = 10
"""Maximum number of pods of an overdue gang that get an event. All belong to one user."""


class GangTimeouts:
    """Evicts incomplete gangs. It acts only while this engine leads."""

    def __init__(self, registry: PodRegistry, restraint: EvictionLimit) -> None:
        self._registry = registry
        self._restraint = restraint
        self._halted: Millis | None = None
        """Since when binding is stalled and gangs are not judged, or None."""
        self._put_off: dict[GangKey, tuple[Gang, str, bool]] = {}
        """Gangs to evict as soon as it is allowed: the reason, and whether the gang lost a pod."""
        self._leaving = RetrySchedule()
        self._lost = Backoff[GangKey]()

    def start_term(self) -> None:
        """Start a leader term."""
        self._halted = None
        self._put_off.clear()
        self._leaving.clear()

    @property
    def _readiness(self) -> GangReadiness:
        return self._registry.gangs.readiness

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._leaving.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `check_gangs` has work without a new event."""
        due = [self._leaving.due(), self._lost.due(self._registry.usage.now)]
        first, timeout = self._readiness.first(), self._registry.usage.policy.gang_timeout
        if timeout and first is not None and self._halted is None:
            due.append(Millis(first + timeout))
        return min((at for at in due if at is not None), default=None)

    def check_gangs(self) -> list[Effect]:
        """Report gangs that are incomplete for too long, and return due evictions."""
        policy, now = self._registry.usage.policy, self._registry.usage.now
        self._pause_while_stalled(now)
        lost = [gang for gang in self._readiness.take_lost() if _is_anew(gang)]
        late: list[Gang] = []
        if policy.gang_timeout and self._halted is None:
            late = self._take_late(Millis(now - policy.gang_timeout))
        effects: list[Effect] = [tell for gang in late for tell in self._report(gang)]
        if policy.mode is not Mode.ENFORCE:
            self._put_off.clear()
            self._lost.clear()
            self._registry.gangs.defer({})
            return effects
        for gang in lost:
            self._put_off[gang.key] = gang, _explain_lost(gang), True
        for gang in late:
            if not gang.started:
                why = _explain_late(gang, policy.gang_timeout)
                self._put_off.setdefault(gang.key, (gang, why, False))
        for key, (gang, why, anew) in list(self._put_off.items()):
            if self._is_settled(gang, anew):
                del self._put_off[key]
            elif self._may_go(gang, policy):
                del self._put_off[key]
                if self._part(gang, why) and anew:
                    self._lost.fail(key, now, PAUSE)
        self._forgive(now)
        self._registry.gangs.defer(self._lost.waiting(now))
        return effects + self._expel(now)

    def _take_late(self, until: Millis) -> list[Gang]:
        """Return, once, the gangs that are incomplete since `until` or longer.

        The time-out of a gang without a Tenant starts again: others took its Tenant away.
        """
        late = []
        for gang in self._readiness.take_overdue(until):
            if self._registry.tenant_gaps.reason(gang.key[0]):
                self._readiness.restart(gang, self._registry.usage.now)
            else:
                late.append(gang)
        return late

    def _report(self, gang: Gang) -> list[EmitEvent]:
        held = [m for m in gang.members if m.life is PodState.HELD][:TOLD]
        return [EmitEvent(m.ref, EventReason.WAITING) for m in held]

    def _pause_while_stalled(self, now: Millis) -> None:
        """Stop the gang time-outs while binding is stalled."""
        halted = self._registry.binding.halted
        if halted and self._halted is None:
            self._halted = now
        elif not halted and self._halted is not None:
            self._readiness.shift(self._halted, now)
            self._halted = None

    def _is_settled(self, gang: Gang, anew: bool) -> bool:
        """Return whether a planned eviction is obsolete: the gang is gone or complete again."""
        if not gang.pods or not gang.past:
            return True
        return gang.started or (not anew and gang.lacks is None)

    def _may_go(self, gang: Gang, policy: Policy) -> bool:
        """Return whether the released pods of a gang may be evicted now."""
        there = [gang.pods[uid] for uid in released(gang)]
        if not (policy.evict_unowned or all(each.pod.is_owned for each in there)):
            return False
        pool = next((each.pool for each in there if each.pool is not None), None)
        now = self._registry.usage.now
        return pool is None or self._restraint.allows(pool, len(there), now)

    def _part(self, gang: Gang, why: str) -> bool:
        """Start to evict the released pods of a gang. Return whether it had any."""
        if gang.leaving or not any(m.uses for m in gang.members):
            return False
        self._readiness.leave(gang, why)
        self._registry.gangs.release_gang_constraint(gang)
        return True

    def _forgive(self, now: Millis) -> None:
        """End the backoff of gangs that ran completely, and of gangs that lost no pod for long."""
        for key in [*self._lost.old(now), *filter(self._registry.gangs.started, self._lost)]:
            self._lost.forgive(key)

    def _expel(self, now: Millis) -> list[Effect]:
        for each in self._readiness.leaving.values():
            for uid in released(each):
                self._leaving.add(uid, now)
        effects: list[Effect] = []
        for uid in self._leaving.take_due(now):
            tracked = self._registry.pods[uid]
            gang = tracked.gang
            if gang is None or not gang.leaving or tracked.life is not PodState.USING:
                self._leaving.drop(uid)
            elif not tracked.pod.terminating:
                effects.append(EvictPod(tracked.ref, gang.leaving, CAUSE))
        return effects


def _is_anew(gang: Gang) -> bool:
    return any(m.pod.gang_anew for m in gang.members)


def _explain_lost(gang: Gang) -> str:
    return (
        f"a pod of its gang {gang.name} failed or was deleted before all of the gang ran, and "
        "fairgate.io/gang-failure: restart starts the whole gang again, later each time; set it "
        "to keep to let the others run while a replacement is awaited"
    )


def _explain_late(gang: Gang, timeout: Millis) -> str:
    run = sum(m.uses for m in gang.members)
    return (
        f"only {run} of the {gang.need} pods of its gang {gang.name} were released within "
        f"{timeout // 1000} s, so their place goes to others and the gang waits again as a whole; "
        "check its other pods, or ask a cluster admin to raise gangTimeout in the Policy"
    )
