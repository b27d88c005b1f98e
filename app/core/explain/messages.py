"""Text for users about a waiting workload: sentences about pods in no queue, and remedies.

The sentence for a queued pod begins here, and the clause about a limit or guarantee is here.
`evaluate` and `pacing` have the other clauses that say why it waits, with some remedies. The words
that compare two siblings are in `competitors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from app.core.admission.submitters import counts_for_controller
from app.core.explain.competitors import Competitors
from app.core.explain.explain_context import (
    ExplainContext,
    Position,
    WaitingWorkload,
    place_of,
    workload_of,
)
from app.core.explain.reasons import Rule
from app.core.explain.short_resource import shortages
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode, path
from app.core.fairshare.user_queue import MAX_PRIORITY
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    UNMAPPED_PREFIX,
    Amounts,
    Pod,
    PoolName,
    Resource,
    TenantName,
    Wait,
)
from app.core.placement.allocations import Allocations
from app.core.placement.mismatch import nodes_text
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.podspec.pod_groups import ASKED, COSCHEDULING, NATIVE, source_of
from app.core.quantities import amount, is_device, render
from app.core.well_known import GATE

LACKS = "no node takes it while its resource claim for {} is missing or being deleted"
AWAITS = "waits for nodes that the autoscaler may add"


def released(pool: PoolName, waited: int, awaits: bool) -> str:
    """Return as text the pool of a release, the wait in seconds, and an awaited new node."""
    target = f"to pool {pool}" if pool else "to any node"
    return f"{target} after {waited} s" + (f"; it {AWAITS}" if awaits else "")


def explain(tracked: PodRecord, registry: PodRegistry) -> str:
    """Return the wait reason of a held pod as text."""
    if tracked.wait is not Wait.TURN:
        return _unqueued(tracked, registry) + _unknown_submitter(tracked)
    waiting = place_of(workload_of(tracked))
    if waiting is None:
        return "queued"
    tree = registry.usage.tree
    return queued(tracked, waiting, tree, position_of(waiting)) + closed(waiting, tree)


def position_of(workload: WaitingWorkload) -> Position:
    """Return the position of a workload in its user's queue."""
    queue = workload.leaf.queue
    return queue.position(workload.queue_key), len(queue)


def placed(position: Position) -> str:
    """Return the first words of the sentence for a queued pod."""
    number, length = position
    return f"queued: {number} of {length}"


def queued(
    tracked: PodRecord, workload: WaitingWorkload, tree: ShareTree, position: Position
) -> str:
    """Return the beginning of the sentence for a queued pod."""
    leaf, shape = workload.leaf, workload.shape
    devices = [r for r in shape.total if is_device(r)]
    wanted = ", ".join(f"{render(r, shape.total[r])} {r}" for r in devices) or "room"
    lacking = [r for r in devices if r not in tree.scale.counted]
    if lacking:
        wanted += f" (no ready node offers {', '.join(lacking)})"
    pools_text = f"of pool {' or '.join(shape.pools)}"
    if tracked.pod.only is not None:
        pools_text = f"on {nodes_text(tracked.pod.only)} {pools_text}"
    return (
        f"{placed(position)} in {leaf.tenant}/{leaf.name}; "
        f"waits for {wanted} {pools_text}{_rest(tracked)}{_unknown_submitter(tracked)}"
    )


def closed(workload: WaitingWorkload, tree: ShareTree) -> str:
    """Return a clause if limits or guarantees forbid every pool, however much is free."""
    if any(tree.allows(workload.leaf, workload.shape, pool) for pool in workload.shape.pools):
        return ""
    rule, numbers = limits(workload, tree)
    facts = ", ".join(f"{v} {k}" for k, v in numbers.items() if k not in ("tenant", "pool"))
    who = f"tenant {numbers.get('tenant', workload.leaf.tenant)}"
    if rule is Rule.PREEMPTIBLE:
        because = workload.shape.keeper or "it must not be evicted"
        where = f"{who} in pool {numbers['pool']}"
        return f"; {because}, so it starts only within the guarantee of {where}: {facts}"
    return f"; {who} is at its limit: {facts}"


LACKS_TOO = "tenants above with too small a guarantee"
"""A name among the compared numbers."""


def limits(workload: WaitingWorkload, tree: ShareTree) -> tuple[Rule, dict[str, str]]:
    """Return the limit or guarantee that excludes a workload from all pools, with numbers.

    A workload that must not be evicted may also lack guarantees. Of the pools that no limit closes,
    that one decides in which the fewest tenants would have to guarantee more. Of several, one in
    which the own tenant has a guarantee decides.
    """
    leaf, shape = workload.leaf, workload.shape
    closed_by: dict[PoolName, TenantNode] = {}
    lacking: dict[PoolName, list[TenantNode]] = {}
    for pool in shape.pools:
        cost = tree.cost(shape, pool)
        for branch in path(leaf):
            if not branch.allows(pool, cost):
                closed_by.setdefault(pool, branch)
            within = tree.rank(branch, shape, pool).band == GUARANTEED
            if branch.parent is not None and not isinstance(branch, UserNode) and not within:
                lacking.setdefault(pool, []).append(branch)
    found = {pool: branches for pool, branches in lacking.items() if pool not in closed_by}
    if shape.preemptible or not found:
        if not closed_by:
            return Rule.LIMIT, {}
        pool, branch = next(iter(closed_by.items()))
        return Rule.LIMIT, _against(branch, shape, pool, branch.limits[pool], "limit")
    own = leaf.parent.guarantees if leaf.parent is not None else {}
    pool = min(found, key=lambda pool: (len(found[pool]), pool not in own))
    branch, *above = found[pool]
    numbers = _against(branch, shape, pool, branch.guarantees.get(pool, {}), "guarantee")
    if above:
        numbers[LACKS_TOO] = ", ".join(str(each.name) for each in above)
    return Rule.PREEMPTIBLE, numbers


def _against(
    branch: TenantNode,
    shape: EquivalenceClass,
    pool: PoolName,
    most: Mapping[Resource, int],
    word: str,
) -> dict[str, str]:
    numbers = {"tenant": str(branch.name), "pool": str(pool)}
    used, gone = branch.uses.get(pool, {}), branch.lingering.get(pool, {})
    named = [r for r in shape.total if r in most] or [r for r in shape.total if r in used]
    if word == "guarantee":  # it must cover every device, also one that it does not name
        named = [r for r in shape.total if r in most or is_device(r)]
    for r in named:
        numbers[f"{r} used"] = render(r, used.get(r, 0) - gone.get(r, 0))
        numbers[f"{r} asked"] = render(r, shape.total[r])
        numbers[f"{r} {word}"] = render(r, most.get(r, 0))
    return numbers


def _unqueued(tracked: PodRecord, registry: PodRegistry) -> str:
    """Return the sentence for a pod that is in no queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait:
        case Wait.TOO_LARGE:
            said = pod.too_large.removeprefix("Fairgate: ").removesuffix("; use fewer.")
            return f"not queued: {said}; create it again with fewer"
        case Wait.OTHER_GATE:
            others = ", ".join(gate for gate in pod.gates if gate != GATE)
            return f"not queued: scheduling gate {others} must be removed first, by its owner"
        case Wait.NO_POOL if pod.only is not None:
            where = nodes_text(pod.only)
            return f"not queued: it may go to {where} only, and no pool that can serve it has that"
        case Wait.CLAIM if pod.no_class and not pod.awaits:
            return (
                f"not queued: device class {pod.no_class} does not exist; ask a cluster admin to "
                "create it, or use another class"
            )
        case Wait.CLAIM if not pod.awaits:
            return (
                "not queued: Fairgate reserves its resource claims first, which takes seconds; if "
                "it takes longer, the API server may refuse changes of a claim whose opaque "
                "parameters were written with spaces: create the claim again with kubectl"
            )
        case Wait.CLAIM:
            return (
                f"not queued: there is no resource claim for {', '.join(pod.awaits)} yet; "
                "create the claim, or its template, that spec.resourceClaims names"
            )
        case Wait.NO_POOL:
            also = ", or no node has the GPU memory that it needs" if pod.gpu_memory else ""
            return f"not queued: no pool has a node that it may go to{also}"
        case Wait.NO_TENANT:
            return (
                f"not queued: {registry.tenant_gaps.reason(pod.namespace)}, so no limit would hold"
            )
        case Wait.TENANT_PAUSED:
            return "not queued: its tenant is paused"
        case Wait.GANG_INCOMPLETE | Wait.GANG_DEFERRED if gang is not None:
            return _gang_unqueued(gang, tracked.wait, registry)
        case Wait.REFUSED:
            return (
                f"tried again later: the API server refused its release {tracked.refusals} "
                "times; the cause may be the size of the pod (the API server stores at most about "
                "1.5 MiB), another admission webhook or policy, or an edit of its annotation "
                "fairgate.io/release"
            )
        case Wait.NO_NODE:
            return (
                "tried again later: a pod of this user that asks for the same was released and no "
                "node took it; see what these pods ask of nodes besides devices (volumes, host "
                "ports, affinity to other pods)"
            )
        case Wait.POSTPONED:
            return (
                "tried again later: the search for its place took too long, so other pods go "
                "first; make the lists in its affinity, tolerations and claims shorter"
            )
    return "queued"


def _gang_unqueued(gang: Gang, wait: Wait, registry: PodRegistry) -> str:
    """Return the sentence for a pod that is in no queue because of its gang."""
    if wait is Wait.GANG_DEFERRED:
        return _deferred(gang, registry)
    if gang.half:
        return f"not queued: the rest of its gang {gang.name} is released first"
    if gang.shape is not None:
        return (
            f"not queued: gang {gang.name} starts with {gang.need} of up to {gang.most} pods, "
            "and then each further pod waits in the queue by itself"
        )
    return "not queued: " + incomplete(gang, registry)


def _deferred(gang: Gang, registry: PodRegistry) -> str:
    until = registry.gangs.deferred.get(gang.key, registry.usage.now)
    return (
        f"tried again in {max(0, until - registry.usage.now) // 1000} s: a pod of its gang "
        f"{gang.name} failed or was deleted before the whole gang ran, so the gang starts again, "
        "later each time; check why that pod ended"
    )


def incomplete(gang: Gang, registry: PodRegistry) -> str:
    """Return why a gang is incomplete, and whether `gangTimeout` has passed."""
    if gang.leaving:
        past = len(gang.past)
        return (
            f"of its gang {gang.name} {past} {'pod is' if past == 1 else 'pods are'} being "
            "evicted, and then it waits again as a whole"
        )
    if policy := gang.other_policy:
        return (
            f"its gang {gang.name} has the preemption policy {gang.preemption} and its pods have "
            f"{policy}, so kube-scheduler would not schedule it; create {source_of(gang.name)} "
            "again with the priorityClassName and preemptionPolicy that its pods have"
        )
    text = f"its gang {gang.name} is not complete, {gang.there} of {gang.need} pods are there"
    if gang.size == ASKED:
        there = f"{gang.there} {'pod is' if gang.there == 1 else 'pods are'} there"
        text = (
            f"its gang {gang.name} is not complete, {there}, and no "
            f"{source_of(gang.name)} states its size"
        )
    elif gang.tree is not None and gang.there >= gang.need:
        text = f"its gang {gang.name} is not complete, too few of its pod groups have enough pods"
    elif gang.there >= gang.need:
        text = f"its gang {gang.name} has all its {gang.there} pods, but some are not ready"
    timeout, now = registry.usage.policy.gang_timeout, registry.usage.now
    if timeout and gang.lacks is not None and now - gang.lacks >= timeout:
        text += f", for more than {timeout // 1000} s now"
    return text


def _rest(tracked: PodRecord) -> str:
    """Return a clause about the gang of a queued pod: its rest, its minimum, or a further pod."""
    gang, named = tracked.gang, tracked.pod.gang
    if gang is None and named and not _is_of_basic_group(tracked.pod):
        return f"; gang {named} has all its pods without it, so it waits alone"
    if gang is None:
        return ""
    if gang.half:
        run = sum(member.uses for member in gang.members)
        return f"; {run} of gang {gang.name} run already, so it goes before all others once it fits"
    if gang.is_elastic and not gang.steps:
        return f"; gang {gang.name} starts with {gang.need} of up to {gang.most} pods"
    return runs_with(gang)


def runs_with(gang: Gang | None) -> str:
    """Return a clause with the number of released pods of an elastic gang; "" for any other."""
    if gang is None or not gang.is_elastic:
        return ""
    return f"; its gang {gang.name} runs with {gang.released_count} of up to {gang.most} pods"


def _is_of_basic_group(pod: Pod) -> bool:
    """Return whether a pod outside all gangs names a PodGroup. Such a group takes every pod."""
    return pod.gang_size == ASKED and pod.gang.startswith((NATIVE, COSCHEDULING))


def _unknown_submitter(tracked: PodRecord) -> str:
    """Return a clause for a pod that counts for its controller. Its namespace has other users."""
    pod = tracked.pod
    if not (pod.is_owned and counts_for_controller(pod.user, pod.namespace)):
        return ""
    return "; its submitter is not known, so it counts for its controller"


Remedies = tuple[str, ...]


def remedies_aside(tracked: PodRecord, context: ExplainContext) -> Remedies:
    """Return changes that would let a pod into its queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait:
        case Wait.TOO_LARGE:
            return ("a new pod with shorter lists",)
        case Wait.OTHER_GATE:
            others = [gate for gate in pod.gates if gate != GATE]
            return tuple(f"its owner removing the scheduling gate {each}" for each in others)
        case Wait.GANG_INCOMPLETE if gang is not None and not gang.half:
            return _remedies_of_gang(gang)
        case Wait.GANG_DEFERRED if gang is not None:
            return (f"pods of gang {gang.name} that run until the whole gang runs",)
        case Wait.CLAIM if pod.no_class and not pod.awaits:
            return (f"a cluster admin creating device class {pod.no_class}",)
        case Wait.CLAIM:
            return tuple(f"a resource claim for {entry}" for entry in pod.awaits)
        case Wait.NO_TENANT:
            fault = context.tenancy.parent_fault(context.tenancy.tenant_of(pod.namespace))
            if fault is not None:
                return (f"a cluster admin {fault.remedy}",)
            return (f"an admin listing {pod.namespace} in a Tenant, or half a minute of waiting",)
        case Wait.TENANT_PAUSED:
            name = _paused(context.tenancy.tenant_of(pod.namespace), context.tenancy)
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
    if gang.leaving:
        return (f"the end of what still runs of gang {gang.name}",)
    if gang.size == ASKED:
        return (f"the {source_of(gang.name)}",)
    if gang.other_policy:
        return (f"a new {source_of(gang.name)} with the preemption policy of its pods",)
    lacking = gang.need - gang.there
    if lacking <= 0 and gang.tree is not None:
        return (f"enough pods in more pod groups of gang {gang.name}",)
    if lacking <= 0:
        return (f"every pod of gang {gang.name} waiting for nothing else",)
    return (f"{lacking} more {'pod' if lacking == 1 else 'pods'} of gang {gang.name}",)


def remedies_of_limit(
    rule: Rule, numbers: Mapping[str, str], workload: WaitingWorkload, context: ExplainContext
) -> Remedies:
    """Return changes that would let a workload past a limit, or into a guarantee."""
    name, pool = TenantName(numbers.get("tenant", workload.leaf.tenant)), numbers.get("pool", "")
    word = "guarantee" if rule is Rule.PREEMPTIBLE else "limit"
    admin, found = _admin_of(name, context.tenancy), list[str]()
    above = numbers.get(LACKS_TOO)
    also = f", and that of {above} above it, too" if above else ""
    for r in workload.shape.total:
        if f"{r} {word}" not in numbers:
            continue
        used, asked, most = (amount(r, numbers[f"{r} {k}"]) for k in ("used", "asked", word))
        over = used + asked - most
        if over <= 0:
            continue
        if asked <= most:
            found.append(
                f"the end of pods of tenant {name} that use {render(r, over)} {r} in pool {pool}"
            )
        elif most:
            found.append(f"less than {render(r, most + 1)} {r} asked for")
        found.append(
            f"{admin} raising the {word} of tenant {name} in pool {pool} to "
            f"{render(r, used + asked)} {r}" + also
        )
    if rule is Rule.PREEMPTIBLE and workload.shape.keeper:
        found.append("disruption budgets that allow at least one eviction of its pods")
    elif rule is Rule.PREEMPTIBLE:
        found.append('a pod that may be evicted, without fairgate.io/preemptible: "false"')
    return tuple(found)


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
    whose = f"user {branch.name}" if isinstance(branch, UserNode) else f"tenant {tenant}"
    if tenant.startswith(UNMAPPED_PREFIX):  # not an object, so without a weight
        namespace = tenant.removeprefix(UNMAPPED_PREFIX)
        created = f"a Tenant for namespace {namespace}, created by a cluster admin"
        whose = whose if isinstance(branch, UserNode) else "it"
        return (f"{created} with a higher weight than {weight} for {whose}", start)
    if competitors.guaranteed:
        return (start, f"a guarantee of tenant {tenant} that covers it")
    admin = f"an admin of tenant {tenant}" if isinstance(branch, UserNode) else _admin_above(branch)
    return (f"a higher weight than {weight} for {whose}, set by {admin}", start)


def remedies_of_own(workload: WaitingWorkload, others: Remedies) -> Remedies:
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
        lacking = ", ".join(f"{render(r, v)} {r}" for r, v in short.items() if v > 0)
        beside = shortages(shape, pool, placement)
        if beside:
            for each in beside:
                found.append(
                    f"{render(each.resource, each.asked)} {each.resource} free on one node of pool "
                    f"{pool} that has free {', '.join(each.devices)}"
                )
                found.append(f"less {each.resource} asked for by each pod")
        elif lacking:
            found.append(f"the end of pods that use {lacking} in pool {pool}")
        else:
            level = shape.manner.confined
            where = f"one node each in one {level} of" if level else "one node each in"
            asked = " and ".join(
                f"{count} times {_devices(demand)}" if count > 1 else _devices(demand)
                for demand, count in shape.parts
            )
            found.append(f"{asked} free on {where} pool {pool}: the free capacity is scattered")
    return (*found, f"more nodes in pool {' or '.join(pools)}")


def _devices(demand: Amounts) -> str:
    devices = {r: v for r, v in demand.items() if is_device(r)} or demand
    return ", ".join(f"{render(r, v)} {r}" for r, v in devices.items())


def _admin_above(branch: TenantNode) -> str:
    above = branch.parent
    named = above is not None and above.parent is not None
    return f"an admin of tenant {above.name}" if above is not None and named else "a cluster admin"


def _admin_of(name: TenantName, tenancy: TenantDirectory) -> str:
    """Return the people with permission to change a tenant, as text."""
    parent = tenancy.parent_of(name)
    return f"an admin of tenant {parent}" if parent is not None else "a cluster admin"


def _paused(name: TenantName, tenancy: TenantDirectory) -> TenantName:
    """Return the paused tenant: this one, or one above it."""
    known, above = tenancy.tenants.get(name), tenancy.parent_of(name)
    if (known is not None and known.paused) or above is None:
        return name
    return _paused(above, tenancy)


def _decimal(value: Fraction) -> str:
    return f"{float(value):.6f}".rstrip("0").rstrip(".")
