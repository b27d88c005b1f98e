"""Statistics of the backlog: pending pods, oldest wait, and unreachable capacity per tenant.

The queues group pods by equivalence class, so no function walks over all pending pods. All
workloads of one queue and one class wait for the same rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.explain.explain_context import workload_of
from app.core.explain.reasons import RULES
from app.core.fairshare.tree_node import TenantNode, UserNode, users_below
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    Amounts,
    Millis,
    PoolName,
    Resource,
    TenantName,
    Uid,
    UserName,
    Wait,
)
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import ManagedResources


@dataclass(frozen=True, slots=True)
class BacklogStats:
    """Queued pods of a tenant, child tenants included.

    `pods` counts by the only eligible pool; None: there are several. `oldest` is the time since
    which the oldest pod is held.
    """

    pods: Mapping[PoolName | None, int]
    oldest: Millis | None


def backlog_by_tenant(registry: PodRegistry) -> Mapping[TenantName, BacklogStats]:
    """Return the queued pods of every tenant in the share tree."""
    tenants = registry.usage.tree.tenants
    return {name: BacklogStats(_pods(branch), _oldest(branch)) for name, branch in tenants.items()}


def _pods(branch: TenantNode) -> dict[PoolName | None, int]:
    found: dict[PoolName | None, int] = {}
    for shape, workloads in branch.waiting_by_class.items():
        pool = shape.pools[0] if len(shape.pools) == 1 else None
        each = sum(count for _, count in shape.request_counts)
        found[pool] = found.get(pool, 0) + each * workloads
    return {pool: count for pool, count in found.items() if count}


def _oldest(branch: TenantNode) -> Millis | None:
    known = [leaf.queue.oldest_waiting_since() for leaf in users_below(branch)]
    return min((since for since in known if since is not None), default=None)


QueueName = tuple[TenantName, UserName]


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """Held pods of a queue: their number, the first one, their requests and their oldest creation.

    `rule` is None if not yet computed. `request` is the sum in managed resources.
    """

    queue: QueueName
    first: Uid
    pods: int
    rule: str | None
    request: Amounts
    since: Millis


def wait_groups(registry: PodRegistry, managed: ManagedResources) -> tuple[WaitGroup, ...]:
    """Return all held pods, queue by queue. The cost is a few steps per pod."""
    found: dict[tuple[UserNode, Wait | None, EquivalenceClass | None], list[PodRecord]] = {}
    for leaf, waiting in registry.pending_by_user.items():
        for tracked in waiting.values():
            if not tracked.counts_as_used:
                shape = workload_of(tracked).equivalence_class
                found.setdefault((leaf, tracked.wait_reason, shape), []).append(tracked)
    made = []
    for (leaf, wait, _), members in found.items():
        first = min(members, key=lambda each: each.queue_key)
        rule = RULES.get(wait) if wait is not None else None
        word = rule.value if rule is not None else None
        request: dict[Resource, int] = {}
        for member in members:
            add_to(request, {r: v for r, v in member.pod.demand.items() if r in managed}, 1)
        since = min(member.pod.created_at for member in members)
        made.append(WaitGroup(leaf.account, first.pod.uid, len(members), word, request, since))
    return tuple(sorted(made, key=lambda group: (group.queue, group.first)))
