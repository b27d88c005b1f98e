"""Options of the decision engine that no Policy sets.

The leader, its standbys, the API replicas and the simulator run the same engine. They differ in
these options only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import Resource, Uid
from app.core.placement.fragmentation import Sample
from app.core.podspec.devices import SelectorEvaluator
from app.core.policy import Mode

MAX_IN_FLIGHT = 256
"""Maximum number of releases in flight. The API server stays busy, and a change of the order still
takes effect at once.
"""

COMPARED_SIBLINGS = 1
"""Siblings with which the leader compares a release for the drift: the likeliest to exceed it."""


def _ignore(_: Uid | None) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine. The defaults are those of a leader without further settings."""

    mode: Mode = Mode.ENFORCE
    """Applies if no Policy sets another."""

    max_in_flight: int = MAX_IN_FLIGHT
    """Maximum number of releases in flight."""

    follows_binding_rate: bool = True
    """Limit releases to the binding rate of the scheduler."""

    compared_siblings: int | None = COMPARED_SIBLINGS
    """Siblings with which a release is compared for the drift. None: all."""

    evicts: bool = True
    """Request evictions for guarantees and priorities."""

    evicts_bypassed: bool = False
    """Request the eviction of pods that bypassed the gate."""

    evicted_stale_reasons: Collection[StaleReason] = ()
    """Reasons for which a stale pod is evicted."""

    resource_by_device_class: Mapping[str, Resource] = field(default_factory=dict)
    """The resource that devices of a DRA class count as, by class."""

    selector_evaluator: SelectorEvaluator | None = None
    """Evaluates CEL selectors of devices. None: every device may match."""

    pod_mix: Sample | None = None
    """The pod mix for which to pack, if another engine has measured it."""

    emits_audit_records: bool = True
    """Emit audit records."""

    emits_store_writes: bool = True
    """Emit store writes and Kubernetes events, and forget idle users."""

    on_evaluate: Callable[[Uid | None], None] = _ignore
    """Called with the pod that is being evaluated, None for no pod in particular."""


DEFAULTS = EngineOptions()
