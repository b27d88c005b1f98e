"""Competitors: siblings that would take freed capacity before a workload that waits for it.

Other users and pods are never named, only their tenants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.core.explain.explain_context import ExplainContext, WaitingWorkload
from app.core.explain.reasons import SiblingAhead
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import BORROWING, GUARANTEED, ZERO_WEIGHT, is_tie
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.model import Amounts
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import fits, is_device, max_amounts

MAX_COMPETITORS = 5
"""Maximum number of siblings to report."""

ANOTHER_USER = "another user"
OF_GUARANTEE = " of its guarantee"


@dataclass(frozen=True, slots=True)
class Competitors:
    """The first siblings, at most `MAX_COMPETITORS`, that come before `branch`, in order."""

    branch: TenantNode
    siblings_ahead: Sequence[TenantNode]

    @property
    def is_within_guarantee(self) -> bool:
        """Return whether the first sibling is within its guarantee, and `branch` is not."""
        first, own = self.siblings_ahead[0].key, self.branch.key
        return first is not None and first.band == GUARANTEED and own is not None and first < own

    @property
    def by_weight_0(self) -> bool:
        """Return whether the first sibling comes before `branch` because that has weight 0."""
        first, own = self.siblings_ahead[0].key, self.branch.key
        if first is None or own is None or own.is_blocked:
            return False
        return first.band == BORROWING and own.band == ZERO_WEIGHT

    @property
    def whose(self) -> str:
        """Return who waits at this level, as text: a user or a tenant."""
        kind = "user" if isinstance(self.branch, UserNode) else "tenant"
        return f"{kind} {self.branch.name}"


def competitors_of(workload: WaitingWorkload, context: ExplainContext) -> Competitors | None:
    """Return the competitors at the highest level with any, or None."""
    return next(_levels(workload, context), None)


def weight_0_of(workload: WaitingWorkload, context: ExplainContext) -> tuple[Competitors, ...]:
    """Return the competitors at each level at which weight 0 puts the workload behind them."""
    if all(branch.weight[0] for branch in path_to_root(workload.leaf)):
        return ()
    return tuple(each for each in _levels(workload, context) if each.by_weight_0)


def _levels(workload: WaitingWorkload, context: ExplainContext) -> Iterator[Competitors]:
    """Yield the competitors at each level with any, the highest level first.

    If backfill is off, the next in order blocks all others, whatever it requests.
    """
    tree, shape, known = context.tree, workload.equivalence_class, context.competitor_cache
    backfill = context.registry.usage.policy.backfill
    for branch in reversed(list(path_to_root(workload.leaf))):
        if branch.parent is None:
            continue
        before: list[TenantNode] = []
        for sibling in tree.ordered_children(branch.parent):
            if sibling is branch or sibling.key is None or sibling.key.is_blocked:
                break
            if len(before) == MAX_COMPETITORS:
                break
            competes = known.get((sibling, shape))
            if competes is None:
                competes = known[sibling, shape] = _has_competitor(sibling, shape, tree, backfill)
            if competes:
                before.append(sibling)
        if before:
            yield Competitors(branch, before)


def is_behind_own_work(workload: WaitingWorkload, tree: ShareTree, *, backfill: bool) -> bool:
    """Return whether another workload of the same user comes first."""
    leaf, shape = workload.leaf, workload.equivalence_class
    before = (
        other for queue_key, other in leaf.queue.class_heads() if queue_key < workload.queue_key
    )
    return any(
        _competes(other, shape, backfill) and _may_start(leaf, other, shape, tree)
        for other in before
    )


def describe_competitors(
    competitors: Competitors, context: ExplainContext
) -> tuple[SiblingAhead, ...]:
    """Return the competitors, and the branch after them, with their scores."""
    scores = context.scores
    for each in (competitors.branch, *competitors.siblings_ahead):
        if each not in scores:
            scores[each] = _score(each, context.tree)
    branch = competitors.branch
    own, own_score = str(branch.name), scores[branch]
    return tuple(
        SiblingAhead(
            _public_name(each), scores[each], own, own_score, _order_reason(each, branch, scores)
        )
        for each in competitors.siblings_ahead
    )


def _public_name(sibling: TenantNode) -> str:
    return ANOTHER_USER if isinstance(sibling, UserNode) else str(sibling.name)


def _order_reason(first: TenantNode, own: TenantNode, scores: Mapping[TenantNode, str]) -> str:
    """Return the rule by which a sibling comes before the branch `own`, as a sentence."""
    who, key, other = _public_name(first), first.key, own.key
    who = who if who == ANOTHER_USER else f"tenant {who}"
    theirs, ours = (_plain_number(scores[each]) for each in (first, own))
    if key is None or other is None:
        return f"{who} comes first in fair order"
    if other.is_blocked:
        return f"a limit or a pause holds back the next work of {own.name}, and not that of {who}"
    if key.band != other.band and key.band == GUARANTEED:
        return (
            f"{who} is within its guarantee ({theirs} of it), which goes before "
            "use beyond the guarantee"
        )
    if key.band != other.band:
        return f"{who} has a weight, which goes before weight 0"
    if is_tie(key, other):
        served = key.last_served != other.last_served
        rule = "was served less recently" if served else "has waited longer"
        return f"{who} and {own.name} are level ({theirs}), and {who} {rule}"
    if key.band == ZERO_WEIGHT:
        return f"{who} borrows less than {own.name}, and both have weight 0"
    what = "used part of its guarantee" if key.band == GUARANTEED else "score"
    return f"{who} has the lower {what}: {theirs} against {ours} of {own.name}"


def _plain_number(score: str) -> str:
    """Return a score without the words about a guarantee, and without zeros at its end."""
    number = score.removesuffix(OF_GUARANTEE)
    return number.rstrip("0").rstrip(".") if "." in number else number


def _has_competitor(
    branch: TenantNode, shape: EquivalenceClass, tree: ShareTree, backfill: bool
) -> bool:
    """Return whether any workload below a branch may take capacity that a workload awaits."""
    those = [each for each in branch.waiting_by_class if _competes(each, shape, backfill)]
    if isinstance(branch, UserNode):
        return any(_may_start(branch, other, shape, tree) for other in those)
    return bool(those) and any(
        _has_competitor(child, shape, tree, backfill) for child in tree.ordered_children(branch)
    )


def _may_start(
    leaf: UserNode, other: EquivalenceClass, shape: EquivalenceClass, tree: ShareTree
) -> bool:
    """Return whether limits let another workload start where this one could."""
    return any(
        tree.is_within_limits(leaf, other, pool) for pool in other.pools if pool in shape.pools
    )


def _competes(other: EquivalenceClass, shape: EquivalenceClass, backfill: bool) -> bool:
    """Return whether a workload of class `other` would take capacity that `shape` awaits."""
    if other is shape:
        return True
    if set(other.pools).isdisjoint(shape.pools):
        return False
    if not backfill:
        return True
    if other.node_sets and other.node_sets != shape.node_sets:
        return False  # it takes freed capacity on its own nodes only
    return fits(_devices(other.total), _devices(shape.total)) and fits(
        _largest_request(other), _largest_request(shape)
    )


def _largest_request(shape: EquivalenceClass) -> Amounts:
    """Return the largest request of one pod of a workload, per scarce resource."""
    most: Amounts = {}
    for demand, _ in shape.request_counts:
        most = max_amounts(most, _devices(demand))
    return most


def _devices(total: Amounts) -> Amounts:
    """Return the scarce part of an amount: its devices, or the whole amount without devices."""
    return {r: v for r, v in total.items() if is_device(r)} or total


def _score(branch: TenantNode, tree: ShareTree) -> str:
    if branch.head is None or branch.key is None:
        return "0"
    _, shape, pool = branch.head
    cost = tree.cost(shape, pool)
    if branch.key.band == GUARANTEED:
        used = branch.part_of_guarantee(pool, cost, 20) or 0
        return f"{used / (1 << 20):.4f}{OF_GUARANTEE}"
    if branch.key.band == ZERO_WEIGHT:
        return "weight 0"
    return f"{tree.weighted_share(branch, pool, cost, 1):.4f}"
