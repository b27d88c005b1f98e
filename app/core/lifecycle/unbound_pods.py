"""Evicts released pods that stay unbound or belong to an incomplete gang.

Delegates to `SchedulingTimeouts` and `GangTimeouts`.
"""

from __future__ import annotations

from app.core.effects import Effect
from app.core.lifecycle.eviction_limit import EvictionLimit
from app.core.lifecycle.gang_timeouts import GangTimeouts
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.scheduling_timeout import SchedulingTimeouts
from app.core.model import Millis, Uid
from app.core.placement.autoscaling_backoff import AutoscalingBackoff


class UnboundPods:
    """Combines `SchedulingTimeouts` and `GangTimeouts`."""

    def __init__(self, registry: PodRegistry, growth: AutoscalingBackoff) -> None:
        restraint = EvictionLimit(registry.binding)
        self._scheduling_timeouts = SchedulingTimeouts(registry, growth, restraint)
        self._gang_timeouts = GangTimeouts(registry, restraint)

    def start_term(self) -> None:
        """Start a leader term."""
        self._scheduling_timeouts.start_term()
        self._gang_timeouts.start_term()

    def observe_pod(self, tracked: PodRecord) -> list[Uid]:
        """Process an observed released pod. Return it if its `unbound` eviction is obsolete."""
        return self._scheduling_timeouts.observe_pod(tracked)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._scheduling_timeouts.forget_pod(uid)
        self._gang_timeouts.forget_pod(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `check_pods` has work without a new event."""
        due = [self._scheduling_timeouts.due(), self._gang_timeouts.due()]
        return min((at for at in due if at is not None), default=None)

    def check_pods(self) -> list[Effect]:
        """Return evictions and events that are due. Call it after every `settle`."""
        return [*self._scheduling_timeouts.check_unbound(), *self._gang_timeouts.check_gangs()]
