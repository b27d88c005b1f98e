"""Times and limits of the watchdog."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Pause after a failed round, doubled each time: first and longest. Within a round, a write
    without an answer is tried again after the first pause, doubled each time."""
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


NORMAL = WatchdogTiming()
