"""Drives the production engine with the values of the reference model, and records its decisions.

The cluster is perfect: every release succeeds, and evicted pods are gone at once. If a judge is
set, it receives every change too. If `exact`, the judge is asked before every release.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

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
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReclaimTerms,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_HELD
from tests.property.reference_engine import Job, Naive, Rules, Site, Team

GPU = "nvidia.com/gpu"
MANAGED = ManagedResources([GPU])
PLENTY = 10_000
"""Pods that each node can run: more than any test needs."""


@dataclass(frozen=True)
class Started:
    """One release of a workload."""

    at: int
    uid: str
    pool: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Evicted:
    """One eviction of a workload, for another."""

    at: int
    uid: str
    beneficiary: str
    cause: str


Decision = Started | Evicted


class Witness(Protocol):
    """Receives every reclaim for one workload: the workloads running then, and the victims."""

    def evicting(
        self, taker: Job, victims: list[Job], running: list[Job], causes: set[str]
    ) -> None:
        """Called before the eviction."""

    def evicted(self, victims: list[Job]) -> None:
        """Called after the eviction. New workloads reach the engine in the same cycle."""


@dataclass
class Drive:
    """An engine, and the real state of the cluster. Call the methods for changes, then `settle`."""

    rules: Policy = field(default_factory=Policy)
    managed: ManagedResources = MANAGED
    judge: Naive | None = None
    exact: bool = True
    witness: Witness | None = None
    has_followers: bool = False
    """Whether a reclaim may go on for others after its first pod has started."""
    now: int = 0
    epoch: int = 1
    engine: Engine = field(init=False)
    jobs: dict[str, Job] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    pairs: list[tuple[Fraction, Fraction]] = field(default_factory=list)
    sites: dict[str, Site] = field(default_factory=dict)
    teams: dict[str, Team] = field(default_factory=dict)
    ever: dict[str, Job] = field(default_factory=dict)
    stamps: list[str] = field(default_factory=list)
    _pools: dict[str, Pool] = field(default_factory=dict)
    _news: list[ev.NewsEvent] = field(default_factory=list)
    _ends: list[tuple[int, str]] = field(default_factory=list)
    _coming: list[tuple[int, int, Job, int | None]] = field(default_factory=list)
    _count: int = 0
    _lasting: dict[str, int] = field(default_factory=dict)
    _wakes: set[int] = field(default_factory=set)
    _partly: list[Release] = field(default_factory=list)
    _doomed: dict[str, tuple[list[EvictForReclaim], list[Job]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.managed, EngineOptions(compared_siblings=None))
        self._open()

    # Changes.

    def submit(self, job: Job, lasting: int | None = None) -> None:
        """Create a workload that runs for `lasting` ms after its release, or for ever."""
        self.jobs[job.uid] = self.ever[job.uid] = job
        if self.judge:
            self.judge.jobs[job.uid] = job
        if lasting is not None:
            self._lasting[job.uid] = lasting
        for pod in pods_of(job):
            self.pods[pod.uid] = pod
            self._hear(ev.PodObserved(self._at, pod))

    def place(self, job: Job, pool: str, node: str, released: int, order: int) -> None:
        """Add a workload that an earlier leader released onto one node."""
        assert self.judge is None
        job.pool, job.nodes, job.released, job.order = pool, [node] * job.size, released, order
        self.jobs[job.uid] = self.ever[job.uid] = job
        for pod in pods_of(job):
            self.pods[pod.uid] = replace(
                pod,
                gates=(),
                release_annotation=f"1.{order}",
                node=NodeName(node),
                pool=PoolName(pool),
                phase=Phase.RUNNING,
                started_at=Millis(released),
            )
            self._hear(ev.PodObserved(self._at, self.pods[pod.uid]))

    def end(self, uid: str, evicted: bool = False) -> None:
        """Remove a workload, running or waiting."""
        job = self.jobs.pop(uid)
        for pod in pods_of(job):
            del self.pods[pod.uid]
            self._hear(ev.PodGone(self._at, pod.uid))
        if self.judge:
            self.judge.end(uid, evicted)

    def site(self, name: str, site: Site | None) -> None:
        """Add, change or remove a node."""
        if site is None:
            del self.sites[name]
            self._hear(ev.NodeGone(self._at, NodeName(name)))
        else:
            self.sites[name] = site
            self._hear(ev.NodeObserved(self._at, node_of(name, site)))
        if self.judge:
            self.judge.sites = dict(self.sites)

    def team(self, team: Team) -> None:
        """Add or change a tenant."""
        self.teams[team.name] = team
        self._hear(ev.TenantObserved(self._at, tenant_of(team)))
        if self.judge:
            self.judge.teams = dict(self.teams)

    def pool(self, name: str, worth: dict[str, Fraction]) -> None:
        """Add a pool that selects the nodes with its name."""
        weights = {Resource(r): k for r, k in worth.items()}
        self._pools[name] = Pool(PoolName(name), {"pool": name}, weights)
        self._hear(ev.PoolObserved(self._at, self._pools[name]))
        if self.judge:
            self.judge.worth.pop("default", None)
            self.judge.worth[name] = worth

    def policy(self, policy: Policy) -> None:
        """Change the Policy."""
        self.rules = policy
        self._hear(ev.PolicyObserved(self._at, policy))
        if self.judge:
            self.judge.rules = rules_of(policy)

    def restart(self) -> None:
        """Start a new leader that receives only the current objects."""
        self.epoch += 1
        self.engine = Engine(self.managed, EngineOptions(compared_siblings=None))
        self._news = []
        self._wakes.clear()
        for pod in reversed(self.pods.values()):
            self._hear(ev.PodObserved(self._at, pod))
        self._open()
        if self.judge:
            self.judge.restart()

    def later(self, at: int, job: Job, lasting: int | None = None) -> None:
        """Schedule the creation of a workload."""
        self._count += 1
        heapq.heappush(self._coming, (at, self._count, job, lasting))

    def run(self, until: int, watch: Callable[[], None] = lambda: None) -> None:
        """Advance the time. Settle and call `watch` after each change or deadline."""
        while True:
            due = min(
                until,
                *self._wakes,
                *(end[0] for end in self._ends[:1]),
                *(coming[0] for coming in self._coming[:1]),
                10**15,
            )
            self._advance(due)
            while self._ends and self._ends[0][0] <= due:
                uid = heapq.heappop(self._ends)[1]
                if uid in self.jobs:
                    self.end(uid)
            while self._coming and self._coming[0][0] <= due:
                _, _, job, lasting = heapq.heappop(self._coming)
                self.submit(job, lasting)
            self.settle()
            watch()
            if due >= until:
                return

    def settle(self) -> list[Decision]:
        """Run the engine until it makes no further decision; return its decisions."""
        first = len(self.decisions)
        while True:
            news, self._news = self._news, []
            for event in (*news, ev.Pass(self._at)):
                effects = self.engine.handle(event)
                released = {e.intent.ref.uid for e in effects if isinstance(e, Release)}
                for effect in effects:
                    if isinstance(effect, EvictForReclaim):
                        vain = effect.beneficiary.uid in released and not self.has_followers
                        assert not vain, "the beneficiary starts without this eviction"
                    self._play(effect)
            assert not self._partly, "a gang was released in part"
            if self.judge and self.exact:
                left = self.judge.pick()
                assert left is None, f"{left} could start"
            self._carry_out()
            if not self._news:
                return self.decisions[first:]

    # State.

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.released is None]

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.released is not None]

    def used(self, team: str, resource: str = GPU) -> int:
        """Return the usage of a tenant's own queues."""
        return sum(job.total(resource) for job in self.running() if job.tenant == team)

    # Implementation.

    @property
    def _at(self) -> Millis:
        return Millis(self.now)

    def _hear(self, event: ev.NewsEvent) -> None:
        self._news.append(event)

    def _advance(self, now: int) -> None:
        self.now = now
        self._wakes = {wake for wake in self._wakes if wake > now}
        if self.judge:
            self.judge.advance(now)

    def _open(self) -> None:
        at = self._at
        news: list[ev.NewsEvent] = [ev.PolicyObserved(at, self.rules)]
        news += (ev.NodeObserved(at, node_of(n, site)) for n, site in self.sites.items())
        news += (ev.PoolObserved(at, pool) for pool in self._pools.values())
        news += (ev.TenantObserved(at, tenant_of(team)) for team in self.teams.values())
        news += (ev.SourceFresh(at, source) for source in ev.WatchedSource)
        news += (ev.LeadershipGained(at, self.epoch), ev.StoreReady(at))
        self._news += news
        if self.judge:
            self.judge.rules = rules_of(self.rules)

    def _play(self, effect: Effect) -> None:
        match effect:
            case Release():
                self._partly.append(effect)
                job = self.jobs[job_of(effect.intent.ref.uid)]
                if len(self._partly) == job.size:
                    releases, self._partly = self._partly, []
                    self._release(job, releases)
            case EvictForReclaim():
                beneficiary = job_of(effect.beneficiary.uid)
                self._doomed.setdefault(beneficiary, ([], self.running()))[0].append(effect)
                if self.judge:
                    pool = self.jobs[job_of(effect.ref.uid)].pool
                    self.judge.freed[beneficiary] = pool
            case GiveReclaimNotice(ref, ends):
                self._notify(ref.uid, ends)
            case WithdrawReclaimNotice(ref):
                self._notify(ref.uid, None)
            case WakeAt(at):
                if at > self.now:
                    self._wakes.add(at)

    def _notify(self, uid: Uid, ends: Millis | None) -> None:
        pod = self.pods.get(uid)
        if pod is not None:
            self.pods[uid] = pod = replace(
                pod, reclaim_terms=replace(pod.reclaim_terms, notice_ends_at=ends)
            )
            self._hear(ev.PodObserved(self._at, pod))

    def _release(self, job: Job, releases: list[Release]) -> None:
        assert {str(r.intent.ref.uid) for r in releases} == {p.uid for p in pods_of(job)}
        assert job.released is None, "released twice"
        pool, nodes = str(releases[0].intent.pool), [str(r.node) for r in releases]
        assert {str(r.intent.pool) for r in releases} == {pool}, "a gang in two pools"
        self._check_room(job, nodes)
        if self.judge:
            if self.exact:
                self._ask(self.judge, job, pool)
            self.pairs += self.judge.pairs(job, pool)
            self.judge.start(job, pool, nodes)
        job.pool, job.nodes, job.released = pool, nodes, self.now
        self.decisions.append(Started(self.now, job.uid, pool, tuple(nodes)))
        self.stamps += (order.stamp for order in releases)
        for order in releases:
            uid = order.intent.ref.uid
            self.pods[uid] = replace(
                self.pods[uid],
                gates=(),
                release_annotation=order.stamp,
                node=order.node,
                pool=order.intent.pool,
                phase=Phase.RUNNING,
                started_at=self._at,
            )
            self._hear(ev.ReleaseAnswered(self._at, uid, ReleaseOutcome.RELEASED))
            self._hear(ev.PodObserved(self._at, self.pods[uid]))
        if job.uid in self._lasting:
            heapq.heappush(self._ends, (self.now + self._lasting[job.uid], job.uid))

    def _carry_out(self) -> None:
        """Carry out the evictions at the end of a cycle."""
        doomed, self._doomed = self._doomed, {}
        for beneficiary, (evictions, running) in doomed.items():
            uids = list(dict.fromkeys(job_of(e.ref.uid) for e in evictions))
            victims = [self.jobs[uid] for uid in uids]
            pods = {pod.uid for job in victims for pod in pods_of(job)}
            assert {e.ref.uid for e in evictions} == pods, "a gang was evicted in part"
            causes = {job_of(e.ref.uid): e.cause.value for e in evictions}
            if self.witness:
                taker = self.jobs[beneficiary]
                self.witness.evicting(taker, victims, running, set(causes.values()))
            for uid in uids:
                self.decisions.append(Evicted(self.now, uid, beneficiary, causes[uid]))
                self.end(uid, evicted=True)
            if self.witness:
                self.witness.evicted(victims)

    def _check_room(self, job: Job, nodes: list[str]) -> None:
        """Check that every node of a pod is ready and has enough free capacity."""
        for name in set(nodes):
            site = self.sites[name]
            assert site.ready
            for resource in job.asked:
                taken = sum(j.nodes.count(name) * j.demand.get(resource, 0) for j in self.running())
                wanted = nodes.count(name) * job.demand[resource]
                assert taken + wanted <= site.offer.get(resource, 0), "more than the node has"

    @staticmethod
    def _ask(judge: Naive, job: Job, pool: str) -> None:
        expected = judge.pick()
        assert expected is not None, f"{job.uid} was released, nobody should be"
        wanted = (expected[0].uid, expected[1])
        told = f"{job.uid} goes to {pool}; {wanted} is next"
        assert wanted[0] == job.uid, told
        # If two pools cause equal borrowing, packing decides. The reference model has no packing.
        shares = {judge.share((job.tenant,), job, each) for each in (pool, wanted[1])}
        assert len(shares) == 1, told


def job_of(uid: Uid) -> str:
    """Return the workload of a pod."""
    return uid.partition("/")[0]


def pods_of(job: Job) -> Iterable[Pod]:
    """Return the pods of a workload as the webhook leaves them."""
    for number in range(job.size):
        uid = f"{job.uid}/{number}" if job.size > 1 else job.uid
        yield Pod(
            uid=Uid(uid),
            namespace=job.namespace or job.tenant,
            name=uid.replace("/", "-"),
            user=UserName(job.user),
            priority=job.priority,
            created_at=Millis(job.since),
            demand={**{Resource(r): v for r, v in job.demand.items()}, PODS: 1},
            gates=(GATE,),
            release_annotation=RELEASE_HELD,
            pools=tuple(PoolName(p) for p in job.pools),
            gang=job.gang or (job.uid if job.size > 1 else ""),
            gang_size=job.gang_size or job.size,
            gang_min_count=job.gang_least,
            max_runtime=None if job.max_runtime is None else Millis(job.max_runtime),
            preemptible=job.preemptible,
            reclaim_terms=ReclaimTerms(Millis(job.notice)),
        )


def node_of(name: str, site: Site) -> Node:
    """Return a node; its label names its pool."""
    offer = {**{Resource(r): v for r, v in site.offer.items()}, PODS: PLENTY}
    return Node(NodeName(name), {"pool": site.pool}, offer, site.ready)


def tenant_of(team: Team) -> Tenant:
    """Return a tenant that also owns the namespace of its own name."""
    quotas = {
        PoolName(pool): Quota(
            {Resource(r): v for r, v in team.guarantee.get(pool, {}).items()},
            {Resource(r): v for r, v in team.limit.get(pool, {}).items()},
        )
        for pool in {**team.guarantee, **team.limit}
    }
    return Tenant(
        TenantName(team.name),
        Millis(0),
        team.weight,
        TenantName(team.parent) if team.parent else None,
        (team.name, *team.namespaces),
        {UserName(name): weight for name, weight in team.users.items()},
        tuple(PoolName(pool) for pool in team.pools),
        quotas,
    )


def rules_of(policy: Policy) -> Rules:
    """Return the parts of a policy that the reference model uses."""
    return Rules(
        policy.history,
        policy.half_life,
        policy.min_charge,
        policy.reserve_after,
        policy.backfill,
    )
