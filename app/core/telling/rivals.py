"""Who comes before a workload: those that would take the room it waits for, were there any.

Reads only. Users and pods of others are never named, only the tenants they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.asks.shape import Shape
from app.core.fair.branch import Branch, Leaf, path
from app.core.fair.order import GUARANTEED, LEFTOVERS
from app.core.fair.shares import Tree
from app.core.model import Amounts
from app.core.resources import fits, is_device, largest
from app.core.telling.reasons import Ahead
from app.core.telling.scene import Place

MOST = 5
"""Siblings that are shown."""

ANOTHER = "another user"


@dataclass(frozen=True, slots=True)
class Rivals:
    """Siblings that come before `branch`, in order."""

    branch: Branch
    before: Sequence[Branch]

    @property
    def guaranteed(self) -> bool:
        """Tell whether the first of them is within its guarantee, and the other is not."""
        first, own = self.before[0].key, self.branch.key
        return first is not None and first.band == GUARANTEED and own is not None and first < own


def rivals(place: Place, tree: Tree, *, backfill: bool) -> Rivals | None:
    """Return who comes first at the highest level at which anybody does; None: nobody.

    Without backfill the next in order keeps all others waiting, whatever it needs.
    """
    for branch in reversed(list(path(place.leaf))):
        if branch.parent is None:
            continue
        before = []
        for sibling in tree.children(branch.parent):
            if sibling is branch or sibling.key is None or sibling.key.blocked:
                break
            if _has_rival(sibling, place.shape, tree, backfill):
                before.append(sibling)
        if before:
            return Rivals(branch, before)
    return None


def is_behind_own(place: Place, tree: Tree, *, backfill: bool) -> bool:
    """Tell whether other work of the same user comes first."""
    leaf, shape = place.leaf, place.shape
    before = (other for turn, other in leaf.queue.heads() if turn < place.turn)
    return any(
        _competes(other, shape, backfill) and _may_start(leaf, other, shape, tree)
        for other in before
    )


def ahead(found: Rivals, tree: Tree) -> tuple[Ahead, ...]:
    """Return who comes first, and before whom, with their scores."""
    own, own_score = str(found.branch.name), _score(found.branch, tree)
    return tuple(
        Ahead(_called(each), _score(each, tree), own, own_score) for each in found.before[:MOST]
    )


def _called(sibling: Branch) -> str:
    return ANOTHER if isinstance(sibling, Leaf) else str(sibling.name)


def _has_rival(branch: Branch, shape: Shape, tree: Tree, backfill: bool) -> bool:
    """Tell whether anything below a branch may take what a workload waits for."""
    those = [each for each in branch.shapes if _competes(each, shape, backfill)]
    if isinstance(branch, Leaf):
        return any(_may_start(branch, other, shape, tree) for other in those)
    return bool(those) and any(
        _has_rival(child, shape, tree, backfill) for child in tree.children(branch)
    )


def _may_start(leaf: Leaf, other: Shape, shape: Shape, tree: Tree) -> bool:
    """Tell whether limits let another workload start where this one could."""
    return any(tree.allows(leaf, other, pool) for pool in other.pools if pool in shape.pools)


def _competes(other: Shape, shape: Shape, backfill: bool) -> bool:
    """Tell whether a workload of another shape would take what one of this shape waits for."""
    if set(other.pools).isdisjoint(shape.pools):
        return False
    if not backfill or other is shape:
        return True
    if other.pins and other.pins != shape.pins:
        return False  # it takes what comes free on its own nodes alone
    return fits(_devices(other.total), _devices(shape.total)) and fits(
        _largest(other), _largest(shape)
    )


def _largest(shape: Shape) -> Amounts:
    """Return the most that one pod of a workload asks for of anything scarce."""
    most: Amounts = {}
    for demand, _ in shape.parts:
        most = largest(most, _devices(demand))
    return most


def _devices(total: Amounts) -> Amounts:
    """Return what is scarce of an amount: its devices, if it asks for any."""
    return {r: v for r, v in total.items() if is_device(r)} or total


def _score(branch: Branch, tree: Tree) -> str:
    if branch.head is None or branch.key is None:
        return "0"
    _, shape, pool = branch.head
    cost = tree.cost(shape, pool)
    if branch.key.band == GUARANTEED:
        used = branch.part_of_guarantee(pool, cost, 20) or 0
        return f"{used / (1 << 20):.4f} of its guarantee"
    if branch.key.band == LEFTOVERS:
        return "weight 0"
    return f"{tree.standing(branch, pool, cost, 1):.4f}"
