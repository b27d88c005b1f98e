"""What is submitted to a simulated cluster, and what became of it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from app.core.asks.shape import ANYHOW, Manner
from app.core.effects import Cause
from app.core.model import Amounts, Millis, NodeName, PoolName, TenantName, UserName


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One workload: a pod, or a gang of equal pods. `demand` is per pod, in base units.

    `duration` counts from the release (None: for ever). `released` is set for what was in place
    before the start, and says since when. Compared by identity.
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
    manner: Manner = ANYHOW


class Step(Enum):
    """What may happen to a workload. An evicted one waits again from that moment."""

    SUBMITTED = "submitted"
    RELEASED = "released"
    ENDED = "ended"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to one workload. A timeline is a list of these in order of time.

    `pool` and `nodes` (one for each pod) are set when it was released, `beneficiary` and `cause`
    when it was evicted. What was in place before the start is released at its own, earlier time.
    """

    at: Millis
    step: Step
    work: Work
    pool: PoolName | None = None
    nodes: tuple[NodeName, ...] = ()
    beneficiary: Work | None = None
    cause: Cause | None = None
