"""Converts Volcano's Queues to Tenants.

The queue `default` becomes the Tenant `default`, that of all namespaces without a mapping.
A Queue names no namespaces and no kinds of nodes. Namespaces come from Namespace objects that
name a queue in an annotation, and amounts apply to one pool. Field names: scheduling.volcano.sh
v1beta1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.commands.convert.kubernetes_objects import name_of, spec_of
from app.commands.convert.tenant_documents import (
    DEFAULT,
    Amounts,
    ConvertedTenant,
    Notes,
    TenantNames,
    parents_first,
    quantity,
)

GROUP = "scheduling.volcano.sh/"
NAMESPACE_QUEUE = "scheduling.volcano.sh/queue-name"
ROOT = "root"

_NO_EQUIVALENT = {
    "reclaimable": "reclaimable: false has no equivalent; annotate pods with "
    'fairgate.io/preemptible: "false", which is possible within the guarantee.',
    "affinity": "affinity to node groups is not converted; create Pools and set `spec.pools`.",
    "extendClusters": "extendClusters has no equivalent, because Fairgate manages one cluster.",
    "priority": "priority of a Queue has no equivalent; weights and guarantees order Tenants.",
    "dequeueStrategy": "dequeueStrategy has no equivalent; `backfill` of the Policy is similar.",
}
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "reclaimable": (True,),
    "priority": (0,),
    "dequeueStrategy": ("traverse",),
    "affinity": ({},),
    "extendClusters": ([],),
    "type": ("",),
}
_CONVERTED = {"weight", "parent", "guarantee", "deserved", "capability", "state"}


def convert(
    objects: Sequence[dict[str, Any]],
    pool: str,
    is_managed: Callable[[str], bool],
    notes: Notes,
) -> list[dict[str, Any]]:
    """Return the Tenants, parents first. Raises InvalidInput."""
    names = TenantNames(notes)
    queues = {name_of(item): item for item in objects if _is_queue(item)}
    mapped: dict[str, list[str]] = {}
    for item in objects:
        queue = ((item.get("metadata") or {}).get("annotations") or {}).get(NAMESPACE_QUEUE)
        if item["kind"] == "Namespace":
            if queue is not None:
                mapped.setdefault(str(queue), []).append(name_of(item))
        elif not _is_queue(item):
            notes.add(f"{item['kind']} {name_of(item)}", "this kind has no equivalent.")
    tenants = {
        name: ConvertedTenant(DEFAULT if name == DEFAULT else names.claim("Queue", name))
        for name in queues
        if name != ROOT
    }
    for name, tenant in tenants.items():
        tenant.namespaces = mapped.pop(name, [])
    for name, tenant in tenants.items():
        _read(queues, name, tenant, tenants, pool, is_managed, notes)
    for queue, namespaces in mapped.items():
        for namespace in namespaces:
            notes.add(f"Namespace {namespace}", f"its Queue {queue} is not in the input.")
    return [tenant.document() for tenant in parents_first(tenants.values())]


def _is_queue(item: dict[str, Any]) -> bool:
    return item["kind"] == "Queue" and str(item.get("apiVersion", "")).startswith(GROUP)


def _read(
    queues: Mapping[str, dict[str, Any]],
    name: str,
    tenant: ConvertedTenant,
    tenants: Mapping[str, ConvertedTenant],
    pool: str,
    is_managed: Callable[[str], bool],
    notes: Notes,
) -> None:
    spec = spec_of(queues[name])
    where = f"Queue {name}"

    def amounts(key: str, written: Any) -> Amounts:
        found: Amounts = {}
        for resource, value in (written or {}).items():
            if is_managed(resource):
                found[resource] = quantity(f"{where}: {key}: {resource}", value)
            else:
                notes.add_unmanaged(where, resource)
        return found

    parent = spec.get("parent")
    if name == DEFAULT:
        notes.add(where, "the Tenant default is that of all namespaces without a Tenant.")
        if parent and parent != ROOT:
            notes.add(where, f"its parent {parent} is left out: the Tenant default has none.")
    elif parent and parent != ROOT:
        if parent in tenants:
            tenant.parent = tenants[parent].name
        else:
            notes.add(where, f"its parent {parent} is not in the input.")
    if spec.get("weight") is not None:
        tenant.weight = quantity(f"{where}: weight", spec["weight"])
    reserved = amounts("guarantee", (spec.get("guarantee") or {}).get("resource"))
    if reserved:
        notes.add(where, "capacity of its guarantee is lent to other tenants while it is unused.")
    deserved = amounts("deserved", spec.get("deserved"))
    tenant.guarantees[pool] = reserved | deserved
    tenant.limits[pool] = amounts("capability", spec.get("capability"))
    tenant.paused = spec.get("state") in ("Closed", "Closing")
    is_parent = any(spec_of(other).get("parent") == name for other in queues.values())
    if not tenant.namespaces and not is_parent and name != DEFAULT:
        notes.add(where, "it names no namespaces; add `spec.namespaces`.")
    for key, value in spec.items():
        if key not in _CONVERTED and value not in (None, *_DEFAULTS.get(key, ())):
            notes.add(where, _NO_EQUIVALENT.get(key, f"{key} has no equivalent."))
