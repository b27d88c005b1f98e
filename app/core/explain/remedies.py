"""Text for users about what would help a waiting workload."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from app.core.explain.competitors import Competitors
from app.core.explain.explain_context import (
    ExplainContext,
    WaitingWorkload,
)
from app.core.explain.reasons import Rule
from app.core.explain.short_resource import shortages
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.fairshare.user_queue import MAX_PRIORITY
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.model import (
    UNMAPPED_PREFIX,
    Amounts,
    PoolName,
    Resource,
    TenantName,
    Wait,
)
from app.core.placement.allocations import Allocations
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, gang_object_of
from app.core.quantities import format_amount, is_device, parse_amount
from app.core.well_known import GATE

Remedies = tuple[str, ...]


def remedies_of_unqueued(tracked: PodRecord, context: ExplainContext) -> Remedies:
    """Return changes that would let a pod into its queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait_reason:
        case Wait.TOO_LARGE:
            return ("a new pod with shorter lists",)
        case Wait.OTHER_GATE:
            others = [gate for gate in pod.gates if gate != GATE]
            return tuple(f"its owner removing the scheduling gate {each}" for each in others)
        case Wait.GANG_INCOMPLETE if gang is not None and not gang.is_partially_released:
            return _remedies_of_gang(gang)
        case Wait.GANG_DEFERRED if gang is not None:
            return (f"pods of gang {gang.name} that run until the whole gang runs",)
        case Wait.CLAIM if pod.missing_class and not pod.missing_claims:
            return (f"a cluster admin creating device class {pod.missing_class}",)
        case Wait.CLAIM:
            return tuple(f"a resource claim for {entry}" for entry in pod.missing_claims)
        case Wait.NO_TENANT:
            fault = context.tenancy.parent_fault(context.tenancy.tenant_of(pod.namespace))
            if fault is not None:
                return (f"a cluster admin {fault.remedy}",)
            return (f"an admin listing {pod.namespace} in a Tenant, or half a minute of waiting",)
        case Wait.TENANT_PAUSED:
            name = _paused_tenant(context.tenancy.tenant_of(pod.namespace), context.tenancy)
            return (f"{_admin_of(name, context.tenancy)} unpausing tenant {name}",)
        case Wait.NO_POOL:
            more = ("more devices asked for, or less memory stated",) if pod.gpu_memory else ()
            return (
                *more,
                "a node selector, affinity, tolerations, or an annotation fairgate.io/pools, that "
                "some pool can serve",
                "a cluster admin making a pool that can serve it",
            )
        case Wait.REFUSED:
            return (
                "its release being let pass by whatever refuses it",
                "a smaller pod, if it is almost as large as the API server stores",
            )
        case Wait.NO_NODE:
            return ("pods without constraints that all nodes violate",)
        case Wait.POSTPONED:
            return ("fewer and shorter lists in its affinity, tolerations and claims",)
    return ()


def _remedies_of_gang(gang: Gang) -> Remedies:
    if gang.eviction_reason:
        return (f"the end of what still runs of gang {gang.name}",)
    if gang.size == SIZE_FROM_GROUP:
        return (f"the {gang_object_of(gang.name)}",)
    if gang.conflicting_policy:
        return (f"a new {gang_object_of(gang.name)} with the preemption policy of its pods",)
    lacking = gang.required - gang.present
    if lacking <= 0 and gang.group_tree is not None:
        return (f"enough pods in more pod groups of gang {gang.name}",)
    if lacking <= 0:
        return (f"every pod of gang {gang.name} waiting for nothing else",)
    return (f"{lacking} more {'pod' if lacking == 1 else 'pods'} of gang {gang.name}",)


def remedies_of_limit(
    rule: Rule,
    levels: Sequence[Mapping[str, str]],
    workload: WaitingWorkload,
    context: ExplainContext,
) -> Remedies:
    """Return changes that would let a workload past a limit, or into guarantees.

    `levels`: the numbers of each tenant with too small a limit or guarantee, lowest first.
    """
    word, found = "guarantee" if rule is Rule.PREEMPTIBLE else "limit", list[str]()
    for r, asked in workload.equivalence_class.total.items():
        short = _short_levels(r, word, levels)
        if not short:
            continue
        (name, used, most), *above = short
        pool, admin = levels[0]["pool"], _admin_of(name, context.tenancy)
        if asked <= most and not above:
            found.append(
                f"the end of pods of tenant {name} that use "
                f"{format_amount(r, used + asked - most)} {r} in pool {pool}"
            )
        elif most and not above:
            found.append(f"less than {format_amount(r, most + 1)} {r} asked for")
        raised = ", ".join(f"{each} to {format_amount(r, use + asked)}" for each, use, _ in above)
        found.append(
            f"{admin} raising the {word} of tenant {name} in pool {pool} to "
            f"{format_amount(r, used + asked)} {r}"
            + (f", and the guarantees above it, too: {raised}" if above else "")
        )
    if rule is Rule.PREEMPTIBLE and workload.equivalence_class.budget_reason:
        found.append("disruption budgets that allow at least one eviction of its pods")
    elif rule is Rule.PREEMPTIBLE:
        found.append('a pod that may be evicted, without fairgate.io/preemptible: "false"')
    return tuple(found)


def _short_levels(
    r: Resource, word: str, levels: Sequence[Mapping[str, str]]
) -> list[tuple[TenantName, int, int]]:
    """Return the tenants with too little of a resource: name, use, and limit or guarantee."""
    found = []
    for numbers in levels:
        if f"{r} {word}" in numbers:
            keys = ("used", "asked", word)
            used, asked, most = (parse_amount(r, numbers[f"{r} {key}"]) for key in keys)
            if used + asked > most:
                found.append((TenantName(numbers["tenant"]), used, most))
    return found


def remedies_of_reservation(tenant: str, pool: PoolName) -> Remedies:
    """Return changes that would give a workload the capacity reserved for another."""
    return (
        f"the work of tenant {tenant} starting that room of pool {pool} is kept free for",
        "a declared fairgate.io/max-runtime that ends before that can start",
    )


def remedies_of_order(competitors: Competitors, first: str) -> Remedies:
    """Return changes that would put a workload before its competitors."""
    branch = competitors.branch
    weight = _decimal(Fraction(*branch.weight))
    start = f"the start, or the deletion, of waiting work of {first}"
    tenant = branch.tenant if isinstance(branch, UserNode) else TenantName(branch.name)
    whose = competitors.whose
    if tenant.startswith(UNMAPPED_PREFIX):  # not an object, so without a weight
        namespace = tenant.removeprefix(UNMAPPED_PREFIX)
        created = f"a Tenant for namespace {namespace}, created by a cluster admin"
        whose = whose if isinstance(branch, UserNode) else "it"
        return (f"{created} with a higher weight than {weight} for {whose}", start)
    if competitors.is_within_guarantee:
        return (start, f"a guarantee of tenant {tenant} that covers it")
    return (_higher_weight(competitors), start)


def remedies_of_weight_0(found: Sequence[Competitors]) -> Remedies:
    """Return changes that would put a workload before competitors if weight 0 puts it behind."""
    return tuple(_higher_weight(each) for each in found)


def _higher_weight(competitors: Competitors) -> str:
    branch = competitors.branch
    weight = _decimal(Fraction(*branch.weight))
    admin, target = _admin_above(branch), str(branch.name)
    if isinstance(branch, UserNode):
        admin = f"an admin of tenant {branch.tenant}"
        target = f"{branch.tenant} --user {_quoted(branch.name)}"
    command = "" if branch.weight[0] else f": kubectl fairgate weights set {target} 1"
    return f"a higher weight than {weight} for {competitors.whose}, set by {admin}{command}"


def _quoted(name: str) -> str:
    """Return a name as one word of a shell. Names of users may have any characters."""
    if re.fullmatch(r"[\w@%+=:,./-]+", name, re.ASCII):
        return name
    return "'" + name.replace("'", "'\"'\"'") + "'"


def remedies_of_own_work(workload: WaitingWorkload, others: Remedies) -> Remedies:
    """Return changes that would put a workload before others of the same user."""
    priority = MAX_PRIORITY - workload.queue_key.precedence
    return (
        f"a higher priority than {priority}, which orders this user's own work",
        "the start, or the deletion, of the same user's work before it",
        *others,
    )


def remedies_of_capacity(
    shape: EquivalenceClass, pools: Sequence[PoolName], placement: Allocations
) -> Remedies:
    """Return changes that would free capacity for a workload."""
    found = []
    for pool in pools:
        free = placement.free(pool)
        short = {r: v - max(0, free.get(r, 0)) for r, v in shape.total.items()}
        lacking = ", ".join(f"{format_amount(r, v)} {r}" for r, v in short.items() if v > 0)
        beside = shortages(shape, pool, placement)
        if beside:
            for each in beside:
                found.append(
                    f"{format_amount(each.resource, each.requested)} {each.resource} free on one "
                    f"node of pool {pool} that has free {', '.join(each.devices)}"
                )
                found.append(f"less {each.resource} asked for by each pod")
        elif lacking:
            found.append(f"the end of pods that use {lacking} in pool {pool}")
        elif placement.find_limiting_rule(shape, pool):
            found.append(f"free capacity in pool {pool} on nodes that its rules allow")
        else:
            level = shape.layout.required_topology_label
            where = f"one node each in one {level} of" if level else "one node each in"
            asked = " and ".join(
                f"{count} times {_devices_text(demand)}" if count > 1 else _devices_text(demand)
                for demand, count in shape.request_counts
            )
            found.append(f"{asked} free on {where} pool {pool}: the free capacity is scattered")
    return (*found, f"more nodes in pool {' or '.join(pools)}")


def _devices_text(demand: Amounts) -> str:
    devices = {r: v for r, v in demand.items() if is_device(r)} or demand
    return ", ".join(f"{format_amount(r, v)} {r}" for r, v in devices.items())


def _admin_above(branch: TenantNode) -> str:
    above = branch.parent
    named = above is not None and above.parent is not None
    return f"an admin of tenant {above.name}" if above is not None and named else "a cluster admin"


def _admin_of(name: TenantName, tenancy: TenantDirectory) -> str:
    """Return the people with permission to change a tenant, as text."""
    parent = tenancy.parent_of(name)
    return f"an admin of tenant {parent}" if parent is not None else "a cluster admin"


def _paused_tenant(name: TenantName, tenancy: TenantDirectory) -> TenantName:
    """Return the paused tenant: this one, or one above it."""
    known, above = tenancy.tenants.get(name), tenancy.parent_of(name)
    if (known is not None and known.paused) or above is None:
        return name
    return _paused_tenant(above, tenancy)


def _decimal(value: Fraction) -> str:
    return f"{float(value):.6f}".rstrip("0").rstrip(".")
