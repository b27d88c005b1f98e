"""Converts Kueue's ClusterQueues, LocalQueues, Cohorts and ResourceFlavors to Tenants and Pools.

A Cohort becomes the parent Tenant of its members. Its guarantee is the sum of their nominal quotas
and its own, because Fairgate compares siblings only: without it, a member could not claim its
quota from outside the Cohort. Field names: Kueue API v1beta1 and v1beta2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from app.commands.convert.kubernetes_objects import name_of, spec_of
from app.commands.convert.tenant_documents import (
    Amounts,
    ConvertedTenant,
    Notes,
    TenantNames,
    parents_first,
    pool_document,
    quantity,
)

GROUP = "kueue.x-k8s.io/"

_NO_EQUIVALENT = {
    "flavorFungibility": "flavorFungibility has no equivalent; a pod may use all pools that fit.",
    "admissionChecks": "admissionChecks have no equivalent.",
    "admissionChecksStrategy": "admissionChecksStrategy has no equivalent.",
    "admissionScope": "admissionScope is not converted; `history` of the Policy counts past use.",
    "concurrentAdmissionPolicy": "concurrentAdmissionPolicy has no equivalent.",
    "namespaceSelector": "namespaceSelector is not converted; namespaces come from LocalQueues.",
    "preemption": "preemption is not converted; set `reclaim` and `withinQueue` of the Policy, "
    "which is one for the cluster.",
}
_CONVERTED = {"resourceGroups", "cohort", "cohortName", "parent", "parentName", "fairSharing"}
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "namespaceSelector": ({},),
    "flavorFungibility": ({}, {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}),
    "preemption": ({},),
    "queueingStrategy": ("BestEffortFIFO",),
    "stopPolicy": ("None",),
}


def convert(
    objects: Sequence[dict[str, Any]], is_managed: Callable[[str], bool], notes: Notes
) -> list[dict[str, Any]]:
    """Return Pools, then Tenants. Raises InvalidInput."""
    return KueueConversion(is_managed, notes).documents(objects)


class KueueConversion:
    """One conversion."""

    def __init__(self, is_managed: Callable[[str], bool], notes: Notes) -> None:
        self._is_managed = is_managed
        self._notes = notes
        self._names = TenantNames(notes)
        self._queues: dict[str, ConvertedTenant] = {}
        self._cohorts: dict[str, ConvertedTenant] = {}
        self._borrowing: dict[str, dict[tuple[str, str], Fraction]] = {}
        self._owners: dict[str, str] = {}

    def documents(self, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return Pools, then Tenants, parents first."""
        kinds: dict[str, list[dict[str, Any]]] = {}
        for item in objects:
            if str(item.get("apiVersion", "")).startswith(GROUP):
                kinds.setdefault(item["kind"], []).append(item)
            else:
                self._notes.add(f"{item['kind']} {name_of(item)}", "this is no object of Kueue.")
        queues, cohorts = kinds.pop("ClusterQueue", []), kinds.pop("Cohort", [])
        flavors, local_queues = kinds.pop("ResourceFlavor", []), kinds.pop("LocalQueue", [])
        for item in queues:
            self._queues[name_of(item)] = ConvertedTenant(
                self._names.claim("ClusterQueue", name_of(item))
            )
        for item in cohorts:
            self._cohort(name_of(item))
        for item in [*cohorts, *queues]:
            self._read(item)
        for item in local_queues:
            self._read_local_queue(item)
        for kind, items in kinds.items():
            for item in items:
                self._notes.add(f"{kind} {name_of(item)}", "this kind has no equivalent.")
        tenants = parents_first([*self._cohorts.values(), *self._queues.values()])
        self._sum_up(tenants)
        self._check_pools(tenants, {name_of(item) for item in flavors})
        pools = [self._pool(item) for item in flavors]
        return [*pools, *(tenant.document() for tenant in tenants)]

    def _cohort(self, name: str) -> ConvertedTenant:
        """Return the Tenant of a Cohort. A Cohort needs no object of its own."""
        if name not in self._cohorts:
            self._cohorts[name] = ConvertedTenant(self._names.claim("Cohort", name))
        return self._cohorts[name]

    def _read(self, item: dict[str, Any]) -> None:
        kind, name, spec = item["kind"], name_of(item), spec_of(item)
        tenant = self._queues[name] if kind == "ClusterQueue" else self._cohort(name)
        where = f"{kind} {name}"
        parent = spec.get("cohortName") or spec.get("cohort")
        if kind == "Cohort":
            parent = spec.get("parentName") or spec.get("parent")
        if parent:
            tenant.parent = self._cohort(str(parent)).name
        weight = (spec.get("fairSharing") or {}).get("weight")
        if weight is not None:
            tenant.weight = quantity(f"{where}: fairSharing.weight", weight)
        tenant.paused = spec.get("stopPolicy", "None") != "None"
        self._read_quotas(where, tenant, spec)
        self._note_settings(where, spec)

    def _read_quotas(self, where: str, tenant: ConvertedTenant, spec: dict[str, Any]) -> None:
        borrowing = self._borrowing.setdefault(tenant.name, {})
        for flavor, resource in _resources(spec):
            name = str(resource.get("name"))
            if not self._is_managed(name):
                self._notes.add_unmanaged(where, name)
                continue
            place = f"{where}: {name} of flavor {flavor}"
            nominal = quantity(place, resource.get("nominalQuota", 0))
            tenant.guarantees.setdefault(flavor, {})[name] = nominal
            if resource.get("borrowingLimit") is not None:
                borrowing[flavor, name] = quantity(place, resource["borrowingLimit"])
            if resource.get("lendingLimit") is not None:
                self._notes.add(where, "lendingLimit has no equivalent; unused quota is lent.")

    def _note_settings(self, where: str, spec: dict[str, Any]) -> None:
        for key, value in spec.items():
            if key in _CONVERTED or value in (None, *_DEFAULTS.get(key, ())):
                continue
            if key == "queueingStrategy":
                text = f"{value} has no equivalent; set `backfill: false` of the Policy to let "
                self._notes.add(where, text + "the first workload block the others.")
            elif key == "stopPolicy":
                if value == "HoldAndDrain":
                    self._notes.add(where, "HoldAndDrain: the Tenant is paused; pods keep running.")
            else:
                self._notes.add(where, _NO_EQUIVALENT.get(key, f"{key} has no equivalent."))

    def _read_local_queue(self, item: dict[str, Any]) -> None:
        namespace = str(item["metadata"].get("namespace", "default"))
        where = f"LocalQueue {namespace}/{name_of(item)}"
        spec = spec_of(item)
        queue = str(spec.get("clusterQueue", ""))
        tenant = self._queues.get(queue)
        if tenant is None:
            self._notes.add(where, f"its ClusterQueue {queue} is not in the input.")
            return
        owner = self._owners.setdefault(namespace, tenant.name)
        if owner != tenant.name:
            self._notes.add(
                where,
                f"namespace {namespace} stays with Tenant {owner}, because a "
                "namespace belongs to one Tenant.",
            )
        elif namespace not in tenant.namespaces:
            tenant.namespaces.append(namespace)
        for key, value in spec.items():
            if key != "clusterQueue" and value not in (None, *_DEFAULTS.get(key, ())):
                self._notes.add(where, f"{key} of a LocalQueue has no equivalent.")

    def _sum_up(self, tenants: Sequence[ConvertedTenant]) -> None:
        """Add guarantees to those of the parents, then set the limits."""
        by_name = {tenant.name: tenant for tenant in tenants}
        for tenant in reversed(tenants):
            parent = by_name.get(tenant.parent or "")
            if parent is not None:
                for pool, amounts in tenant.guarantees.items():
                    _add(parent.guarantees.setdefault(pool, {}), amounts)
            borrowing = self._borrowing.get(tenant.name, {})
            for pool, amounts in tenant.guarantees.items():
                for resource, nominal in amounts.items():
                    most = borrowing.get((pool, resource))
                    if most is not None or tenant.parent is None:
                        limits = tenant.limits.setdefault(pool, {})
                        limits[resource] = nominal + (most or 0)

    def _check_pools(self, tenants: Sequence[ConvertedTenant], flavors: set[str]) -> None:
        used = {pool for tenant in tenants for pool in tenant.guarantees}
        for pool in sorted(used - flavors):
            self._notes.add(
                f"ResourceFlavor {pool}",
                "this flavor is not in the input; create a Pool of this name.",
            )

    def _pool(self, item: dict[str, Any]) -> dict[str, Any]:
        name, spec = name_of(item), spec_of(item)
        for key, value in spec.items():
            if key == "topologyName":
                self._notes.add(
                    f"ResourceFlavor {name}",
                    "topologyName is not converted; write the node labels of the Topology into "
                    "`spec.topology` of the Pool.",
                )
            elif key == "nodeTaints" and value:
                self._notes.add(
                    f"ResourceFlavor {name}",
                    "nodeTaints are not converted; the nodes themselves have the taints.",
                )
            elif key not in ("nodeLabels", "tolerations", "nodeTaints"):
                self._notes.add(f"ResourceFlavor {name}", f"{key} has no equivalent.")
        return pool_document(name, spec.get("nodeLabels") or {}, spec.get("tolerations") or [])


def _resources(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each flavor with each of its quotas."""
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                yield str(flavor.get("name")), resource


def _add(total: Amounts, amounts: Amounts) -> None:
    for resource, value in amounts.items():
        total[resource] = total.get(resource, Fraction(0)) + value
