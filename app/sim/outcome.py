"""What a simulated scenario came to, as values: who holds, was charged and waits at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.model import Amounts, Millis, Pod, Tenant, TenantName, UserName
from app.core.places.scale import Scale
from app.core.resources import add
from app.core.telling.reasons import Why
from app.sim.family import Family
from app.sim.measures import Measures, measure
from app.sim.scenario import Scenario
from app.sim.work import Moment, Step, Work
from app.sim.world import World

MOST_TOLD = 1000
"""Workloads that still wait and are asked why."""


@dataclass(slots=True)
class Account:
    """What somebody uses and waits for at the end; `charged` in milliseconds of base units.

    `pending` counts pods.
    """

    used: Amounts = field(default_factory=dict)
    charged: Amounts = field(default_factory=dict)
    pending: int = 0


@dataclass(frozen=True, slots=True)
class TenantOutcome:
    """A tenant at the end, its child tenants included; `users` are its own.

    `depth` is how many tenants are above it, `share` its dominant share of the cluster.
    """

    tenant: Tenant
    depth: int
    share: Fraction
    account: Account
    users: Mapping[UserName, Account]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload that waits at the end, since when, and what the engine says of it then."""

    work: Work
    since: Millis
    why: Why


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario that was played to its end.

    `waiting` are those that have waited longest, `MOST_TOLD` at most, of `still_waiting` workloads.
    """

    scenario: Scenario
    timeline: Sequence[Moment]
    scale: Scale
    tenants: Mapping[TenantName, TenantOutcome]
    measures: Measures
    waiting: Sequence[Waiting]
    still_waiting: int
    drift: float
    drift_pairs: int
    decisions: int
    events: int

    @property
    def releases(self) -> list[Moment]:
        """What the engine released; what was in place before the start is not among it."""
        return [m for m in self.timeline if m.step is Step.RELEASED and m.at >= 0]

    @property
    def evictions(self) -> list[Moment]:
        """What the engine evicted."""
        return [m for m in self.timeline if m.step is Step.EVICTED]


def sum_up(scenario: Scenario, world: World) -> Outcome:
    """Return what a world came to that has played a scenario until its end."""
    tree = Family(scenario.tenants)
    users = _users(scenario, world)
    scale = world.engine.outlook.scale()
    measures = measure(
        world.timeline,
        scenario.counted,
        Millis(0),
        scenario.until,
        weights=tree.weights(users),
        device=scenario.device,
        scale=scale if scale.columns else None,
    )
    queued = list(world.queued())
    return Outcome(
        scenario=scenario,
        timeline=world.timeline,
        scale=scale,
        tenants=_tenants(scenario, world, tree, users),
        measures=measures,
        waiting=list(_waiting(queued[:MOST_TOLD], world)),
        still_waiting=len(queued),
        drift=world.engine.drift.ratio,
        drift_pairs=world.engine.drift.pairs,
        decisions=world.decisions,
        events=world.events,
    )


def _tenants(
    scenario: Scenario, world: World, tree: Family, users: Users
) -> dict[TenantName, TenantOutcome]:
    view = world.view()
    tenants: dict[TenantName, TenantOutcome] = {}
    for tenant in scenario.tenants:
        account = _nothing(scenario)
        for member in tree.below(tenant.name):
            for theirs in users[member].values():
                account.used = add(account.used, theirs.used)
                account.charged = add(account.charged, theirs.charged)
                account.pending += theirs.pending
        tenants[tenant.name] = TenantOutcome(
            tenant,
            tree.depth(tenant.name),
            view.tenants[tenant.name].share,
            account,
            users[tenant.name],
        )
    return tenants


def _waiting(queued: Iterable[tuple[Work, Pod]], world: World) -> Iterator[Waiting]:
    for work, pod in queued:
        why = world.engine.outlook.why(pod.uid)
        if why is not None:
            yield Waiting(work, pod.since, why)


def _nothing(scenario: Scenario) -> Account:
    none = dict.fromkeys(scenario.capacity, 0)
    return Account(none, none)


Users = Mapping[TenantName, Mapping[UserName, Account]]


def _users(scenario: Scenario, world: World) -> Users:
    """Return every user that is written or submitted something, by tenant."""
    found: dict[TenantName, dict[UserName, Account]] = {
        tenant.name: {user: _nothing(scenario) for user in tenant.user_weights}
        for tenant in scenario.tenants
    }
    for work in scenario.works:
        found[work.tenant].setdefault(work.user, _nothing(scenario))
    for pod in world.using.values():
        account = found[TenantName(pod.namespace)][pod.user]
        account.used = add(account.used, pod.demand)
    for pod in world.waiting():
        found[TenantName(pod.namespace)][pod.user].pending += 1
    for (tenant, user, _), spent in world.engine.outlook.spent(scenario.until).items():
        account = found[tenant][user]
        account.charged = add(account.charged, spent)
    return found
