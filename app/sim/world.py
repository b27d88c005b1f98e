"""A cluster in virtual time that drives the production engine.

It plays the API server, the scheduler and the store, all of them perfect and instant. It takes
no decision of its own and never looks at a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.core import events as ev
from app.core.effects import Effect, Evict, Release, WakeAt
from app.core.engine import Engine
from app.core.errors import InvalidInput
from app.core.fair.checkpoint import Checkpoint
from app.core.model import (
    GATE,
    HELD,
    Answer,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.places.fragmentation import Sample
from app.core.policy import Policy
from app.core.resources import PODS, ManagedResources
from app.core.telling.views import View
from app.sim.jobs import Job
from app.sim.opening import Opening
from app.sim.work import Moment, Step, Work

EPOCH = 2
"""Of the only leader. What was in place before the start was released by an earlier one."""

START = Millis(0)

Tell = Callable[[Millis], None]
"""Called with the time, after every instant at which something happened."""


@dataclass(frozen=True, slots=True)
class Started:
    """One release of a pod, as it happened."""

    at: Millis
    pod: Pod
    pool: PoolName


class World:
    """A cluster of nodes, tenants and pools, and the engine that shares it out.

    `add` gives it workloads, which are told of in `timeline` as long as they live; `submit`
    gives it bare pods. `turns` is what everybody remembers at the start, `sample` the pods to
    pack for (None: those that come). `events` counts what the engine was told after the opening
    (passes aside), `decisions` the workloads it released or evicted.
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
        turns: Mapping[TenantName, Checkpoint] | None = None,
        sample: Sample | None = None,
    ) -> None:
        self.now = start
        self._epoch = epoch
        self.engine = Engine(
            managed, window, witnesses, evicts, records=False, copied=False, sample=sample
        )
        self.started: list[Started] = []
        self.using: dict[Uid, Pod] = {}
        """Pods past the gate; those of workloads as the API server would show them."""
        self.timeline: list[Moment] = []
        self.events = 0
        self.decisions = 0
        self._due: list[tuple[Millis, int, Callable[[], Sequence[ev.Event]]]] = []
        self._order = 0
        self._wakes: set[Millis] = set()
        self._runs: dict[Uid, tuple[Pod, int | None]] = {}
        self._jobs: dict[Uid, Job] = {}
        self._count = 0
        cluster, members, kinds = tuple(nodes), tuple(tenants), tuple(pools)
        self._opening = Opening(cluster, kinds, members)
        self.hear(*self._first_news(cluster, members, kinds, policy, turns or {}))
        self.events = 0

    def submit(self, pod: Pod, at: Millis, duration: int | None) -> None:
        """Create a pod at a time; once released it runs for `duration` ms, or for ever."""
        self._runs[pod.uid] = (pod, duration)
        self._schedule(at, lambda: (ev.PodObserved(at, pod),))

    def adopt(self, pod: Pod, ends: Millis | None) -> None:
        """Let a pod be there from now on that was released before; it ends then, or never."""
        self.using[pod.uid] = pod
        self._schedule(self.now, lambda: (ev.PodObserved(self.now, pod),))
        lasts = None if ends is None else ends - (pod.started or self.now)
        self._runs[pod.uid] = (pod, lasts)
        if ends is not None:
            self._schedule(max(ends, self.now), partial(self._vanish, pod.uid))

    def add(self, work: Work) -> None:
        """Let a workload arrive in its time; what is to be in place before the start comes first.

        Those who arrive at one instant are equal but for the order in which they were added.
        Raises InvalidInput if work in place has no room.
        """
        self._count += 1
        job = Job(work, self._count)
        if work.released is None:
            self._schedule(work.at, partial(self._arrive, job))
        else:
            self._put_in_place(job, work.released)

    def hear(self, *news: ev.Event) -> None:
        """Tell the engine what happened at this instant, and play out what it answers."""
        todo: Sequence[ev.Event] = news
        while True:
            self.events += len(todo)
            answers: list[ev.Event] = []
            for event in (*todo, ev.Pass(self.now)):
                for effect in self.engine.handle(event):
                    answers += self._play(effect)
            if not answers:
                return
            todo = answers

    def run(self, until: Millis, tell: Tell | None = None) -> None:
        """Let time pass up to and with `until`."""
        due = self._due
        while due and due[0][0] <= until:
            self.now = due[0][0]
            news: list[ev.Event] = []
            while due and due[0][0] == self.now:
                news += heapq.heappop(due)[2]()
            self.hear(*news)
            if tell is not None:
                tell(self.now)
        self.now = until

    @property
    def next_due(self) -> Millis | None:
        """When something happens next, as far as is known; None: never."""
        return self._due[0][0] if self._due else None

    def waiting(self) -> Iterator[Pod]:
        """Return the pods of workloads that came and were not released."""
        return (job.pods[uid] for uid, job in self._jobs.items() if uid not in self.using)

    def queued(self) -> Iterator[tuple[Work, Pod]]:
        """Return those workloads, who has waited longest first, each with its first pod."""
        jobs = dict.fromkeys(self._jobs[pod.uid] for pod in self.waiting())
        return ((job.work, next(iter(job.pods.values()))) for job in jobs)

    def view(self) -> View:
        """Return the engine's own view."""
        return self.engine.outlook.view()

    def _play(self, effect: Effect) -> Sequence[ev.Event]:
        match effect:
            case Release():
                return (self._release(effect),)
            case Evict():
                return self._evict(effect)
            case WakeAt(at):
                if at > self.now and at not in self._wakes:
                    self._wakes.add(at)
                    self._schedule(at, partial(self._wake, at))
        return ()

    def _wake(self, at: Millis) -> Sequence[ev.Event]:
        self._wakes.discard(at)
        return ()

    def _arrive(self, job: Job) -> Sequence[ev.Event]:
        self._tell(Step.SUBMITTED, job)
        return self._wait(job)

    def _wait(self, job: Job) -> Sequence[ev.Event]:
        pods = job.attempt_at(self.now)
        for pod in pods:
            self._jobs[pod.uid] = job
        return [ev.PodObserved(self.now, pod) for pod in pods]

    def _put_in_place(self, job: Job, released: Millis) -> None:
        seat = self._opening.seat(job.work)
        if seat is None:
            raise InvalidInput(
                f"workload {job.work.name} is to run before the start, but nothing has room for "
                "it; make the pool larger or let less run."
            )
        pool, nodes = seat
        pods = job.in_place(released, pool, nodes)
        for pod in pods:
            self._jobs[pod.uid] = job
            self.using[pod.uid] = pod
        self.timeline.append(Moment(released, Step.RELEASED, job.work, pool, nodes))
        self._schedule(self.now, lambda: [ev.PodObserved(self.now, pod) for pod in pods])
        self._run_out(job, released)

    def _release(self, order: Release) -> ev.Event:
        uid = order.intent.ref.uid
        pool = order.intent.pool
        job = self._jobs.get(uid)
        if job is None:
            pod, duration = self._runs[uid]
            self.using[uid] = pod
            if duration is not None:
                ends = Millis(self.now + duration)
                self._schedule(ends, partial(self._vanish, uid))
        else:
            pod = job.pods[uid]
            self.using[uid] = replace(
                pod,
                gates=(),
                release=order.stamp,
                pool=pool,
                node=order.node,
                phase=Phase.RUNNING,
                started=self.now,
            )
            job.released += 1
            if order.node is not None:
                job.nodes.append(order.node)
            if job.released == len(job.pods):
                self._tell(Step.RELEASED, job, pool, tuple(job.nodes))
                self.decisions += 1
                self._run_out(job, self.now)
        self.started.append(Started(self.now, pod, pool))
        return ev.ReleaseAnswered(self.now, uid, Answer.RELEASED)

    def _run_out(self, job: Job, released: Millis) -> None:
        """Let a workload end, unless it is evicted before."""
        if job.work.duration is not None:
            ends = max(self.now, Millis(released + job.work.duration))
            self._schedule(ends, partial(self._end, job, job.attempt))

    def _end(self, job: Job, attempt: int) -> Sequence[ev.Event]:
        if job.attempt != attempt:
            return ()
        self._tell(Step.ENDED, job)
        return self._drop(job)

    def _evict(self, order: Evict) -> Sequence[ev.Event]:
        """Take the whole workload away and let it wait again; once, for all of its pods."""
        uid = order.ref.uid
        job = self._jobs.get(uid)
        if job is None:
            return self._renew(uid) if uid in self.using else ()
        other = self._jobs.get(order.beneficiary.uid)
        self.timeline.append(
            Moment(
                self.now,
                Step.EVICTED,
                job.work,
                beneficiary=other.work if other else None,
                cause=order.cause,
            )
        )
        self.decisions += 1
        return [*self._drop(job), *self._wait(job)]

    def _renew(self, uid: Uid) -> Sequence[ev.Event]:
        """Evict a bare pod. Its controller, if it has one, makes another, which begins anew."""
        pod, lasts = self._runs[uid]
        gone = self._vanish(uid)
        if not pod.owner:
            return gone
        self._count += 1
        again = replace(
            pod,
            uid=Uid(f"{uid}+{self._count}"),
            name=f"{pod.name}+{self._count}",
            since=self.now,
            gates=(GATE,),
            release=HELD,
            node=None,
            pool=None,
            phase=Phase.PENDING,
            started=None,
        )
        self._runs[again.uid] = (again, lasts)
        return [*gone, ev.PodObserved(self.now, again)]

    def _drop(self, job: Job) -> Sequence[ev.Event]:
        gone = list(job.pods)
        for uid in gone:
            del self._jobs[uid]
            self.using.pop(uid, None)
        return [ev.PodGone(self.now, uid) for uid in gone]

    def _vanish(self, uid: Uid) -> Sequence[ev.Event]:
        if self.using.pop(uid, None) is None:
            return ()
        return (ev.PodGone(self.now, uid),)

    def _tell(
        self, step: Step, job: Job, pool: PoolName | None = None, nodes: tuple[NodeName, ...] = ()
    ) -> None:
        self.timeline.append(Moment(self.now, step, job.work, pool, nodes))

    def _first_news(
        self,
        nodes: Iterable[Node],
        tenants: Iterable[Tenant],
        pools: Iterable[Pool],
        policy: Policy | None,
        turns: Mapping[TenantName, Checkpoint],
    ) -> Iterator[ev.Event]:
        start = self.now
        yield from (ev.NodeObserved(start, node) for node in nodes)
        yield from (ev.TenantObserved(start, tenant) for tenant in tenants)
        yield from (ev.PoolObserved(start, pool) for pool in pools)
        if policy is not None:
            yield ev.PolicyObserved(start, policy)
        yield from (ev.SourceFresh(start, source) for source in ev.Source)
        yield ev.CheckpointsRead(start, turns)  # before it leads: a leader knows better
        yield ev.LeadershipGained(start, self._epoch)
        yield ev.StoreReady(start)

    def _schedule(self, at: Millis, happens: Callable[[], Sequence[ev.Event]]) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, happens))


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
    """Return a pod as the webhook leaves it: gated, stamped, asking for devices."""
    return Pod(
        uid=Uid(f"{namespace}/{name}"),
        namespace=namespace,
        name=name,
        user=UserName(user),
        priority=priority,
        since=Millis(since),
        demand={Resource(resource): devices, PODS: 1},
        gates=(GATE,),
        release=HELD,
    )
