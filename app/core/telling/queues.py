"""What a tenant's users wait for, in order, found without going through all of it. Reads only.

User by user, by name; of each first what is queued, in its order, then what is in no queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.model import ADOPTED, Resource, TenantName, UserName
from app.core.places.pools import add_to
from app.core.pods.tracked import Tracked
from app.core.resources import PODS
from app.core.telling.scene import Scene, place_of, workload_of
from app.core.telling.views import HeldView, ReleasedView
from app.core.telling.why import why


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a list was left: after this one. It need not wait any more."""

    user: UserName
    queued: bool
    turn: Turn


def queue(
    tenant: TenantName, user: UserName | None, after: Mark | None, scene: Scene
) -> Iterator[tuple[Mark, HeldView]]:
    """Return what waits, from the start or after a mark, each with its own mark."""
    for leaf in users(tenant, user, scene):
        name = UserName(leaf.name)
        if after is not None and name < after.user:
            continue
        mark = after if after is not None and name == after.user else None
        if mark is None or mark.queued:
            turns = leaf.queue.after(mark.turn if mark is not None else None)
            for turn in turns:
                yield Mark(name, True, turn), held(scene.roster.pods[turn.uid], scene)
        aside = _aside(leaf, scene)
        for turn, tracked in aside:
            if mark is None or mark.queued or mark.turn < turn:
                yield Mark(name, False, turn), held(tracked, scene)


def users(tenant: TenantName, user: UserName | None, scene: Scene) -> list[Leaf]:
    """Return the users of a tenant that are known to the tree, by name."""
    branch = scene.tree.tenants.get(tenant)
    children = branch.children.values() if branch is not None else ()
    leaves = [each for each in children if isinstance(each, Leaf)]
    return sorted((each for each in leaves if user in (None, each.name)), key=lambda e: e.name)


def _aside(leaf: Leaf, scene: Scene) -> list[tuple[Turn, Tracked]]:
    """Return what of a user is held and in no queue, in order; of a gang its first pod."""
    found: dict[object, tuple[Turn, Tracked]] = {}
    for tracked in scene.roster.waiting.get(leaf, {}).values():
        if tracked.uses or place_of(workload_of(tracked)) is not None:
            continue
        key = tracked.gang or tracked
        if key not in found or tracked.turn < found[key][0]:
            found[key] = tracked.turn, tracked
    return sorted(found.values(), key=lambda pair: pair[0])


def held(tracked: Tracked, scene: Scene) -> HeldView:
    """Return a held pod as it is shown: as part of its gang once that is complete."""
    reason, pod = why(tracked, scene), tracked.pod
    workload = workload_of(tracked)
    place = place_of(workload)
    members = workload.starting
    if place is None and tracked.gang is not None:
        members = tuple(each for each in tracked.gang.members if not each.uses)
    total: dict[Resource, int] = {}
    for member in members:
        add_to(total, member.pod.demand, 1)
    leaf = tracked.leaf
    assert leaf is not None, "what is held has a place"
    tenant = scene.tenancy.tenants.get(leaf.tenant)
    return HeldView(
        ref=tracked.ref,
        tenant=leaf.tenant,
        gang=pod.gang,
        pods=len(members),
        user=pod.user,
        priority=pod.priority,
        since=place.turn.since if place is not None else pod.since,
        request={r: v for r, v in total.items() if r != PODS},
        pools=place.shape.pools if place is not None else scene.pools.serving(pod, tenant),
        position=reason.position,
        length=reason.length,
        rule=reason.rule,
        reason=reason.text,
    )


def released(tracked: Tracked, awaits: bool = False) -> ReleasedView:
    """Return a pod that is past the gate as it is shown. `awaits`: for nodes still to come."""
    pod, leaf = tracked.pod, tracked.leaf
    assert leaf is not None, "what is settled has a place"
    return ReleasedView(
        ref=tracked.ref,
        tenant=leaf.tenant,
        gang=pod.gang,
        user=pod.user,
        priority=pod.priority,
        since=pod.since,
        request={r: v for r, v in pod.demand.items() if r != PODS},
        released=tracked.released,
        pool=tracked.pool,
        node=pod.node or tracked.node,
        adopted=pod.release == ADOPTED,
        awaits=awaits,
    )
