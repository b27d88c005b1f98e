"""Mutable records of one managed pod and of one gang.

A workload waits in a queue as one unit: a single pod, or the held pods of a complete gang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from app.core.effects import Charge, Intend, ListOrder, PodRef
from app.core.fairshare.sort_key import NEVER_SERVED, Served
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.usage_record import UsageRecord
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.gang_declarations import GangSource
from app.core.lifecycle.group_tree import GroupTree
from app.core.lifecycle.pod_state import PodState
from app.core.model import (
    BackoffKey,
    Millis,
    NodeName,
    Pod,
    PoolName,
    TenantName,
    Uid,
    UserName,
    Wait,
)
from app.core.placement.allocations import Allocation
from app.core.placement.node_filter import node_constraints_of
from app.core.podspec.constraints import NodeConstraints
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, EquivalenceClass, GangLayout
from app.core.podspec.pod_groups import UNBOUNDED
from app.core.well_known import GATE

_STAMP = re.compile(
    r"0@(?P<fence>\d{1,12})(?:\.\d{1,15}){0,2}|(?P<epoch>\d{1,12})\.(?P<sequence>\d{1,15})",
    re.ASCII,
)

FENCE = "0@"
"""Prefix of the release annotation of a held pod after its release was started and fenced off."""

Queueing = tuple[TenantName, UserName]
"""Tenant and user of the queue in which the store lists a pod."""


@dataclass(frozen=True, slots=True)
class StoreListing:
    """How the store lists a held pod that is not a queued workload of its own.

    `rank` "": the rank of the pod itself. `pods` is the number of waiting pods of its workload.
    """

    account: Queueing
    order: ListOrder
    gang: str = ""
    rank: str = ""
    pods: int = 1


GangKey = tuple[str, UserName, str]
"""Namespace, user and gang name. A user cannot join, enlarge or block a gang of another user."""


@dataclass(slots=True, eq=False)
class PodRecord:
    """One managed pod and where it is accounted.

    `pool` and `allocation` are set while it uses capacity.

    `store_state` is the last write to the store, `last_audit_entry` the last audit entry,
    `announced_wait` the wait reason that was last sent to its owner. `released_at` is the start of
    its use, `counted_since` the time since which it counts as used here, `usage_record` its usage
    record. `target_node` is the node of its release. `pending_constraints` are its node constraints
    after the release, until an observation shows the release. `is_backing_off` excludes it from the
    order during a backoff. `postponements` counts how often its evaluation took too long, and
    `is_postponed` marks a backoff for that reason. `eviction_reason` is the reason of its eviction.
    `reclaim_protection` are the tenants that may not reclaim it, and until when.
    """

    pod: Pod
    state: PodState
    release_id: Served
    queue_key: QueueKey
    leaf: UserNode | None = None
    gang: Gang | None = None
    equivalence_class: EquivalenceClass | None = None
    pool: PoolName | None = None
    allocation: Allocation | None = None
    released_at: Millis | None = None
    counted_since: Millis | None = None
    usage_record: UsageRecord | None = None
    wait_reason: Wait | None = None
    announced_wait: Wait | None = None
    target_node: NodeName | None = None
    release_refusals: int = 0
    is_backing_off: bool = False
    postponements: int = 0
    is_postponed: bool = False
    eviction_reason: str = ""
    reclaim_protection: tuple[frozenset[TenantName], Millis] | None = None
    intent: Intend | None = None
    store_state: Queueing | StoreListing | Charge | None = None
    pending_constraints: NodeConstraints | None = None
    last_audit_entry: str = ""

    @property
    def ref(self) -> PodRef:
        """Return the uid, namespace and name of the pod."""
        return PodRef(self.pod.uid, self.pod.namespace, self.pod.name)

    @property
    def gang_name(self) -> str:
        """Return the name of its gang. Beyond the size of its gang: the name that it states."""
        return self.gang.name if self.gang is not None else self.pod.gang

    @property
    def members(self) -> tuple[PodRecord, ...]:
        """Return the pod itself, because it is a workload of one pod."""
        return (self,)

    @property
    def pods_to_release(self) -> tuple[PodRecord, ...]:
        """Return the pods to release when this workload is selected: the pod itself."""
        return (self,)

    @property
    def release_attempted(self) -> bool:
        """Return whether a leader has already started to release it without success.

        The fence in the release annotation shows this. Only Fairgate can write a fence, and no new
        pod has one. A refused patch is no evidence, because users with edit permission can cause
        any number.
        """
        return self.pod.release_annotation.startswith(FENCE)

    @property
    def counts_as_used(self) -> bool:
        """Return whether it may run and therefore counts as used."""
        return self.state is not PodState.HELD

    @property
    def node_constraints(self) -> NodeConstraints:
        """Return its node constraints, or those it will have after its release is observed."""
        return (
            self.pending_constraints
            if self.pending_constraints is not None
            else node_constraints_of(self.pod)
        )

    def declared_end(self, pod: Pod) -> Millis | None:
        """Return when this state of the pod ends at the latest, None if it declares no run time.

        Its node counts from the start of the pod, which may be minutes after the release.
        """
        if pod.max_runtime is None or self.released_at is None:
            return None
        return Millis(max(self.released_at, pod.started_at or 0) + pod.max_runtime)

    def update_constraints(self, pod: Pod) -> None:
        """Apply the declared end and changed node constraints of an observation.

        The constraints replace `pending_constraints`.
        """
        if self.allocation is not None:
            self.allocation.declared_end = self.declared_end(pod)
        terms = node_constraints_of(pod)
        if (terms, pod.node_names) != (node_constraints_of(self.pod), self.pod.node_names):
            self.pending_constraints = None
            if self.allocation is not None:
                self.allocation.node_constraints, self.allocation.node_names = terms, pod.node_names

    @property
    def node(self) -> NodeName | None:
        """Return the node where it runs or is expected to run."""
        return self.allocation.node if self.allocation else None


@dataclass(slots=True, eq=False)
class Gang:
    """Pods of one user that must run together, and the number of pods required.

    `size` is the largest number of pods; 0 means that the object with the size is unknown.
    `min_count` of them are released together, as its minimum. In an elastic gang, `min_count` is
    below `size`, and each further pod is released alone. `source` is the object that the pods name.
    `size_from_group`: the size comes from it. It may also give `required_successes`, the number of
    pods that must succeed, `succeeded_count`, the number that did, `waiting_since`, the time since
    which the gang waits, `group_tree`, the pod groups that the minimum must complete, and
    `preemption_policy`, the preemption policy of the pod group. `newest_statement` is the newest
    pod that stated the numbers. `succeeded_pods` are the succeeded pods that still exist, each with
    the owners of all pods that the gang had then.

    `queue_key`, `leaf` and `equivalence_class` are set while the held pods `pods_to_release` wait
    as one workload.
    `is_partially_released`: the other pods of the gang were released, and `pods_to_release` is the
    rest. `extra_pods` are the held pods that wait alone, each as its own workload.
    `releases_singly`: they do, because the minimum was released. `extra_pods_layout` are then the
    pools and the layout that they follow.

    `terminating` are the terminating pods, `released` the released ones, `running` the running
    ones. `min_count_since_release` is the smallest `min_count` since the first release, so a raised
    minimum evicts no pod. `tree_since_release` is the group tree with the fewest pods since then.
    `has_lost_released_pod`: a released pod left since the gang was last settled.
    `has_started`: the minimum ran at the same time. `had_released_pods`: a released pod existed
    when the gang was first observed. `GangReadiness` sets `incomplete_since`, `has_lost_pod` and
    `eviction_reason`.
    """

    key: GangKey
    size: int
    source: GangSource
    min_count: int = 0
    waiting_since: Millis | None = None
    group_tree: GroupTree | None = None
    preemption_policy: str = ""
    size_from_group: bool = False
    required_successes: int | None = None
    succeeded_count: int = 0
    newest_statement: tuple[Millis, Uid] | None = None
    pods: dict[Uid, PodRecord] = field(default_factory=dict)
    terminating: set[Uid] = field(default_factory=set)
    released: set[Uid] = field(default_factory=set)
    running: set[Uid] = field(default_factory=set)
    succeeded_pods: dict[Uid, frozenset[str]] = field(default_factory=dict)
    min_count_since_release: int | None = None
    tree_since_release: GroupTree | None = None
    has_lost_released_pod: bool = False
    has_started: bool = False
    had_released_pods: bool = False
    queue_key: QueueKey | None = None
    leaf: UserNode | None = None
    equivalence_class: EquivalenceClass | None = None
    pods_to_release: tuple[PodRecord, ...] = ()
    extra_pods: dict[Uid, PodRecord] = field(default_factory=dict)
    releases_singly: bool = False
    extra_pods_layout: tuple[frozenset[PoolName], GangLayout] = (frozenset(), DEFAULT_LAYOUT)
    is_partially_released: bool = False
    incomplete_since: Millis | None = None
    has_lost_pod: bool = False
    eviction_reason: str = ""

    @property
    def is_elastic(self) -> bool:
        """Return whether the gang starts with fewer pods than it may have."""
        return self.min_count < self.size

    @property
    def conflicting_policy(self) -> str:
        """Return a preemption policy of its pods that is not that of its pod group, or "".

        kube-scheduler schedules no pod of such a group. A group has a policy only with the feature
        gate `PodGroupPreemptionPolicy`.
        """
        if not self.preemption_policy:
            return ""
        found = {member.pod.preemption_policy for member in self.pods.values()} - {
            self.preemption_policy
        }
        return min(found, default="")

    @property
    def required(self) -> int:
        """Return how many pods must exist now. Succeeded pods are not required."""
        return self._count_required(self.min_count)

    @property
    def required_of_released(self) -> int:
        """Return how many pods its released part must reach, whatever its minimum became since."""
        return self._count_required(
            self.min_count
            if self.min_count_since_release is None
            else min(self.min_count, self.min_count_since_release)
        )

    def _count_required(self, least: int) -> int:
        if self.required_successes is not None:
            return min(least, max(0, self.required_successes - self.succeeded_count))
        if self.size_from_group:
            return max(0, least - len(self.succeeded_pods))
        if not self.succeeded_pods:
            return least
        # An earlier run may have used the same gang name, and only the pods show that. Pods of an
        # earlier run had other owners, or a full gang of its pods succeeded.
        makers = {member.pod.owner for member in self.pods.values()}
        ours = sum(not makers.isdisjoint(owners) for owners in self.succeeded_pods.values())
        return max(0, least - ours % max(1, self.size))

    @property
    def released_pods(self) -> set[Uid]:
        """Return the released pods, without terminating pods."""
        return self.released - self.terminating

    @property
    def released_count(self) -> int:
        """Return the number of released pods, without terminating pods."""
        return len(self.released) - sum(uid in self.released for uid in self.terminating)

    @property
    def max_pods(self) -> int:
        """Return the number of pods that it may have: those that exist if that is not stated.

        A pod beyond the size waits alone. It belongs to the gang once it is released.
        """
        return self.present if self.size == UNBOUNDED else max(self.size, self.released_count)

    @property
    def present(self) -> int:
        """Return the number of pods that wait or run, without terminating pods."""
        return len(self.pods) - len(self.terminating)

    @property
    def name(self) -> str:
        """Return the name of the gang."""
        return self.key[2]

    @property
    def members(self) -> tuple[PodRecord, ...]:
        """Return its pods, ordered by uid."""
        return tuple(self.pods[uid] for uid in sorted(self.pods))


Workload = PodRecord | Gang


def backoff_key_of(leaf: UserNode, pod: Pod) -> BackoffKey:
    """Return the backoff key of a pod: tenant, user and requests."""
    return *leaf.account, frozenset(pod.demand.items())


def release_id_of(release: str) -> Served:
    """Return (epoch, sequence) of a release annotation. `0@7` and `0@7.3` give (7, 0).

    Any other value gives NEVER, because users with edit permission can write the annotation too.
    """
    match = _STAMP.fullmatch(release)
    if match is None:
        return NEVER_SERVED
    return int(match["fence"] or match["epoch"]), int(match["sequence"] or 0)


def is_same_usage(tracked: PodRecord, pod: Pod) -> bool:
    """Return whether a running pod keeps its user, gang, requests, node and pool."""
    known = tracked.pod
    if (known.namespace, known.user, known.gang) != (pod.namespace, pod.user, pod.gang):
        return False
    if (known.demand, known.needs_managed, known.node) != (pod.demand, pod.needs_managed, pod.node):
        return False
    return pod.node is not None or pod.pool in (None, tracked.pool)


def with_known_exclusions(pod: Pod, known: Pod) -> Pod:
    """Return the pod with the `excluded_by` rules that were found before, if they still apply."""
    same = pod.labels == known.labels or GATE not in pod.gates
    return (
        replace(pod, excluded_by=known.excluded_by)
        if known.excluded_by and not pod.excluded_by and same
        else pod
    )
