"""Random clusters and their changes, as values that can be replayed and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random

from hypothesis import strategies as st

from app.core.model import Millis
from app.core.policy import Policy, Reclaim
from tests.property.engine_driver import GPU, Drive
from tests.property.reference_engine import Job, Naive, Site, Team

POOL = "default"
NO_RESERVATION = Policy(
    reserve_after=Millis(10**12), reclaim=Reclaim.OFF, max_unbound=10**6, max_unowned_unbound=10**6
)
"""The reference order knows no reservations, no reclaim and no pauses for the scheduler."""

WEIGHTS = [Fraction(1), Fraction(1), Fraction(2), Fraction(3), Fraction(1, 2), Fraction(7, 5)]


@dataclass(frozen=True)
class Submit:
    """A future workload. If `lasting` is None, it runs for ever."""

    uid: str
    tenant: str
    user: str = "u"
    at: int = 0
    size: int = 1
    pods: int = 1
    lasting: int | None = None
    priority: int = 0
    namespace: str = ""

    @property
    def queue(self) -> tuple[str, str]:
        return self.tenant, self.user

    @property
    def devices(self) -> int:
        return self.size * self.pods

    def job(self) -> Job:
        return Job(
            self.uid,
            self.tenant,
            self.user,
            self.at,
            {GPU: self.size},
            self.priority,
            self.pods,
            namespace=self.namespace,
        )


@dataclass(frozen=True)
class Script:
    """A cluster of one pool, its tenants, and its submissions by time."""

    capacity: int
    teams: tuple[Team, ...]
    work: tuple[Submit, ...]
    policy: Policy = field(default=NO_RESERVATION)

    @property
    def largest(self) -> int:
        return max((submit.devices for submit in self.work), default=0)

    def but(self, change: Callable[[Submit], Submit]) -> Script:
        """Return the same script with every workload changed."""
        return replace(self, work=tuple(map(change, self.work)))

    def weigh(self, name: str, weight: Fraction) -> Script:
        """Return the same script with another weight for a tenant."""
        teams = (replace(t, weight=weight) if t.name == name else t for t in self.teams)
        return replace(self, teams=tuple(teams))


def begin(script: Script, judge: Naive | None = None, exact: bool = False) -> Drive:
    """Return the cluster of a script before the first submission."""
    drive = Drive(script.policy, judge=judge, exact=exact)
    drive.site("n", Site(POOL, {GPU: script.capacity}))
    for team in script.teams:
        drive.team(team)
    return drive


def play(
    script: Script,
    until: int | None = None,
    watch: Callable[[Drive], None] = lambda drive: None,
) -> Drive:
    """Play a script until its last submission, or longer; call `watch` after each settle."""
    return perform(script, begin(script), until, watch)


def perform(
    script: Script,
    drive: Drive,
    until: int | None = None,
    watch: Callable[[Drive], None] = lambda drive: None,
) -> Drive:
    """Play a script in an existing cluster."""
    for submit in script.work:
        drive.later(submit.at, submit.job(), submit.lasting)
    last = max((submit.at for submit in script.work), default=0)
    drive.run(last if until is None else until, lambda: watch(drive))
    return drive


SMALL = st.integers(1, 24)


@st.composite
def scripts(
    draw: st.DrawFn,
    *,
    teams: st.SearchStrategy[tuple[Team, ...]],
    capacity: st.SearchStrategy[int] = SMALL,
    sizes: Sequence[int] = range(1, 7),
    pods: Sequence[int] = (1,),
    arrivals: Sequence[int] = (0,),
    lasting: Sequence[int | None] = (None,),
    most: int = 30,
    policy: Policy = NO_RESERVATION,
) -> Script:
    """Draw a cluster and its workloads: few that shrink well, or many from a seed."""
    tenants = draw(teams)
    choices: tuple[Sequence[object], ...] = (
        [team.name for team in tenants],
        "uv",
        arrivals,
        sizes,
        pods,
        lasting,
        range(4),
    )
    if draw(st.booleans()):
        random = Random(draw(st.integers(0, 2**32)))
        count = draw(st.integers(most // 2, most))
        drawn = [tuple(map(random.choice, choices)) for _ in range(count)]
    else:
        drawn = draw(st.lists(st.tuples(*map(st.sampled_from, choices)), max_size=most))
    work = (Submit(f"{i:04}", *kind) for i, kind in enumerate(drawn))
    return Script(draw(capacity), tenants, tuple(work), policy)


def dense(seed: int, most: int = 40, capacity: int = 40, largest: int = 4) -> Script:
    """Return a contested cluster: randomly nested tenants, and more workloads than capacity."""
    random = Random(seed)
    choice = random.choice
    teams: list[Team] = []
    for number in range(random.randint(2, 5)):
        name, parent = f"t{number}", choice(["", "", *(team.name for team in teams)])
        users = {user: choice(WEIGHTS) for user in "uv"}
        guarantee = {POOL: {GPU: random.randint(0, capacity // 4)}} if choice((0, 0, 1)) else {}
        limit = {POOL: {GPU: capacity // choice((1, 2, 3))}} if choice((0, 0, 1)) else {}
        teams.append(Team(name, parent, choice(WEIGHTS), users, guarantee, limit))
    work = tuple(
        Submit(
            f"{number:04}",
            choice(teams).name,
            choice("uv"),
            choice((0, 0, 0, 5, 10, 20)),
            random.randint(1, largest),
            choice((1, 1, 2)),
            choice((None, *range(1, 20))),
            random.randrange(4),
        )
        for number in range(most)
    )
    history = replace(NO_RESERVATION, history=Fraction(seed % 3, 2), half_life=Millis(7))
    return Script(random.randint(capacity // 2, capacity), tuple(teams), work, history)


def flat(
    least: int = 2, most: int = 4, weighted: bool = True
) -> st.SearchStrategy[tuple[Team, ...]]:
    """Draw tenants of one level, without guarantees or limits."""
    weights = st.sampled_from(WEIGHTS if weighted else WEIGHTS[:1])
    return st.lists(weights, min_size=least, max_size=most).map(
        lambda drawn: tuple(Team(f"t{i}", weight=w) for i, w in enumerate(drawn))
    )


@st.composite
def trees(draw: st.DrawFn, *, limits: bool = False) -> tuple[Team, ...]:
    """Draw nested tenants with weights (0 included), guarantees and optional limits."""
    count = draw(st.integers(2, 5))
    teams: list[Team] = []
    for i in range(count):
        quotas = st.one_of(st.none(), st.none(), st.integers(0, 8))
        guarantee = draw(quotas)
        limit = draw(quotas) if limits else None
        if guarantee is not None and limit is not None:
            limit += guarantee
        teams.append(
            Team(
                f"t{i}",
                draw(st.sampled_from(["", *(team.name for team in teams)])),
                draw(st.sampled_from([*WEIGHTS, Fraction(0)])),
                {"u": draw(st.sampled_from(WEIGHTS)), "v": draw(st.sampled_from(WEIGHTS))},
                {} if guarantee is None else {POOL: {GPU: guarantee}},
                {} if limit is None else {POOL: {GPU: limit}},
            )
        )
    return tuple(teams)
