"""What a held pod waits for, in one sentence for people. Reads only.

Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.groups import ASKED, source_of
from app.core.asks.shape import Shape
from app.core.fair.branch import Branch, Leaf, path
from app.core.fair.order import GUARANTEED
from app.core.fair.shares import Tree
from app.core.model import GATE, PoolName, Resource, Wait
from app.core.places.obstacles import nodes_text
from app.core.pods.roster import Roster
from app.core.pods.tracked import Gang, Tracked
from app.core.resources import is_device, render
from app.core.telling.reasons import Rule
from app.core.telling.scene import Place, place_of, workload_of

AWAITS = "waits for nodes that the autoscaler may add"


def released(pool: PoolName, waited: int, awaits: bool) -> str:
    """Return, for people, where a pod went after so many seconds, and what it waits for there."""
    where = f"to pool {pool}" if pool else "to any node"
    return f"{where} after {waited} s" + (f"; it {AWAITS}" if awaits else "")


def explain(tracked: Tracked, roster: Roster) -> str:
    """Return, for people, what a held pod waits for."""
    if tracked.wait is not Wait.TURN:
        return _aside(tracked, roster)
    place = place_of(workload_of(tracked))
    if place is None:
        return "queued"
    return queued(tracked, place, roster.usage.tree) + closed(place, roster.usage.tree)


def queued(tracked: Tracked, place: Place, tree: Tree) -> str:
    """Return the beginning of the sentence for a pod that waits for its turn."""
    leaf, shape = place.leaf, place.shape
    devices = [r for r in shape.total if is_device(r)]
    wanted = ", ".join(f"{render(r, shape.total[r])} {r}" for r in devices) or "room"
    lacking = [r for r in devices if r not in tree.scale.counted]
    if lacking:
        wanted += f" (no ready node offers {', '.join(lacking)})"
    where = f"of pool {' or '.join(shape.pools)}"
    if tracked.pod.only is not None:
        where = f"on {nodes_text(tracked.pod.only)} {where}"
    position, length = leaf.queue.position(place.turn), len(leaf.queue)
    return (
        f"queued: {position} of {length} in {leaf.tenant}/{leaf.name}; "
        f"waits for {wanted} {where}{_rest(tracked)}"
    )


def closed(place: Place, tree: Tree) -> str:
    """Return the end of the sentence if it may start in no pool, however much is free."""
    if any(tree.allows(place.leaf, place.shape, pool) for pool in place.shape.pools):
        return ""
    rule, numbers = limits(place, tree)
    facts = ", ".join(f"{v} {k}" for k, v in numbers.items() if k not in ("tenant", "pool"))
    who = f"tenant {numbers.get('tenant', place.leaf.tenant)}"
    if rule is Rule.PREEMPTIBLE:
        return f"; it must not be evicted, so it starts only within the guarantee of {who}: {facts}"
    return f"; {who} is at its limit: {facts}"


def limits(place: Place, tree: Tree) -> tuple[Rule, dict[str, str]]:
    """Return which limit, or guarantee, keeps a workload out of all of its pools, and how far."""
    leaf, shape = place.leaf, place.shape
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


def _aside(tracked: Tracked, roster: Roster) -> str:
    """Return the sentence for a pod that is in no queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait:
        case Wait.OTHER_GATE:
            others = ", ".join(gate for gate in pod.gates if gate != GATE)
            return f"not queued: scheduling gate {others} must be removed first, by its owner"
        case Wait.NO_POOL if pod.only is not None:
            where = nodes_text(pod.only)
            return f"not queued: it may go to {where} only, and no pool that can serve it has that"
        case Wait.CLAIM:
            return (
                f"not queued: there is no resource claim for {', '.join(pod.awaits)} yet; "
                "create the claim, or its template, that spec.resourceClaims names"
            )
        case Wait.NO_POOL:
            also = ", or none with the memory it needs" if pod.gpu_memory else ""
            return f"not queued: no pool has a node that it may go to{also}"
        case Wait.TENANT_PAUSED:
            return "not queued: its tenant is paused"
        case Wait.GANG_INCOMPLETE if gang is not None and gang.half:
            return f"not queued: the rest of its gang {gang.name} is released first"
        case Wait.GANG_INCOMPLETE if gang is not None:
            return "not queued: " + incomplete(gang, roster)
        case Wait.GANG_DEFERRED if gang is not None:
            return _deferred(gang, roster)
        case Wait.REFUSED:
            return (
                f"tried again later: the API server refused its release {tracked.refusals} "
                "times; another admission webhook or policy, or an edit of its annotation "
                "fairgate.io/release, may be the cause"
            )
        case Wait.NO_NODE:
            return (
                "tried again later: a pod of this user that asks for the same was released and no "
                "node took it; see what these pods ask of nodes besides devices (volumes, host "
                "ports, affinity to other pods)"
            )
    return "queued"


def _deferred(gang: Gang, roster: Roster) -> str:
    until = roster.gangs.deferred.get(gang.key, roster.usage.now)
    return (
        f"tried again in {max(0, until - roster.usage.now) // 1000} s: a pod of its gang "
        f"{gang.name} failed or was deleted before all of the gang ran, and each time in a row "
        "all begin anew later; see what became of that pod"
    )


def incomplete(gang: Gang, roster: Roster) -> str:
    """Return what a gang lacks, and whether it has for longer than the Policy's time-out."""
    if gang.leaving:
        past = len(gang.past)
        return (
            f"of its gang {gang.name} {past} {'pod is' if past == 1 else 'pods are'} being "
            "evicted, and then it waits again as a whole"
        )
    text = f"its gang {gang.name} is not complete, {gang.there} of {gang.need} pods are there"
    if gang.size == ASKED:
        there = f"{gang.there} {'pod is' if gang.there == 1 else 'pods are'} there"
        text = (
            f"its gang {gang.name} is not complete, {there}, and no "
            f"{source_of(gang.name)} is known that tells how many there must be"
        )
    elif gang.there >= gang.need:
        text = f"its gang {gang.name} has all its {gang.there} pods, but not all of them are ready"
    timeout, now = roster.usage.policy.gang_timeout, roster.usage.now
    if timeout and gang.lacks is not None and now - gang.lacks >= timeout:
        text += f", for more than {timeout // 1000} s now"
    return text


def _rest(tracked: Tracked) -> str:
    """Return the part of the sentence for the rest of a gang, or for one too many."""
    gang, named = tracked.gang, tracked.pod.gang
    if gang is None and named:
        return f"; gang {named} has all its pods without it, so it waits alone"
    if gang is None or not gang.half:
        return ""
    run = sum(member.uses for member in gang.members)
    return f"; {run} of gang {gang.name} run already, so it goes before all others once it fits"
