"""Views of one held or released pod, and the position after which a listing continues.

The store lists the workloads of a tenant: its users by name, of each user first the queued
workloads in queue order, then the unqueued ones by priority and age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.core.effects import PodRef
from app.core.explain.evaluate import explain_wait
from app.core.explain.explain_context import (
    ExplainContext,
    Position,
    SharedRow,
    queue_position_of,
    workload_of,
)
from app.core.explain.messages import elastic_gang_clause, position_text
from app.core.explain.reasons import Rule, WaitExplanation
from app.core.explain.views import HeldView, ReleasedView
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.scheduling_timeout import scheduler_message_clause
from app.core.model import Resource, TenantName, UserName, Wait
from app.core.placement.pools import add_to
from app.core.quantities import PODS
from app.core.well_known import RELEASE_ADOPTED


@dataclass(frozen=True, slots=True)
class PageMark:
    """Position after which a listing continues. Its workload need not wait any more."""

    user: UserName
    is_queued: bool
    queue_key: QueueKey


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A waiting workload in the list of its user. `ref` is its first pod, `pods` their number.

    `position` counts from 1 to `length`, the queued workloads of the user; 0: it is not queued.
    """

    mark: PageMark
    ref: PodRef
    gang: str
    pods: int
    position: int
    length: int


def waiting_rows(
    tenant: TenantName, user: UserName, after: PageMark | None, context: ExplainContext
) -> Iterator[QueueRow]:
    """Yield the waiting workloads of a user in the order of the store, without their reasons.

    `after`: only those behind this mark of the same user. Rows before it are not built.
    """
    leaf = context.tree.find_user(tenant, user)
    if leaf is None:
        return
    queue, last = leaf.queue, after.queue_key if after is not None else None
    if after is None or after.is_queued:
        for queue_key in queue.keys_after(last):
            tracked, mark = context.registry.pods[queue_key.uid], PageMark(user, True, queue_key)
            yield _row(tracked, mark, queue.position(queue_key), len(queue))
        last = None
    for tracked in _unqueued_pods(leaf, context):
        if last is None or tracked.queue_key > last:
            yield _row(tracked, PageMark(user, False, tracked.queue_key), 0, 0)


def _row(tracked: PodRecord, mark: PageMark, position: int, length: int) -> QueueRow:
    pods = len(_waiting_members(tracked, is_queued=mark.is_queued))
    return QueueRow(mark, tracked.ref, tracked.gang_name, pods, position, length)


def _waiting_members(tracked: PodRecord, *, is_queued: bool) -> Sequence[PodRecord]:
    """Return the waiting pods of the workload of a held pod."""
    if is_queued or tracked.gang is None or tracked.gang.releases_singly:
        return workload_of(tracked).pods_to_release
    others = (each for each in tracked.gang.members if not each.counts_as_used)
    return [each for each in others if each.wait_reason is not Wait.TURN]


def waiting_workloads(
    tenant: TenantName, user: UserName, context: ExplainContext
) -> Iterator[HeldView]:
    """Yield the waiting workloads of a user in the order of the store."""
    leaf = context.tree.find_user(tenant, user)
    if leaf is None:
        return
    for queue_key in leaf.queue.keys_after(None):
        yield held_view(context.registry.pods[queue_key.uid], context)
    for tracked in _unqueued_pods(leaf, context):
        yield held_view(tracked, context)


def _unqueued_pods(leaf: UserNode, context: ExplainContext) -> list[PodRecord]:
    """Return the unqueued held pods of a user in order, and only the first pod of a gang."""
    found: dict[object, PodRecord] = {}
    for tracked in context.registry.pending_by_user.get(leaf, {}).values():
        if tracked.counts_as_used or queue_position_of(workload_of(tracked)) is not None:
            continue
        gang = tracked.gang
        key = tracked if gang is None or gang.releases_singly else gang
        if key not in found or tracked.queue_key < found[key].queue_key:
            found[key] = tracked
    return sorted(found.values(), key=lambda each: each.queue_key)


def held_view(
    tracked: PodRecord, context: ExplainContext, position: Position | None = None
) -> HeldView:
    """Return the view of a held pod, or of its gang if the gang is complete.

    `position` replaces the position in this engine.
    """
    reason, pod = explain_wait(tracked, context, position), tracked.pod
    place = queue_position_of(workload_of(tracked))
    members = _waiting_members(tracked, is_queued=place is not None)
    total: dict[Resource, int] = {}
    for member in members:
        add_to(total, member.pod.demand, 1)
    leaf = tracked.leaf
    assert leaf is not None, "what is held has a place"
    tenant = context.tenancy.tenants.get(leaf.tenant)
    return HeldView(
        ref=tracked.ref,
        tenant=leaf.tenant,
        gang=tracked.gang_name,
        pods=len(members),
        user=pod.user,
        priority=pod.priority,
        since=place.queue_key.since if place is not None else pod.created_at,
        request={r: v for r, v in total.items() if r != PODS},
        pools=place.equivalence_class.pools
        if place is not None
        else context.pools.eligible_pools(pod, tenant),
        position=reason.position,
        length=reason.length,
        rule=reason.rule,
        reason=reason.text,
    )


def listed_row(
    tracked: PodRecord, context: ExplainContext, position: Position
) -> tuple[SharedRow, str]:
    """Return the listing of a held pod with a position from the store, and its reason.

    A page has many pods of one user and class. Their listings differ in the position only, unless
    the reason is the user's own earlier work.
    """
    pod, key = tracked.pod, None
    alone = not (pod.gang or pod.excluded_by or pod.node_names or pod.claims)
    single = alone and pod.uid not in context.reservation_owners
    if single and tracked.wait_reason is Wait.TURN and tracked.equivalence_class and tracked.leaf:
        key = tracked.leaf, tracked.equivalence_class, pod.namespace, bool(pod.owner)
        if key in context.shared_rows:
            found = context.shared_rows[key]
            return found, position_text(position) + found.text
    view = held_view(tracked, context, position)
    text = view.reason.removeprefix(position_text(position))
    shared = SharedRow(view.request, view.pools, view.rule, text)
    if key is not None and _may_share_reason(explain_wait(tracked, context, position)):
        context.shared_rows[key] = shared
    return shared, view.reason


def _may_share_reason(reason: WaitExplanation) -> bool:
    """Return whether the reason is certainly not the user's own earlier work."""
    return bool(reason.ahead) or reason.rule not in (Rule.CAPACITY, Rule.ORDER)


def released_view(tracked: PodRecord, awaits: bool = False) -> ReleasedView:
    """Return the view of a released pod. `awaits`: it waits for a future node."""
    pod, leaf = tracked.pod, tracked.leaf
    assert leaf is not None, "what is settled has a place"
    return ReleasedView(
        ref=tracked.ref,
        tenant=leaf.tenant,
        gang=tracked.gang_name,
        user=pod.user,
        priority=pod.priority,
        since=pod.created_at,
        request={r: v for r, v in pod.demand.items() if r != PODS},
        released_at=tracked.released_at,
        pool=tracked.pool,
        node=pod.node or tracked.node,
        is_adopted=pod.release_annotation == RELEASE_ADOPTED,
        awaits_node=awaits,
        missing_claims=pod.missing_claims,
        elastic_gang_clause=elastic_gang_clause(tracked.gang),
        scheduler_message=""
        if pod.node is not None
        else scheduler_message_clause(pod.scheduler_condition),
        checkpoint_interval=pod.reclaim_terms.checkpoint_interval,
    )
