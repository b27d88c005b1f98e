"""Text for users about a waiting workload: sentences about pods in no queue.

The sentence for a queued pod begins here, and the clause about a limit or guarantee is here.
`evaluate` and `pacing` have the other clauses that say why it waits. `competitors` compares two
siblings in words, and `remedies` has the changes that would help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.admission.submitters import counts_for_controller
from app.core.explain.explain_context import (
    Position,
    WaitingWorkload,
    queue_position_of,
    workload_of,
)
from app.core.explain.reasons import Rule
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    Pod,
    PoolName,
    Resource,
    Wait,
)
from app.core.placement.mismatch import describe_nodes
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.podspec.pod_groups import COSCHEDULING, NATIVE, SIZE_FROM_GROUP, gang_object_of
from app.core.quantities import format_amount, is_device
from app.core.well_known import GATE

LACKS_CLAIM = "no node takes it while its resource claim for {} is missing or being deleted"
AWAITS_NODES = "waits for nodes that the autoscaler may add"


def release_text(pool: PoolName, waited: int, awaits: bool) -> str:
    """Return as text the pool of a release, the wait in seconds, and an awaited new node."""
    target = f"to pool {pool}" if pool else "to any node"
    return f"{target} after {waited} s" + (f"; it {AWAITS_NODES}" if awaits else "")


def wait_text(tracked: PodRecord, registry: PodRegistry) -> str:
    """Return the wait reason of a held pod as text."""
    if tracked.wait_reason is not Wait.TURN:
        return _unqueued_text(tracked, registry) + _unknown_submitter_clause(tracked)
    waiting = queue_position_of(workload_of(tracked))
    if waiting is None:
        return "queued"
    tree = registry.usage.tree
    return queued_text(tracked, waiting, tree, position_of(waiting)) + limit_clause(waiting, tree)


def position_of(workload: WaitingWorkload) -> Position:
    """Return the position of a workload in its user's queue."""
    queue = workload.leaf.queue
    return queue.position(workload.queue_key), len(queue)


def position_text(position: Position) -> str:
    """Return the first words of the sentence for a queued pod."""
    number, length = position
    return f"queued: {number} of {length}"


def queued_text(
    tracked: PodRecord, workload: WaitingWorkload, tree: ShareTree, position: Position
) -> str:
    """Return the beginning of the sentence for a queued pod."""
    leaf, shape = workload.leaf, workload.equivalence_class
    devices = [r for r in shape.total if is_device(r)]
    wanted = ", ".join(f"{format_amount(r, shape.total[r])} {r}" for r in devices) or "room"
    lacking = [r for r in devices if r not in tree.scale.counted_resources]
    if lacking:
        wanted += f" (no ready node offers {', '.join(lacking)})"
    pools_text = f"of pool {' or '.join(shape.pools)}"
    if tracked.pod.node_names is not None:
        pools_text = f"on {describe_nodes(tracked.pod.node_names)} {pools_text}"
    return (
        f"{position_text(position)} in {leaf.tenant}/{leaf.name}; "
        f"waits for {wanted} "
        f"{pools_text}{_gang_clause(tracked)}{_unknown_submitter_clause(tracked)}"
    )


def limit_clause(workload: WaitingWorkload, tree: ShareTree) -> str:
    """Return a clause if limits or guarantees forbid every pool, however much is free."""
    if any(
        tree.is_within_limits(workload.leaf, workload.equivalence_class, pool)
        for pool in workload.equivalence_class.pools
    ):
        return ""
    rule, numbers, above = deciding_limit(workload, tree)
    beside = ("tenant", "pool", UNCOVERED_ANCESTORS)
    facts = ", ".join(f"{v} {k}" for k, v in numbers.items() if k not in beside)
    who = f"tenant {numbers.get('tenant', workload.leaf.tenant)}"
    if rule is Rule.PREEMPTIBLE:
        because = workload.equivalence_class.budget_reason or "it must not be evicted"
        where = f"{who} in pool {numbers['pool']}"
        also = f"; {_too_small_text([each['tenant'] for each in above])}" if above else ""
        return f"; {because}, so it starts only within the guarantee of {where}: {facts}{also}"
    return f"; {who} is at its limit: {facts}"


def _too_small_text(tenants: Sequence[str]) -> str:
    if len(tenants) == 1:
        return f"the guarantee of {tenants[0]} is too small, too"
    return f"the guarantees of {', '.join(tenants[:-1])} and {tenants[-1]} are too small, too"


UNCOVERED_ANCESTORS = "tenants above with too small a guarantee"
"""A name among the compared numbers."""


def deciding_limit(
    workload: WaitingWorkload, tree: ShareTree
) -> tuple[Rule, dict[str, str], tuple[dict[str, str], ...]]:
    """Return the limit or guarantee that excludes a workload from all pools, with numbers.

    The last part has the numbers of each tenant above that guarantees too little as well.
    A workload that must not be evicted may also lack guarantees. Of the pools that no limit closes,
    that one decides in which the fewest tenants would have to guarantee more. Of several, one in
    which the own tenant has a guarantee decides.
    """
    leaf, shape = workload.leaf, workload.equivalence_class
    closed_by: dict[PoolName, TenantNode] = {}
    lacking: dict[PoolName, list[TenantNode]] = {}
    for pool in shape.pools:
        cost = tree.cost(shape, pool)
        for branch in path_to_root(leaf):
            if not branch.is_within_limit(pool, cost):
                closed_by.setdefault(pool, branch)
            is_tenant = branch.parent is not None and not isinstance(branch, UserNode)
            if is_tenant and not branch.guarantee_covers(pool, cost):
                lacking.setdefault(pool, []).append(branch)
    found = {pool: branches for pool, branches in lacking.items() if pool not in closed_by}
    if shape.preemptible or not found:
        if not closed_by:
            return Rule.LIMIT, {}, ()
        pool, branch = next(iter(closed_by.items()))
        return Rule.LIMIT, _limit_numbers(branch, shape, pool, branch.limits[pool], "limit"), ()
    own = leaf.parent.guarantees if leaf.parent is not None else {}
    pool = min(found, key=lambda pool: (len(found[pool]), pool not in own))
    numbers, *above = (
        _limit_numbers(each, shape, pool, each.guarantees.get(pool, {}), "guarantee")
        for each in found[pool]
    )
    if above:
        numbers[UNCOVERED_ANCESTORS] = ", ".join(each["tenant"] for each in above)
    return Rule.PREEMPTIBLE, numbers, tuple(above)


def _limit_numbers(
    branch: TenantNode,
    shape: EquivalenceClass,
    pool: PoolName,
    most: Mapping[Resource, int],
    word: str,
) -> dict[str, str]:
    numbers = {"tenant": str(branch.name), "pool": str(pool)}
    used, gone = branch.usage.get(pool, {}), branch.ended_usage.get(pool, {})
    named = [r for r in shape.total if r in most] or [r for r in shape.total if r in used]
    if word == "guarantee":  # it must cover every device, also one that it does not name
        named = [r for r in shape.total if r in most or is_device(r)]
    for r in named:
        numbers[f"{r} used"] = format_amount(r, used.get(r, 0) - gone.get(r, 0))
        numbers[f"{r} asked"] = format_amount(r, shape.total[r])
        numbers[f"{r} {word}"] = format_amount(r, most.get(r, 0))
    return numbers


def _unqueued_text(tracked: PodRecord, registry: PodRegistry) -> str:
    """Return the sentence for a pod that is in no queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait_reason:
        case Wait.TOO_LARGE:
            said = pod.too_large.removeprefix("Fairgate: ").removesuffix("; use fewer.")
            return f"not queued: {said}; create it again with fewer"
        case Wait.OTHER_GATE:
            others = ", ".join(gate for gate in pod.gates if gate != GATE)
            return f"not queued: scheduling gate {others} must be removed first, by its owner"
        case Wait.NO_POOL if pod.node_names is not None:
            where = describe_nodes(pod.node_names)
            return f"not queued: it may go to {where} only, and no pool that can serve it has that"
        case Wait.CLAIM:
            return f"not queued: {_claim_text(pod)}"
        case Wait.NO_POOL:
            also = ", or no node has the GPU memory that it needs" if pod.gpu_memory else ""
            return f"not queued: no pool has a node that it may go to{also}"
        case Wait.NO_TENANT:
            return (
                f"not queued: {registry.tenant_gaps.gap_reason(pod.namespace)}, so "
                "no limit would hold"
            )
        case Wait.TENANT_PAUSED:
            return "not queued: its tenant is paused"
        case Wait.GANG_INCOMPLETE | Wait.GANG_DEFERRED if gang is not None:
            return _unqueued_gang_text(gang, tracked.wait_reason, registry)
        case Wait.REFUSED:
            return (
                f"tried again later: the API server refused its release {tracked.release_refusals} "
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


def _claim_text(pod: Pod) -> str:
    """Return why a pod waits for its resource claims."""
    if pod.claims_unsettled:
        return (
            "a resource claim that it shares with many pods changes often, and Fairgate counts it "
            "again within seconds; change the claim less often"
        )
    if pod.missing_claims:
        return (
            f"there is no resource claim for {', '.join(pod.missing_claims)} yet; create the "
            "claim, or its template, that spec.resourceClaims names"
        )
    if pod.missing_class:
        return (
            f"device class {pod.missing_class} does not exist; ask a cluster admin to create it, "
            "or use another class"
        )
    if pod.claim_refusal:
        return pod.claim_refusal
    return (
        "Fairgate reserves its resource claims first, which takes seconds; if it takes longer, "
        "the API server may refuse changes of a claim whose opaque parameters were written with "
        "spaces: create the claim again with kubectl"
    )


def _unqueued_gang_text(gang: Gang, wait: Wait, registry: PodRegistry) -> str:
    """Return the sentence for a pod that is in no queue because of its gang."""
    if wait is Wait.GANG_DEFERRED:
        return _deferred_gang_text(gang, registry)
    if gang.is_partially_released:
        return f"not queued: the rest of its gang {gang.name} is released first"
    if gang.equivalence_class is not None:
        return (
            f"not queued: gang {gang.name} starts with {gang.required} of up to {gang.max_pods} "
            "pods, and then each further pod waits in the queue by itself"
        )
    return "not queued: " + incomplete_gang_text(gang, registry)


def _deferred_gang_text(gang: Gang, registry: PodRegistry) -> str:
    until = registry.gangs.deferred.get(gang.key, registry.usage.now)
    return (
        f"tried again in {max(0, until - registry.usage.now) // 1000} s: a pod of its gang "
        f"{gang.name} failed or was deleted before the whole gang ran, so the gang starts again, "
        "later each time; check why that pod ended"
    )


def incomplete_gang_text(gang: Gang, registry: PodRegistry) -> str:
    """Return why a gang is incomplete, and whether `gangTimeout` has passed."""
    if gang.eviction_reason:
        past = len(gang.released)
        return (
            f"of its gang {gang.name} {past} {'pod is' if past == 1 else 'pods are'} being "
            "evicted, and then it waits again as a whole"
        )
    if policy := gang.conflicting_policy:
        return (
            f"its gang {gang.name} has the preemption policy {gang.preemption_policy} and its pods "
            f"have {policy}, so kube-scheduler would not schedule it; create "
            f"{gang_object_of(gang.name)} "
            "again with the priorityClassName and preemptionPolicy that its pods have"
        )
    text = f"its gang {gang.name} is not complete, {gang.present} of {gang.required} pods are there"
    if gang.size == SIZE_FROM_GROUP:
        there = f"{gang.present} {'pod is' if gang.present == 1 else 'pods are'} there"
        text = (
            f"its gang {gang.name} is not complete, {there}, and no "
            f"{gang_object_of(gang.name)} states its size"
        )
    elif gang.group_tree is not None and gang.present >= gang.required:
        text = f"its gang {gang.name} is not complete, too few of its pod groups have enough pods"
    elif gang.present >= gang.required:
        text = f"its gang {gang.name} has all its {gang.present} pods, but some are not ready"
    timeout, now = registry.usage.policy.gang_timeout, registry.usage.now
    if timeout and gang.incomplete_since is not None and now - gang.incomplete_since >= timeout:
        text += f", for more than {timeout // 1000} s now"
    return text


def _gang_clause(tracked: PodRecord) -> str:
    """Return a clause about the gang of a queued pod: its rest, its minimum, or a further pod."""
    gang, named = tracked.gang, tracked.pod.gang
    if gang is None and named and not _is_of_basic_group(tracked.pod):
        return f"; gang {named} has all its pods without it, so it waits alone"
    if gang is None:
        return ""
    if gang.is_partially_released:
        run = sum(member.counts_as_used for member in gang.members)
        return f"; {run} of gang {gang.name} run already, so it goes before all others once it fits"
    if gang.is_elastic and not gang.releases_singly:
        return f"; gang {gang.name} starts with {gang.required} of up to {gang.max_pods} pods"
    return elastic_gang_clause(gang)


def elastic_gang_clause(gang: Gang | None) -> str:
    """Return a clause with the number of released pods of an elastic gang; "" for any other."""
    if gang is None or not gang.is_elastic:
        return ""
    return f"; its gang {gang.name} runs with {gang.released_count} of up to {gang.max_pods} pods"


def _is_of_basic_group(pod: Pod) -> bool:
    """Return whether a pod outside all gangs names a PodGroup. Such a group takes every pod."""
    return pod.gang_size == SIZE_FROM_GROUP and pod.gang.startswith((NATIVE, COSCHEDULING))


def _unknown_submitter_clause(tracked: PodRecord) -> str:
    """Return a clause for a pod that counts for its controller. Its namespace has other users."""
    pod = tracked.pod
    if not (pod.owner and counts_for_controller(pod.user, pod.namespace)):
        return ""
    return "; its submitter is not known, so it counts for its controller"
