"""Whatever happens to a cluster, the engine decides what the naive model decides.

The engine keeps books and changes them by a little at every event; the naive model computes
everything anew at every pick. Every single release is compared, and that nothing is left to do.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

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
from app.core.policy import Policy, Reclaim
from tests.property.drive import GPU, Drive
from tests.property.naive import Job, Naive, Site, Team

DEFAULT = "default"
NEVER = Millis(10**12)

WEIGHTS = st.sampled_from([Fraction(w) for w in ("1", "1", "2", "3", "1/2", "7/5", "0")])
AMOUNTS = st.one_of(st.none(), st.none(), st.integers(0, 8))
TREES = (
    ("", "", ""),
    ("", "", "t0", "t0"),
    ("", "t0", "t0", "t1", ""),
    ("", "", "t1", "t2", "t1"),
)


class Machine(RuleBasedStateMachine):
    """One pool of one node: guarantees, limits, gangs, reservations, bounded backfill."""

    pools: tuple[tuple[str, Fraction], ...] = ()
    nodes: tuple[tuple[str, str], ...] = (("n", DEFAULT),)
    sizes = st.integers(1, 5)
    pods = st.sampled_from([1, 1, 1, 2, 3])
    reserve_after = st.sampled_from([Millis(0), Millis(5), Millis(20), NEVER])
    guaranteed = True

    def __init__(self) -> None:
        super().__init__()
        self.judge = Naive({GPU})
        self.drive = Drive(judge=self.judge)
        self.count = 0
        self.settled = True

    @initialize(parents=st.sampled_from(TREES), data=st.data())
    def begin(self, parents: tuple[str, ...], data: st.DataObject) -> None:
        self.drive.policy(self._policy(data))
        for pool, worth in self.pools:
            self.drive.pool(pool, {GPU: worth})
        for name, pool in self.nodes:
            self.drive.site(name, Site(pool, {GPU: data.draw(st.integers(1, 12))}))
        for i, parent in enumerate(parents):
            self.drive.team(Team(f"t{i}", parent))
        for i in range(len(parents)):
            self._change_team(f"t{i}", data)
        self.drive.settle()

    def _policy(self, data: st.DataObject) -> Policy:
        return Policy(
            history=data.draw(st.sampled_from([Fraction(0), Fraction(0), Fraction(1)])),
            half_life=Millis(data.draw(st.sampled_from([3, 50]))),
            min_charge=Millis(data.draw(st.sampled_from([0, 0, 10]))),
            reserve_after=data.draw(self.reserve_after),
            backfill=data.draw(st.sampled_from([True, True, True, False])),
            reclaim=Reclaim.OFF,
        )

    def _change_team(self, name: str, data: st.DataObject) -> None:
        team = self.drive.teams[name]
        guarantee, room = data.draw(AMOUNTS), data.draw(AMOUNTS)
        pool = data.draw(st.sampled_from([name for name, _ in self.pools] or [DEFAULT]))
        limit = None if room is None else room + (guarantee or 0)
        self.drive.team(
            replace(
                team,
                weight=data.draw(WEIGHTS),
                users={"u": data.draw(WEIGHTS), "v": data.draw(WEIGHTS)},
                guarantee={} if guarantee is None else {pool: {GPU: guarantee}},
                limit={} if limit is None else {pool: {GPU: limit}},
            )
        )

    @rule(data=st.data(), many=st.integers(1, 4))
    def submit(self, data: st.DataObject, many: int) -> None:
        for _ in range(many):
            self.count += 1
            names = [name for name, _ in self.pools]
            self.drive.submit(
                Job(
                    f"{self.count:04}",
                    data.draw(st.sampled_from(sorted(self.drive.teams))),
                    data.draw(st.sampled_from("uv")),
                    self.drive.now,
                    {GPU: data.draw(self.sizes)},
                    data.draw(st.integers(0, 2)),
                    data.draw(self.pods),
                    data.draw(st.sampled_from([(), *((n,) for n in names)])),
                    data.draw(st.sampled_from([True, True, True, False])),
                    data.draw(st.sampled_from([None, None, 1, 4, 15])),
                )
            )

    @precondition(lambda self: self.drive.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        uids = sorted(job.uid for job in self.drive.running())
        for uid in data.draw(st.lists(st.sampled_from(uids), max_size=3, unique=True)):
            self.drive.end(uid)

    @precondition(lambda self: self.drive.waiting())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.drive.end(data.draw(st.sampled_from(sorted(j.uid for j in self.drive.waiting()))))

    @rule(data=st.data(), gpus=st.integers(0, 14), ready=st.sampled_from([True, True, False]))
    def resize(self, data: st.DataObject, gpus: int, ready: bool) -> None:
        name, pool = data.draw(st.sampled_from(self.nodes))
        self.drive.site(name, Site(pool, {GPU: gpus}, ready))

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name, _ = data.draw(st.sampled_from(self.nodes))
        if name in self.drive.sites:
            self.drive.site(name, None)

    @rule(data=st.data())
    def weigh(self, data: st.DataObject) -> None:
        self._change_team(data.draw(st.sampled_from(sorted(self.drive.teams))), data)

    @rule(data=st.data())
    def rule_otherwise(self, data: st.DataObject) -> None:
        self.drive.policy(self._policy(data))

    @rule()
    def restart(self) -> None:
        self.drive.settle()
        self.drive.restart()

    @rule(span=st.integers(1, 30))
    def wait(self, span: int) -> None:
        self.drive.run(self.drive.now + span)

    @rule()
    def settle(self) -> None:
        self.drive.settle()

    @invariant()
    def nothing_is_left_to_do(self) -> None:
        self.drive.settle()
        assert self.judge.pick() is None

    @invariant()
    def what_is_counted_is_what_runs(self) -> None:
        view = self.drive.engine.view()
        for team, shown in view.tenants.items():
            for pool in self.judge.worth:
                used = shown.used.get(PoolName(pool), {}).get(GPU, 0)
                assert used == self.judge.used((team,), pool, GPU)

    def teardown(self) -> None:
        target(float(len(self.drive.decisions)), label="releases")
        event(f"releases: {len(self.drive.decisions) // 10 * 10} and more")


class Pools(Machine):
    """Two pools of one node, of different worth."""

    pools = (("p", Fraction(1)), ("q", Fraction(101, 100)))
    nodes = (("np", "p"), ("nq", "q"))


class Nodes(Machine):
    """One pool of several nodes; single pods, no reservations."""

    nodes = (("n0", DEFAULT), ("n1", DEFAULT), ("n2", DEFAULT))
    pods = st.just(1)
    reserve_after = st.just(NEVER)


lasting = settings(max_examples=120, stateful_step_count=30, deadline=None)

TestOneNode = Machine.TestCase
TestOneNode.settings = lasting
TestSeveralPools = Pools.TestCase
TestSeveralPools.settings = lasting
TestSeveralNodes = Nodes.TestCase
TestSeveralNodes.settings = lasting
