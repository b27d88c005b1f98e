"""The declared end of a pod."""

from __future__ import annotations

from dataclasses import replace

from app.core.fairshare.sort_key import NEVER_SERVED
from app.core.fairshare.user_queue import queue_key_of
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis
from app.sim.cluster.virtual_cluster import held_pod

MINUTE = 60_000


def test_the_declared_run_time_counts_from_the_start_of_the_pod() -> None:
    pod = replace(held_pod("p", "a"), max_runtime=Millis(10 * MINUTE))
    queue_key = queue_key_of(pod.priority, pod.created_at, pod.uid)
    tracked = PodRecord(pod, PodState.USING, NEVER_SERVED, queue_key)
    assert tracked.declared_end(pod) is None
    tracked.released_at = Millis(MINUTE)
    assert tracked.declared_end(pod) == 11 * MINUTE
    assert tracked.declared_end(replace(pod, started_at=Millis(3 * MINUTE))) == 13 * MINUTE
    assert tracked.declared_end(replace(pod, max_runtime=None)) is None
