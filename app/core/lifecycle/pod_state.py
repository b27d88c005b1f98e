"""State machine of a managed pod: the old state and an observation give the new state.

Kubernetes forbids that a removed gate comes back. An observation that shows it again is outdated.
"""

from __future__ import annotations

from enum import Enum

from app.core.model import Phase, Pod
from app.core.well_known import GATE


class PodState(Enum):
    """State of a managed pod. A finished or unknown pod has no state."""

    HELD = "held"
    RELEASING = "releasing"
    """The release patch may have been sent; counts as used."""
    USING = "using"


class Observation(Enum):
    """Result of one observation of a pod."""

    GATED = "gated"
    LEAVING = "leaving"
    """Gated and terminating. Its release may already be on the way, and may succeed."""
    OPEN = "open"
    OVER = "over"


def classify(pod: Pod) -> Observation:
    """Classify an observation. An ungated terminating pod uses its resources until it is gone."""
    if pod.phase is Phase.FINISHED:
        return Observation.OVER
    if GATE not in pod.gates:
        return Observation.OPEN
    return Observation.LEAVING if pod.terminating else Observation.GATED


TRANSITIONS: dict[tuple[PodState | None, Observation], PodState | None] = {
    (None, Observation.GATED): PodState.HELD,
    (None, Observation.LEAVING): None,
    (None, Observation.OPEN): PodState.USING,
    (None, Observation.OVER): None,
    (PodState.HELD, Observation.GATED): PodState.HELD,
    (PodState.HELD, Observation.LEAVING): None,
    (PodState.HELD, Observation.OPEN): PodState.USING,
    (PodState.HELD, Observation.OVER): None,
    (PodState.RELEASING, Observation.GATED): PodState.RELEASING,
    (PodState.RELEASING, Observation.LEAVING): PodState.RELEASING,
    (PodState.RELEASING, Observation.OPEN): PodState.USING,
    (PodState.RELEASING, Observation.OVER): None,
    (PodState.USING, Observation.GATED): PodState.USING,
    (PodState.USING, Observation.LEAVING): PodState.USING,
    (PodState.USING, Observation.OPEN): PodState.USING,
    (PodState.USING, Observation.OVER): None,
}
