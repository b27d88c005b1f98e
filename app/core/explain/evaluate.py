"""Why a workload waits: evaluates the rules in order and returns the first that blocks it.

The result has the rule, the sentence, the numbers that the rule compared, and remedies. This module
writes the verdict on a queued workload (the last clause) and the reason why a pool cannot serve it.
`messages` writes the rest of the sentence, `pacing` the clauses about pods that the scheduler has
not bound, and `remedies` the changes that would help. It has more than 500 lines because the rules
are evaluated in one order.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.explain import leader_state
from app.core.explain.competitors import (
    ANOTHER_USER,
    Competitors,
    competitors_of,
    describe_competitors,
    is_behind_own_work,
    weight_0_of,
)
from app.core.explain.explain_context import (
    ExplainContext,
    Position,
    WaitingWorkload,
    queue_position_of,
    workload_of,
)
from app.core.explain.messages import (
    AWAITS_NODES,
    deciding_limit,
    limit_clause,
    position_of,
    queued_text,
    wait_text,
)
from app.core.explain.pacing import held_by_unowned_clause, pacing_reason
from app.core.explain.reasons import RULES, Rule, SharedReason, WaitExplanation
from app.core.explain.remedies import (
    remedies_of_capacity,
    remedies_of_limit,
    remedies_of_order,
    remedies_of_own_work,
    remedies_of_reservation,
    remedies_of_unqueued,
    remedies_of_weight_0,
)
from app.core.explain.short_resource import shortages
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.model import NodeSet, Pod, Pool, PoolName, Tenant, Uid, Wait
from app.core.placement.allocations import Allocations
from app.core.placement.mismatch import describe_nodes, explain_mismatch, selector_conflict
from app.core.placement.node_filter import node_constraints_of
from app.core.podspec.constraints import DistanceRuleKind
from app.core.podspec.equivalence_class import EquivalenceClass, Pins
from app.core.podspec.pod_groups import SIZE_FROM_GROUP
from app.core.quantities import format_amount, is_device

MOST_NODES = 3
"""Maximum number of nodes that a sentence names."""


def excluded_pools(tracked: PodRecord, context: ExplainContext) -> dict[PoolName, str]:
    """Return why each pool cannot serve a held pod. Pools that can serve it are omitted."""
    pod = tracked.pod
    tenant = context.tenancy.tenants.get(context.tenancy.tenant_of(pod.namespace))
    serving = context.pools.eligible_pools(pod, tenant)
    found = {
        name: _exclusion_reason(pod, tenant, pool, context)
        for name, pool in sorted(context.pools.pools.items())
        if name not in serving
    }
    if tracked.gang is not None:
        found |= dict.fromkeys(serving, _gang_exclusion_reason(tracked.gang))
    return found


def _gang_exclusion_reason(gang: Gang) -> str:
    """Return why a gang may not use a pool that one of its pods may use."""
    members = gang.members
    if any(m.counts_as_used for m in members) and any(
        m.pod.topology and m.pod.topology.required for m in members
    ):
        return f"its gang {gang.name} must stay together, and its other pods are in another pool"
    return f"not all pods of its gang {gang.name} may go there"


def too_small_reason(shape: EquivalenceClass, pool: PoolName, context: ExplainContext) -> str:
    """Return why a pool could not hold a workload even if it were empty; "" if it could."""
    if context.reservations.could_hold(
        shape, pool
    ) or context.placement.autoscaling_capacity.could_hold(shape, pool):
        return ""
    pins = context.placement.allowed_nodes_by_part(shape, pool)
    nodes = context.placement.ready_nodes(pool, _union_of_pins(pins))
    if not nodes and (refusing := refusing_nodes_text(pool, context)):
        return refusing
    if not nodes:
        return f"none of {'the nodes it may go to' if pins else 'its nodes'} is ready"
    if level := _missing_level_reason(shape, pool, context):
        return level
    grows = bool(context.placement.autoscaling_capacity.declared_max_capacity(pool))
    offers = [context.pools.allocatable(node) for node in nodes]
    rule = context.placement.find_blocking_rule(shape, pool)
    if rule is not None and rule.kind is DistanceRuleKind.AVOIDED:
        return f"{rule} keeps it off every node that it may go to"
    if rule is not None and rule.kind is DistanceRuleKind.REFUSED:
        return f"{rule.kind.value} are left out for a while, and it may go to no other node"
    if rule is not None and rule.kind is DistanceRuleKind.DEVICES:
        return "no node that it may go to has enough free devices that its requests match"
    if rule is not None:
        return f"its {rule} leaves it no node, because of others of its kind that were released"
    whose = "the nodes it may go to" if pins else "its ready nodes"
    for r, asked in sorted(shape.total.items()):
        there = sum(offer.get(r, 0) for offer in offers)
        if asked > there and not grows:
            return f"{format_amount(r, asked)} {r} asked, {format_amount(r, there)} in all {whose}"
    for demand, _ in shape.request_counts:
        for r, asked in sorted(demand.items()):
            most = max(offer.get(r, 0) for offer in offers)
            if asked > most:
                return (
                    f"{format_amount(r, asked)} {r} asked on one node, its largest has "
                    f"{format_amount(r, most)}"
                )
    if any(
        context.pools.available(node) != whole for node, whole in zip(nodes, offers, strict=True)
    ):
        return ""  # unmanaged pods use the capacity, and may end
    if shape.layout.required_topology_label:
        return f"no {shape.layout.required_topology_label} of it could hold all of that together"
    if pins:
        return f"{_pinned_nodes_text(pins)} cannot hold the workload, even if they were empty"
    return "its nodes could not hold the workload, even if they were empty"


def refusing_nodes_text(pool: PoolName, context: ExplainContext) -> str:
    """Return the nodes of a pool that are excluded for refused pods, and for how long."""
    avoided = context.pools.avoided_nodes
    names = sorted(name for name in avoided if context.pools.pool_of_node(name) == pool)
    if not names:
        return ""
    seconds = max(0, max(avoided[name] for name in names) - context.tree.now) // 1000
    more = f" and {len(names) - MOST_NODES} more" if len(names) > MOST_NODES else ""
    named = ", ".join(names[:MOST_NODES]) + more
    return f"nodes that refused pods are left out for {seconds} s more: {named}"


def _union_of_pins(pins: Pins) -> NodeSet:
    """Return the nodes that any of the parts may use. None means all nodes."""
    named = [pin for pin in pins if pin is not None]
    if not named or len(named) < len(pins):
        return None
    return tuple(sorted({name for pin in named for name in pin}))


def _missing_level_reason(shape: EquivalenceClass, pool: PoolName, context: ExplainContext) -> str:
    """Return why a pool has no domain of the required level; "" if it has one."""
    label = shape.layout.required_topology_label
    if not label:
        return ""
    if label not in context.pools.pools[pool].topology:
        return f"its gang must stay in one {label}, which spec.topology of the pool does not list"
    if not any(context.placement.domain_nodes(shape, pool) or ()):
        if shape.layout.gang_nodes:
            return f"its gang must stay in one {label}, and its other pods are outside this pool"
        return f"its gang must stay in one {label}, a label that the pool's nodes do not have"
    return ""


def _exclusion_reason(pod: Pod, tenant: Tenant | None, pool: Pool, context: ExplainContext) -> str:
    name = pool.name
    if pod.claim_pool is not None and pod.claim_pool != name:
        return f"a resource claim that it shares is in use in pool {pod.claim_pool}"
    if pod.claim_pool is None and pod.pools and name not in pod.pools:
        return f"its annotation fairgate.io/pools names {', '.join(pod.pools)} only"
    if tenant is not None and tenant.pools and name not in tenant.pools:
        return f"its tenant {tenant.name} may use {', '.join(tenant.pools)} only"
    if name in context.pools.overlapping:
        return "it selects nodes of an earlier pool, so it is not used"
    if pool.paused:
        return "it is paused"
    why = selector_conflict(pod.selector, pool) or context.pools.hardware.memory_shortage(pod, name)
    if why:
        return why
    nodes = context.pools.members(name)
    return (
        explain_mismatch(node_constraints_of(pod), pod.node_names, pool, nodes)
        if nodes
        else "it has no nodes"
    )


def _pinned_nodes_text(pins: Pins) -> str:
    named = sorted({name for pin in pins for name in pin or ()})
    return describe_nodes(tuple(named)) if len(named) == 1 else "the nodes it may go to"


MOST_NAMED = 3
"""Maximum number of pods that a sentence names."""

AVOIDED_REMEDIES = (
    "the end of the existing pods whose required anti-affinity selects it",
    "labels that this anti-affinity does not select",
    "their deletion by a cluster admin, if they are of another namespace",
)
"""Remedies if existing pods keep a pod off nodes by their anti-affinity."""

REFUSED_REMEDIES = (
    "a pod that a node takes again after the pause",
    "a check of the kubelet and the device plugin of those nodes by a cluster admin",
)
"""Remedies if nodes are excluded because they refused pods."""

DEVICES_REMEDIES = (
    "the end of pods that have the devices that its claims match",
    "a claim with selectors that more devices match",
)
"""Remedies if too few devices match the requests of a pod."""

MOST_POOLS = 4
"""Maximum number of pools that a sentence names. The numbers name all pools."""


def explain_wait(
    tracked: PodRecord, context: ExplainContext, position: Position | None = None
) -> WaitExplanation:
    """Return why a held pod waits, in the state after a scheduling cycle.

    `position` replaces the position in this engine, for an answer from another list.
    """
    workload = workload_of(tracked)
    place = queue_position_of(workload)
    if tracked.wait_reason is not Wait.TURN or place is None:
        return _explain_unqueued(tracked, context)
    half = isinstance(workload, Gang) and workload.is_partially_released
    verdict = _cached_verdict(place, context, half=half)
    backfill = context.registry.usage.policy.backfill
    next_of_all = verdict.rule in (Rule.CAPACITY, Rule.ORDER) and not verdict.ahead
    if next_of_all and not half and is_behind_own_work(place, context.tree, backfill=backfill):
        verdict = _own_work_verdict(verdict, place)
    at = position or position_of(place)
    return WaitExplanation(
        verdict.rule,
        queued_text(tracked, place, context.tree, at)
        + verdict.text
        + _anti_affinity_clause(tracked, place, context)
        + context.registry.describe_devices(tracked.pod),
        *at,
        verdict.numbers,
        verdict.ahead,
        verdict.remedies,
    )


def _anti_affinity_clause(
    tracked: PodRecord, workload: WaitingWorkload, context: ExplainContext
) -> str:
    """Return a clause about the pods that close nodes to a pod by their anti-affinity.

    Pods of its own namespace are named, others are only counted.
    """
    if not context.placement.may_be_excluded(workload.equivalence_class):
        return ""
    holders = context.placement.existing_anti_affinity.causing_pods(tracked.pod.excluded_by)
    own = [name for namespace, name in holders if namespace == tracked.pod.namespace]
    others, more = len(holders) - len(own), len(own) - MOST_NAMED
    words = [", ".join(own[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")] if own else []
    if others:
        words.append(f"{others} {'pod' if others == 1 else 'pods'} of other namespaces")
    return f"; anti-affinity of existing pods closes nodes to it: {' and '.join(words)}"


def _explain_unqueued(tracked: PodRecord, context: ExplainContext) -> WaitExplanation:
    rule, text = (
        RULES.get(tracked.wait_reason or Wait.TURN, Rule.ORDER),
        wait_text(tracked, context.registry),
    )
    pools = excluded_pools(tracked, context) if rule is Rule.NO_POOL else {}
    numbers = {f"pool {pool}": reason for pool, reason in pools.items()}
    if rule is Rule.GANG and tracked.gang is not None:
        numbers = _gang_counts(tracked.gang)
    return WaitExplanation(
        rule,
        text + _pools_clause(pools),
        numbers=numbers,
        remedies=remedies_of_unqueued(tracked, context),
    )


def _gang_counts(gang: Gang) -> dict[str, str]:
    """Return the present and the required number of pods of a gang."""
    need = "unknown" if gang.size == SIZE_FROM_GROUP else str(gang.required)
    numbers = {"gang": gang.name, "pods there": str(gang.present), "pods needed": need}
    return numbers | ({"pods at most": str(gang.max_pods)} if gang.is_elastic else {})


def _pools_clause(pools: dict[PoolName, str]) -> str:
    """Return a clause with the reason for each excluded pool."""
    named = [f"; pool {pool}: {reason}" for pool, reason in pools.items()]
    more = len(named) - MOST_POOLS
    return "".join(named[:MOST_POOLS]) + (f"; and {more} more" if more > 0 else "")


def _cached_verdict(
    workload: WaitingWorkload, context: ExplainContext, *, half: bool
) -> SharedReason:
    """Return the cached verdict on a workload, as if it were the first of its user."""
    own = (
        workload.queue_key.uid
        if half or workload.queue_key.uid in context.reservation_owners
        else Uid("")
    )
    key = (workload.leaf, workload.equivalence_class, own)
    if key not in context.verdicts:
        context.verdicts[key] = _compute_verdict(workload, context, half=half)
    return context.verdicts[key]


def _compute_verdict(
    workload: WaitingWorkload, context: ExplainContext, *, half: bool
) -> SharedReason:
    leaf, shape, tree = workload.leaf, workload.equivalence_class, context.tree
    small = {pool: too_small_reason(shape, pool, context) for pool in shape.pools}
    if all(small.values()):
        return _never_fits_verdict(small, workload, context)
    allowed = [p for p in shape.pools if not small[p] and tree.is_within_limits(leaf, shape, p)]
    if not allowed:
        rule, numbers, above = deciding_limit(workload, tree)
        helps = remedies_of_limit(rule, (numbers, *above), workload, context)
        return SharedReason(rule, limit_clause(workload, tree), numbers, remedies=helps)
    paced = pacing_reason(allowed, workload, context.registry)
    if paced is not None:
        return paced
    fitting = [
        pool for pool in allowed if context.placement.find_assignment_for(leaf.account, shape, pool)
    ]
    for pool in fitting:
        kept = context.reserved_for_others(pool, workload.queue_key)
        if (
            kept is not None
            and context.placement.find_assignment_for(leaf.account, shape, pool, kept[1]) is None
        ):
            tenant = str(kept[0])
            text = (
                f"; room of pool {pool} is kept free for work of tenant "
                f"{tenant}{_state_age_clause(context)}"
            )
            numbers = {"pool": str(pool), "held for tenant": tenant}
            helps = remedies_of_reservation(tenant, pool)
            return SharedReason(Rule.RESERVATION, text, numbers, remedies=helps)
    numbers = {} if fitting else _shortage_numbers(shape, allowed, context.placement)
    found = None if half else competitors_of(workload, context)
    if found is not None:
        helps = () if fitting else remedies_of_capacity(shape, allowed, context.placement)
        return _competitor_verdict(found, workload, numbers, context, helps)
    if fitting:
        return SharedReason(Rule.ORDER, "; it is next", numbers)
    helps = remedies_of_capacity(shape, allowed, context.placement)
    if context.placement.may_be_excluded(shape):
        helps = (*AVOIDED_REMEDIES[:1], *helps)
    text = _growth_clause(allowed, workload, context) + _shortage_clause(
        shape, allowed, context.placement
    )
    refusing = [f"; {told}" for p in allowed if (told := refusing_nodes_text(p, context))]
    if refusing:
        text, helps = text + "".join(refusing[:MOST_POOLS]), (*REFUSED_REMEDIES[1:], *helps)
    text += _rule_clause(shape, allowed, context.placement)
    text += held_by_unowned_clause(allowed, context.registry)
    return SharedReason(Rule.CAPACITY, text, numbers, remedies=helps)


def _shortage_clause(shape: EquivalenceClass, pools: list[PoolName], placement: Allocations) -> str:
    """Return a clause about resources that are short beside devices; "" if devices are short."""
    found = [str(each) for pool in pools for each in shortages(shape, pool, placement)]
    return "".join(f"; {each}" for each in found[:MOST_POOLS])


def _rule_clause(shape: EquivalenceClass, pools: list[PoolName], placement: Allocations) -> str:
    """Return a clause about a distance rule without which the workload would fit; "" if none."""
    for pool in pools:
        rule = placement.find_limiting_rule(shape, pool)
        match rule and rule.kind:
            case None | DistanceRuleKind.REFUSED:  # `refusing_nodes_text` names refusing nodes
                continue
            case DistanceRuleKind.EVEN:
                return (
                    f"; its {rule} allows only nodes that are full, or waits for the scheduler to "
                    "bind other pods of the same spread"
                )
            case DistanceRuleKind.AVOIDED:
                return f"; {rule} keeps it off the nodes with enough free capacity"
            case DistanceRuleKind.DEVICES:
                return "; the nodes with enough free capacity lack devices that its requests match"
            case _:
                return f"; its {rule} allows only nodes without enough free capacity"
    return ""


def _growth_clause(
    pools: list[PoolName], workload: WaitingWorkload, context: ExplainContext
) -> str:
    """Return a clause why no pod is released for future nodes; "" if no pool grows."""
    growth, now = context.pools.autoscaling_backoff, context.tree.now
    found = []
    for pool in pools:
        most = context.placement.autoscaling_capacity.declared_max_capacity(pool)
        if not most:
            continue
        until, whose = growth.closed_pools.get(pool), "work"
        if until is None:
            until, whose = growth.barred_until(pool, workload.leaf.account), "work of the same user"
        if until is not None:
            seconds = max(0, until - now) // 1000
            found.append(
                f"; pool {pool} got no new nodes for {whose} that waited for them, so the next "
                f"try is in {seconds} s"
            )
        elif growth.is_limited_to_one(pool) and context.placement.count_waiting_for_nodes(pool):
            found.append(
                f"; other work {AWAITS_NODES} to pool {pool}, and this waits for its outcome"
            )
        else:
            amounts = ", ".join(f"{format_amount(r, v)} {r}" for r, v in sorted(most.items()))
            found.append(f"; pool {pool} may grow to {amounts}, and that is given out")
    return "".join(found[:MOST_POOLS])


def _state_age_clause(context: ExplainContext) -> str:
    """Return the age of the leader state as a clause, if it is old."""
    silent = 0 if context.leader_state_at is None else context.tree.now - context.leader_state_at
    return f", as of {silent // 1000} s ago" if silent > leader_state.OLD_MS else ""


def _never_fits_verdict(
    small: dict[PoolName, str], workload: WaitingWorkload, context: ExplainContext
) -> SharedReason:
    """Return the verdict on a workload that no pool can hold with its present nodes."""
    numbers = {f"pool {pool}": reason for pool, reason in small.items()}
    rules = [
        context.placement.find_blocking_rule(workload.equivalence_class, pool) for pool in small
    ]
    if any(rule is not None and rule.kind is DistanceRuleKind.AVOIDED for rule in rules):
        return SharedReason(Rule.NO_POOL, _pools_clause(small), numbers, remedies=AVOIDED_REMEDIES)
    if any(rule is not None and rule.kind is DistanceRuleKind.REFUSED for rule in rules):
        return SharedReason(Rule.CAPACITY, _pools_clause(small), numbers, remedies=REFUSED_REMEDIES)
    if any(rule is not None and rule.kind is DistanceRuleKind.DEVICES for rule in rules):
        return SharedReason(Rule.CAPACITY, _pools_clause(small), numbers, remedies=DEVICES_REMEDIES)
    if any(rules):
        spaced = ("another pod of its kind ending", "a rule that lets more of its kind start")
        return SharedReason(Rule.NO_POOL, _pools_clause(small), numbers, remedies=spaced)
    helps = _remedies_of_size(workload.equivalence_class, context)
    return SharedReason(Rule.NO_POOL, _pools_clause(small), numbers, remedies=helps)


def _remedies_of_size(shape: EquivalenceClass, context: ExplainContext) -> tuple[str, ...]:
    """Return changes that would let a pool hold a workload that is larger than each pool."""
    wide = [pool for pool in shape.pools if _fits_each_pod(shape, pool, context)]
    if not wide:
        return "less asked for by each pod", f"larger nodes in pool {' or '.join(shape.pools)}"
    level = shape.layout.required_topology_label
    where = f"one {level} of pool" if level else "pool"
    return "fewer pods in the gang", f"more nodes in {where} {' or '.join(wide)}"


def _fits_each_pod(shape: EquivalenceClass, pool: PoolName, context: ExplainContext) -> bool:
    """Return whether each pod of a gang would fit on an empty node of a pool, alone."""
    nodes = context.placement.ready_nodes(
        pool, _union_of_pins(context.placement.allowed_nodes_by_part(shape, pool))
    )
    offers = [context.pools.allocatable(node) for node in nodes]
    return sum(count for _, count in shape.request_counts) > 1 and all(
        any(all(offer.get(r, 0) >= asked for r, asked in demand.items()) for offer in offers)
        for demand, _ in shape.request_counts
    )


def _competitor_verdict(
    competitors: Competitors,
    workload: WaitingWorkload,
    lacking: dict[str, str],
    context: ExplainContext,
    capacity_remedies: Sequence[str],
) -> SharedReason:
    """Return the verdict on a workload with competitors.

    `capacity_remedies`: changes that would free capacity; empty if the workload fits.
    """
    those = describe_competitors(competitors, context)
    first = those[0]
    who = first.tenant if first.tenant == ANOTHER_USER else f"tenant {first.tenant}"
    rule = Rule.GUARANTEE if competitors.is_within_guarantee else Rule.ORDER
    clause = ", within its guarantee" if competitors.is_within_guarantee else ""
    numbers = {
        "first": first.tenant,
        "its score": first.score,
        "own score": first.own_score,
        **lacking,
    }
    behind = weight_0_of(workload, context)
    for each in behind:
        clause += f"; {each.whose} has weight 0, so it gets only what others leave"
    order = (*remedies_of_order(competitors, who), *remedies_of_weight_0(behind))
    helps = (*dict.fromkeys(order), *capacity_remedies)
    return SharedReason(rule, f"; {who} comes first{clause}", numbers, those, helps)


def _own_work_verdict(verdict: SharedReason, workload: WaitingWorkload) -> SharedReason:
    """Return the verdict on a workload that comes after others of the same user."""
    before = workload.leaf.queue.position(workload.queue_key) - 1
    text = f"; {before} of this user's own {'goes' if before == 1 else 'go'} first"
    numbers = {"own before it": str(before), **verdict.numbers}
    return SharedReason(
        Rule.ORDER, text, numbers, remedies=remedies_of_own_work(workload, verdict.remedies)
    )


def _shortage_numbers(
    shape: EquivalenceClass, pools: list[PoolName], placement: Allocations
) -> dict[str, str]:
    numbers = {}
    for pool in pools:
        free = placement.free(pool)
        for r, asked in shape.total.items():
            if is_device(r) or asked > free.get(r, 0):
                numbers[f"{r} asked"] = format_amount(r, asked)
                numbers[f"{r} free in {pool}"] = format_amount(r, max(0, free.get(r, 0)))
        numbers |= (short := _node_shortage_numbers(shape, pool, placement))
        if beside := shortages(shape, pool, placement):
            for each in beside:
                r = each.resource
                numbers[f"{r} asked by one pod"] = format_amount(r, each.requested)
                numbers[f"most {r} on a node of {pool} with free devices"] = format_amount(
                    r, each.largest_free
                )
            continue
        if not short and all(asked <= free.get(r, 0) for r, asked in shape.total.items()):
            level = shape.layout.required_topology_label
            what = f"no {level}" if level else "no set of nodes"
            numbers[f"nodes of {pool}"] = f"{what} has it free together"
        if closed := placement.count_excluded_nodes(shape, pool):
            numbers[f"nodes of {pool} closed by anti-affinity"] = str(closed)
    return numbers


def _node_shortage_numbers(
    shape: EquivalenceClass, pool: PoolName, placement: Allocations
) -> dict[str, str]:
    """Return the missing resources of the only node that a pod may use."""
    pins = placement.allowed_nodes_by_part(shape, pool)
    if len(pins) != 1 or pins[0] is None or len(pins[0]) != 1:
        return {}
    [node] = pins[0]
    free = placement.free_on(pool, node)
    short = [r for r, asked in shape.total.items() if asked > free.get(r, 0)]
    return {f"{r} free on {node}": format_amount(r, max(0, free.get(r, 0))) for r in short}
