"""The share tree of tenants and users, and its total order.

At every level the order is: within limits before over a limit, within the guarantee before
borrowing, then the lowest score, the least recently served, the older head, the smaller uid.
Scores are exact integers that order like the ratios; with history they are floats. Score: the
midpoint of the two tags of start-time fair queueing (Goyal et al., SIGCOMM 1996) on the dominant
share (Ghodsi et al., NSDI 2011). The module has more than 500 lines because the whole order is read
in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from weakref import WeakKeyDictionary

from app.core.fairshare.closed_pools import ClosedPools
from app.core.fairshare.multi_pool_heads import MultiPoolHeads
from app.core.fairshare.sort_key import (
    BORROWING,
    GUARANTEED,
    ZERO_WEIGHT,
    Rank,
    Served,
    SiblingKey,
    in_tie_order,
)
from app.core.fairshare.tree_node import (
    TenantNode,
    UsedAmounts,
    UserNode,
    path_to_root,
    users_below,
)
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Policy
from app.core.pricing.share_units import Cost, Scale

MAX_HEADS_TRIED = 32
"""Number of classes of a user's queue among which a head within the limits is searched."""


class ShareTree:
    """Tenants, nested to any depth, with users as leaves.

    `fitting` returns the pools in which a class fits now, the best packed first. Call
    `update_order` before any query of the order.
    """

    def __init__(
        self,
        scale: Scale,
        policy: Policy,
        finest: int = 1,
        fitting: Callable[[EquivalenceClass], Sequence[PoolName]] = lambda shape: (),
        closures: ClosedPools | None = None,
    ) -> None:
        self.scale = scale
        self.closed_pools = ClosedPools() if closures is None else closures
        self.now = Millis(0)
        self.root = TenantNode(TenantName(""), None, (1, 1), {})
        self.tenants: dict[TenantName, TenantNode] = {}
        self._history_weight = float(policy.history)
        self._half_life = policy.half_life
        # Two different ratios with denominators up to `finest` differ by more than
        # 1 / finest**2, so their multiples by `1 << shift` differ after rounding down.
        self._shift = 2 * finest.bit_length()
        self._non_preemptible_waiting = 0
        self._has_limits = False
        self._costs: WeakKeyDictionary[EquivalenceClass, dict[PoolName, Cost]] = WeakKeyDictionary()
        self._dirty: list[dict[TenantNode, None]] = [{}, {}]
        self._multi_pool_heads = MultiPoolHeads(fitting)
        self._changed_borrowers: set[TenantNode] = set()
        """Branches with changed usage. It decides the pool of multi-pool heads."""
        self._multi_class_users: dict[UserNode, None] = {}
        """Users with waiting workloads of several classes. Limits may block some of them only."""
        self._changed_limited_tenants: set[TenantNode] = set()
        """Tenants with limits and changed usage."""

    def get_or_add_tenant(
        self,
        name: TenantName,
        parent: TenantNode | None,
        weight: tuple[int, int] = (1, 1),
        quotas: dict[PoolName, Quota] | None = None,
    ) -> TenantNode:
        """Return the branch of a tenant. It is created on first use."""
        branch = self.tenants.get(name)
        if branch is None:
            above = parent or self.root
            branch = self.tenants[name] = TenantNode(name, above, weight, quotas or {})
            branch.history_at = self.now
            above.children["tenant", name] = branch
            self._has_limits = self._has_limits or bool(branch.limits)
            if branch.may_use_guarantee:
                for each in path_to_root(above):
                    each.may_use_guarantee = True
        return branch

    def get_or_add_user(
        self, tenant: TenantNode, user: UserName, weight: tuple[int, int] = (1, 1)
    ) -> UserNode:
        """Return the leaf of a user. It is created on first use."""
        leaf = tenant.children.get(("user", user))
        if leaf is None:
            leaf = UserNode(TenantName(str(tenant.name)), user, tenant, weight)
            leaf.history_at = self.now
            tenant.children["user", user] = leaf
            while len(self._dirty) <= leaf.depth:
                self._dirty.append({})
        assert isinstance(leaf, UserNode)
        return leaf

    def can_compare(self, weight: tuple[int, int]) -> bool:
        """Return whether scores with this weight are exact; if not, a new tree is needed."""
        return 2 * weight[0].bit_length() <= self._shift

    def set_weight(self, branch: TenantNode, weight: tuple[int, int]) -> None:
        """Change the weight of a branch."""
        if branch.weight != weight:
            branch.weight = weight
            self._mark_branch_changed(branch)
            self._changed_borrowers.update(path_to_root(branch))

    def find_user(self, tenant: TenantName, user: UserName) -> UserNode | None:
        """Return the leaf of a user. None if it does not exist."""
        branch = self.tenants.get(tenant)
        leaf = branch.children.get(("user", user)) if branch is not None else None
        return leaf if isinstance(leaf, UserNode) else None

    def drop_user(self, leaf: UserNode) -> None:
        """Remove a user that has no queue and no usage."""
        assert leaf.parent is not None
        assert not leaf.queue
        self._dirty[leaf.depth].pop(leaf, None)
        self._changed_borrowers.discard(leaf)
        if leaf.key is not None:  # its queue became empty after the last `update_order`
            del leaf.parent.waiting_children[leaf.key]
            self._dirty[leaf.parent.depth][leaf.parent] = None
        self._multi_pool_heads.drop_user(leaf)
        self._multi_class_users.pop(leaf, None)
        del leaf.parent.children["user", str(leaf.name)]

    def users(self) -> Iterator[UserNode]:
        """Yield every user, waiting or not."""
        return users_below(self.root)

    def first_user_with_class(self, shape: EquivalenceClass) -> UserNode | None:
        """Return the first user in order, by level, with a waiting workload of a class, if any."""
        branch: TenantNode | None = self.root
        while branch is not None and not isinstance(branch, UserNode):
            branch = next(
                (
                    child
                    for child in self.ordered_children(branch)
                    if shape in child.waiting_by_class
                ),
                None,
            )
        return branch

    def advance(self, now: Millis) -> None:
        """Advance the time. If history counts, time alone changes the order."""
        if now > self.now:
            self.now = now
            if self._history_weight:
                self._mark_all_changed(waiting=True)

    def enqueue(self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Add a waiting workload to a user's queue."""
        leaf.queue.add(queue_key, shape)
        self._non_preemptible_waiting += not shape.preemptible
        for branch in path_to_root(leaf):
            branch.waiting_by_class[shape] = branch.waiting_by_class.get(shape, 0) + 1
        if len(leaf.waiting_by_class) > 1:
            self._multi_class_users[leaf] = None
        self._mark_user_changed(leaf)

    def dequeue(self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Remove a waiting workload from its queue."""
        leaf.queue.remove(queue_key, shape)
        self._non_preemptible_waiting -= not shape.preemptible
        for branch in path_to_root(leaf):
            left = branch.waiting_by_class[shape] - 1
            if left:
                branch.waiting_by_class[shape] = left
            else:
                del branch.waiting_by_class[shape]
        if len(leaf.waiting_by_class) < 2:
            self._multi_class_users.pop(leaf, None)
        self._mark_user_changed(leaf)

    def add_usage(self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int = 1) -> None:
        """Add usage to a user and all tenants above it. `sign` -1 subtracts."""
        cost = self.scale.cost(pool, demand)
        for branch in path_to_root(leaf):
            if branch.parent is not None:
                self._decay_history(branch)
                branch.add_usage(pool, cost, sign)
                self._mark_branch_changed(branch)
        self._changed_borrowers.update(path_to_root(leaf))

    def count_ended_work(
        self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int = 1
    ) -> None:
        """Mark usage as ended, so that it counts only for the score. `sign` -1 removes the mark."""
        for branch in path_to_root(leaf):
            branch.count_ended_work(pool, self.scale.cost(pool, demand), sign)
            self._mark_branch_changed(branch)
        self._changed_borrowers.update(path_to_root(leaf))

    def mark_served(self, leaf: TenantNode, served: Served) -> None:
        """Record the last release of a user and all tenants above it. It never goes back."""
        for branch in path_to_root(leaf):
            branch.last_served = max(branch.last_served, served)
            self._dirty[branch.depth][branch] = None

    def rescale(self, scale: Scale) -> None:
        """Use another scale: the size of the cluster or the worth of units changed."""
        self._decay_history_below(self.root)
        self.scale = scale
        self._costs.clear()
        self._recompute_borrowed(self.root)
        self._mark_all_changed(waiting=False)

    def mark_order_stale(self) -> None:
        """Mark the whole order as stale after the closed pools changed."""
        self._mark_all_changed(waiting=True)

    def mark_user_order_stale(self, tenant: TenantName, user: UserName) -> None:
        """Mark the order of a user as stale: it was closed out or admitted again."""
        leaf = self.find_user(tenant, user)
        for branch in path_to_root(leaf) if leaf is not None else ():
            self._dirty[branch.depth][branch] = None

    def update_order(self) -> None:
        """Sort every changed branch into its siblings again."""
        for leaf in self._multi_pool_heads.drain_changed_users():
            self._mark_user_changed(leaf)
        self._mark_multi_pool_users()
        self._mark_limited_users()
        for depth in range(len(self._dirty) - 1, 0, -1):
            level = self._dirty[depth]
            above = self._dirty[depth - 1]
            for branch in level:
                if self._update_sibling_key(branch) and branch.parent is not None:
                    above[branch.parent] = None
            level.clear()
        self._dirty[0].clear()

    def next_user(self) -> UserNode | None:
        """Return the leaf with the first head in order. None if its limits block that head."""
        first = self.first_child(self.root)
        if first is None or first.key is None or first.key.is_blocked:
            return None
        return first.head_user

    def ordered_children(self, branch: TenantNode) -> Iterator[TenantNode]:
        """Yield the children that have a head, in order. Do not change the tree meanwhile."""
        if self._history_weight:
            return in_tie_order(branch.waiting_children)
        return map(branch.waiting_children.__getitem__, branch.waiting_children)

    def first_child(self, branch: TenantNode) -> TenantNode | None:
        """Return the child that is first in order. None if no child has a head."""
        if not branch.waiting_children:
            return None
        if self._history_weight:
            return next(in_tie_order(branch.waiting_children))
        child: TenantNode = branch.waiting_children.peekitem(0)[1]
        return child

    def first_sibling(self, branch: TenantNode) -> TenantNode | None:
        """Return the first in order of a branch's siblings. None if no sibling has a head."""
        assert branch.parent is not None
        siblings = self.ordered_children(branch.parent)
        first = next(siblings, None)
        return next(siblings, None) if first is branch else first

    def rank(self, branch: TenantNode, shape: EquivalenceClass, pool: PoolName) -> Rank:
        """Return the rank of a branch for a workload that would go to a pool."""
        cost = self.cost(shape, pool)
        used = branch.part_of_guarantee(pool, cost, self._shift) if branch.guarantees else None
        blocked = bool(branch.limits) and not branch.is_within_limit(pool, cost)
        if not (
            shape.preemptible or isinstance(branch, UserNode) or branch.guarantee_covers(pool, cost)
        ):
            blocked = True  # its borrowed part could not be reclaimed
        if used is not None:
            return Rank(blocked, GUARANTEED, used)
        score = self.score(branch, self.twice_borrowed(branch, pool, cost, 1))
        return Rank(blocked, BORROWING if branch.weight[0] else ZERO_WEIGHT, score)

    def is_open(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether closures permit the release of a workload into a pool now."""
        return not self.closed_pools or self.closed_pools.is_open(leaf, shape, pool)

    def is_within_limits(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether all limits, up to the root, allow a workload in a pool."""
        if not self._may_block:
            return True
        branch: TenantNode = leaf
        while branch.parent is not None:
            if self._is_blocked_at(branch, shape, pool):
                return False
            branch = branch.parent
        return True

    def cost(self, shape: EquivalenceClass, pool: PoolName) -> Cost:
        """Return the cost of a workload of a class in a pool."""
        costs = self._costs.get(shape)
        if costs is None:
            costs = self._costs[shape] = {}
        cost = costs.get(pool)
        if cost is None:
            cost = costs[pool] = self.scale.cost_of_all(pool, shape.request_counts, shape.total)
        return cost

    def twice_borrowed(
        self, branch: TenantNode, pool: PoolName, cost: Cost, times: int
    ) -> UsedAmounts:
        """Return twice the borrowed amount, plus `times` the amount added by a workload."""
        values = {r: 2 * over for r, over in branch.borrowed_grains.items()}
        guarantee = branch.guarantees.get(pool)
        for r, amount, grains, columns in cost:
            added = branch.borrowed_delta(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + times * added * grains
        return values

    @property
    def share_unit(self) -> int:
        """The whole cluster in the unit of `dominant_share`: half grains, or 1 with history."""
        return 1 if self._history_weight else 2 * self.scale.total_grains

    def score(self, branch: TenantNode, doubled: UsedAmounts) -> float:
        """Return the weighted dominant share: an exact integer without history, else a float."""
        owed, per = branch.weight
        dominant = self.dominant_share(branch, doubled)
        if isinstance(dominant, int):
            return (dominant * per << self._shift) // (owed or 1)
        return dominant * per / (owed or 1)

    def dominant_share(self, branch: TenantNode, doubled: UsedAmounts) -> float:
        """Return the largest borrowed share, including history, in parts of `share_unit`."""
        if not self._history_weight:
            return max(doubled.values(), default=0)
        size, past = 2 * self.scale.total_grains, self.decayed_history(branch)
        parts = (
            doubled.get(r, 0) / size + self._history_weight * past.get(r, 0.0)
            for r in {**doubled, **past}
        )
        return max(parts, default=0.0)

    def weighted_share(self, branch: TenantNode, pool: PoolName, cost: Cost, times: int) -> float:
        """Return the weighted share borrowed, including history, plus `times` half workloads."""
        owed, per = branch.weight
        dominant = self.dominant_share(branch, self.twice_borrowed(branch, pool, cost, times))
        return dominant * per / (self.share_unit * (owed or 1))

    def decayed_history(
        self, branch: TenantNode, at: Millis | None = None
    ) -> dict[Resource, float]:
        """Return the decayed average of borrowing in parts of the cluster. `at` None: now."""
        now = self.now if at is None else at
        span, past = now - branch.history_at, branch.history
        if span <= 0:
            return past
        faded: float = 0.5 ** (span / self._half_life)
        whole = self.scale.total_grains
        return {
            r: over / whole + (past.get(r, 0.0) - over / whole) * faded
            for r, over in branch.borrowed_grains.items()
        }

    def choose_pool(
        self, leaf: UserNode, shape: EquivalenceClass, fitting: Sequence[PoolName]
    ) -> PoolName:
        """Return the pool for a workload: allowed, open, fits now, borrows least, packs best."""
        if len(shape.pools) == 1:
            return shape.pools[0]
        tenant = leaf.parent
        assert tenant is not None

        def unfitness(pool: PoolName) -> tuple[bool, bool, bool, int]:
            after = self.twice_borrowed(tenant, pool, self.cost(shape, pool), 2)
            borrowed = max(after.values(), default=0)
            allowed, is_open = (
                self.is_within_limits(leaf, shape, pool),
                self.is_open(leaf, shape, pool),
            )
            return (not allowed, not is_open, pool not in fitting, borrowed)

        candidates = [*fitting, *(pool for pool in shape.pools if pool not in fitting)]
        return min(candidates, key=unfitness)

    def _mark_user_changed(self, leaf: UserNode) -> None:
        self._dirty[leaf.depth][leaf] = None

    def _mark_all_changed(self, *, waiting: bool) -> None:
        for leaf in self.users():
            if leaf.queue or not waiting:
                for branch in path_to_root(leaf):
                    self._dirty[branch.depth][branch] = None

    def _decay_history(self, branch: TenantNode) -> None:
        branch.history = self.decayed_history(branch)
        branch.history_at = self.now

    def _decay_history_below(self, branch: TenantNode) -> None:
        self._decay_history(branch)
        for child in branch.children.values():
            self._decay_history_below(child)

    def _recompute_borrowed(self, branch: TenantNode) -> None:
        branch.recompute_borrowed(self.scale)
        for child in branch.children.values():
            self._recompute_borrowed(child)

    def _update_sibling_key(self, branch: TenantNode) -> bool:
        """Sort a branch into its siblings. Return whether its parent must be sorted again."""
        parent, before = branch.parent, branch.head
        assert parent is not None
        if isinstance(branch, UserNode):
            branch.head = self._head_of(branch)
            self._multi_pool_heads.record_head(branch, before[1] if before else None)
        else:
            first = self.first_child(branch)
            if self._may_block:
                first = self._first_unblocked(branch) or first
            branch.head_user = first.head_user if first else None
            branch.head = first.head if first else None
        key = None
        if branch.head is not None:
            queue_key, shape, pool = branch.head
            blocked, band, score = self.rank(branch, shape, pool)
            if self._may_block and branch.head_user is not branch and branch.head_user is not None:
                blocked = not self.is_within_limits(branch.head_user, shape, pool)
            if branch.head_user is not None and not self.is_open(branch.head_user, shape, pool):
                blocked = True
            key = SiblingKey(
                blocked, band, score, branch.last_served, queue_key.since, queue_key.uid
            )
        if key == branch.key:
            return branch.head != before
        if branch.key is not None:
            del parent.waiting_children[branch.key]
        branch.key = key
        if key is not None:
            parent.waiting_children[key] = branch
        return True

    def _first_unblocked(self, branch: TenantNode) -> TenantNode | None:
        """Return the first child with a head that no limit blocks. None if there is no such child.

        A head that exceeds a limit does not block the other heads of the tenant.
        """
        for child in self.ordered_children(branch):
            if child.key is None or child.head is None or child.key.is_blocked:
                return None
            _, shape, pool = child.head
            if not any(self._is_blocked_at(each, shape, pool) for each in path_to_root(branch)):
                return child
        return None

    def _is_blocked_at(self, branch: TenantNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        if branch.parent is None or not (branch.limits or not shape.preemptible):
            return False
        return self.rank(branch, shape, pool).is_blocked

    @property
    def _may_block(self) -> bool:
        """Whether any limit, closure or waiting non-preemptible workload could block a head."""
        return self._has_limits or self._non_preemptible_waiting > 0 or bool(self.closed_pools)

    def _mark_branch_changed(self, branch: TenantNode) -> None:
        """Mark a branch as changed, and its descendants if limits may block one of their heads."""
        self._dirty[branch.depth][branch] = None
        if branch.limits or self._non_preemptible_waiting:
            self._changed_limited_tenants.add(branch)
            self._mark_tenants_below(branch)

    def _mark_limited_users(self) -> None:
        """Mark branches as stale where limits block the head, or blocked the first of the queue."""
        for leaf in self._multi_class_users if self._changed_limited_tenants else ():
            if not self._changed_limited_tenants.isdisjoint(
                path_to_root(leaf)
            ) and not self._is_head_first_in_queue(leaf):
                self._mark_user_changed(leaf)
        self._changed_limited_tenants.clear()

    def _is_head_first_in_queue(self, leaf: UserNode) -> bool:
        """Return whether the head is the first of the queue, and limits permit it."""
        head = leaf.head
        return (
            head is not None
            and leaf.queue.head() == head[:2]
            and self._is_permitted_in_any_pool(leaf, head[1])
        )

    def _mark_multi_pool_users(self) -> None:
        """Mark multi-pool heads as stale whose pool may be another one after changes of usage.

        Without limits and closures, the pool depends on the tenant and the class only. The limits
        of all tenants above may block a workload, and their guarantees one that is not preemptible.
        The root has neither.
        """
        changed, heads = self._changed_borrowers, self._multi_pool_heads
        for shape, tenant, users in heads.by_class_and_tenant() if changed else ():
            if self._may_block and any(
                each in changed for each in path_to_root(tenant) if each.parent is not None
            ):
                stale = users
            elif tenant in changed:
                pool = self.choose_pool(next(iter(users)), shape, heads.fitting_pools(shape))
                stale = [leaf for leaf in users if leaf.head is None or leaf.head[2] != pool]
            else:
                continue
            for leaf in stale:
                self._mark_user_changed(leaf)
        changed.clear()

    def _mark_tenants_below(self, branch: TenantNode) -> None:
        for child in branch.children.values():
            if not isinstance(child, UserNode):
                self._dirty[child.depth][child] = None
                self._mark_tenants_below(child)

    def _head_of(self, leaf: UserNode) -> tuple[QueueKey, EquivalenceClass, PoolName] | None:
        """Return the first workload that limits and closures permit; if there is none, the first.

        docs/decisions/0074 has the reasons.
        """
        head = leaf.queue.head()
        if head is None:
            return None
        if self._may_block and leaf in self._multi_class_users:
            classes = islice(leaf.queue.class_heads(), MAX_HEADS_TRIED)
            head = next(
                (each for each in classes if self._is_permitted_in_any_pool(leaf, each[1])), head
            )
        queue_key, shape = head
        return (
            queue_key,
            shape,
            self.choose_pool(leaf, shape, self._multi_pool_heads.fitting_pools(shape)),
        )

    def _is_permitted_in_any_pool(self, leaf: UserNode, shape: EquivalenceClass) -> bool:
        """Return whether limits and closures permit a workload in any of its pools."""
        return any(
            self.is_open(leaf, shape, pool) and self.is_within_limits(leaf, shape, pool)
            for pool in shape.pools
        )
