"""Workloads of a virtual cluster, and the entries of its timeline. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from app.core.effects import ReclaimCause
from app.core.model import (
    NO_TERMS,
    Amounts,
    Millis,
    NodeName,
    PoolName,
    ReclaimTerms,
    TenantName,
    UserName,
)
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, GangLayout


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedWorkload:
    """One workload: a pod, or a gang of equal pods. `demand` is per pod, in base units.

    `min_pods`: pods that an elastic gang needs to start; 0 means all. `duration` counts from the
    release, with all pods; None means forever. An elastic gang takes longer with fewer pods, so
    that `pods` times `duration` stays the same. `released` is set for a workload that runs at the
    start, and is its earlier release. `kept_by_budget`: a disruption budget forbids its eviction.
    `reclaim`: the notice that its pods want, and their checkpoints. Compared by identity.
    """

    name: str
    tenant: TenantName
    user: UserName
    at: Millis
    demand: Amounts
    pods: int = 1
    duration: Millis | None = None
    priority: int = 0
    pools: tuple[PoolName, ...] = ()
    released: Millis | None = None
    preemptible: bool = True
    max_runtime: Millis | None = None
    layout: GangLayout = DEFAULT_LAYOUT
    kept_by_budget: bool = False
    reclaim: ReclaimTerms = NO_TERMS
    min_pods: int = 0

    @property
    def is_elastic(self) -> bool:
        """Return whether it starts with fewer pods than it may have."""
        return 0 < self.min_pods < self.pods


class TimelineStep(Enum):
    """Change in the state of a workload. An evicted workload waits again from that moment.

    An elastic gang is released with its minimum. Then it grows and shrinks by one pod at a time.
    """

    SUBMITTED = "submitted"
    RELEASED = "released"
    GREW = "grew"
    SHRANK = "shrank"
    ENDED = "ended"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One step of one workload. A timeline is a list of moments in order of time.

    `change` is the change of its number of running pods. A release sets `pool` and `nodes` (one for
    each pod), an eviction `beneficiary` and `cause`. Workloads that run at the start are released
    at their own, earlier time.
    """

    at: Millis
    step: TimelineStep
    work: SimulatedWorkload
    change: int
    pool: PoolName | None = None
    nodes: tuple[NodeName, ...] = ()
    beneficiary: SimulatedWorkload | None = None
    cause: ReclaimCause | None = None


def rigid_entry(
    at: Millis,
    step: TimelineStep,
    work: SimulatedWorkload,
    pool: PoolName | None = None,
    nodes: tuple[NodeName, ...] = (),
) -> TimelineEntry:
    """Return an entry of a workload whose pods all start and end together."""
    sign = 0 if step is TimelineStep.SUBMITTED else 1 if step is TimelineStep.RELEASED else -1
    return TimelineEntry(at, step, work, sign * work.pods, pool, nodes)
