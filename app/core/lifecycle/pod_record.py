"""Mutable records of one managed pod and of one gang.

A workload waits in a queue as one unit: a single pod, or the held pods of a complete gang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from app.core.effects import Charge, Intend, ListOrder, PodRef
from app.core.fairshare.sort_key import NEVER, Served
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
from app.core.placement.node_filter import terms_of
from app.core.podspec.constraints import NodeConstraints
from app.core.podspec.equivalence_class import ANYHOW, EquivalenceClass, GangLayout
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
class Listed:
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

    `written` is the last write to the store, `noted` the last audit entry, `announced_wait` the
    wait reason that was last sent to its owner. `released` is the start of its use, `entered` the
    time since which it counts as used here, `run` its usage record. `aimed` is the node of its
    release. `ordered` are its node constraints after the release, until an observation shows the
    release. `rests` excludes it from the order during a backoff. `postponements` counts how often
    its evaluation took too long, and `is_postponed` marks a backoff for that reason. `evicted` is
    the reason of its eviction. `spared` are the tenants that may not reclaim it, and until when.
    """

    pod: Pod
    life: PodState
    stamp: Served
    queue_key: QueueKey
    leaf: UserNode | None = None
    gang: Gang | None = None
    shape: EquivalenceClass | None = None
    pool: PoolName | None = None
    allocation: Allocation | None = None
    released: Millis | None = None
    entered: Millis | None = None
    run: UsageRecord | None = None
    wait: Wait | None = None
    announced_wait: Wait | None = None
    aimed: NodeName | None = None
    refusals: int = 0
    rests: bool = False
    postponements: int = 0
    is_postponed: bool = False
    evicted: str = ""
    spared: tuple[frozenset[TenantName], Millis] | None = None
    intent: Intend | None = None
    written: Queueing | Listed | Charge | None = None
    ordered: NodeConstraints | None = None
    noted: str = ""

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
    def starting(self) -> tuple[PodRecord, ...]:
        """Return the pods to release when this workload is selected: the pod itself."""
        return (self,)

    @property
    def begun(self) -> bool:
        """Return whether a leader has already started to release it without success.

        The fence in the release annotation shows this. Only Fairgate can write a fence, and no new
        pod has one. A refused patch is no evidence, because users with edit permission can cause
        any number.
        """
        return self.pod.release.startswith(FENCE)

    @property
    def uses(self) -> bool:
        """Return whether it may run and therefore counts as used."""
        return self.life is not PodState.HELD

    @property
    def terms(self) -> NodeConstraints:
        """Return its node constraints, or those it will have after its release is observed."""
        return self.ordered if self.ordered is not None else terms_of(self.pod)

    def update(self, pod: Pod) -> None:
        """Apply changed node constraints of an observation. They replace `ordered`."""
        terms = terms_of(pod)
        if (terms, pod.only) != (terms_of(self.pod), self.pod.only):
            self.ordered = None
            if self.allocation is not None:
                self.allocation.terms, self.allocation.only = terms, pod.only

    @property
    def node(self) -> NodeName | None:
        """Return the node where it runs or is expected to run."""
        return self.allocation.node if self.allocation else None


@dataclass(slots=True, eq=False)
class Gang:
    """Pods of one user that must run together, and the number of pods required.

    `size` is the largest number of pods; 0 means that the object with the size is unknown. `least`
    of them are released together, as its minimum. In an elastic gang, `least` is below `size`, and
    each further pod is released alone. `source` is the object that the pods name. `asks`: the size
    comes from it. It may also give `total`, the number of pods that must succeed, `succeeded`, the
    number that did, `since`, the time since which the gang waits, `tree`, the pod groups that
    the minimum must complete, and `preemption`, the preemption policy of the pod group.
    `stated` is the newest pod that stated the numbers. `done` are the succeeded pods that still
    exist, each with the owners of all pods that the gang had then.

    `queue_key`, `leaf` and `shape` are set while the held pods `starting` wait as one workload.
    `half`: the other pods of the gang were released, and `starting` is the rest. `further` are the
    held pods that wait alone, each as its own workload. `steps`: they do, because the minimum was
    released. `base` are then the pools and the layout that they follow.

    `ending` are the terminating pods, `past` the released ones, `runs` the running ones. `floor` is
    the smallest `least` since the first release, so a raised minimum evicts no pod. `started`: the
    minimum ran at the same time. `found`: a released pod existed when the gang was first observed.
    `GangReadiness` sets `lacks`, `lost` and `leaving`.
    """

    key: GangKey
    size: int
    source: GangSource
    least: int = 0
    since: Millis | None = None
    tree: GroupTree | None = None
    preemption: str = ""
    asks: bool = False
    total: int | None = None
    succeeded: int = 0
    stated: tuple[Millis, Uid] | None = None
    pods: dict[Uid, PodRecord] = field(default_factory=dict)
    ending: set[Uid] = field(default_factory=set)
    past: set[Uid] = field(default_factory=set)
    runs: set[Uid] = field(default_factory=set)
    done: dict[Uid, frozenset[str]] = field(default_factory=dict)
    floor: int | None = None
    started: bool = False
    was_running: bool = False
    queue_key: QueueKey | None = None
    leaf: UserNode | None = None
    shape: EquivalenceClass | None = None
    starting: tuple[PodRecord, ...] = ()
    further: dict[Uid, PodRecord] = field(default_factory=dict)
    steps: bool = False
    base: tuple[frozenset[PoolName], GangLayout] = (frozenset(), ANYHOW)
    half: bool = False
    lacks: Millis | None = None
    lost: bool = False
    leaving: str = ""

    @property
    def is_elastic(self) -> bool:
        """Return whether the gang starts with fewer pods than it may have."""
        return self.least < self.size

    @property
    def other_policy(self) -> str:
        """Return a preemption policy of its pods that is not that of its pod group, or "".

        kube-scheduler schedules no pod of such a group. A group has a policy only with the feature
        gate `PodGroupPreemptionPolicy`.
        """
        if not self.preemption:
            return ""
        found = {member.pod.preemption for member in self.pods.values()} - {self.preemption}
        return min(found, default="")

    @property
    def need(self) -> int:
        """Return how many pods must exist now. Succeeded pods are not required."""
        return self._required(self.least)

    @property
    def owed(self) -> int:
        """Return how many pods its released part must reach, whatever its minimum became since."""
        return self._required(self.least if self.floor is None else min(self.least, self.floor))

    def _required(self, least: int) -> int:
        if self.total is not None:
            return min(least, max(0, self.total - self.succeeded))
        if self.asks:
            return max(0, least - len(self.done))
        if not self.done:
            return least
        # An earlier run may have used the same gang name, and only the pods show that. Pods of an
        # earlier run had other owners, or a full gang of its pods succeeded.
        makers = {member.pod.owner for member in self.pods.values()}
        ours = sum(not makers.isdisjoint(owners) for owners in self.done.values())
        return max(0, least - ours % max(1, self.size))

    @property
    def released_count(self) -> int:
        """Return the number of released pods, without terminating pods."""
        return len(self.past) - sum(uid in self.past for uid in self.ending)

    @property
    def most(self) -> int:
        """Return the number of pods that it may have: those that exist if that is not stated.

        A pod beyond the size waits alone. It belongs to the gang once it is released.
        """
        return self.there if self.size == UNBOUNDED else max(self.size, self.released_count)

    @property
    def there(self) -> int:
        """Return the number of pods that wait or run, without terminating pods."""
        return len(self.pods) - len(self.ending)

    @property
    def name(self) -> str:
        """Return the name of the gang."""
        return self.key[2]

    @property
    def members(self) -> tuple[PodRecord, ...]:
        """Return its pods, ordered by uid."""
        return tuple(self.pods[uid] for uid in sorted(self.pods))


Workload = PodRecord | Gang


def kind_of(leaf: UserNode, pod: Pod) -> BackoffKey:
    """Return the backoff key of a pod: tenant, user and requests."""
    return *leaf.account, frozenset(pod.demand.items())


def stamp_of(release: str) -> Served:
    """Return (epoch, sequence) of a release annotation. `0@7` and `0@7.3` give (7, 0).

    Any other value gives NEVER, because users with edit permission can write the annotation too.
    """
    match = _STAMP.fullmatch(release)
    if match is None:
        return NEVER
    return int(match["fence"] or match["epoch"]), int(match["sequence"] or 0)


def same_use(tracked: PodRecord, pod: Pod) -> bool:
    """Return whether a running pod keeps its user, gang, requests, node and pool."""
    known = tracked.pod
    if (known.namespace, known.user, known.gang) != (pod.namespace, pod.user, pod.gang):
        return False
    if (known.demand, known.asks, known.node) != (pod.demand, pod.asks, pod.node):
        return False
    return pod.node is not None or pod.pool in (None, tracked.pool)


def still_walled(pod: Pod, known: Pod) -> Pod:
    """Return the pod with the `walled` rules that were found before, if they still apply."""
    same = pod.labels == known.labels or GATE not in pod.gates
    return replace(pod, walled=known.walled) if known.walled and not pod.walled and same else pod
