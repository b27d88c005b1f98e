"""The engine and the reference model make the same decisions for any changes of a cluster.

The engine updates its accounting incrementally. The reference model computes everything again at
every selection. The tests compare every release, and check that no possible release is left. The
engine chooses its victims freely, but the consequences are compared. History is off, because its
behaviour under changes of nodes and rules is not specified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import event, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from app.core.model import Millis, PoolName
from app.core.policy import Policy, Reclaim, WithinQueue
from tests.property.engine_driver import GPU, Drive
from tests.property.reference_engine import Job, Naive, Site, Team
from tests.support.depth import cases

DEFAULT = "default"
NEVER = Millis(10**12)
HISTORIES = cases(60, 150)

WEIGHTS = st.sampled_from([Fraction(w) for w in ("1", "1", "2", "3", "1/2", "7/5", "0")])
AMOUNTS = st.one_of(st.none(), st.none(), st.integers(0, 8))
ANY = st.integers(0, 10**6)
GPUS = st.sampled_from([0, *range(4, 21)])
TREES = (
    ("", "", ""),
    ("", "", "t0", "t0"),
    ("", "t0", "t0", "t1", ""),
    ("", "", "t1", "t2", "t1"),
)


@dataclass(frozen=True)
class Terms:
    """Weights and quotas of a tenant. The limit exceeds the guarantee by `room`."""

    weight: Fraction
    users: tuple[Fraction, Fraction]
    guarantee: int | None
    room: int | None
    pool: int

    def give(self, team: Team, pools: Sequence[str]) -> Team:
        pool = pools[self.pool % len(pools)]
        limit = None if self.room is None else self.room + (self.guarantee or 0)
        return replace(
            team,
            weight=self.weight,
            users=dict(zip("uv", self.users, strict=True)),
            guarantee={} if self.guarantee is None else {pool: {GPU: self.guarantee}},
            limit={} if limit is None else {pool: {GPU: limit}},
        )


@dataclass(frozen=True)
class Wish:
    """One workload, before its tenant and pool are chosen."""

    tenant: int
    user: str
    size: int
    pods: int
    priority: int
    pool: int
    preemptible: bool
    max_runtime: int | None


TERMS = st.builds(Terms, WEIGHTS, st.tuples(WEIGHTS, WEIGHTS), AMOUNTS, AMOUNTS, ANY)
WISHES = st.builds(
    Wish,
    ANY,
    st.sampled_from("uv"),
    st.integers(1, 5),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.integers(0, 2),
    ANY,
    st.sampled_from([*[True] * 9, False]),
    st.sampled_from([None, None, 1, 4, 15]),
)
POLICIES = st.builds(
    Policy,
    history=st.just(Fraction(0)),
    half_life=st.sampled_from([Millis(3), Millis(50)]),
    min_charge=st.sampled_from([Millis(0), Millis(0), Millis(10)]),
    reserve_after=st.sampled_from([Millis(10), Millis(20), NEVER]),
    backfill=st.sampled_from([True, True, True, False]),
    reclaim=st.sampled_from(Reclaim),
    within_queue=st.sampled_from(WithinQueue),
    min_runtime=st.sampled_from([Millis(0), Millis(3)]),
)


class Machine(RuleBasedStateMachine):
    """One pool of one node: guarantees, limits, gangs, reservations, bounded backfill.

    Time passes slowly, so that no reservation becomes overdue.
    """

    pools: tuple[tuple[str, Fraction], ...] = ()
    nodes: tuple[tuple[str, str], ...] = (("n", DEFAULT),)
    gangs = True

    def __init__(self) -> None:
        super().__init__()
        self.judge = Naive({GPU})
        self.drive = Drive(judge=self.judge)
        self.count = 0

    @property
    def places(self) -> list[str]:
        return [name for name, _ in self.pools] or [DEFAULT]

    @initialize(
        parents=st.sampled_from(TREES),
        terms=st.lists(TERMS, min_size=5, max_size=5),
        policy=POLICIES,
        gpus=st.lists(st.integers(4, 16), min_size=3, max_size=3),
    )
    def begin(
        self, parents: tuple[str, ...], terms: list[Terms], policy: Policy, gpus: list[int]
    ) -> None:
        self.otherwise(policy)
        for pool, worth in self.pools:
            self.drive.pool(pool, {GPU: worth})
        for (name, pool), offer in zip(self.nodes, gpus, strict=False):
            self.drive.site(name, Site(pool, {GPU: offer}))
        for i, parent in enumerate(parents):
            self.drive.team(terms[i].give(Team(f"t{i}", parent), self.places))
        self.drive.settle()

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=6))
    def submit(self, wishes: list[Wish]) -> None:
        names = sorted(self.drive.teams)
        for wish in wishes:
            self.count += 1
            pool = wish.pool % (len(self.places) + 1)
            self.drive.submit(
                Job(
                    f"{self.count:04}",
                    names[wish.tenant % len(names)],
                    wish.user,
                    self.drive.now,
                    {GPU: wish.size},
                    wish.priority,
                    wish.pods if self.gangs else 1,
                    tuple(self.places[pool : pool + 1]) if self.pools else (),
                    wish.preemptible,
                    wish.max_runtime,
                )
            )

    @precondition(lambda self: self.drive.running())
    @rule(those=st.lists(ANY, min_size=1, max_size=3))
    def finish(self, those: list[int]) -> None:
        for which in those:
            uids = [job.uid for job in self.drive.running()]
            if uids:
                self.drive.end(uids[which % len(uids)])

    @precondition(lambda self: self.drive.waiting())
    @rule(which=ANY)
    def delete(self, which: int) -> None:
        uids = [job.uid for job in self.drive.waiting()]
        if uids:
            self.drive.end(uids[which % len(uids)])

    @rule(
        which=ANY,
        gpus=st.sampled_from([0, *range(4, 21)]),
        ready=st.sampled_from([True, True, False]),
    )
    def resize(self, which: int, gpus: int, ready: bool) -> None:
        name, pool = self.nodes[which % len(self.nodes)]
        self.drive.site(name, Site(pool, {GPU: gpus}, ready))

    @rule(which=ANY)
    def lose(self, which: int) -> None:
        name, _ = self.nodes[which % len(self.nodes)]
        if name in self.drive.sites:
            self.drive.site(name, None)

    @rule(which=ANY, terms=TERMS)
    def weigh(self, which: int, terms: Terms) -> None:
        team = self.drive.teams[f"t{which % len(self.drive.teams)}"]
        self.drive.team(terms.give(team, self.places))

    @rule(policy=POLICIES)
    def otherwise(self, policy: Policy) -> None:
        """Change the Policy; `history` may change only before the first node exists."""
        now = self.drive.rules.history if self.drive.sites else policy.history
        self.drive.policy(replace(policy, history=now))

    @rule()
    def restart(self) -> None:
        self.drive.restart()

    @rule(span=st.integers(1, 4))
    def wait(self, span: int) -> None:
        self.drive.run(self.drive.now + span)

    @invariant()
    def nothing_is_left_to_do(self) -> None:
        self.drive.settle()  # fails if the reference model would start a workload

    @invariant()
    def what_is_counted_is_what_runs(self) -> None:
        view = self.drive.engine.queries.view()
        for team, shown in view.tenants.items():
            for pool in self.judge.worth:
                used = shown.used.get(PoolName(pool), {}).get(GPU, 0)
                assert used == self.judge.used((team,), pool, GPU)

    def teardown(self) -> None:
        target(float(len(self.drive.decisions)), label="releases")
        event(f"releases: {len(self.drive.decisions) // 10 * 10} and more")


class Pools(Machine):
    """Two pools of one node with different unit prices."""

    pools = (("p", Fraction(1)), ("q", Fraction(101, 100)))
    nodes = (("np", "p"), ("nq", "q"))


class Nodes(Machine):
    """One pool of several nodes; single pods, no reservations, no evictions."""

    nodes = (("n0", DEFAULT), ("n1", DEFAULT), ("n2", DEFAULT))
    gangs = False

    @rule(policy=POLICIES)
    def otherwise(self, policy: Policy) -> None:
        nobody = {"reclaim": Reclaim.OFF, "within_queue": WithinQueue.NEVER}
        super().otherwise(replace(policy, reserve_after=NEVER, **nobody))


lasting = settings(max_examples=cases(10, 60), stateful_step_count=30)

TestOneNode = Machine.TestCase
TestOneNode.settings = lasting
TestSeveralPools = Pools.TestCase
TestSeveralPools.settings = lasting
TestSeveralNodes = Nodes.TestCase
TestSeveralNodes.settings = lasting


class Chance:
    """The same steps drawn from a seed: longer and denser histories, which shrink less well."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.any = self.random.randrange

    def terms(self) -> Terms:
        pick = self.random.choice
        amounts = (None, None, self.any(9)), (None, None, self.any(9))
        weights = [Fraction(w) for w in ("1", "1", "2", "3", "1/2", "7/5", "0")]
        users = (pick(weights), pick(weights))
        return Terms(pick(weights), users, pick(amounts[0]), pick(amounts[1]), self.any(6))

    def wish(self) -> Wish:
        pick = self.random.choice
        return Wish(
            tenant=self.any(60),
            user=pick("uv"),
            size=1 + self.any(5),
            pods=pick((1, 1, 1, 2, 3)),
            priority=self.any(3),
            pool=self.any(3),
            preemptible=self.random.random() < 0.9,
            max_runtime=pick((None, None, 1, 4, 15)),
        )

    def policy(self) -> Policy:
        pick = self.random.choice
        return Policy(
            history=Fraction(0),
            half_life=Millis(pick((3, 50))),
            min_charge=Millis(pick((0, 0, 10))),
            reserve_after=pick((Millis(10), Millis(20), NEVER)),
            backfill=pick((True, True, True, False)),
            reclaim=pick(tuple(Reclaim)),
            within_queue=pick(tuple(WithinQueue)),
            min_runtime=Millis(pick((0, 3))),
        )

    def begin(self, machine: Machine) -> None:
        sizes = [4 + self.any(13) for _ in range(3)]
        terms = [self.terms() for _ in range(5)]
        machine.begin(self.random.choice(TREES), terms, self.policy(), sizes)

    def act(self, machine: Machine) -> None:
        """Take one random step."""
        many = [self.any(99) for _ in range(1 + self.any(3))]
        match self.any(14):
            case 0 | 1 | 2 | 3:
                machine.submit([self.wish() for _ in range(1 + self.any(6))])
            case 4 | 5 | 6 if machine.drive.running():
                machine.finish(many)
            case 7 if machine.drive.waiting():
                machine.delete(many[0])
            case 8:
                machine.resize(many[0], 4 + self.any(17), self.any(4) > 0)
            case 9:
                machine.lose(many[0])
            case 10:
                machine.weigh(many[0], self.terms())
            case 11:
                machine.otherwise(self.policy())
            case 12:
                machine.restart()
            case _:
                machine.wait(1 + self.any(4))


@pytest.mark.parametrize("kind", [Machine, Pools, Nodes])
def test_long_histories_are_decided_as_the_naive_model_decides_them(kind: type[Machine]) -> None:
    decisions = 0
    for seed in range(HISTORIES):
        chance, machine = Chance(seed), kind()
        chance.begin(machine)
        for _ in range(30):
            chance.act(machine)
            machine.nothing_is_left_to_do()
            machine.what_is_counted_is_what_runs()
        decisions += len(machine.drive.decisions)
    assert decisions > 7 * HISTORIES


def test_reservation_of_a_queue_belongs_to_its_first_workload() -> None:
    """The age of the reservation timer does not matter. Random tests rarely cover this case."""
    drive = Drive(Policy(reserve_after=Millis(10), reclaim=Reclaim.OFF), judge=Naive({GPU}))
    drive.site("n", Site(DEFAULT, {GPU: 10}))
    for name in ("a", "b"):
        drive.team(Team(name))
    drive.submit(Job("0", "a", "u", 0, {GPU: 6}))
    drive.settle()
    drive.run(1)
    drive.submit(Job("older", "b", "u", 1, {GPU: 8}))
    drive.settle()
    drive.run(2)
    drive.submit(Job("first", "b", "u", 2, {GPU: 9}, priority=5))
    drive.settle()
    drive.run(30)
    drive.submit(Job("between", "b", "u", 30, {GPU: 1}, priority=3))
    drive.settle()
    assert "between" in [job.uid for job in drive.waiting()]


def test_reservation_counts_even_if_its_tenant_has_a_lower_ranked_candidate() -> None:
    """`b`'s candidate in `p` ranks lower than `b`'s head, so `c` is tried as well."""
    drive = Drive(Policy(reserve_after=Millis(10), reclaim=Reclaim.OFF), judge=Naive({GPU}))
    for pool, gpus in (("p", 13), ("q", 8)):
        drive.pool(pool, {GPU: Fraction(1)})
        drive.site(f"n{pool}", Site(pool, {GPU: gpus}))
    for name in ("a", "c"):
        drive.team(Team(name))
    drive.team(Team("b", guarantee={"q": {GPU: 7}}))
    drive.submit(Job("0", "a", "u", 0, {GPU: 7}, pools=("p",)))
    drive.submit(Job("1", "a", "u", 0, {GPU: 3}, pools=("q",)))
    drive.submit(Job("2", "b", "u", 0, {GPU: 2}, pools=("p",)))
    drive.settle()
    drive.run(1)
    drive.submit(Job("head", "b", "v", 1, {GPU: 6}, pools=("q",)))
    drive.submit(Job("owner", "b", "u", 1, {GPU: 5}, pools=("p",)))
    drive.settle()
    drive.run(30)
    drive.submit(Job("beside", "b", "v", 30, {GPU: 1}, pools=("p",)))
    drive.submit(Job("after", "c", "u", 30, {GPU: 1}, pools=("p",)))
    drive.settle()
    assert "beside" in [job.uid for job in drive.running()]
    assert "after" in [job.uid for job in drive.waiting()]


def test_usage_of_a_child_tenant_counts_in_the_pool_choice_of_its_parent() -> None:
    """The child uses the guarantee in `q`, so the parent's user borrows less in `p`."""
    drive = Drive(Policy(reclaim=Reclaim.OFF), judge=Naive({GPU}))
    for (pool, worth), gpus in zip(Pools.pools, (9, 16), strict=True):
        drive.pool(pool, {GPU: worth})
        drive.site(f"n{pool}", Site(pool, {GPU: gpus}))
    drive.team(Team("a", guarantee={"q": {GPU: 1}}))
    drive.team(Team("child", "a"))
    drive.submit(Job("0", "a", "u", 0, {GPU: 5}))
    drive.submit(Job("1", "child", "u", 0, {GPU: 1}, pools=("q",)))
    drive.settle()
    assert {job.uid: job.pool for job in drive.running()} == {"0": "p", "1": "q"}
