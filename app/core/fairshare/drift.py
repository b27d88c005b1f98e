"""Measures how far two siblings have drifted apart, against the published bound.

Let s be the borrowed share of a sibling, including history, over its weight. Right after a release
of a, for every b with a head that could have started instead:

    s_a - s_b <= half of (l_a/w_a + l_b/w_b)
"""

from __future__ import annotations

from collections.abc import Callable

from app.core.fairshare.decision import Selection
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import BORROWING
from app.core.fairshare.tree_node import TenantNode, path_to_root


class Drift:
    """The largest measured fraction of the bound, and the number of compared pairs."""

    __slots__ = ("_max_siblings", "pairs", "ratio")

    def __init__(self, max_siblings: int | None) -> None:
        self.ratio = 0.0
        self.pairs = 0
        self._max_siblings = max_siblings

    def measure(
        self, tree: ShareTree, choice: Selection, could_start: Callable[[TenantNode], bool]
    ) -> None:
        """Compare the borrowing branches of a workload with their siblings before its release."""
        if self._max_siblings == 0:
            return
        for branch in path_to_root(choice.leaf):
            parent = branch.parent
            if parent is None:
                return
            head = branch.head is not None and branch.head[0] is choice.queue_key
            rank = branch.key if head else tree.rank(branch, choice.equivalence_class, choice.pool)
            if rank is not None and rank.band == BORROWING:
                self._compare(tree, parent, branch, choice, could_start)

    def _compare(
        self,
        tree: ShareTree,
        parent: TenantNode,
        branch: TenantNode,
        choice: Selection,
        could_start: Callable[[TenantNode], bool],
    ) -> None:
        cost = tree.cost(choice.equivalence_class, choice.pool)
        mine = tree.dominant_share(branch, tree.twice_borrowed(branch, choice.pool, cost, 2))
        size = 2 * tree.scale.total_grains // tree.share_unit
        added = _part(branch.max_added_grains(choice.pool, cost), size)
        owed, per = branch.weight
        seen = 0
        for other in tree.ordered_children(parent):
            if other is branch or other.head is None or other.key is None:
                continue
            if other.key.is_blocked or other.key.band != BORROWING or not could_start(other):
                continue
            _, shape, pool = other.head
            wanted = _part(other.max_added_grains(pool, tree.cost(shape, pool)), size)
            theirs = tree.dominant_share(other, tree.twice_borrowed(other, pool, (), 0))
            # A common denominator keeps the comparison exact without history.
            left, right = per * other.weight[0], other.weight[1] * owed
            if added + wanted > 0:
                self.pairs += 1
                apart = mine * left - theirs * right
                self.ratio = max(self.ratio, apart / (added * left + wanted * right))
            seen += 1
            if seen == self._max_siblings:
                return


def _part(grains: int, size: int) -> float:
    """Return grains in the unit of `ShareTree.share_unit`; exact if that unit is grains."""
    return grains if size == 1 else grains / size
