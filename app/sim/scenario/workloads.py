"""Workloads of a scenario file: expands the copies of each entry and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model import (
    Amounts,
    Millis,
    PlacementStrategy,
    PoolName,
    ReclaimTerms,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.podspec.equivalence_class import GangLayout
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.workload import SimulatedWorkload
from app.sim.scenario import value_parsers
from app.sim.scenario.capacity_check import EmptyCluster
from app.sim.scenario.scenario_cluster import ScenarioCluster, read_amounts
from app.sim.scenario.tenants import known_pool
from app.sim.scenario.yaml_document import YamlMap, YamlValue

MOST_PODS = 1_000_000
HIGHEST_PRIORITY = 2_147_483_647

_WORK_FIELDS = (
    "name",
    "tenant",
    "user",
    "at",
    "count",
    "every",
    "pods",
    "minPods",
    "request",
    "priority",
    "duration",
    "maxRuntime",
    "pool",
    "running",
    "preemptible",
    "keptByBudget",
    "placement",
    "topology",
    "reclaimNotice",
    "checkpointInterval",
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the list: `count` copies of `first`, `every` ms apart."""

    value: YamlValue
    record: YamlMap
    first: SimulatedWorkload
    count: int
    every: Millis
    running: bool

    def copies(self) -> list[SimulatedWorkload]:
        return [
            _copy(self.first, i, Millis(self.first.at + i * self.every)) for i in self._indices()
        ]

    def running_copies(self, after: int) -> list[SimulatedWorkload]:
        """Return the copies as released before the start, followed by `after` later releases."""
        total = self.count + after
        return [
            _copy(self.first, i, Millis(0), Millis(-1000 * (total - i))) for i in self._indices()
        ]

    def _indices(self) -> range:
        return range(self.count)


class WorksReader:
    """Reads `workloads`, and notes mistakes in the sheet."""

    def __init__(
        self,
        document: YamlMap,
        cluster: ScenarioCluster,
        managed: ManagedResources,
        tenants: tuple[Tenant, ...],
    ) -> None:
        self._document = document
        self._cluster = cluster
        self._managed = managed
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._counts_pods = any(PODS in offered for offered in cluster.offers.values())

    def read(self) -> tuple[SimulatedWorkload, ...]:
        """Return every workload in file order; `released` is set if it runs at the start."""
        entries = [self._read_entry(spot) for spot in self._document.items("workloads")]
        pods = 0
        for entry in entries:
            pods += entry.count * entry.first.pods
            if pods > MOST_PODS:
                entry.value.add_mistake(
                    f"there are more than {MOST_PODS} pods up to here; write fewer."
                )
                return ()
        after = sum(entry.count for entry in entries if entry.running)
        room = EmptyCluster(self._cluster, self._tenants.values())
        works: list[SimulatedWorkload] = []
        names: dict[str, YamlValue] = {}
        for entry in entries:
            fits = room.check_fits(entry.record, entry.first)
            if entry.running:
                after -= entry.count
                made = entry.running_copies(after)
                if fits:
                    room.check_running(entry.record, made)
            else:
                made = entry.copies()
            self._check_names(entry, made, names)
            works += made
        return tuple(works)

    def _read_entry(self, spot: YamlValue) -> _Entry:
        record = spot.read_map(_WORK_FIELDS, ("name", "tenant", "request"))
        tenant = TenantName(record.read("tenant", value_parsers.name, ""))
        if tenant and tenant not in self._tenants:
            hint = value_parsers.did_you_mean(tenant, self._tenants)
            record.fields["tenant"].add_mistake(
                f"there is no tenant {tenant}{hint}; write one that is listed under tenants."
            )
        pools = self._pools(record, tenant)
        some = value_parsers.whole(1, MOST_PODS)
        work = SimulatedWorkload(
            name=record.read("name", value_parsers.name, ""),
            tenant=tenant,
            user=UserName(record.read("user", value_parsers.name, tenant)),
            at=record.read("at", value_parsers.duration, Millis(0)),
            demand=self._demand(record, pools),
            pods=record.read("pods", some, 1),
            duration=record.read("duration", value_parsers.duration, None),
            priority=record.read(
                "priority", value_parsers.whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY), 0
            ),
            pools=pools,
            preemptible=record.read("preemptible", value_parsers.switch, True),
            max_runtime=record.read("maxRuntime", value_parsers.positive_cluster_time, None),
            layout=GangLayout(
                record.read("placement", value_parsers.choice(PlacementStrategy), None),
                record.read("topology", value_parsers.level, None),
            ),
            kept_by_budget=record.read("keptByBudget", value_parsers.switch, False),
            reclaim=ReclaimTerms(
                record.read("reclaimNotice", value_parsers.positive_cluster_time, Millis(0)),
                record.read("checkpointInterval", value_parsers.positive_cluster_time, None),
            ),
            min_pods=record.read("minPods", some, 0),
        )
        if work.min_pods > work.pods:
            record.fields["minPods"].add_mistake(
                f"{work.min_pods} is more than pods, {work.pods}, so it could never start; use "
                f"{work.pods} or less."
            )
        running = record.read("running", value_parsers.switch, False)
        for field in ("at", "every") if running else ():
            if record.read(field, value_parsers.duration, Millis(0)):
                record.fields[field].add_mistake(
                    f"it is running before the start; leave {field} out."
                )
        every = record.read("every", value_parsers.duration, Millis(0))
        return _Entry(spot, record, work, record.read("count", some, 1), every, running)

    def _pools(self, record: YamlMap, tenant: TenantName) -> tuple[PoolName, ...]:
        if "pool" not in record:
            return ()
        spot = record.fields["pool"]
        pool = known_pool(spot, self._cluster.offers)
        allowed = self._tenants[tenant].pools if tenant in self._tenants else ()
        if pool not in self._cluster.offers:
            return ()
        if allowed and pool not in allowed:
            spot.add_mistake(
                f"tenant {tenant} may not use pool {pool}; write {' or '.join(sorted(allowed))}."
            )
            return ()
        return (pool,)

    def _demand(self, record: YamlMap, pools: tuple[PoolName, ...]) -> dict[Resource, int]:
        """Return the request of one pod, without resources with the amount 0."""
        if "request" not in record:
            return {}
        spot = record.fields["request"]
        entries = record.entries("request")
        amounts = read_amounts(entries)
        if amounts.pop(PODS, None) is not None:
            entries[PODS].add_mistake("every pod counts as one by itself; leave it out.")
        elif not any(amounts.values()) and len(amounts) == len(entries):
            spot.add_mistake(
                "it asks for nothing; ask for at least one device, as in {nvidia.com/gpu: 1}."
            )
        demand = {r: amount for r, amount in amounts.items() if amount}
        if not self._check_offered(entries, demand, pools):
            return {}
        if self._cluster.offers and demand and not self._managed.has_managed(demand):
            spot.add_mistake(
                "it asks for nothing that is managed, so it would not be held; ask for a resource "
                "that is, or add one of these to managed."
            )
        return {**demand, PODS: 1} if self._counts_pods else demand

    def _check_offered(
        self, entries: Mapping[str, YamlValue], demand: Amounts, pools: tuple[PoolName, ...]
    ) -> bool:
        """Return whether the pools it may use offer all requested resources; note the others."""
        offers = {n: o for n, o in self._cluster.offers.items() if not pools or n in pools}
        offered = {resource for each in offers.values() for resource in each}
        where = f"pool {pools[0]} has no" if pools else "no pool has"
        lacking = [r for r in demand if r not in offered] if offers else []
        for resource in lacking:
            hint = value_parsers.did_you_mean(resource, sorted(offered))
            entries[resource].add_mistake(f"{where} {resource}{hint}; ask for what is offered.")
        return not lacking

    def _check_names(
        self, entry: _Entry, works: list[SimulatedWorkload], names: dict[str, YamlValue]
    ) -> None:
        for work in works:
            first = names.setdefault(work.name, entry.value)
            if first is not entry.value:
                entry.value.add_mistake(
                    f"there is a workload {work.name} already (line {first.line}); "
                    "give it another name."
                )
                return


def _copy(
    work: SimulatedWorkload, index: int, at: Millis, released: Millis | None = None
) -> SimulatedWorkload:
    return SimulatedWorkload(
        f"{work.name}-{index}",
        work.tenant,
        work.user,
        at,
        work.demand,
        work.pods,
        work.duration,
        work.priority,
        work.pools,
        released,
        work.preemptible,
        work.max_runtime,
        work.layout,
        work.kept_by_budget,
        work.reclaim,
        work.min_pods,
    )
