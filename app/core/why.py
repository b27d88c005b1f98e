"""Why a pod waits: the rule that holds it back and the numbers compared, read from the engine.

Reads only. Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.core.backlog import Shape, Turn
from app.core.branch import Branch, Leaf, path
from app.core.model import GATE, NodeName, PoolName, Resource, Wait
from app.core.order import GUARANTEED
from app.core.placement import Placement
from app.core.reservation import Reservations
from app.core.resources import render
from app.core.roster import Roster
from app.core.shares import Tree
from app.core.tracked import Tracked, Workload


class Rule(Enum):
    """What holds a pod back; the first that applies."""

    OTHER_GATE = "another gate"
    GANG = "gang incomplete"
    CLAIM = "resource claim"
    PAUSED = "tenant paused"
    NO_POOL = "no pool"
    REFUSED = "release refused"
    NO_NODE = "found no node"
    LIMIT = "limit"
    PREEMPTIBLE = "not preemptible"
    CAPACITY = "capacity"
    RESERVATION = "reservation"
    ORDER = "fair order"


_RULES = {
    Wait.OTHER_GATE: Rule.OTHER_GATE,
    Wait.GANG_INCOMPLETE: Rule.GANG,
    Wait.CLAIM: Rule.CLAIM,
    Wait.TENANT_PAUSED: Rule.PAUSED,
    Wait.NO_POOL: Rule.NO_POOL,
    Wait.REFUSED: Rule.REFUSED,
    Wait.NO_NODE: Rule.NO_NODE,
}


@dataclass(frozen=True, slots=True)
class Why:
    """The rule, a sentence, the place in the own queue, and the numbers compared."""

    rule: Rule
    text: str
    position: int = 0
    length: int = 0
    numbers: Mapping[str, str] = field(default_factory=dict)


def why(tracked: Tracked, roster: Roster, placement: Placement, reservations: Reservations) -> Why:
    """Return why a held pod waits, as things stand after a pass."""
    workload: Workload = tracked
    if tracked.gang is not None and tracked.gang.shape is not None:
        workload = tracked.gang
    leaf, turn, shape = workload.leaf, workload.turn, workload.shape
    text = explain(tracked, roster)
    if tracked.wait is not Wait.TURN or leaf is None or turn is None or shape is None:
        return Why(_RULES.get(tracked.wait or Wait.REFUSED, Rule.REFUSED), text)
    rule, numbers = _held_back(leaf, turn, shape, roster.usage.tree, placement, reservations)
    return Why(rule, text, leaf.queue.position(turn), len(leaf.queue), numbers)


def explain(tracked: Tracked, roster: Roster) -> str:
    """Return, for people, what a held pod waits for."""
    workload: Workload = tracked
    match tracked.wait:
        case Wait.OTHER_GATE:
            others = ", ".join(g for g in tracked.pod.gates if g != GATE)
            return f"not queued: scheduling gate {others} must be removed first, by its owner"
        case Wait.NO_POOL if tracked.pod.only is not None:
            where = _nodes(tracked.pod.only)
            return f"not queued: it may go to {where} only, and no pool that can serve it has that"
        case Wait.CLAIM:
            return (
                f"not queued: there is no resource claim for {', '.join(tracked.pod.awaits)} yet; "
                "create the claim, or its template, that spec.resourceClaims names"
            )
        case Wait.NO_POOL:
            return "not queued: no pool can serve its node selector, tenant and pools"
        case Wait.TENANT_PAUSED:
            return "not queued: its tenant is paused"
        case Wait.GANG_INCOMPLETE if tracked.gang is not None and tracked.gang.half:
            return f"not queued: the rest of its gang {tracked.gang.name} is released first"
        case Wait.GANG_INCOMPLETE if tracked.gang is not None:
            there = f"{len(tracked.gang.pods)} of {tracked.gang.size} pods are there"
            return f"not queued: its gang {tracked.gang.name} is not complete, {there}"
        case Wait.REFUSED:
            return (
                f"tried again later: the API server refused its release {tracked.refusals} "
                "times; another admission webhook or policy, or an edit of its annotation "
                "fairgate.io/release, may be the cause"
            )
        case Wait.NO_NODE:
            return (
                "tried again later: a pod of this user that asks for the same was released and no "
                "node took it; see what these pods ask of nodes besides devices (affinity, "
                "tolerations, volumes)"
            )
    if tracked.gang is not None and tracked.gang.shape is not None:
        workload = tracked.gang
    leaf, turn, shape = workload.leaf, workload.turn, workload.shape
    if leaf is None or turn is None or shape is None:
        return "queued"
    size = roster.usage.tree.scale.size
    devices = [r for r in shape.total if "/" in r]  # extended resources
    wanted = ", ".join(f"{render(r, shape.total[r])} {r}" for r in devices) or "room"
    lacking = [r for r in devices if r not in size]
    if lacking:
        wanted += f" (no ready node offers {', '.join(lacking)})"
    where = f"of pool {' or '.join(shape.pools)}"
    if tracked.pod.only is not None:
        where = f"on {_nodes(tracked.pod.only)} {where}"
    position, length = leaf.queue.position(turn), len(leaf.queue)
    return (
        f"queued: {position} of {length} in {leaf.tenant}/{leaf.name}; "
        f"waits for {wanted} {where}"
        f"{_closed(leaf, shape, roster.usage.tree)}{_rest(tracked)}"
    )


def _rest(tracked: Tracked) -> str:
    """Return the end of the sentence for the rest of a gang."""
    gang = tracked.gang
    if gang is None or not gang.half:
        return ""
    run = sum(member.uses for member in gang.members)
    return f"; {run} of gang {gang.name} run already, so it goes before all others once it fits"


def _nodes(only: tuple[NodeName, ...]) -> str:
    if len(only) == 1:
        return f"node {only[0]}"
    return f"one of {len(only)} nodes" if only else "no node"


def _closed(leaf: Leaf, shape: Shape, tree: Tree) -> str:
    """Return the end of the sentence if it may start in no pool, however much is free."""
    if any(tree.allows(leaf, shape, pool) for pool in shape.pools):
        return ""
    rule, numbers = _limits(leaf, shape, tree)
    facts = ", ".join(f"{v} {k}" for k, v in numbers.items() if k not in ("tenant", "pool"))
    who = f"tenant {numbers.get('tenant', leaf.tenant)}"
    if rule is Rule.PREEMPTIBLE:
        return f"; it must not be evicted, so it starts only within the guarantee of {who}: {facts}"
    return f"; {who} is at its limit: {facts}"


def _held_back(
    leaf: Leaf,
    turn: Turn,
    shape: Shape,
    tree: Tree,
    placement: Placement,
    reservations: Reservations,
) -> tuple[Rule, dict[str, str]]:
    allowed = [pool for pool in shape.pools if tree.allows(leaf, shape, pool)]
    if not allowed:
        return _limits(leaf, shape, tree)
    fitting = [pool for pool in allowed if placement.plan(shape, pool)]
    if not fitting:
        return Rule.CAPACITY, _lacking(shape, allowed, placement)
    for pool in fitting:
        owners = [
            r
            for held in (reservations.strict, reservations.standing)
            for r in [held.get(pool)]
            if r is not None and r.owner.uid != turn.uid
        ]
        if owners and placement.plan(shape, pool, reservations.withheld(owners)) is None:
            return Rule.RESERVATION, {"pool": pool, "held for tenant": owners[0].leaf.tenant}
    return Rule.ORDER, _order(leaf, tree)


def _limits(leaf: Leaf, shape: Shape, tree: Tree) -> tuple[Rule, dict[str, str]]:
    for pool in shape.pools:
        for branch in path(leaf):
            if not branch.allows(pool, tree.cost(shape, pool)):
                return Rule.LIMIT, _against(branch, shape, pool, branch.limits[pool], "limit")
    for pool in shape.pools:
        for branch in path(leaf):
            within = tree.rank(branch, shape, pool).band == GUARANTEED
            if branch.parent is not None and not isinstance(branch, Leaf) and not within:
                guarantee = branch.guarantees.get(pool, {})
                return Rule.PREEMPTIBLE, _against(branch, shape, pool, guarantee, "guarantee")
    return Rule.LIMIT, {}


def _against(
    branch: Branch, shape: Shape, pool: PoolName, most: Mapping[Resource, int], word: str
) -> dict[str, str]:
    numbers = {"tenant": str(branch.name), "pool": str(pool)}
    used, gone = branch.uses.get(pool, {}), branch.lingering.get(pool, {})
    for r in [r for r in shape.total if r in most] or [r for r in shape.total if r in used]:
        numbers[f"{r} used"] = render(r, used.get(r, 0) - gone.get(r, 0))
        numbers[f"{r} asked"] = render(r, shape.total[r])
        numbers[f"{r} {word}"] = render(r, most.get(r, 0))
    return numbers


def _lacking(shape: Shape, pools: list[PoolName], placement: Placement) -> dict[str, str]:
    numbers = {}
    for pool in pools:
        free = placement.free(pool)
        for r, asked in shape.total.items():
            if "/" in r or asked > free.get(r, 0):
                numbers[f"{r} asked"] = render(r, asked)
                numbers[f"{r} free in {pool}"] = render(r, max(0, free.get(r, 0)))
        numbers |= (short := _lacking_on(shape, pool, placement))
        if not short and all(asked <= free.get(r, 0) for r, asked in shape.total.items()):
            numbers[f"nodes of {pool}"] = "no set of nodes has it free together"
    return numbers


def _lacking_on(shape: Shape, pool: PoolName, placement: Placement) -> dict[str, str]:
    """Return what the one node lacks that a pod is pinned to."""
    if len(shape.pins) != 1 or shape.pins[0] is None or len(shape.pins[0]) != 1:
        return {}
    [node] = shape.pins[0]
    free = placement.free_on(pool, node)
    short = [r for r, asked in shape.total.items() if asked > free.get(r, 0)]
    return {f"{r} free on {node}": render(r, max(0, free.get(r, 0))) for r in short}


def _order(leaf: Leaf, tree: Tree) -> dict[str, str]:
    """Return the scores at the highest level at which somebody else comes first."""
    for branch in reversed(list(path(leaf))):
        if branch.parent is None:
            continue
        first = next(tree.children(branch.parent), None)
        if first is not None and first is not branch and branch.head is not None:
            own = "another user" if isinstance(first, Leaf) else str(first.name)
            return {
                "first": own,
                "its score": _score(first, tree),
                "own score": _score(branch, tree),
            }
    return {}


def _score(branch: Branch, tree: Tree) -> str:
    if branch.head is None:
        return "0"
    _, shape, pool = branch.head
    return f"{tree.standing(branch, pool, tree.cost(shape, pool), 1):.4f}"
