"""Equivalence classes of workloads: one value for all with equal requests and constraints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.model import (
    Amounts,
    Millis,
    NodeName,
    NodeSet,
    PlacementStrategy,
    PoolName,
    TopologyConstraint,
)
from app.core.podspec.constraints import NodeConstraints, PodDistanceRule

Parts = tuple[tuple[Amounts, int], ...]
"""The pods of a workload: the requests of each kind, and the number of pods of each kind."""

Pins = tuple[NodeSet, ...]
"""The allowed nodes of the pods of each part. Empty if no part is restricted to named nodes."""


@dataclass(frozen=True, slots=True)
class GangLayout:
    """The layout of a workload. `placement_strategy` None: the style of its pool.

    `topology`: the topology level that keeps it together; None: as close as the levels of its pool
    allow. `gang_nodes`: the nodes that run the other pods of its gang.
    """

    placement_strategy: PlacementStrategy | None = None
    topology: TopologyConstraint | None = None
    gang_nodes: tuple[NodeName, ...] = ()

    @property
    def required_topology_label(self) -> str:
        """The label with one value on all its nodes. Empty string: not confined to a domain."""
        return self.topology.label if self.topology is not None and self.topology.required else ""


DEFAULT_LAYOUT = GangLayout()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class EquivalenceClass:
    """Requests and constraints of a workload. Instances are interned and compared by identity.

    `total`: the sum of the parts. `lifetime`: the declared run time. `node_sets` and
    `node_constraints`: the allowed nodes of each part (see `Allocations.allowed_nodes_by_part`).
    `distance_rules`: the distance rules of each part. These three are empty if no part has any.

    `has_gpu_memory`: it declares the device memory that it needs, so the smallest sufficient
    devices are best. `budget_reason`: why a disruption budget would block its eviction. `is_owned`:
    a controller owns each pod. `scheduler_may_be_silent`: kube-scheduler may have a valid reason
    not to report on one of its pods.
    """

    request_counts: Parts
    total: Amounts
    pools: tuple[PoolName, ...]
    lifetime: Millis | None = None
    preemptible: bool = True
    node_sets: Pins = ()
    node_constraints: tuple[NodeConstraints, ...] = ()
    distance_rules: tuple[tuple[PodDistanceRule, ...], ...] = ()
    layout: GangLayout = DEFAULT_LAYOUT
    has_gpu_memory: bool = False
    budget_reason: str = ""
    is_owned: bool = True
    scheduler_may_be_silent: bool = False

    def copies(self, number: int) -> EquivalenceClass:
        """Return the class of this many such workloads, as if they were one."""
        return replace(
            self,
            request_counts=tuple((demand, count * number) for demand, count in self.request_counts),
            total={resource: amount * number for resource, amount in self.total.items()},
        )
