"""Lists the waiting workloads of a tenant's users in order, without a full pass over them.

Users are sorted by name. Queued workloads of a user come first, in queue order. Unqueued ones
follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.core.explain.evaluate import why
from app.core.explain.explain_context import ExplainContext, place_of, workload_of
from app.core.explain.messages import runs_with
from app.core.explain.views import HeldView, ReleasedView
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.scheduling_timeout import words_of
from app.core.model import Resource, TenantName, UserName, Wait
from app.core.placement.pools import add_to
from app.core.quantities import PODS
from app.core.well_known import ADOPTED


@dataclass(frozen=True, slots=True)
class Mark:
    """Position after which a listing continues. Its workload need not wait any more."""

    user: UserName
    queued: bool
    turn: QueueKey


def queue(
    tenant: TenantName, user: UserName | None, after: Mark | None, scene: ExplainContext
) -> Iterator[tuple[Mark, HeldView]]:
    """Yield the waiting workloads from the start or after a mark, each with its own mark."""
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


def users(tenant: TenantName, user: UserName | None, scene: ExplainContext) -> list[UserNode]:
    """Return the users of a tenant in the share tree, by name."""
    branch = scene.tree.tenants.get(tenant)
    children = branch.children.values() if branch is not None else ()
    leaves = [each for each in children if isinstance(each, UserNode)]
    return sorted((each for each in leaves if user in (None, each.name)), key=lambda e: e.name)


def _aside(leaf: UserNode, scene: ExplainContext) -> list[tuple[QueueKey, PodRecord]]:
    """Return the unqueued held pods of a user in order, and only the first pod of a gang."""
    found: dict[object, tuple[QueueKey, PodRecord]] = {}
    for tracked in scene.roster.waiting.get(leaf, {}).values():
        if tracked.uses or place_of(workload_of(tracked)) is not None:
            continue
        key = tracked.gang or tracked
        if key not in found or tracked.turn < found[key][0]:
            found[key] = tracked.turn, tracked
    return sorted(found.values(), key=lambda pair: pair[0])


def held(tracked: PodRecord, scene: ExplainContext) -> HeldView:
    """Return the view of a held pod, or of its gang if the gang is complete."""
    reason, pod = why(tracked, scene), tracked.pod
    workload = workload_of(tracked)
    place = place_of(workload)
    members = workload.starting
    if place is None and tracked.gang is not None:
        others = (each for each in tracked.gang.members if not each.uses)
        members = tuple(each for each in others if each.wait is not Wait.TURN)
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


def released(tracked: PodRecord, awaits: bool = False) -> ReleasedView:
    """Return the view of a released pod. `awaits`: it waits for a future node."""
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
        lacks=pod.awaits,
        elastic=runs_with(tracked.gang),
        said="" if pod.node is not None else words_of(pod.said),
        checkpoint=pod.reclaim.checkpoint,
    )
