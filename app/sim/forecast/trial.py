"""Simulates proposed pods: what starts at once, why the rest waits, and when the last one starts.

It runs the production engine on a snapshot, so the live engine is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.explain.reasons import WaitExplanation
from app.core.explain.snapshot import Snapshot
from app.core.explain.views import HeldView
from app.core.model import Millis, Pod, PoolName, Uid
from app.sim.forecast.forward_run import cluster_from_snapshot, simulate_waits
from app.sim.forecast.worker_protocol import decode_body

SEED = 7


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of `simulate_first_instant`, without the wait. The fields are those of
    `ports.forecasts.Trial`.
    """

    released: Mapping[Uid, PoolName]
    held: HeldView | None
    why: WaitExplanation | None


class _Endless:
    """Run times of a simulation that ends after its first instant."""

    def remaining_time(self, pod: Pod, ran: Millis) -> Millis | None:
        return None


def simulate_first_instant(body: bytes, pods: Sequence[Pod]) -> Attempt:
    """Simulate the first instant of pods, on a pickled snapshot and its run times.

    The pods are created at the time of the snapshot, after its held pods. A worker process calls
    this.
    """
    snapshot, _ = decode_body(body)
    proposed = _with_pods(snapshot, pods)
    # Without evictions: capacity that a reclaim must free first is not free now.
    world = cluster_from_snapshot(proposed, _Endless(), evicts=False)
    world.advance_to(proposed.at)
    own = {pod.uid for pod in pods}
    released = {each.pod.uid: each.pool for each in world.started if each.pod.uid in own}
    first = next((pod.uid for pod in pods if pod.uid not in released), None)
    if first is None:
        return Attempt(released, None, None)
    queries = world.engine.queries
    return Attempt(released, queries.held_view(first), queries.explain_wait(first))


def simulate_last_wait(body: bytes, pods: Sequence[Pod]) -> float | None:
    """Return the seconds until the last pod starts in a simulation; None: not within its time.

    It takes several times as long as `simulate_first_instant`. The arguments are those of
    `simulate_first_instant`.
    """
    snapshot, runs = decode_body(body)
    own = {pod.uid for pod in pods}
    waits = simulate_waits(_with_pods(snapshot, pods), runs, SEED, own)
    return max(waits.values()) if len(waits) == len(own) else None


def _with_pods(snapshot: Snapshot, pods: Sequence[Pod]) -> Snapshot:
    return replace(snapshot, held=(*snapshot.held, *pods))
