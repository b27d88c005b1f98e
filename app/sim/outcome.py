"""What a simulated scenario came to, as values: who holds, was charged and waits at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.model import Amounts, Millis, Tenant, TenantName, UserName
from app.core.resources import add
from app.sim.measures import Measures, measure
from app.sim.scenario import Scenario
from app.sim.work import Moment, Step
from app.sim.world import World

ROOT: TenantName | None = None
"""Above the tenants that have no parent."""


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
class Outcome:
    """A scenario that was played to its end."""

    scenario: Scenario
    timeline: Sequence[Moment]
    tenants: Mapping[TenantName, TenantOutcome]
    measures: Measures
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
    measures = measure(
        world.timeline,
        scenario.capacity,
        Millis(0),
        scenario.until,
        weights=tree.weights(users),
        device=scenario.device,
    )
    return Outcome(
        scenario=scenario,
        timeline=world.timeline,
        tenants=tenants,
        measures=measures,
        drift=world.engine.drift.ratio,
        drift_pairs=world.engine.drift.pairs,
        decisions=world.decisions,
        events=world.events,
    )


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
    for (tenant, user, _), spent in world.engine.spent(scenario.until).items():
        account = found[tenant][user]
        account.charged = add(account.charged, spent)
    return found


class Family:
    """The tree of tenants, for sums and for what each is owed of the whole."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._children: dict[TenantName | None, list[TenantName]] = {}
        for tenant in self._tenants.values():
            self._children.setdefault(tenant.parent, []).append(tenant.name)

    def below(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all that are below it."""
        found = [name]
        for each in found:
            found += self._children.get(each, [])
        return found

    def path(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all that are above it, itself first."""
        found = [name]
        while (above := self._tenants[found[-1]].parent) is not None:
            found.append(above)
        return found

    def depth(self, name: TenantName) -> int:
        """Return how many tenants are above one."""
        return len(self.path(name)) - 1

    def in_order(self) -> list[TenantName]:
        """Return all tenants, each before its children, as written."""
        found: list[TenantName] = []
        ahead = self._children.get(ROOT, [])[::-1]
        while ahead:
            found.append(ahead.pop())
            ahead += self._children.get(found[-1], [])[::-1]
        return found

    def weights(self, users: Users) -> Mapping[TenantName, Fraction]:
        """Return what part of the cluster each tenant is owed for the work of its own users.

        A parent whose own users submit shares with its children as their sibling.
        """
        parts: dict[TenantName | None, Fraction] = {ROOT: Fraction(1)}
        owed: dict[TenantName, Fraction] = {}
        for above in [ROOT, *self.in_order()]:
            children = self._children.get(above, [])
            siblings = {name: self._tenants[name].weight for name in children}
            own = Fraction(0)
            if above is not None:
                weighed = self._tenants[above].user_weights
                own = sum((weighed.get(u, Fraction(1)) for u in users[above]), Fraction(0))
            whole = sum(siblings.values(), own)
            for name, weight in siblings.items():
                parts[name] = parts[above] * weight / whole if whole else Fraction(0)
            if above is not None:
                # Without children or users it still is one of those that are to be equal.
                owed[above] = parts[above] * own / whole if children and whole else parts[above]
        return owed
