"""The trial state of one victim search: usage without the victims taken so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Amounts, Millis, PoolName, TenantName, Uid
from app.core.placement.allocations import (
    NO_RESERVATION,
    Allocation,
    Allocations,
    ReservedCapacity,
)
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_capacity import FUTURE_NODE
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.victims import Victim

STEPS_PER_TRIAL = 10
"""Work of one pod that is removed or restored, relative to that of listing one pod."""


STEPS_PER_POD_WITH_RULES = 50
"""Work of the assignment of a pod with distance rules."""


@dataclass(slots=True)
class SearchTotals:
    """Sums over the searches of a cycle.

    `steps`: their work, in units of about 10 µs of CPU time. `retry_at`: when a rejected victim may
    become eligible. `on_cooldown`: the reclaims on cooldown, each with the protected tenant and the
    end of the cooldown. The caller empties it before a new workload.
    """

    steps: int = 0
    retry_at: Millis | None = None
    on_cooldown: dict[tuple[Uid, PoolName, TenantName], Millis] = field(default_factory=dict)

    def start_cycle(self) -> None:
        """Reset the work and the time of the next attempt."""
        self.steps, self.retry_at = 0, None

    def retry_by(self, at: Millis) -> None:
        """Record that a victim may become eligible at this time."""
        self.retry_at = Millis(min(at, self.retry_at or at))


@dataclass(slots=True)
class ReclaimTrial:
    """A workload that needs victims, and those taken for it.

    It may not use `withheld` capacity that is free now, or that terminating pods will free. It may
    use capacity that evictions free.

    Taken victims and terminating pods are removed from the share tree and the nodes. `restore` must
    be called at the end.
    """

    registry: PodRegistry
    placement: Allocations
    totals: SearchTotals
    leaf: UserNode
    queue_key: QueueKey
    shape: EquivalenceClass
    pool: PoolName
    withheld: ReservedCapacity
    victims: list[Victim] = field(default_factory=list)
    terminating: list[PodRecord] = field(default_factory=list)
    _overdue: frozenset[Allocation] | None = None

    def remove_terminating(self, pods: list[PodRecord]) -> None:
        """Count these pods as gone."""
        self.terminating = pods
        for tracked in pods:
            self._add_pod_usage(tracked, -1)
        self._keep_free_part()

    def _keep_free_part(self) -> None:
        reserved = self.withheld.amounts_by_node
        free = {
            node: amounts
            if node == FUTURE_NODE
            else _common(amounts, self.placement.free_on(self.pool, node))
            for node, amounts in reserved.items()
        }
        if free != reserved:
            self.withheld = ReservedCapacity(free) if any(free.values()) else NO_RESERVATION

    def restore(self) -> None:
        """Restore the state before the search."""
        for victim in reversed(self.victims):
            self.add_victim_usage(victim, 1)
        for tracked in reversed(self.terminating):
            self._add_pod_usage(tracked, 1)

    def take(self, victim: Victim, index: int | None = None) -> None:
        """Take a victim. `index` is its place among the victims; by default it becomes the last."""
        self.add_victim_usage(victim, -1)
        self.victims.insert(len(self.victims) if index is None else index, victim)

    def spare(self, victim: Victim) -> None:
        """Undo `take`."""
        self.victims.remove(victim)
        self.add_victim_usage(victim, 1)

    def replace_victims(self, victims: list[Victim]) -> None:
        """Take and spare until these are the victims, in this order."""
        before, after = set(self.victims), set(victims)
        for victim in self.victims:
            if victim not in after:
                self.add_victim_usage(victim, 1)
        for victim in victims:
            if victim not in before:
                self.add_victim_usage(victim, -1)
        self.victims = victims

    def add_victim_usage(self, victim: Victim, sign: int) -> None:
        """Add the usage of a victim to the tree and the nodes. Sign -1 removes it."""
        for tracked in victim.pods:
            self._add_pod_usage(tracked, sign)

    def _add_pod_usage(self, tracked: PodRecord, sign: int) -> None:
        self.totals.steps += STEPS_PER_TRIAL
        allocation, leaf = tracked.allocation, tracked.leaf
        assert allocation is not None
        assert leaf is not None
        self.registry.usage.tree.add_usage(leaf, allocation.pool, allocation.demand, sign)
        if sign > 0:
            self.placement.add_allocation(allocation)
        else:
            self.placement.remove_allocation(allocation)

    def fits(self) -> bool:
        """Return whether the workload could start in this state."""
        if self.shape.distance_rules:
            pods = sum(count for _, count in self.shape.request_counts)
            self.totals.steps += STEPS_PER_POD_WITH_RULES * pods
        if self.find_assignment() is None:
            return False
        return self.registry.usage.tree.is_within_limits(self.leaf, self.shape, self.pool)

    def find_assignment(self) -> Assignment | None:
        """Return an assignment of the workload. No pod is evicted for nodes that may not come."""
        plan = self.placement.find_assignment(self.shape, self.pool, self.withheld)
        beyond = self.placement.autoscaling_capacity
        if (
            plan is not None
            and plan.has_future_nodes
            and not beyond.is_scale_up_reliable(self.pool, self.leaf.account)
        ):
            return None
        if plan is not None and not plan.has_future_nodes and self._is_awaited(plan):
            return None  # the scheduler gives freed capacity to released pods that wait for nodes
        return plan

    def _is_awaited(self, plan: Assignment) -> bool:
        """Return whether a released pod that waits for a new node could use a node of the plan.

        Pods beyond their scheduling time-out do not count: they may wait for ever. It does not run
        for a pod that the scheduler never judged, so the time since the release counts, too.
        """
        if not self.placement.count_waiting_for_nodes(self.pool):
            return False
        if self._overdue is None:
            now, limit = self.registry.usage.now, self.registry.usage.policy.scheduling_timeout
            late = (
                each.tracked.allocation
                for each in self.registry.binding.unbound.values()
                if each.is_overdue or (limit and now - (each.tracked.released_at or now) > limit)
            )
            self._overdue = frozenset(each for each in late if each is not None)
        return self.placement.could_waiting_pod_use(self.pool, plan.nodes, self._overdue)

    def loses_minimum(self, victim: Victim) -> bool:
        """Return whether the minimum is taken from the gang of a further pod."""
        return any(each.gang == victim.gang and not each.is_extra_pod for each in self.victims)


def _common(amounts: Amounts, room: Amounts) -> Amounts:
    """Return the part of the amounts that a room has."""
    kept = {resource: min(value, room.get(resource, 0)) for resource, value in amounts.items()}
    return {resource: value for resource, value in kept.items() if value > 0}
