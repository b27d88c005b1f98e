"""Reference model of the fair order, written directly from the published rules.

It uses exact fractions and plain lists, and computes each answer again from running and waiting
workloads. It shares no code with the engine. It does not assign pods to nodes of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Amounts = dict[str, int]
Branch = tuple[str, ...]
"""() is the root, (tenant,) a tenant, (tenant, user) a queue."""

NEARLY = 1e-9
BANDS = (GUARANTEED, BORROWING, LEFTOVERS) = (0, 1, 2)


@dataclass(eq=False)
class Job:
    """A workload of `size` equal pods. It runs if `released` is set. `order` numbers releases."""

    uid: str
    tenant: str
    user: str
    since: int
    demand: Amounts
    priority: int = 0
    size: int = 1
    pools: tuple[str, ...] = ()
    preemptible: bool = True
    max_runtime: int | None = None
    namespace: str = ""
    pool: str = ""
    nodes: list[str] = field(default_factory=list)
    released: int | None = None
    order: int = 0
    notice: int = 0
    gang: str = ""
    """The elastic gang that it belongs to: as its minimum, or as one further pod."""
    gang_size: int = 0
    gang_least: int = 0

    def total(self, resource: str) -> int:
        return self.size * self.demand.get(resource, 0)

    @property
    def asked(self) -> list[str]:
        return [r for r in self.demand if self.total(r) > 0]


@dataclass
class Team:
    """A tenant. `guarantee` and `limit` are by pool, then resource."""

    name: str
    parent: str = ""
    weight: Fraction = Fraction(1)
    users: dict[str, Fraction] = field(default_factory=dict)
    guarantee: dict[str, Amounts] = field(default_factory=dict)
    limit: dict[str, Amounts] = field(default_factory=dict)
    pools: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


@dataclass
class Site:
    """A node of a pool."""

    pool: str
    offer: Amounts
    ready: bool = True


@dataclass
class Rules:
    """The fields of the Policy that determine the order."""

    history: Fraction = Fraction(0)
    half_life: int = 4 * 3_600_000
    min_charge: int = 0
    reserve_after: int = 300_000
    backfill: bool = True
    distrust: int = 3_600_000
    """Milliseconds in which a user with an overdue pod may not backfill by run time."""


Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
Method = Callable[Concatenate["Naive", Asked], Answer]


def question(method: Method[Asked, Answer]) -> Method[Asked, Answer]:
    """Let `remembered` methods cache their answers during a call of this method."""

    @wraps(method)
    def asked(naive: Naive, *args: Asked.args, **named: Asked.kwargs) -> Answer:
        naive.memory = {}
        try:
            return method(naive, *args, **named)
        finally:
            naive.memory = None

    return asked


def remembered(method: Method[Asked, Answer]) -> Method[Asked, Answer]:
    """Cache the answer during one question. It depends on neither timers nor reservations."""

    @wraps(method)
    def again(naive: Naive, *args: Asked.args, **named: Asked.kwargs) -> Answer:
        if naive.memory is None or named:
            return method(naive, *args, **named)
        key = (method, args)
        if key not in naive.memory:
            naive.memory[key] = method(naive, *args)
        return naive.memory[key]  # type: ignore[return-value]

    return again


class Naive:
    """A cluster at time `now`. Set the fields, call `pick`, and report with `start` and `end`."""

    def __init__(self, managed: set[str]) -> None:
        self.now = 0
        self.managed = managed
        self.rules = Rules()
        self.worth: dict[str, dict[str, Fraction]] = {"default": {}}
        self.sites: dict[str, Site] = {}
        self.teams: dict[str, Team] = {}
        self.jobs: dict[str, Job] = {}
        self.ghosts: list[tuple[int, Job]] = []
        self.served: dict[Branch, int] = {}
        self.clocks: dict[str, int] = {}
        self.freed: dict[str, str] = {}
        self.barred: dict[Branch, int] = {}
        self.past: dict[tuple[Branch, str], float] = {}
        self.memory: dict[object, object] | None = None
        self._releases = 0

    # Changes.

    def advance(self, now: int) -> None:
        """Advance the time. Borrowed usage decays into history."""
        for until in sorted({until for until, _ in self.ghosts if until < now}):
            self._fade(until)
        self._fade(now)

    @question
    def _fade(self, now: int) -> None:
        keeps = 2.0 ** -((now - self.now) / self.rules.half_life)
        for branch in {*self.branches(), *(branch for branch, _ in self.past)}:
            for resource, over in self.over(branch).items():
                old = self.past.get((branch, resource), 0.0)
                self.past[branch, resource] = float(over) + (old - float(over)) * keeps
        self.now = now
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] > now]

    def start(self, job: Job, pool: str, nodes: list[str]) -> None:
        """Release a workload into a pool, its pods onto these nodes."""
        self._releases += 1
        job.pool, job.nodes, job.released, job.order = pool, nodes, self.now, self._releases
        self.served[job.tenant, job.user] = self._releases
        self._forget(job.uid)

    def end(self, uid: str, evicted: bool = False) -> None:
        """Remove a workload, running or waiting."""
        job = self.jobs.pop(uid)
        self._forget(uid)
        if self._overstays(job):
            self.barred[job.tenant, job.user] = self.now + self.rules.distrust
        if job.released is not None and not evicted:
            self.ghosts.append((job.released + self.rules.min_charge, job))
            self.ghosts = [ghost for ghost in self.ghosts if ghost[0] > self.now]

    def restart(self) -> None:
        """Reset to the state that a new leader can derive from the pods."""
        self.served.clear()
        self.clocks.clear()
        self.freed.clear()
        self.past.clear()
        self.ghosts.clear()
        self.barred.clear()
        for job in self.running():
            branch = (job.tenant, job.user)
            self.served[branch] = max(self.served.get(branch, 0), job.order)

    def _forget(self, uid: str) -> None:
        self.clocks.pop(uid, None)
        self.freed.pop(uid, None)

    def _ended(self) -> list[Job]:
        """Return the ended workloads that are still charged."""
        return [job for _, job in self.ghosts]

    # The share tree.

    @remembered
    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.released is not None]

    @remembered
    def waiting(self) -> list[Job]:
        """Return the waiting workloads that accept at least one existing pool."""
        return [job for job in self.jobs.values() if job.released is None and self.open(job)]

    @remembered
    def queue(self, leaf: Branch) -> list[Job]:
        mine = [j for j in self.waiting() if (j.tenant, j.user) == leaf]
        return sorted(mine, key=lambda j: (-j.priority, j.since, j.uid))

    def path(self, job: Job) -> list[Branch]:
        """Return the queue of a workload, its tenant and all ancestors, without the root."""
        return self._upwards((job.tenant, job.user))

    @remembered
    def _upwards(self, leaf: Branch) -> list[Branch]:
        path, name = [leaf], leaf[0]
        while name:
            path.append((name,))
            name = self.teams[name].parent
        return path

    def branches(self) -> list[Branch]:
        return sorted({b for j in (*self.jobs.values(), *self._ended()) for b in self.path(j)})

    @remembered
    def children(self, branch: Branch) -> list[Branch]:
        """Return the children that have waiting workloads."""
        paths = [self.path(job) for job in self.waiting()]
        if not branch:
            return sorted({path[-1] for path in paths})
        return sorted({path[path.index(branch) - 1] for path in paths if branch in path})

    def weight(self, branch: Branch) -> Fraction:
        team = self.teams[branch[0]]
        return team.weight if len(branch) == 1 else team.users.get(branch[1], Fraction(1))

    # Quantities.

    def capacity(self, pool: str) -> Amounts:
        """Return the capacity of a pool: its ready nodes, plus the usage of its other nodes."""
        total: Amounts = {}
        for name, site in self.sites.items():
            for r, offer in site.offer.items() if site.pool == pool else ():
                runs = sum(j.nodes.count(name) * j.demand.get(r, 0) for j in self.running())
                total[r] = total.get(r, 0) + (offer if site.ready else runs)
        return total

    @remembered
    def size(self) -> dict[str, Fraction]:
        """Return the size of the cluster in each resource that has a share."""
        named = {r for worth in self.worth.values() for r in worth}
        total: dict[str, Fraction] = {}
        for pool, worth in self.worth.items():
            for r, amount in self.capacity(pool).items():
                if r in self.managed | named:
                    total[r] = total.get(r, Fraction(0)) + worth.get(r, Fraction(1)) * amount
        return {r: amount for r, amount in total.items() if amount > 0}

    @remembered
    def used(self, branch: Branch, pool: str, resource: str, charged: bool = False) -> int:
        jobs = self.running() + (self._ended() if charged else [])
        mine = [j for j in jobs if j.pool == pool and branch in (*self.path(j), ())]
        return sum(j.total(resource) for j in mine)

    def quota(self, branch: Branch, pool: str, which: str) -> Amounts:
        quotas = getattr(self.teams[branch[0]], which) if len(branch) == 1 else {}
        return quotas.get(pool, {})

    @remembered
    def over(self, branch: Branch, job: Job | None = None, pool: str = "") -> dict[str, Fraction]:
        """Return the amounts that a branch borrows, optionally with one more workload."""
        total: dict[str, Fraction] = {}
        for resource in self.size():
            total[resource] = Fraction(0)
            for name, worth in self.worth.items():
                amount = self.used(branch, name, resource, True)
                amount += job.total(resource) if job and name == pool else 0
                above = max(0, amount - self.quota(branch, name, "guarantee").get(resource, 0))
                total[resource] += worth.get(resource, Fraction(1)) * above
        return total

    def share(self, branch: Branch, job: Job | None = None, pool: str = "") -> Fraction:
        """Return the dominant share of the borrowed amounts, without weight and history."""
        over, size = self.over(branch, job, pool), self.size()
        return max((over[r] / size[r] for r in size), default=Fraction(0))

    def standing(self, branch: Branch, job: Job | None = None, pool: str = "") -> Fraction:
        """Return s = (over + kappa H) / w of the dominant resource."""
        return self._largest(branch, self.over(branch, job, pool))

    def score(self, branch: Branch, job: Job, pool: str) -> Fraction:
        """Return the score of a branch at this workload's midpoint; unweighted for weight 0."""
        before, after = self.over(branch), self.over(branch, job, pool)
        return self._largest(branch, {r: (before[r] + after[r]) / 2 for r in before})

    def _largest(self, branch: Branch, over: dict[str, Fraction]) -> Fraction:
        size = self.size()
        if self.rules.history:
            past = {r: Fraction(self.past.get((branch, r), 0.0)) for r in over}
            over = {r: over[r] + self.rules.history * past[r] for r in over}
        worst = max((over[r] / size[r] for r in over), default=Fraction(0))
        return worst / (self.weight(branch) or 1)

    def within(self, branch: Branch, job: Job, pool: str, charged: bool = True) -> Fraction | None:
        """Return the used fraction of the guarantee, if the workload stays within; else None."""
        guarantee = {
            r: amount
            for r, amount in self.quota(branch, pool, "guarantee").items()
            if r in self.size()
        }
        used = {r: self.used(branch, pool, r, charged) for r in guarantee}
        named = [r for r in job.asked if r in guarantee]
        if not named or any(used[r] + job.total(r) > guarantee[r] for r in named):
            return None
        return max(Fraction(used[r], guarantee[r]) for r in guarantee if guarantee[r] > 0)

    # The order.

    def rank(self, branch: Branch, job: Job, pool: str = "") -> tuple[int, Fraction]:
        pool = pool or self.choice(job)
        fraction = self.within(branch, job, pool)
        if fraction is not None:
            return GUARANTEED, fraction
        return (BORROWING if self.weight(branch) else LEFTOVERS), self.score(branch, job, pool)

    @remembered
    def order(self, branch: Branch) -> list[Branch]:
        """Return the waiting children in fair order; children at a limit come last."""
        keyed: list[tuple[int, Fraction, int, int, str, Branch]] = []
        for child in self.children(branch):
            head = self.head(child)
            band, score = self.rank(child, head)
            band += len(BANDS) if self.is_barred(child) else 0
            keyed.append((band, score, self.last(child), head.since, head.uid, child))
        keyed.sort()
        if self.rules.history:  # floats: almost equal scores are a tie
            for i in range(1, len(keyed)):
                before, this = keyed[i - 1], keyed[i]
                if before[0] == this[0] and this[1] - before[1] <= NEARLY * this[1]:
                    keyed[i] = (this[0], before[1], *this[2:])
            keyed.sort()
        return [key[-1] for key in keyed]

    def last(self, branch: Branch) -> int:
        """Return the number of the last release below a branch, 0 if there is no release."""
        if len(branch) == 2:
            return self.served.get(branch, 0)
        below = (leaf for leaf in self.served if self._is_below(leaf, branch))
        return max((self.served[leaf] for leaf in below), default=0)

    def _is_below(self, leaf: Branch, tenant: Branch) -> bool:
        return tenant in self._upwards(leaf)

    @remembered
    def head(self, branch: Branch) -> Job:
        """Return the next workload below a branch. A blocked one comes only if all are blocked."""
        heads = self.queue(branch) if len(branch) == 2 else list(map(self.head, self.order(branch)))
        return next((job for job in heads if self.allowed(job, self.choice(job))), heads[0])

    def is_barred(self, branch: Branch) -> bool:
        """Return whether limits block every head of a tenant."""
        head = self.head(branch)
        return len(branch) == 1 and not self.allowed(head, self.choice(head))

    def leaves(self, branch: Branch = ()) -> Iterator[Branch]:
        """Yield all queues in fair order."""
        for child in self.order(branch):
            yield from (child,) if len(child) == 2 else self.leaves(child)

    @remembered
    def line(self) -> list[Job]:
        """Return all waiting workloads in fair order."""
        return [job for leaf in self.leaves() for job in self.queue(leaf)]

    # Pools and fit.

    @remembered
    def open(self, job: Job) -> list[str]:
        """Return the pools that the workload and its tenant accept and that have nodes."""
        there = {site.pool for site in self.sites.values()} & set(self.worth)
        sets = [there, set(job.pools), set(self.teams[job.tenant].pools)]
        if not there:
            return []
        return sorted(set.intersection(*(s for s in sets if s)))

    @remembered
    def choice(self, job: Job) -> str:
        """Return the pool of a workload: allowed first, then fits now, borrows least, by name."""
        return min(
            self.open(job),
            key=lambda p: (
                not self.allowed(job, p),
                not self.fits(job, p, {}),
                self.share((job.tenant,), job, p),
                p,
            ),
        )

    def cheapest(self, job: Job, pools: list[str]) -> str:
        return min(pools, key=lambda p: (self.share((job.tenant,), job, p), p))

    def permits(self, branch: Branch, job: Job, pool: str) -> bool:
        """Return whether a branch may start a workload: within limit, and guarantee if required."""
        limit = self.quota(branch, pool, "limit")
        if any(
            self.used(branch, pool, r) + job.total(r) > limit[r] for r in job.asked if r in limit
        ):
            return False
        must = not job.preemptible and len(branch) == 1
        return not must or self.within(branch, job, pool, charged=False) is not None

    @remembered
    def allowed(self, job: Job, pool: str) -> bool:
        return all(self.permits(branch, job, pool) for branch in self.path(job))

    @remembered
    def free(self, name: str) -> Amounts:
        site = self.sites[name]
        taken = dict.fromkeys(site.offer, 0)
        for job in self.running():
            for r in taken:
                taken[r] += job.nodes.count(name) * job.demand.get(r, 0)
        return {r: site.offer[r] - taken[r] if site.ready else 0 for r in taken}

    def fits(self, job: Job, pool: str, withheld: Amounts) -> bool:
        """Return whether a workload fits in a pool. Gangs and `withheld` need pools of one node."""
        names = [n for n, site in self.sites.items() if site.pool == pool and site.ready]
        assert len(names) <= 1 or (job.size == 1 and not withheld)
        return any(
            all(self.free(name).get(r, 0) - withheld.get(r, 0) >= job.total(r) for r in job.asked)
            for name in names
        )

    # Reservations.

    def reserved(self) -> dict[str, Job]:
        """Return the first workload in order, per pool, that has waited for `reserve_after`."""
        held: dict[str, Job] = {}
        for job in self.line():
            since = self.clocks.get(job.uid)
            if since is None or self.now - since < self.rules.reserve_after:
                continue
            for pool in [] if job.uid in self.freed else self.open(job):
                if pool not in held and self.allowed(job, pool) and self.ever(job, pool):
                    held[pool] = job
                    break
        return held

    def ever(self, job: Job, pool: str) -> bool:
        """Return whether a workload would fit in an otherwise empty pool."""
        sites = (site for site in self.sites.values() if site.pool == pool and site.ready)
        return any(all(s.offer.get(r, 0) >= job.total(r) for r in job.asked) for s in sites)

    def withheld(self, job: Job, pool: str, before: list[Job]) -> Amounts:
        """Return the capacity that is reserved for other workloads and unavailable to this one."""
        kept = {self.jobs[uid].uid: self.jobs[uid] for uid, p in self.freed.items() if p == pool}
        first = self.reserved().get(pool)
        if first is not None and first in before and not self._ends_before(job, first, pool):
            kept[first.uid] = first
        kept.pop(job.uid, None)
        return {r: sum(k.total(r) for k in kept.values()) for k in kept.values() for r in k.asked}

    def _ends_before(self, job: Job, first: Job, pool: str) -> bool:
        """Return whether a workload ends before the reserved capacity for another can be free."""
        leaf = (job.tenant, job.user)
        late = [j for j in self.running() if (j.tenant, j.user) == leaf]
        barred = self.barred.get(leaf, 0) > self.now or any(map(self._overstays, late))
        if job.max_runtime is None or barred or self.fits(first, pool, {}):
            return False
        running = [j for j in self.running() if j.pool == pool]
        ends = sorted(
            (j.released + j.max_runtime, j.uid)
            for j in running
            if j.released is not None and j.max_runtime is not None
        )
        offer = next(s.offer for s in self.sites.values() if s.pool == pool and s.ready)
        for at, _ in ends:
            left = [j for j in running if (at, "~") < self._ends(j)]
            if all(
                offer.get(r, 0) - sum(j.total(r) for j in left) >= first.total(r)
                for r in first.asked
            ):
                return self.now + job.max_runtime <= at and at >= self.now
        return False

    def _overstays(self, job: Job) -> bool:
        return self._ends(job)[0] < self.now

    @staticmethod
    def _ends(job: Job) -> tuple[float, str]:
        if job.max_runtime is None or job.released is None:
            return float("inf"), job.uid
        return job.released + job.max_runtime, job.uid

    # Selection.

    @question
    def pick(self) -> tuple[Job, str] | None:
        """Return the next release and its pool; start the timers of blocked heads."""
        if not self.children(()):
            return None
        self.freed = {u: p for u, p in self.freed.items() if self.allowed(self.jobs[u], p)}
        head = self.head(())
        pool = self._room(head)
        if pool is not None and not self._falls_back(head, pool):
            return head, pool
        self.note()
        paid = (self.jobs[uid] for uid in self.freed)
        late = next((job for job in paid if self._room(job)), None)
        job = self.candidate(()) if self.rules.backfill else late
        if job is None:
            return None
        pool = self._room(job)
        assert pool is not None
        return job, pool

    def _falls_back(self, head: Job, pool: str) -> bool:
        """Return whether the available pool ranks the head lower than its chosen pool."""
        return pool != self.choice(head) and any(
            self.rank(branch, head, pool) > self.rank(branch, head) for branch in self.path(head)
        )

    def note(self) -> None:
        """Start the reservation timers of the next heads that do not fit.

        The next head of a pool is the first in order that the empty pool could hold.
        """
        unclaimed = {pool for job in self.waiting() for pool in self.open(job)}
        for job in self.heads():
            holders = {p for p in self.open(job) if self.allowed(job, p) and self.ever(job, p)}
            if holders & unclaimed and self._room(job) is None:
                self.clocks.setdefault(job.uid, self.now)
            unclaimed -= holders

    def heads(self, branch: Branch = ()) -> Iterator[Job]:
        """Yield the heads of all queues in order, except tenants blocked by a limit."""
        for child in self.order(branch):
            if not self.is_barred(child):
                yield from [self.head(child)] if len(child) == 2 else self.heads(child)

    def before(self, job: Job) -> list[Job]:
        """Return all workloads that wait before this one in the order."""
        return self.line()[: self.line().index(job)]

    @question
    def room(self, job: Job) -> str | None:
        """Return the pool where a workload may start now, given the reservations."""
        return self._room(job)

    def _room(self, job: Job) -> str | None:
        pools = [p for p in self.open(job) if self.allowed(job, p)]
        if not any(self.fits(job, p, {}) for p in pools):
            return None
        before = self.before(job) if self.clocks or self.freed else []
        fitting = [p for p in pools if self.fits(job, p, self.withheld(job, p, before))]
        if self.choice(job) in fitting and job is self.head((job.tenant, job.user)):
            return self.choice(job)
        return self.cheapest(job, fitting) if fitting else None

    def candidate(self, branch: Branch) -> Job | None:
        """Return the workload that backfill releases below a branch."""
        if len(branch) == 2:
            return next((job for job in self.queue(branch) if self._room(job)), None)
        if branch and self._room(self.head(branch)):
            return self.head(branch)
        second = None
        for child in self.order(branch):
            job = self.candidate(child)
            if job is None:
                continue
            if self.is_barred(child):  # it has no head to compare the rank with
                return job
            pool = self._room(job) or ""
            if self.rank(child, job, pool) <= self.rank(child, self.head(child)):
                return job
            second = second or job
        return second

    # The published bound.

    @question
    def pairs(self, job: Job, pool: str) -> list[tuple[Fraction, Fraction]]:
        """Return both sides of the bound for every sibling that could have started instead.

        Call it before `start`.
        """
        found: list[tuple[Fraction, Fraction]] = []
        path = self.path(job)
        for branch, parent in zip(path, [*path[1:], ()], strict=True):
            if not self._borrows(branch, job, pool):
                continue
            mine = self.standing(branch, job, pool)
            step = self._step(branch, job, pool)
            for other in self.children(parent):
                head = self.head(other)
                place = None if other == branch else self._room(head)
                if place is not None and self._borrows(other, head, place):
                    theirs = self.standing(other)
                    found.append((mine - theirs, (step + self._step(other, head, place)) / 2))
        return found

    def _borrows(self, branch: Branch, job: Job, pool: str) -> bool:
        adds = self.over(branch, job, pool) != self.over(branch)
        return adds and self.weight(branch) > 0 and self.within(branch, job, pool) is None

    def _step(self, branch: Branch, job: Job, pool: str) -> Fraction:
        before, after, size = self.over(branch), self.over(branch, job, pool), self.size()
        return max((after[r] - before[r]) / size[r] for r in before) / self.weight(branch)
