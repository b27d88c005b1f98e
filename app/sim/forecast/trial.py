"""Simulates proposed pods: what starts at once, why the rest waits, and when the last one starts.

It runs the production engine on a snapshot, so the live engine is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.explain.reasons import Why
from app.core.explain.snapshot import Snapshot
from app.core.explain.views import HeldView
from app.core.model import Millis, Pod, PoolName, Uid
from app.sim.forecast.forward_run import drain, stage
from app.sim.forecast.run_times import RunTimes
from app.sim.forecast.worker_protocol import unpacked

SEED = 7


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of `attempt`. The fields are those of `ports.forecasts.Trial`."""

    released: Mapping[Uid, PoolName]
    held: HeldView | None
    why: Why | None
    wait: float | None


class _Endless:
    """Run times of a simulation that ends after its first instant."""

    def left(self, pod: Pod, ran: Millis) -> Millis | None:
        return None


def attempt(body: bytes, pods: Sequence[Pod]) -> Attempt:
    """Simulate pods on a pickled snapshot and its run times. A worker process calls this."""
    snapshot, runs = unpacked(body)
    return attempt_on(snapshot, runs, pods)


def attempt_on(snapshot: Snapshot, runs: RunTimes, pods: Sequence[Pod]) -> Attempt:
    """Simulate pods that are created at the time of a snapshot, after its held pods."""
    proposed = replace(snapshot, held=(*snapshot.held, *pods))
    # Without evictions: capacity that a reclaim must free first is not free now.
    world = stage(proposed, _Endless(), evicts=False)
    world.advance_to(proposed.at)
    own = {pod.uid for pod in pods}
    released = {each.pod.uid: each.pool for each in world.started if each.pod.uid in own}
    first = next((pod.uid for pod in pods if pod.uid not in released), None)
    if first is None:
        return Attempt(released, None, None, 0.0)
    queries = world.engine.queries
    waits = drain(proposed, runs, SEED, own)
    last = max(waits.values()) if len(waits) == len(own) else None
    return Attempt(released, queries.held(first), queries.why(first), last)
