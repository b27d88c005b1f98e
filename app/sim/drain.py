"""How long everybody who waits would go on waiting if nobody new came: the engine, run forward.

Too short by as much as others come first who are not there yet, and too long where work ends
early: `calibration` says by how much, from experience.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from statistics import median_low

from app.core.fair.tenancy import Tenancy
from app.core.model import Millis, Uid
from app.core.telling.snapshot import Snapshot
from app.sim.draws import Drawn
from app.sim.foresight import foresee
from app.sim.run_times import RunTimes

SAMPLES = 3
HORIZON = Millis(96 * 3_600_000)
LATER = 2 * HORIZON


def drain(snapshot: Snapshot, runs: RunTimes, seed: int) -> Mapping[Uid, float]:
    """Return the seconds that held pods go on waiting, the median of a few runs.

    Who does not start within the horizon in most of them is left out.
    """
    tenancy = Tenancy()
    for tenant in snapshot.tenants:
        tenancy.put(tenant)
    until = Millis(snapshot.at + HORIZON)
    found: list[Mapping[Uid, Millis]] = []
    for number in range(SAMPLES):
        lasting = Drawn(snapshot, runs, tenancy, seed * SAMPLES + number)
        found.append(foresee(snapshot, lasting, until).starts)
        gc.collect()  # a World refers to itself: several at once would take memory for nothing
    waits: dict[Uid, float] = {}
    for pod in snapshot.held:
        start = median_low([starts.get(pod.uid, snapshot.at + LATER) for starts in found])
        if start <= until:
            waits[pod.uid] = (start - snapshot.at) / 1000
    return waits
