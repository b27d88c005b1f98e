"""Why a pod waits: the rule that holds it back and the numbers compared, read from the engine.

Reads only. Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from app.core.asks.groups import ASKED
from app.core.asks.shape import Shape
from app.core.model import PoolName, Uid, Wait
from app.core.places.placement import Placement
from app.core.pods.tracked import Gang, Tracked
from app.core.resources import is_device, render
from app.core.telling.exclusion import excluded, too_small
from app.core.telling.reasons import RULES, Rule, Verdict, Why
from app.core.telling.remedies import (
    remedies_aside,
    remedies_of_capacity,
    remedies_of_limit,
    remedies_of_order,
    remedies_of_own,
    remedies_of_reservation,
)
from app.core.telling.rivals import ANOTHER, Rivals, ahead, is_behind_own, rivals
from app.core.telling.scene import Place, Scene, place_of, workload_of
from app.core.telling.sentences import AWAITS, closed, explain, limits, queued

OLD_MS = 30_000
"""A leader that can tell does so more often."""

MOST_POOLS = 4
"""Pools that a sentence names; the numbers name all."""


def why(tracked: Tracked, scene: Scene) -> Why:
    """Return why a held pod waits, as things stand after a pass."""
    workload = workload_of(tracked)
    place = place_of(workload)
    if tracked.wait is not Wait.TURN or place is None:
        return _aside(tracked, scene)
    half = isinstance(workload, Gang) and workload.half
    verdict = _verdict(place, scene, half=half)
    backfill = scene.roster.usage.policy.backfill
    next_of_all = verdict.rule in (Rule.CAPACITY, Rule.ORDER) and not verdict.ahead
    if next_of_all and not half and is_behind_own(place, scene.tree, backfill=backfill):
        verdict = _behind_own(verdict, place)
    return Why(
        verdict.rule,
        queued(tracked, place, scene.tree) + verdict.text,
        place.leaf.queue.position(place.turn),
        len(place.leaf.queue),
        verdict.numbers,
        verdict.ahead,
        verdict.remedies,
    )


def _aside(tracked: Tracked, scene: Scene) -> Why:
    rule, text = RULES.get(tracked.wait or Wait.TURN, Rule.ORDER), explain(tracked, scene.roster)
    pools = excluded(tracked, scene) if rule is Rule.NO_POOL else {}
    numbers = {f"pool {pool}": reason for pool, reason in pools.items()}
    if rule is Rule.GANG and tracked.gang is not None:
        numbers = _counts(tracked.gang)
    return Why(
        rule,
        text + _each(pools),
        numbers=numbers,
        remedies=remedies_aside(tracked, scene),
    )


def _counts(gang: Gang) -> dict[str, str]:
    """Return how many pods of a gang are there, of how many."""
    need = "unknown" if gang.size == ASKED else str(gang.need)
    return {"gang": gang.name, "pods there": str(gang.there), "pods needed": need}


def _each(pools: dict[PoolName, str]) -> str:
    """Return the end of a sentence that says why each pool is none."""
    named = [f"; pool {pool}: {reason}" for pool, reason in pools.items()]
    more = len(named) - MOST_POOLS
    return "".join(named[:MOST_POOLS]) + (f"; and {more} more" if more > 0 else "")


def _verdict(place: Place, scene: Scene, *, half: bool) -> Verdict:
    """Return what holds back a workload, were it the first of its user's; known ones again."""
    own = place.turn.uid if half or place.turn.uid in scene.owners else Uid("")
    key = (place.leaf, place.shape, own)
    if key not in scene.verdicts:
        scene.verdicts[key] = _judge(place, scene, half=half)
    return scene.verdicts[key]


def _judge(place: Place, scene: Scene, *, half: bool) -> Verdict:
    leaf, shape, tree = place.leaf, place.shape, scene.tree
    small = {pool: too_small(shape, pool, scene) for pool in shape.pools}
    if all(small.values()):
        return _never(small, place, scene)
    allowed = [p for p in shape.pools if not small[p] and tree.allows(leaf, shape, p)]
    if not allowed:
        rule, numbers = limits(place, tree)
        helps = remedies_of_limit(rule, numbers, place, scene)
        return Verdict(rule, closed(place, tree), numbers, remedies=helps)
    fitting = [pool for pool in allowed if scene.placement.plan_for(leaf.account, shape, pool)]
    for pool in fitting:
        kept = scene.kept(pool, place.turn)
        if (
            kept is not None
            and scene.placement.plan_for(leaf.account, shape, pool, kept[1]) is None
        ):
            tenant = str(kept[0])
            text = f"; room of pool {pool} is kept free for work of tenant {tenant}{_old(scene)}"
            numbers = {"pool": str(pool), "held for tenant": tenant}
            helps = remedies_of_reservation(tenant, pool)
            return Verdict(Rule.RESERVATION, text, numbers, remedies=helps)
    numbers = {} if fitting else _lacking(shape, allowed, scene.placement)
    backfill = scene.roster.usage.policy.backfill
    found = None if half else rivals(place, tree, backfill=backfill)
    if found is not None:
        return _after(found, numbers, scene)
    if fitting:
        return Verdict(Rule.ORDER, "; it is next", numbers)
    helps = remedies_of_capacity(shape, allowed, scene.placement)
    return Verdict(Rule.CAPACITY, _grown(allowed, place, scene), numbers, remedies=helps)


def _grown(pools: list[PoolName], place: Place, scene: Scene) -> str:
    """Return why no more is released for nodes that pools may yet get; "" if none gets any."""
    growth, now = scene.pools.growth, scene.tree.now
    found = []
    for pool in pools:
        most = scene.placement.beyond.most(pool)
        if not most:
            continue
        until, whose = growth.closed.get(pool), "work"
        if until is None:
            until, whose = growth.barred(pool, place.leaf.account), "work of the same user"
        if until is not None:
            seconds = max(0, until - now) // 1000
            found.append(
                f"; pool {pool} got no new nodes for {whose} that waited for them, so the next "
                f"try is in {seconds} s"
            )
        elif growth.is_wary(pool) and scene.placement.awaiting(pool):
            found.append(f"; other work {AWAITS} to pool {pool}, and this waits for its outcome")
        else:
            amounts = ", ".join(f"{render(r, v)} {r}" for r, v in sorted(most.items()))
            found.append(f"; pool {pool} may grow to {amounts}, and that is given out")
    return "".join(found[:MOST_POOLS])


def _old(scene: Scene) -> str:
    """Return since when a leader has told nothing newer, if that is long ago."""
    silent = 0 if scene.heard_at is None else scene.tree.now - scene.heard_at
    return f", as the leader told {silent // 1000} s ago" if silent > OLD_MS else ""


def _never(small: dict[PoolName, str], place: Place, scene: Scene) -> Verdict:
    """Return the verdict on what no pool can carry as its nodes are now."""
    numbers = {f"pool {pool}": reason for pool, reason in small.items()}
    if any(scene.placement.blocking(place.shape, pool) for pool in small):
        spaced = ("another pod of its kind ending", "a rule that lets more of its kind start")
        return Verdict(Rule.NO_POOL, _each(small), numbers, remedies=spaced)
    helps = ("less asked for by each pod", f"larger nodes in pool {' or '.join(place.shape.pools)}")
    return Verdict(Rule.NO_POOL, _each(small), numbers, remedies=helps)


def _after(found: Rivals, lacking: dict[str, str], scene: Scene) -> Verdict:
    """Return the verdict on whoever comes after others, at the highest level."""
    those = ahead(found, scene.tree)
    first = those[0]
    who = first.tenant if first.tenant == ANOTHER else f"tenant {first.tenant}"
    rule = Rule.GUARANTEE if found.guaranteed else Rule.ORDER
    how = ", within its guarantee" if found.guaranteed else ""
    numbers = {
        "first": first.tenant,
        "its score": first.score,
        "own score": first.own_score,
        **lacking,
    }
    helps = remedies_of_order(found, who)
    return Verdict(rule, f"; {who} comes first{how}", numbers, those, helps)


def _behind_own(verdict: Verdict, place: Place) -> Verdict:
    """Return the verdict on what comes after other work of the same user."""
    before = place.leaf.queue.position(place.turn) - 1
    text = f"; {before} of this user's own {'goes' if before == 1 else 'go'} first"
    numbers = {"own before it": str(before), **verdict.numbers}
    return Verdict(Rule.ORDER, text, numbers, remedies=remedies_of_own(place, verdict.remedies))


def _lacking(shape: Shape, pools: list[PoolName], placement: Placement) -> dict[str, str]:
    numbers = {}
    for pool in pools:
        free = placement.free(pool)
        for r, asked in shape.total.items():
            if is_device(r) or asked > free.get(r, 0):
                numbers[f"{r} asked"] = render(r, asked)
                numbers[f"{r} free in {pool}"] = render(r, max(0, free.get(r, 0)))
        numbers |= (short := _lacking_on(shape, pool, placement))
        if not short and all(asked <= free.get(r, 0) for r, asked in shape.total.items()):
            level = shape.manner.confined
            what = f"no {level}" if level else "no set of nodes"
            numbers[f"nodes of {pool}"] = f"{what} has it free together"
    return numbers


def _lacking_on(shape: Shape, pool: PoolName, placement: Placement) -> dict[str, str]:
    """Return what the one node lacks that a pod is pinned to."""
    pins = placement.pins(shape, pool)
    if len(pins) != 1 or pins[0] is None or len(pins[0]) != 1:
        return {}
    [node] = pins[0]
    free = placement.free_on(pool, node)
    short = [r for r, asked in shape.total.items() if asked > free.get(r, 0)]
    return {f"{r} free on {node}": render(r, max(0, free.get(r, 0))) for r in short}
