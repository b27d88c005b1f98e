"""Times and limits of the watchdog."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.retry import ServerBackoff

TRIES = 5
CONCURRENCY = 8
"""Largest number of objects at a time. One by one, a slow API server delays the last by minutes."""

WARN_SECONDS = 60.0
"""Interval of warnings that nothing is refused yet."""


@dataclass(frozen=True, slots=True)
class WatchdogTiming:
    """Intervals and time-outs in seconds."""

    poll: float = 0.5
    """Interval of checks of the mode and the CA."""
    sweep: float = 30.0
    """Interval of checks of all objects, even without a notification."""
    proof_interval: float = 1.0
    """Interval of attempts to prove that the API server reaches a replica."""
    backoff: tuple[float, float] = (0.5, 15.0)
    """Pause after a failed round, doubled each time: first and longest."""
    repeat: float = 1.0
    """Within a round, a write without an answer is tried again after the first pause above, doubled
    each time up to this. A longer pause would delay a change of the mode after the API server
    answers again."""
    restore_pause: float = 0.25
    """Pause after a restore, in case another client changes the object again."""
    mode_wait: float = 30.0
    """How long to wait until the mode is known. The mode is Enforce afterwards."""
    ca_wait: float = 15.0
    """How long another replica may be ahead with its CA."""
    effect_delay: float = 2.0
    """An API server applies a change within about a second."""
    head_start: float = 10.0
    """How long the other objects wait for the webhooks that hold pods."""

    def write_backoff(self) -> ServerBackoff:
        """Return the pauses between the tries of one write within a round."""
        return ServerBackoff(self.backoff[0], self.repeat)


NORMAL = WatchdogTiming()
