"""Searches for eviction loops in small, full, random clusters with arriving workloads.

An evicted workload is queued again at once with a new uid. Evictions must end without external
events. The same workloads must never run twice with an eviction in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random

import pytest

from app.core.model import Millis
from app.core.policy import Policy, Reclaim, WithinQueue
from tests.property.engine_driver import GPU, Drive, Evicted, pods_of
from tests.property.reference_engine import Branch, Job, Naive, Site, Team
from tests.support.depth import cases

POOL = "default"
CLUSTERS = cases(260, 5_200)
NOTICED = cases(60, 1_000)
ARRIVALS = 20
"""Arrivals per cluster. Each is one case."""
PATIENCE = (7, 40)
"""Time without events after an arrival, to check that time alone causes no reversal."""

TREES = (("", ""), ("", "", ""), ("", "", ""), ("", "t0", "t0", ""), ("", "", "t1", "t1"))
WEIGHTS = tuple(Fraction(w) for w in ("1", "1", "1", "2", "3", "1/2", "0"))


@dataclass
class Arena:
    """Checks that every eviction follows the rules, and submits evicted workloads again."""

    drive: Drive
    quiet: set[frozenset[str]] = field(default_factory=set)
    """Sets of workloads that ran before an eviction, since the last external event."""
    lost: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of victim and beneficiary since the last external event."""
    count: Counter[str] = field(default_factory=Counter)

    def news(self) -> None:
        self.quiet.clear()
        self.lost.clear()

    def evicting(
        self, taker: Job, victims: list[Job], running: list[Job], causes: set[str]
    ) -> None:
        now = frozenset(work_of(job) for job in running)
        assert now not in self.quiet, f"a loop:\n{self.story()}"
        self.quiet.add(now)
        for victim in victims:
            assert (work_of(taker), work_of(victim)) not in self.lost, self.story()
            self.lost.add((work_of(victim), work_of(taker)))
        for victim in victims:
            if victim.notice:
                ends = [
                    self.drive.pods[pod.uid].reclaim_terms.notice_ends_at for pod in pods_of(victim)
                ]
                assert all(at is not None and at <= self.drive.now for at in ends), "too early"
        self.count["noticed"] += any(victim.notice for victim in victims)
        equal = self.followers(taker) if causes == {"guarantee"} else []
        objections = []
        for count in range(len(equal) + 1):
            law = Law(self.drive, [taker, *equal[:count]], running)
            objection = self.objection(law, victims, causes)
            if not objection:
                break
            objections.append(objection)
        else:
            raise AssertionError(f"{objections}\n{self.story()}")
        self.count["followers"] += count
        self.count.update(causes)
        self.count["gangs"] += any(victim.size > 1 for victim in victims)
        self.count["several"] += len(victims) > 1

    def followers(self, taker: Job) -> list[Job]:
        """Return the waiting single pods of the user behind a taker that are equal to it."""
        running = {job.uid for job in self.drive.running()}
        return [
            job
            for job in self.drive.jobs.values()
            if job.uid not in running
            and job is not taker
            and (job.tenant, job.user, job.priority) == (taker.tenant, taker.user, taker.priority)
            and (job.demand, job.size, taker.size) == (taker.demand, 1, 1)
        ]

    def objection(self, law: Law, victims: list[Job], causes: set[str]) -> str:
        if not law.allows(victims, causes):
            return law.objection
        if not law.fits(victims):
            return "not enough"
        for victim in victims:
            fewer = [v for v in victims if v is not victim]
            if law.fits(fewer) and law.allows(fewer, causes):
                if not law.fits(fewer, self.reserved(law.taker)):
                    self.count["beside a reservation"] += 1
                else:
                    return "one too many"
        return ""

    def reserved(self, taker: Job) -> int:
        """Return how many free devices are reserved for others. A reclaim leaves these to them."""
        reservations = self.drive.engine._cycle.reservations
        own = {pod.uid for pod in pods_of(taker)}
        held = (reservations.active, reservations.overdue, reservations.gangs)
        others = {each for kind in held for each in kind.values()}
        return sum(
            amounts.get(GPU, 0)
            for each in others
            if each.owner.uid not in own
            for amounts in each.capacity_by_node.values()
        )

    def evicted(self, victims: list[Job]) -> None:
        for victim in victims:
            self.count["evicted"] += 1
            again = Job(
                f"{work_of(victim)}-{self.count['evicted']:05}",
                victim.tenant,
                victim.user,
                self.drive.now,
                victim.demand,
                victim.priority,
                victim.size,
                notice=victim.notice,
            )
            self.drive.submit(again)

    def story(self) -> str:
        teams = "\n".join(map(repr, self.drive.teams.values()))
        decisions = "\n".join(map(repr, self.drive.decisions[-30:]))
        return f"{self.drive.rules}\n{teams}\n{decisions}"


def work_of(job: Job) -> str:
    """Return the name that all attempts of one workload share."""
    return job.uid.partition("-")[0]


class Law:
    """The published rules of reclaim, for one pool of one node."""

    def __init__(self, drive: Drive, takers: list[Job], running: list[Job]) -> None:
        self.drive = drive
        self.taker, self.takers = takers[0], takers
        self.objection = ""
        self.judge = Naive({GPU})
        self.judge.sites, self.judge.teams = drive.sites, drive.teams
        self.running = running

    def fits(self, victims: list[Job], reserved: int = 0) -> bool:
        """Return whether the workload fits if these are gone, beside free reserved devices."""
        offer = self.drive.sites["n"].offer[GPU]
        used, left = (
            sum(job.total(GPU) for job in jobs) for jobs in (self.running, self._without(victims))
        )
        free = offer - left - min(offer - used, reserved)
        return free >= sum(taker.total(GPU) for taker in self.takers)

    def allows(self, victims: list[Job], causes: set[str]) -> bool:
        objections = [self._objection(victims, i) for i in range(len(victims))]
        if "guarantee" in causes and not any(
            self._is_owed(self._fronts(v)[0], victims) for v in victims
        ):
            objections.append("nobody's guarantee asks for it")
        self.objection = "; ".join(filter(None, objections))
        return not self.objection

    def _objection(self, victims: list[Job], i: int) -> str:
        victim, taker, policy = victims[i], self.taker, self.drive.rules
        assert victim.released is not None
        if not victim.preemptible:
            return "it must not be evicted"
        if self.drive.now - victim.released < policy.min_runtime:
            return "it has hardly begun"
        if (victim.tenant, victim.user) == (taker.tenant, taker.user):
            allowed = policy.within_queue is WithinQueue.LOWER_PRIORITY
            return "" if allowed and victim.priority < taker.priority else "it is one's own"
        mine, rival = self._fronts(victim)
        if policy.reclaim is Reclaim.OFF or len(rival) == 2:
            return "users of one tenant wait for each other, and all if reclaim is off"
        before = self._without(victims[:i])
        path = self.judge.path(victim)[1:]
        for branch in path[: path.index(rival) + 1]:
            if self._over(branch, before) <= 0:
                return f"{branch} does not borrow"
        if self._is_owed(mine, victims):
            return ""
        if policy.reclaim is Reclaim.GUARANTEE:
            return "it is not owed"
        after = self._without(victims)
        left, taken = self._score(rival, after), self._score(mine, [*after, *self.takers])
        return "" if left >= taken else f"{rival} would stand below {mine}"

    def _without(self, victims: list[Job]) -> list[Job]:
        gone = {victim.uid for victim in victims}
        return [job for job in self.running if job.uid not in gone]

    def _fronts(self, victim: Job) -> tuple[Branch, Branch]:
        """Return the two children of the lowest common ancestor."""
        mine, theirs = self.judge.path(self.taker), self.judge.path(victim)
        while len(mine) > 1 and len(theirs) > 1 and mine[-1] == theirs[-1]:
            mine.pop()
            theirs.pop()
        return mine[-1], theirs[-1]

    def _is_owed(self, mine: Branch, victims: list[Job]) -> bool:
        """Return whether the taker is within its tenant's guarantee after the evictions."""
        guarantee = self.judge.quota(mine, POOL, "guarantee").get(GPU)
        if guarantee is None:
            return False
        return self._used(mine, [*self._without(victims), *self.takers]) <= guarantee

    def _used(self, branch: Branch, jobs: list[Job]) -> int:
        return sum(job.total(GPU) for job in jobs if branch in self.judge.path(job))

    def _over(self, branch: Branch, jobs: list[Job]) -> int:
        guarantee = self.judge.quota(branch, POOL, "guarantee").get(GPU, 0)
        return max(0, self._used(branch, jobs) - guarantee)

    def _score(self, branch: Branch, jobs: list[Job]) -> tuple[bool, Fraction]:
        """Return the score without half of the next workload. Weight 0 ranks above all others."""
        weight = self.judge.weight(branch)
        return not weight, self._over(branch, jobs) / (weight or 1)


def cluster(random: Random) -> Drive:
    """Return a small cluster with guarantees that fill it or almost fill it."""
    policy = Policy(
        reserve_after=Millis(random.choice((10, 10**12))),
        reclaim=random.choice((Reclaim.GUARANTEE, Reclaim.FAIR, Reclaim.FAIR, Reclaim.OFF)),
        within_queue=random.choice(tuple(WithinQueue)),
        min_runtime=Millis(random.choice((0, 0, 5))),
    )
    drive = Drive(policy)
    capacity = random.randint(4, 12)
    drive.site("n", Site(POOL, {GPU: capacity}))
    parents = random.choice(TREES)
    for number, parent in enumerate(parents):
        most = 2 * capacity // len(parents)
        guarantee = random.choice((None, *range(most + 1)))
        drive.team(
            Team(
                f"t{number}",
                parent,
                random.choice(WEIGHTS),
                guarantee={} if guarantee is None else {POOL: {GPU: guarantee}},
                limit={} if random.random() < 0.9 else {POOL: {GPU: random.randint(most, 12)}},
            )
        )
    return drive


def workload(random: Random, drive: Drive, number: int) -> Job:
    size = random.choice((1, 1, 2, 3, 4, 5))
    return Job(
        f"{number:03}",
        random.choice(sorted(drive.teams)),
        random.choice("uuv"),
        drive.now,
        {GPU: size},
        random.randint(0, 2),
        random.choice((1, 1, 1, 2)) if size < 4 else 1,
        preemptible=random.random() < 0.9,
    )


def fill(drive: Drive, random: Random) -> None:
    """Place workloads that earlier leaders released: all that fit, in any order."""
    free = drive.sites["n"].offer[GPU]
    for number in range(random.randint(0, 8)):
        job = workload(random, drive, 900 + number)
        if job.total(GPU) <= free and job.preemptible:
            free -= job.total(GPU)
            drive.place(job, POOL, "n", -100 + number, number + 1)


def search(seed: int, *, notices: bool = False) -> Counter[str]:
    """Submit and end workloads in one random cluster; return counts of the outcomes.

    If `notices`, some workloads want a notice, time passes, and leaders change meanwhile.
    """
    random = Random(seed)
    drive = cluster(random)
    arena = Arena(drive)
    drive.witness = arena
    fill(drive, random)
    for number in range(ARRIVALS):
        if random.random() < 0.3 and drive.running():
            drive.end(random.choice(drive.running()).uid)
        arena.news()
        work = workload(random, drive, number)
        if notices:
            work.notice = random.choice((0, 500, 3000))
            if random.random() < 0.1:
                drive.restart()
        drive.submit(work)
        drive.settle()
        if notices and random.random() < 0.6:
            drive.run(drive.now + random.choice((300, 1000, 4000, 60_000)))
        for span in PATIENCE if random.random() < 0.2 else PATIENCE[:1]:
            drive.run(drive.now + span)
        arena.count["cases"] += 1
    return arena.count


@pytest.mark.parametrize("part", range(4))
def test_no_loop_is_found_and_every_eviction_is_lawful(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, CLUSTERS, 4):
        seen += search(seed)
    part_of_all = Fraction(CLUSTERS, 5_200)
    assert seen["cases"] >= 25_000 * part_of_all
    rare = min(seen[what] for what in ("guarantee", "fair", "withinQueue", "gangs"))
    assert rare > 100 * part_of_all
    assert seen["several"] > 50 * part_of_all


def test_a_notice_changes_no_rule_of_reclaim() -> None:
    """The rules are checked at the eviction, so after the notice and any change during it."""
    seen: Counter[str] = Counter()
    for seed in range(NOTICED):
        seen += search(seed, notices=True)
    # The search must not become empty: a thousand clusters have 910, 58 and 309 of these.
    assert seen["evicted"] > NOTICED / 2
    assert seen["several"] >= NOTICED / 50
    assert seen["noticed"] > NOTICED / 10


def search_followers(seed: int, *, notices: bool) -> Counter[str]:
    """Let one user of a tenant with a guarantee submit equal pods while others use the cluster.

    Return counts of the outcomes.
    """
    random = Random(seed)
    drive = Drive(Policy(reclaim=random.choice((Reclaim.GUARANTEE, Reclaim.FAIR)), min_runtime=0))
    drive.has_followers = True
    arena = drive.witness = Arena(drive)
    capacity = random.randint(8, 16)
    drive.site("n", Site(POOL, {GPU: capacity}))
    for name, guarantee in (("t0", random.randint(3, 8)), ("t1", random.randint(0, 2)), ("t2", 0)):
        drive.team(Team(name, guarantee={POOL: {GPU: guarantee}}))
    free, size = capacity, random.choice((1, 1, 2))
    for number in range(random.randint(1, 2)):
        drive.place(Job(f"{number:03}", "t0", "u", 0, {GPU: size}), POOL, "n", -90, number + 1)
        free -= size
    for number in range(10, 30):
        wanted = random.randint(1, 3)
        if wanted <= free:
            free -= wanted
            notice = random.choice((0, 500, 3000)) if notices else 0
            job = Job(f"{number:03}", random.choice(("t1", "t2")), "u", 0, {GPU: wanted})
            drive.place(replace(job, notice=notice), POOL, "n", -80 + number, number)
    for number in range(40, 40 + random.randint(2, 8)):
        drive.submit(Job(f"{number:03}", "t0", "u", 0, {GPU: size}))
    for _ in range(6):
        arena.news()
        drive.settle()
        drive.run(drive.now + random.choice((1, 600, 4000)))
        if random.random() < 0.4 and drive.running():
            drive.end(random.choice(drive.running()).uid)
        if notices and random.random() < 0.1:
            drive.restart()
    return arena.count


@pytest.mark.parametrize("notices", [False, True])
def test_a_reclaim_for_several_workloads_follows_the_same_rules(notices: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(NOTICED):
        seen += search_followers(seed, notices=notices)
    assert seen["followers"] >= NOTICED / 10


@pytest.mark.parametrize("mode", list(Reclaim))
@pytest.mark.parametrize("within", list(WithinQueue))
@pytest.mark.parametrize("first", ["a0", "c1"])
def test_evictions_do_not_loop_where_other_schedulers_loop(
    mode: Reclaim, within: WithinQueue, first: str
) -> None:
    """Guarantees 4, 1 and 2 of 7. a runs 3, c runs 4 with a higher priority, and a wants 4 more."""
    drive = Drive(Policy(reclaim=mode, within_queue=within, min_runtime=Millis(0)))
    drive.witness = Arena(drive)
    drive.site("n", Site(POOL, {GPU: 7}))
    for name, guarantee in (("a", 4), ("b", 1), ("c", 2)):
        drive.team(Team(name, guarantee={POOL: {GPU: guarantee}}))
    drive.place(Job("a0", "a", "u", 0, {GPU: 3}), POOL, "n", -2, 1 if first == "a0" else 2)
    drive.place(Job("c1", "c", "u", 0, {GPU: 4}, 1), POOL, "n", -1, 2 if first == "a0" else 1)
    drive.submit(Job("x", "a", "u", 0, {GPU: 4}, 1))
    drive.run(10**7)
    evicted = sorted(d.uid for d in drive.decisions if isinstance(d, Evicted))
    both = within is WithinQueue.LOWER_PRIORITY and mode is not Reclaim.OFF
    assert evicted in (([], ["a0", "c1"]) if both else ([],))


def test_a_workload_never_starts_beyond_the_guarantee_if_it_must_not_be_evicted() -> None:
    """Otherwise its borrowed capacity could never be reclaimed."""
    drive = Drive(Policy(reclaim=Reclaim.GUARANTEE, min_runtime=Millis(0)))
    drive.site("n", Site(POOL, {GPU: 8}))
    drive.team(Team("a", guarantee={POOL: {GPU: 3}}))
    for number in range(6):
        drive.submit(Job(f"{number}", "a", "u", 0, {GPU: 1}, preemptible=False))
    drive.settle()
    assert drive.used("a") == 3


def test_capacity_freed_for_a_workload_is_not_taken_by_a_higher_priority() -> None:
    """An equal workload of the same user with higher priority arrives during the evictions."""
    drive = Drive(Policy(reclaim=Reclaim.GUARANTEE, min_runtime=Millis(0)))
    drive.site("n", Site(POOL, {GPU: 4}))
    drive.team(Team("a", guarantee={POOL: {GPU: 4}}))
    drive.team(Team("b"))
    for number in range(4):
        drive.place(Job(f"b{number}", "b", "u", 0, {GPU: 1}), POOL, "n", number - 9, number + 1)

    class Hurry:
        """Submits once, at the moment when the evicted pods are gone."""

        def evicting(self, *_: object) -> None:
            pass

        def evicted(self, victims: list[Job]) -> None:
            if "y" not in drive.jobs:
                drive.submit(Job("y", "a", "u", 0, {GPU: 2}, 5))

    drive.witness = Hurry()
    drive.submit(Job("x", "a", "u", 0, {GPU: 2}))
    drive.settle()
    assert "x" in [job.uid for job in drive.running()]


@pytest.mark.parametrize("seed", range(12))
def test_repeated_reclaims_take_no_device_twice_within_min_runtime(seed: int) -> None:
    """A tenant submits pods within its guarantee and deletes each one as soon as it starts.

    A victim has run for `min_runtime`. So within any such time at most the borrowed devices are
    evicted. No smaller bound holds: with seed 0 a guarantee of one device reaches it.
    """
    random, least, capacity = Random(seed), 100, 6
    drive = Drive(Policy(reclaim=Reclaim.GUARANTEE, min_runtime=Millis(least)))
    drive.witness = arena = Arena(drive)
    drive.site("n", Site(POOL, {GPU: capacity}))
    drive.team(Team("a", guarantee={POOL: {GPU: random.randint(1, 3) if seed else 1}}))
    drive.team(Team("b"))
    for number in range(capacity):
        drive.place(Job(f"b{number}", "b", "u", 0, {GPU: 1}), POOL, "n", -least, number + 1)
    for number in range(40):
        arena.news()
        drive.submit(Job(f"x{number}", "a", "u", drive.now, {GPU: 1}))
        drive.settle()
        drive.end(f"x{number}")
        drive.run(drive.now + (random.randint(0, 40) if seed else 10))
    at = [each.at for each in drive.decisions if isinstance(each, Evicted)]
    windows = [sum(begin <= each < begin + least for each in at) for begin in at]
    assert 1 <= max(windows) <= capacity
    assert seed or max(windows) == capacity


@pytest.mark.parametrize(("own", "cause"), [(1, "fair"), (3, "withinQueue")])
def test_check_after_an_eviction_notice_recomputes_victims_and_cause(own: int, cause: str) -> None:
    """b1, of b, and a1, of a, get a notice for x, of a. Then c1 ends, and one of them suffices.

    If that is b1, x is no longer within the guarantee of a, so the cause changes.
    """
    rules = Policy(
        reclaim=Reclaim.FAIR,
        within_queue=WithinQueue.LOWER_PRIORITY,
        min_runtime=Millis(0),
        reserve_after=Millis(10**12),
    )
    drive = Drive(rules)
    drive.witness = Arena(drive)
    drive.site("n", Site(POOL, {GPU: own + 4 + 3 + 2}))
    for name, guarantee in (("a", own + 4), ("b", 0), ("c", 2)):
        drive.team(Team(name, guarantee={POOL: {GPU: guarantee}}))
    for order, (uid, size, notice) in enumerate(
        (("a1", own, 1000), ("b2", 3, 0), ("b1", 4, 1000), ("c1", 2, 0))
    ):
        drive.place(
            Job(uid, uid[0], "u", 0, {GPU: size}, notice=notice), POOL, "n", order - 9, order + 1
        )
    drive.submit(Job("x", "a", "u", 0, {GPU: 5}, 1))
    drive.settle()
    assert not [each for each in drive.decisions if isinstance(each, Evicted)]
    drive.end("c1")
    drive.run(1000)
    evicted, *_ = (each for each in drive.decisions if isinstance(each, Evicted))
    assert (evicted.uid, evicted.cause) == ({"fair": "b1"}.get(cause, "a1"), cause)


def test_reclaim_from_own_lower_priority_protects_no_pod() -> None:
    """The user loses only its own pods, so a still higher priority may follow at once."""
    rules = Policy(within_queue=WithinQueue.LOWER_PRIORITY, min_runtime=Millis(0))
    drive = Drive(rules)
    drive.site("n", Site(POOL, {GPU: 2}))
    drive.team(Team("a"))
    drive.place(Job("o", "a", "u", 0, {GPU: 2}), POOL, "n", -1, 1)
    for priority in (1, 2):
        drive.submit(Job(f"x{priority}", "a", "u", drive.now, {GPU: 2}, priority))
        drive.run(drive.now + 1000)
    evicted = [each.uid for each in drive.decisions if isinstance(each, Evicted)]
    assert evicted == ["o", "x1"]
