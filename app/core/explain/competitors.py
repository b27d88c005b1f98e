"""Competitors: siblings that would take freed capacity before a workload that waits for it.

Other users and pods are never named, only their tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.explain.explain_context import ExplainContext, WaitingWorkload
from app.core.explain.reasons import SiblingAhead
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import GUARANTEED, LEFTOVERS, ties
from app.core.fairshare.tree_node import TenantNode, UserNode, path
from app.core.model import Amounts
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import fits, is_device, largest

MOST = 5
"""Maximum number of siblings to report."""

ANOTHER = "another user"
OF_GUARANTEE = " of its guarantee"


@dataclass(frozen=True, slots=True)
class Competitors:
    """The first siblings, at most `MOST`, that come before `branch`, in order."""

    branch: TenantNode
    before: Sequence[TenantNode]

    @property
    def guaranteed(self) -> bool:
        """Return whether the first sibling is within its guarantee, and `branch` is not."""
        first, own = self.before[0].key, self.branch.key
        return first is not None and first.band == GUARANTEED and own is not None and first < own


def competitors_of(workload: WaitingWorkload, context: ExplainContext) -> Competitors | None:
    """Return the competitors at the highest level with any, or None.

    If backfill is off, the next in order blocks all others, whatever it requests.
    """
    tree, shape, known = context.tree, workload.shape, context.competing
    backfill = context.registry.usage.policy.backfill
    for branch in reversed(list(path(workload.leaf))):
        if branch.parent is None:
            continue
        before: list[TenantNode] = []
        for sibling in tree.children(branch.parent):
            if sibling is branch or sibling.key is None or sibling.key.blocked:
                break
            if len(before) == MOST:
                break
            competes = known.get((sibling, shape))
            if competes is None:
                competes = known[sibling, shape] = _has_rival(sibling, shape, tree, backfill)
            if competes:
                before.append(sibling)
        if before:
            return Competitors(branch, before)
    return None


def is_behind_own(workload: WaitingWorkload, tree: ShareTree, *, backfill: bool) -> bool:
    """Return whether another workload of the same user comes first."""
    leaf, shape = workload.leaf, workload.shape
    before = (other for queue_key, other in leaf.queue.heads() if queue_key < workload.queue_key)
    return any(
        _competes(other, shape, backfill) and _may_start(leaf, other, shape, tree)
        for other in before
    )


def ahead(competitors: Competitors, context: ExplainContext) -> tuple[SiblingAhead, ...]:
    """Return the competitors, and the branch after them, with their scores."""
    scores = context.scores
    for each in (competitors.branch, *competitors.before):
        if each not in scores:
            scores[each] = _score(each, context.tree)
    branch = competitors.branch
    own, own_score = str(branch.name), scores[branch]
    return tuple(
        SiblingAhead(_called(each), scores[each], own, own_score, _reason(each, branch, scores))
        for each in competitors.before
    )


def _called(sibling: TenantNode) -> str:
    return ANOTHER if isinstance(sibling, UserNode) else str(sibling.name)


def _reason(first: TenantNode, own: TenantNode, scores: Mapping[TenantNode, str]) -> str:
    """Return the rule by which a sibling comes before the branch `own`, as a sentence."""
    who, key, other = _called(first), first.key, own.key
    who = who if who == ANOTHER else f"tenant {who}"
    theirs, ours = (_number(scores[each]) for each in (first, own))
    if key is None or other is None:
        return f"{who} comes first in fair order"
    if other.blocked:
        return f"a limit or a pause holds back the next work of {own.name}, and not that of {who}"
    if key.band != other.band and key.band == GUARANTEED:
        return (
            f"{who} is within its guarantee ({theirs} of it), which goes before use beyond the "
            "guarantee"
        )
    if key.band != other.band:
        return f"{who} has a weight, which goes before weight 0"
    if ties(key, other):
        served = key.served != other.served
        rule = "was served less recently" if served else "has waited longer"
        return f"{who} and {own.name} are level ({theirs}), and {who} {rule}"
    if key.band == LEFTOVERS:
        return f"{who} borrows less than {own.name}, and both have weight 0"
    what = "used part of its guarantee" if key.band == GUARANTEED else "score"
    return f"{who} has the lower {what}: {theirs} against {ours} of {own.name}"


def _number(score: str) -> str:
    """Return a score without the words about a guarantee, and without zeros at its end."""
    number = score.removesuffix(OF_GUARANTEE)
    return number.rstrip("0").rstrip(".") if "." in number else number


def _has_rival(
    branch: TenantNode, shape: EquivalenceClass, tree: ShareTree, backfill: bool
) -> bool:
    """Return whether any workload below a branch may take capacity that a workload awaits."""
    those = [each for each in branch.shapes if _competes(each, shape, backfill)]
    if isinstance(branch, UserNode):
        return any(_may_start(branch, other, shape, tree) for other in those)
    return bool(those) and any(
        _has_rival(child, shape, tree, backfill) for child in tree.children(branch)
    )


def _may_start(
    leaf: UserNode, other: EquivalenceClass, shape: EquivalenceClass, tree: ShareTree
) -> bool:
    """Return whether limits let another workload start where this one could."""
    return any(tree.allows(leaf, other, pool) for pool in other.pools if pool in shape.pools)


def _competes(other: EquivalenceClass, shape: EquivalenceClass, backfill: bool) -> bool:
    """Return whether a workload of class `other` would take capacity that `shape` awaits."""
    if other is shape:
        return True
    if set(other.pools).isdisjoint(shape.pools):
        return False
    if not backfill:
        return True
    if other.pins and other.pins != shape.pins:
        return False  # it takes freed capacity on its own nodes only
    return fits(_devices(other.total), _devices(shape.total)) and fits(
        _largest(other), _largest(shape)
    )


def _largest(shape: EquivalenceClass) -> Amounts:
    """Return the largest request of one pod of a workload, per scarce resource."""
    most: Amounts = {}
    for demand, _ in shape.parts:
        most = largest(most, _devices(demand))
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
    if branch.key.band == LEFTOVERS:
        return "weight 0"
    return f"{tree.standing(branch, pool, cost, 1):.4f}"
