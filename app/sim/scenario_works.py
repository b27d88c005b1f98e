"""Workloads of a scenario file: the copies each entry stands for, and whether they make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.asks.shape import Manner
from app.core.model import (
    Amounts,
    Millis,
    PoolName,
    Resource,
    Style,
    Tenant,
    TenantName,
    UserName,
)
from app.core.resources import PODS, ManagedResources
from app.sim import readers
from app.sim.scenario_cluster import Cluster, read_amounts
from app.sim.scenario_room import Room
from app.sim.scenario_tenants import known_pool
from app.sim.sheet import Record, Spot
from app.sim.work import Work

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
    "request",
    "priority",
    "duration",
    "maxRuntime",
    "pool",
    "running",
    "preemptible",
    "placement",
    "topology",
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the list: `count` copies of `first`, `every` ms apart."""

    spot: Spot
    record: Record
    first: Work
    count: int
    every: Millis
    running: bool

    def copies(self) -> list[Work]:
        return [_copy(self.first, i, Millis(self.first.at + i * self.every)) for i in self._each()]

    def in_place(self, after: int) -> list[Work]:
        """Return the copies as released before the start, with `after` more released later."""
        total = self.count + after
        return [_copy(self.first, i, Millis(0), Millis(-1000 * (total - i))) for i in self._each()]

    def _each(self) -> range:
        return range(self.count)


class WorksReader:
    """Reads `workloads`; mistakes are noted in the sheet."""

    def __init__(
        self,
        document: Record,
        cluster: Cluster,
        managed: ManagedResources,
        tenants: tuple[Tenant, ...],
    ) -> None:
        self._document = document
        self._cluster = cluster
        self._managed = managed
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._counts_pods = any(PODS in offered for offered in cluster.offers.values())

    def read(self) -> tuple[Work, ...]:
        """Return every workload, in the order written; what is in place first is marked so."""
        entries = [self._entry(spot) for spot in self._document.items("workloads")]
        pods = 0
        for entry in entries:
            pods += entry.count * entry.first.pods
            if pods > MOST_PODS:
                entry.spot.wrong(f"there are more than {MOST_PODS} pods up to here; write fewer.")
                return ()
        after = sum(entry.count for entry in entries if entry.running)
        room = Room(self._cluster, self._tenants.values())
        works: list[Work] = []
        names: dict[str, Spot] = {}
        for entry in entries:
            fits = room.check(entry.record, entry.first)
            if entry.running:
                after -= entry.count
                made = entry.in_place(after)
                if fits:
                    room.check_in_place(entry.record, made)
            else:
                made = entry.copies()
            self._claim(entry, made, names)
            works += made
        return tuple(works)

    def _entry(self, spot: Spot) -> _Entry:
        record = spot.record(_WORK_FIELDS, ("name", "tenant", "request"))
        tenant = TenantName(record.read("tenant", readers.name, ""))
        if tenant and tenant not in self._tenants:
            hint = readers.nearest(tenant, self._tenants)
            record.fields["tenant"].wrong(
                f"there is no tenant {tenant}{hint}; write one that is listed under tenants."
            )
        pools = self._pools(record, tenant)
        some = readers.whole(1, MOST_PODS)
        work = Work(
            name=record.read("name", readers.name, ""),
            tenant=tenant,
            user=UserName(record.read("user", readers.name, tenant)),
            at=record.read("at", readers.duration, Millis(0)),
            demand=self._demand(record, pools),
            pods=record.read("pods", some, 1),
            duration=record.read("duration", readers.duration, None),
            priority=record.read("priority", readers.whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY), 0),
            pools=pools,
            preemptible=record.read("preemptible", readers.switch, True),
            max_runtime=record.read("maxRuntime", readers.some_cluster_time, None),
            manner=Manner(
                record.read("placement", readers.choice(Style), None),
                record.read("topology", readers.level, None),
            ),
        )
        running = record.read("running", readers.switch, False)
        for field in ("at", "every") if running else ():
            if record.read(field, readers.duration, Millis(0)):
                record.fields[field].wrong(f"it is running before the start; leave {field} out.")
        every = record.read("every", readers.duration, Millis(0))
        return _Entry(spot, record, work, record.read("count", some, 1), every, running)

    def _pools(self, record: Record, tenant: TenantName) -> tuple[PoolName, ...]:
        if "pool" not in record:
            return ()
        spot = record.fields["pool"]
        pool = known_pool(spot, self._cluster.offers)
        allowed = self._tenants[tenant].pools if tenant in self._tenants else ()
        if pool not in self._cluster.offers:
            return ()
        if allowed and pool not in allowed:
            spot.wrong(
                f"tenant {tenant} may not use pool {pool}; write {' or '.join(sorted(allowed))}."
            )
            return ()
        return (pool,)

    def _demand(self, record: Record, pools: tuple[PoolName, ...]) -> dict[Resource, int]:
        """Return what one pod asks for; asking for 0 is not asking."""
        if "request" not in record:
            return {}
        spot = record.fields["request"]
        entries = record.entries("request")
        amounts = read_amounts(entries)
        if amounts.pop(PODS, None) is not None:
            entries[PODS].wrong("every pod counts as one by itself; leave it out.")
        elif not any(amounts.values()) and len(amounts) == len(entries):
            spot.wrong(
                "it asks for nothing; ask for at least one device, as in {nvidia.com/gpu: 1}."
            )
        demand = {r: amount for r, amount in amounts.items() if amount}
        if not self._check_offered(entries, demand, pools):
            return {}
        if self._cluster.offers and demand and not self._managed.asked(demand):
            spot.wrong(
                "it asks for nothing that is managed, so it would not be held; ask for a resource "
                "that is, or add one of these to managed."
            )
        return {**demand, PODS: 1} if self._counts_pods else demand

    def _check_offered(
        self, entries: Mapping[str, Spot], demand: Amounts, pools: tuple[PoolName, ...]
    ) -> bool:
        """Tell whether all is offered by some pool that the workload names; note what is not."""
        offers = {n: o for n, o in self._cluster.offers.items() if not pools or n in pools}
        offered = {resource for each in offers.values() for resource in each}
        where = f"pool {pools[0]} has no" if pools else "no pool has"
        lacking = [r for r in demand if r not in offered] if offers else []
        for resource in lacking:
            hint = readers.nearest(resource, sorted(offered))
            entries[resource].wrong(f"{where} {resource}{hint}; ask for what is offered.")
        return not lacking

    def _claim(self, entry: _Entry, works: list[Work], names: dict[str, Spot]) -> None:
        for work in works:
            first = names.setdefault(work.name, entry.spot)
            if first is not entry.spot:
                entry.spot.wrong(
                    f"there is a workload {work.name} already (line {first.line}); "
                    "give it another name."
                )
                return


def _copy(work: Work, index: int, at: Millis, released: Millis | None = None) -> Work:
    return Work(
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
        work.manner,
    )
