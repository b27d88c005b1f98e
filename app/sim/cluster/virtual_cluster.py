"""Virtual cluster that drives the production engine in virtual time.

It simulates the API server, kube-scheduler and the store. Each answers at once and never fails.
All decisions are the engine's. Time comes from scheduled events, not from a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.core import events as ev
from app.core.effects import (
    Effect,
    EvictForReclaim,
    GiveReclaimNotice,
    Release,
    WakeAt,
    WithdrawReclaimNotice,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.errors import InvalidInput
from app.core.explain.views import ClusterView
from app.core.fairshare.checkpoint import TenantCheckpoint
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.placement.fragmentation import Sample
from app.core.podspec.constraints import NodeSelectorRequirement
from app.core.podspec.disruption_budget import DisruptionBudget
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_HELD
from app.sim.cluster.initial_capacity import InitialCapacity
from app.sim.cluster.jobs import KEPT, SimulatedJob
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep

EPOCH = 2
"""Epoch of the only leader. An earlier leader released the workloads that run at the start."""

START = Millis(0)

ProgressCallback = Callable[[Millis], None]
"""Called with the time after every instant that has events."""


@dataclass(frozen=True, slots=True)
class Started:
    """The release of one pod."""

    at: Millis
    pod: Pod
    pool: PoolName


class VirtualCluster:
    """A virtual cluster of nodes, tenants and pools, and the engine that shares it out.

    `add_workload` adds workloads and records them in `timeline`. `submit` and `adopt` add bare
    pods. `turns` is the checkpointed fairness state at the start. `sample` is the mix of pods to
    pack for; None means the observed pods. `events` counts the events sent to the engine after the
    initial state, without `Pass`. `decisions` counts the workloads released or evicted.
    """

    def __init__(
        self,
        managed: ManagedResources,
        nodes: Iterable[Node],
        tenants: Iterable[Tenant] = (),
        pools: Iterable[Pool] = (),
        policy: Policy | None = None,
        window: int = 256,
        *,
        start: Millis = START,
        epoch: int = EPOCH,
        evicts: bool = True,
        witnesses: int | None = None,
        turns: Mapping[TenantName, TenantCheckpoint] | None = None,
        sample: Sample | None = None,
    ) -> None:
        self.now = start
        self._epoch = epoch
        self.engine = Engine(
            managed,
            EngineOptions(
                max_in_flight=window,
                compared_siblings=witnesses,
                evicts=evicts,
                emits_audit_records=False,
                emits_store_writes=False,
                pod_mix=sample,
                follows_binding_rate=False,
            ),
        )
        self.started: list[Started] = []
        self.released_pods: dict[Uid, Pod] = {}
        """Released pods. Pods of workloads have the state that the API server would show."""
        self.timeline: list[TimelineEntry] = []
        self.events = 0
        self.decisions = 0
        self._scheduled: list[tuple[Millis, int, Callable[[], Sequence[ev.Event]]]] = []
        self._order = 0
        self._wakes: set[Millis] = set()
        self._bare_pods: dict[Uid, tuple[Pod, int | None]] = {}
        self._jobs: dict[Uid, SimulatedJob] = {}
        self._created_count = 0
        cluster, members, kinds = tuple(nodes), tuple(tenants), tuple(pools)
        self._initial_capacity = InitialCapacity(cluster, kinds, members)
        self.send_events(*self._initial_events(cluster, members, kinds, policy, turns or {}))
        self.events = 0

    def submit(self, pod: Pod, at: Millis, duration: int | None) -> None:
        """Create a pod at a time. Once released, it runs for `duration` ms, or forever if None."""
        self._bare_pods[pod.uid] = (pod, duration)
        self._schedule(at, lambda: (ev.PodObserved(at, pod),))

    def adopt(self, pod: Pod, ends: Millis | None) -> None:
        """Add a pod that was released before now. It ends at `ends`; None means never."""
        self.released_pods[pod.uid] = pod
        self._schedule(self.now, lambda: (ev.PodObserved(self.now, pod),))
        lasts = None if ends is None else ends - (pod.started_at or self.now)
        self._bare_pods[pod.uid] = (pod, lasts)
        if ends is not None:
            self._schedule(max(ends, self.now), partial(self._delete_bare_pod, pod.uid))

    def add_workload(self, work: SimulatedWorkload) -> None:
        """Schedule the arrival of a workload. If `released` is set, it runs from the start.

        Workloads that arrive at the same instant differ only in the order of the `add_workload`
        calls. Raises InvalidInput if no pool has capacity for a workload that runs from the start.
        """
        self._created_count += 1
        job = SimulatedJob(work, self._created_count)
        if work.kept_by_budget:
            self._schedule(self.now, partial(self._observe_budget, work.tenant))
        if work.released is None:
            self._schedule(work.at, partial(self._arrive, job))
        else:
            self._add_running(job, work.released)

    def send_events(self, *news: ev.Event) -> None:
        """Send events of this instant to the engine; apply its effects until it returns no more."""
        todo: Sequence[ev.Event] = news
        while True:
            self.events += len(todo)
            answers: list[ev.Event] = []
            for event in (*todo, ev.Pass(self.now)):
                for effect in self.engine.handle(event):
                    answers += self._apply_effect(effect)
            if not answers:
                return
            todo = answers

    def advance_to(self, until: Millis, progress: ProgressCallback | None = None) -> None:
        """Advance time up to and including `until`."""
        due = self._scheduled
        while due and due[0][0] <= until:
            self.now = due[0][0]
            news: list[ev.Event] = []
            while due and due[0][0] == self.now:
                news += heapq.heappop(due)[2]()
            self.send_events(*news)
            if progress is not None:
                progress(self.now)
        self.now = until

    @property
    def next_event_at(self) -> Millis | None:
        """Time of the next scheduled event; None if no event is scheduled."""
        return self._scheduled[0][0] if self._scheduled else None

    def waiting_pods(self) -> Iterator[Pod]:
        """Return the pods of workloads that arrived and are not released."""
        return (job.pods[uid] for uid, job in self._jobs.items() if uid not in self.released_pods)

    def waiting_workloads(self) -> Iterator[tuple[SimulatedWorkload, Pod]]:
        """Return the waiting workloads, longest wait first, each with its first waiting pod."""
        first: dict[SimulatedJob, Pod] = {}
        for pod in self.waiting_pods():
            first.setdefault(self._jobs[pod.uid], pod)
        return ((job.work, pod) for job, pod in first.items())

    def view(self) -> ClusterView:
        """Return the current view of the engine."""
        return self.engine.queries.view()

    def _apply_effect(self, effect: Effect) -> Sequence[ev.Event]:
        match effect:
            case Release():
                return (self._release(effect),)
            case EvictForReclaim():
                return self._evict(effect)
            case GiveReclaimNotice(ref, ends):
                return self._notify(ref.uid, ends)
            case WithdrawReclaimNotice(ref):
                return self._notify(ref.uid, None)
            case WakeAt(at):
                if at > self.now and at not in self._wakes:
                    self._wakes.add(at)
                    self._schedule(at, partial(self._wake, at))
        return ()

    def _wake(self, at: Millis) -> Sequence[ev.Event]:
        self._wakes.discard(at)
        return ()

    def _arrive(self, job: SimulatedJob) -> Sequence[ev.Event]:
        self._add_timeline_entry(TimelineStep.SUBMITTED, job)
        return self._create_pods(job)

    def _observe_budget(self, namespace: str) -> Sequence[ev.Event]:
        """Return the event of the disruption budget that protects pods of a namespace."""
        rules = tuple(NodeSelectorRequirement(key, "In", (value,)) for key, value in KEPT.items())
        budget = DisruptionBudget(namespace, "kept", rules, max_unavailable=0, is_observed=True)
        return (ev.BudgetObserved(self.now, budget),)

    def _create_pods(self, job: SimulatedJob) -> Sequence[ev.Event]:
        pods = job.begin_attempt(self.now)
        for pod in pods:
            self._jobs[pod.uid] = job
        return [ev.PodObserved(self.now, pod) for pod in pods]

    def _add_running(self, job: SimulatedJob, released: Millis) -> None:
        seat = self._initial_capacity.place(job.work)
        if seat is None:
            raise InvalidInput(
                f"workload {job.work.name} is to run before the start, but nothing has room for "
                "it; make the pool larger or let less run."
            )
        pool, nodes = seat
        pods = job.start_running(released, pool, nodes)
        for pod in pods:
            self._jobs[pod.uid] = job
            self.released_pods[pod.uid] = pod
        placed = TimelineEntry(released, TimelineStep.RELEASED, job.work, len(nodes), pool, nodes)
        self.timeline.append(placed)
        self._schedule(self.now, lambda: [ev.PodObserved(self.now, pod) for pod in pods])
        self._schedule_end(job, released)

    def _release(self, order: Release) -> ev.Event:
        uid = order.intent.ref.uid
        pool = order.intent.pool
        job = self._jobs.get(uid)
        if job is None:
            pod, duration = self._bare_pods[uid]
            self.released_pods[uid] = pod
            if duration is not None:
                ends = Millis(self.now + duration)
                self._schedule(ends, partial(self._delete_bare_pod, uid))
        else:
            pod = job.pods[uid]
            self.released_pods[uid] = replace(
                pod,
                gates=(),
                release_annotation=order.stamp,
                pool=pool,
                node=order.node,
                phase=Phase.RUNNING,
                started_at=self.now,
            )
            job.start_pod(uid, order.node, self.now)
            if job.is_started:
                self._add_timeline_entry(TimelineStep.GREW, job, 1, pool, (order.node,))
            elif len(job.running) == job.needed:
                job.is_started = True
                nodes = tuple(job.running.values())
                self._add_timeline_entry(TimelineStep.RELEASED, job, job.needed, pool, nodes)
            if job.is_started:
                self.decisions += 1
                self._schedule_end(job, self.now)
        self.started.append(Started(self.now, pod, pool))
        return ev.ReleaseAnswered(self.now, uid, ReleaseOutcome.RELEASED)

    def _schedule_end(self, job: SimulatedJob, at: Millis) -> None:
        """Schedule the end of this attempt. A later change of its pods cancels it."""
        ends = job.plan_end(at)
        if ends is not None:
            self._schedule(max(self.now, ends), partial(self._end_attempt, job, job.plan))

    def _end_attempt(self, job: SimulatedJob, plan: int) -> Sequence[ev.Event]:
        if job.plan != plan:
            return ()
        self._add_timeline_entry(TimelineStep.ENDED, job, -len(job.running))
        return self._delete_pods(job)

    def _evict(self, order: EvictForReclaim) -> Sequence[ev.Event]:
        """Evict one pod. A gang without its minimum is deleted and queued again.

        Evictions of its other pods then have no further effect.
        """
        uid = order.ref.uid
        job = self._jobs.get(uid)
        if job is None:
            return self._evict_bare_pod(uid) if uid in self.released_pods else ()
        if job.work.kept_by_budget and not order.overrides:
            return (ev.EvictionRefused(self.now, uid),)
        self.decisions += 1
        if len(job.running) > job.needed:
            self._add_eviction_entry(TimelineStep.SHRANK, job, -1, order)
            return self._shrink(job, uid)
        self._add_eviction_entry(TimelineStep.EVICTED, job, -len(job.running), order)
        return [*self._delete_pods(job), *self._create_pods(job)]

    def _shrink(self, job: SimulatedJob, uid: Uid) -> Sequence[ev.Event]:
        """Delete one pod of an elastic gang; a new one waits in its place."""
        pod = job.replace_pod(uid, self.now)
        del self._jobs[uid], self.released_pods[uid]
        self._jobs[pod.uid] = job
        self._schedule_end(job, self.now)
        return [ev.PodGone(self.now, uid), ev.PodObserved(self.now, pod)]

    def _add_eviction_entry(
        self, step: TimelineStep, job: SimulatedJob, change: int, order: EvictForReclaim
    ) -> None:
        other = self._jobs.get(order.beneficiary.uid)
        self.timeline.append(
            TimelineEntry(
                self.now,
                step,
                job.work,
                change,
                beneficiary=other.work if other else None,
                cause=order.cause,
            )
        )

    def _notify(self, uid: Uid, ends: Millis | None) -> Sequence[ev.Event]:
        """Write the end of a notice on a released pod, or remove it."""
        pod = self.released_pods.get(uid)
        if pod is None:
            return ()
        self.released_pods[uid] = pod = replace(
            pod, reclaim_terms=replace(pod.reclaim_terms, notice_ends_at=ends)
        )
        return (ev.PodObserved(self.now, pod),)

    def _evict_bare_pod(self, uid: Uid) -> Sequence[ev.Event]:
        """Evict a bare pod. If it has a controller, a new pod replaces it and starts over."""
        pod, lasts = self._bare_pods[uid]
        gone = self._delete_bare_pod(uid)
        if not pod.owner:
            return gone
        self._created_count += 1
        again = replace(
            pod,
            uid=Uid(f"{uid}+{self._created_count}"),
            name=f"{pod.name}+{self._created_count}",
            created_at=self.now,
            gates=(GATE,),
            release_annotation=RELEASE_HELD,
            node=None,
            pool=None,
            phase=Phase.PENDING,
            started_at=None,
            reclaim_terms=replace(pod.reclaim_terms, notice_ends_at=None),
        )
        self._bare_pods[again.uid] = (again, lasts)
        return [*gone, ev.PodObserved(self.now, again)]

    def _delete_pods(self, job: SimulatedJob) -> Sequence[ev.Event]:
        gone = list(job.pods)
        for uid in gone:
            del self._jobs[uid]
            self.released_pods.pop(uid, None)
        return [ev.PodGone(self.now, uid) for uid in gone]

    def _delete_bare_pod(self, uid: Uid) -> Sequence[ev.Event]:
        if self.released_pods.pop(uid, None) is None:
            return ()
        return (ev.PodGone(self.now, uid),)

    def _add_timeline_entry(
        self,
        step: TimelineStep,
        job: SimulatedJob,
        change: int = 0,
        pool: PoolName | None = None,
        nodes: Iterable[NodeName | None] = (),
    ) -> None:
        named = tuple(node for node in nodes if node is not None)
        self.timeline.append(TimelineEntry(self.now, step, job.work, change, pool, named))

    def _initial_events(
        self,
        nodes: Iterable[Node],
        tenants: Iterable[Tenant],
        pools: Iterable[Pool],
        policy: Policy | None,
        turns: Mapping[TenantName, TenantCheckpoint],
    ) -> Iterator[ev.Event]:
        start = self.now
        yield from (ev.NodeObserved(start, node) for node in nodes)
        yield from (ev.TenantObserved(start, tenant) for tenant in tenants)
        yield from (ev.PoolObserved(start, pool) for pool in pools)
        if policy is not None:
            yield ev.PolicyObserved(start, policy)
        yield from (ev.SourceFresh(start, source) for source in ev.WatchedSource)
        yield ev.CheckpointsRead(start, turns)  # first: a leader would ignore them
        yield ev.LeadershipGained(start, self._epoch)
        yield ev.StoreReady(start)

    def _schedule(self, at: Millis, happens: Callable[[], Sequence[ev.Event]]) -> None:
        self._order += 1
        heapq.heappush(self._scheduled, (at, self._order, happens))


def held_pod(
    name: str,
    namespace: str,
    devices: int = 1,
    *,
    user: str = "user",
    priority: int = 0,
    since: int = 0,
    resource: str = "nvidia.com/gpu",
) -> Pod:
    """Return a pod as the webhook creates it: gated, with the release annotation and devices."""
    return Pod(
        uid=Uid(f"{namespace}/{name}"),
        namespace=namespace,
        name=name,
        user=UserName(user),
        priority=priority,
        created_at=Millis(since),
        demand={Resource(resource): devices, PODS: 1},
        gates=(GATE,),
        release_annotation=RELEASE_HELD,
    )
