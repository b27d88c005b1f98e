"""Equivalence classes of workloads: one value for all with equal requests and constraints."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model import (
    Amounts,
    Millis,
    NodeName,
    NodeSet,
    PlacementStrategy,
    PoolName,
    TopologyConstraint,
)
from app.core.podspec.constraints import NodeConstraints, PodDistanceRules

Parts = tuple[tuple[Amounts, int], ...]
"""The pods of a workload: the requests of each kind, and the number of pods of each kind."""

Pins = tuple[NodeSet, ...]
"""The allowed nodes of the pods of each part. Empty if no part is restricted to named nodes."""


@dataclass(frozen=True, slots=True)
class GangLayout:
    """The layout of a workload. `style` None: the style of its pool.

    `near`: the topology level that keeps it together; None: as close as the levels of its pool
    allow. `beside`: the nodes that run the other pods of its gang.
    """

    style: PlacementStrategy | None = None
    near: TopologyConstraint | None = None
    beside: tuple[NodeName, ...] = ()

    @property
    def confined(self) -> str:
        """The label with one value on all its nodes. Empty string: not confined to a domain."""
        return self.near.label if self.near is not None and self.near.required else ""


ANYHOW = GangLayout()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class EquivalenceClass:
    """Requests and constraints of a workload. Instances are interned and compared by identity.

    `total`: the sum of the parts. `lifetime`: the declared run time. `pins` and `terms`: the
    allowed nodes of each part (see `Allocations.pins`). `spacings`: the distance rules of each
    part. These three are empty if no part has any.

    `sized`: it declares the device memory that it needs, so the smallest sufficient devices are
    best. `keeper`: why a disruption budget would block its eviction. `owned`: a controller owns
    each pod. `apart`: kube-scheduler may have a valid reason not to report on one of its pods.
    """

    parts: Parts
    total: Amounts
    pools: tuple[PoolName, ...]
    lifetime: Millis | None = None
    preemptible: bool = True
    pins: Pins = ()
    terms: tuple[NodeConstraints, ...] = ()
    spacings: tuple[tuple[PodDistanceRules, ...], ...] = ()
    manner: GangLayout = ANYHOW
    sized: bool = False
    keeper: str = ""
    owned: bool = True
    apart: bool = False
