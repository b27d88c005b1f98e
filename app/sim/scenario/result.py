"""Result of a simulated scenario: usage, charges and waiting workloads at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.explain.reasons import WaitExplanation
from app.core.model import Amounts, Millis, Pod, Tenant, TenantName, UserName
from app.core.pricing.share_units import Scale
from app.core.quantities import add_amounts
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.metrics.tenant_tree import TenantTree
from app.sim.metrics.window import Measures, measure
from app.sim.scenario.loader import Scenario

MOST_EXPLAINED = 1000
"""Largest number of waiting workloads with a wait reason."""


@dataclass(slots=True)
class FinalUsage:
    """Usage of a user or tenant at the end; `charged` is in base units times milliseconds.

    `pending` counts the waiting pods.
    """

    used: Amounts = field(default_factory=dict)
    charged: Amounts = field(default_factory=dict)
    pending: int = 0


@dataclass(frozen=True, slots=True)
class TenantOutcome:
    """A tenant at the end, its child tenants included; `users` are its own.

    `depth` is the number of its ancestors, `share` its dominant share of the cluster.
    """

    tenant: Tenant
    depth: int
    share: Fraction
    account: FinalUsage
    users: Mapping[UserName, FinalUsage]


@dataclass(frozen=True, slots=True)
class WaitingAtEnd:
    """A workload that waits at the end, the start of its wait, and its wait reason."""

    work: SimulatedWorkload
    since: Millis
    why: WaitExplanation


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A scenario that was played to its end.

    `still_waiting` workloads wait at the end. `waiting` has the `MOST_EXPLAINED` longest waits.
    """

    scenario: Scenario
    timeline: Sequence[TimelineEntry]
    scale: Scale
    tenants: Mapping[TenantName, TenantOutcome]
    measures: Measures
    waiting: Sequence[WaitingAtEnd]
    still_waiting: int
    drift: float
    drift_pairs: int
    decisions: int
    events: int

    @property
    def releases(self) -> list[TimelineEntry]:
        """Releases by the engine, without workloads that ran at the start.

        A further pod of an elastic gang is a release of its own.
        """
        return [m for m in self.timeline if m.change > 0 and m.at >= 0]

    @property
    def evictions(self) -> list[TimelineEntry]:
        """Evictions by the engine."""
        evicted = (TimelineStep.EVICTED, TimelineStep.SHRANK)
        return [m for m in self.timeline if m.step in evicted]


def collect_result(scenario: Scenario, world: VirtualCluster) -> ScenarioResult:
    """Return the result of a world that has played a scenario to its end."""
    tree = TenantTree(scenario.tenants)
    users = _users(scenario, world)
    scale = world.engine.queries.scale()
    measures = measure(
        world.timeline,
        scenario.counted,
        Millis(0),
        scenario.until,
        weights=tree.entitled_parts(users),
        device=scenario.device,
        scale=scale if scale.columns else None,
    )
    queued = list(world.waiting_workloads())
    return ScenarioResult(
        scenario=scenario,
        timeline=world.timeline,
        scale=scale,
        tenants=_tenants(scenario, world, tree, users),
        measures=measures,
        waiting=list(_waiting(queued[:MOST_EXPLAINED], world)),
        still_waiting=len(queued),
        drift=world.engine.drift.ratio,
        drift_pairs=world.engine.drift.pairs,
        decisions=world.decisions,
        events=world.events,
    )


def _tenants(
    scenario: Scenario, world: VirtualCluster, tree: TenantTree, users: Users
) -> dict[TenantName, TenantOutcome]:
    view = world.view()
    tenants: dict[TenantName, TenantOutcome] = {}
    for tenant in scenario.tenants:
        account = _nothing(scenario)
        for member in tree.subtree(tenant.name):
            for theirs in users[member].values():
                account.used = add_amounts(account.used, theirs.used)
                account.charged = add_amounts(account.charged, theirs.charged)
                account.pending += theirs.pending
        tenants[tenant.name] = TenantOutcome(
            tenant,
            tree.depth(tenant.name),
            view.tenants[tenant.name].share,
            account,
            users[tenant.name],
        )
    return tenants


def _waiting(
    queued: Iterable[tuple[SimulatedWorkload, Pod]], world: VirtualCluster
) -> Iterator[WaitingAtEnd]:
    for work, pod in queued:
        why = world.engine.queries.explain_wait(pod.uid)
        if why is not None:
            yield WaitingAtEnd(work, pod.created_at, why)


def _nothing(scenario: Scenario) -> FinalUsage:
    none = dict.fromkeys(scenario.capacity, 0)
    return FinalUsage(none, none)


Users = Mapping[TenantName, Mapping[UserName, FinalUsage]]


def _users(scenario: Scenario, world: VirtualCluster) -> Users:
    """Return the account of every user with a weight or a workload, by tenant."""
    found: dict[TenantName, dict[UserName, FinalUsage]] = {
        tenant.name: {user: _nothing(scenario) for user in tenant.user_weights}
        for tenant in scenario.tenants
    }
    for work in scenario.works:
        found[work.tenant].setdefault(work.user, _nothing(scenario))
    for pod in world.released_pods.values():
        account = found[TenantName(pod.namespace)][pod.user]
        account.used = add_amounts(account.used, pod.demand)
    for pod in world.waiting_pods():
        found[TenantName(pod.namespace)][pod.user].pending += 1
    for (tenant, user, _), spent in world.engine.queries.usage_totals(scenario.until).items():
        account = found[tenant][user]
        account.charged = add_amounts(account.charged, spent)
    return found
