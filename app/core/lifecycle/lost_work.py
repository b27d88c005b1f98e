"""The work that an eviction loses: device time since the start, or since the last checkpoint.

Every report and the order of victims use these functions.
"""

from __future__ import annotations

from app.core.lifecycle.pod_record import PodRecord
from app.core.model import Amounts, Millis
from app.core.podspec.device_fractions import estimate_devices


def lost_time(released: Millis | None, checkpoint: Millis | None, now: Millis) -> Millis:
    """Return the time that an eviction loses at most; 0 if the start is unknown.

    `released`: the start of the use. `checkpoint`: the declared longest time between two
    checkpoints, None if the pod makes none.
    """
    used = 0 if released is None else max(0, now - released)
    return Millis(used if checkpoint is None else min(used, checkpoint))


def lost_device_time(demand: Amounts, lost: Millis) -> int:
    """Return device-milliseconds, rounded down."""
    return int(estimate_devices(demand) * lost)


def device_time_lost_by(tracked: PodRecord, now: Millis) -> int:
    """Return the device-milliseconds that the eviction of a pod loses at most."""
    pod = tracked.pod
    return lost_device_time(
        pod.demand, lost_time(tracked.released_at, pod.reclaim_terms.checkpoint_interval, now)
    )


def describe_loss(tracked: PodRecord, now: Millis) -> str:
    """Return a sentence with the loss, for the owner of an evicted pod; "" without a loss."""
    hours = device_time_lost_by(tracked, now) / 3_600_000
    if not hours:
        return ""
    since = (
        "its start"
        if tracked.pod.reclaim_terms.checkpoint_interval is None
        else "its last checkpoint"
    )
    return f" It loses at most {hours:.3g} GPU hours since {since}."
