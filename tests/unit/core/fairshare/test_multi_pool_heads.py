"""The pool of waiting heads that may go to several pools, as usage changes."""

from __future__ import annotations

from fractions import Fraction

from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import queue_key_of
from app.core.model import Millis, PoolName, Quota, Resource, TenantName, Uid, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Policy
from app.core.pricing.share_units import Scale
from tests.support.call_counts import calls_of

GPU = Resource("nvidia.com/gpu")
ONE = {GPU: 1}
EAST, WEST = PoolName("east"), PoolName("west")
EITHER = EquivalenceClass(((ONE, 1),), ONE, (EAST, WEST))


def tree_of(users: int) -> tuple[ShareTree, list[UserNode]]:
    """Return a tree with users of one tenant who wait. Its guarantee is one device in each pool."""
    tree = ShareTree(Scale({GPU: Fraction(16)}, {EAST: {}, WEST: {}}), Policy())
    quota = Quota({GPU: 1})
    tenant = tree.get_or_add_tenant(TenantName("a"), None, quotas={EAST: quota, WEST: quota})
    leaves = [tree.get_or_add_user(tenant, UserName(f"u{i}")) for i in range(users)]
    for i, leaf in enumerate(leaves):
        tree.enqueue(leaf, queue_key_of(0, Millis(i), Uid(f"w{i}")), EITHER)
    tree.update_order()
    return tree, leaves


def pools_of_heads(leaves: list[UserNode]) -> set[PoolName]:
    return {leaf.head[2] for leaf in leaves if leaf.head is not None}


def test_the_pool_of_all_heads_follows_the_borrowing_of_the_tenant() -> None:
    tree, leaves = tree_of(20)
    assert pools_of_heads(leaves) == {EAST}
    tree.add_usage(leaves[0], EAST, ONE)
    tree.update_order()
    assert pools_of_heads(leaves) == {WEST}
    tree.add_usage(leaves[0], EAST, ONE, -1)
    tree.update_order()
    assert pools_of_heads(leaves) == {EAST}


def test_a_change_of_usage_costs_the_same_however_many_users_wait() -> None:
    def calls(users: int) -> int:
        tree, leaves = tree_of(users)
        tree.add_usage(leaves[0], EAST, {GPU: 3})
        tree.update_order()

        def change() -> None:
            tree.add_usage(leaves[0], EAST, ONE)
            tree.update_order()

        return calls_of(change)

    assert calls(200) < 2 * calls(20)
