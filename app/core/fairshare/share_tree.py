"""The share tree of tenants and users, and its total order.

At every level the order is: within limits before over a limit, within the guarantee before
borrowing, then the lowest score, the least recently served, the older head, the smaller uid.
Scores are exact integers that order like the ratios; with history they are floats. Score: the
midpoint of the two tags of start-time fair queueing (Goyal et al., SIGCOMM 1996) on the dominant
share (Ghodsi et al., NSDI 2011).
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
    LEFTOVERS,
    Rank,
    Served,
    SiblingKey,
    tied,
)
from app.core.fairshare.tree_node import TenantNode, UsedAmounts, UserNode, leaves, path
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Policy
from app.core.pricing.share_units import Cost, Scale

MOST_TRIED = 32
"""Number of classes of a user's queue among which a head within the limits is searched."""


class ShareTree:
    """Tenants, nested to any depth, with users as leaves.

    `fitting` returns the pools in which a class fits now, the best packed first. Call `settle`
    before any query of the order.
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
        self.closures = ClosedPools() if closures is None else closures
        self.now = Millis(0)
        self.root = TenantNode(TenantName(""), None, (1, 1), {})
        self.tenants: dict[TenantName, TenantNode] = {}
        self._kappa = float(policy.history)
        self._half_life = policy.half_life
        # Two different ratios with denominators up to `finest` differ by more than
        # 1 / finest**2, so their multiples by `1 << shift` differ after rounding down.
        self._shift = 2 * finest.bit_length()
        self._stubborn = 0
        self._limited = False
        self._costs: WeakKeyDictionary[EquivalenceClass, dict[PoolName, Cost]] = WeakKeyDictionary()
        self._dirty: list[dict[TenantNode, None]] = [{}, {}]
        self._undecided = MultiPoolHeads(fitting)
        self._mixed: dict[UserNode, None] = {}
        """Users with waiting workloads of several classes. Limits may block some of them only."""
        self._limiting: set[TenantNode] = set()
        """Tenants with limits and changed usage."""

    def tenant(
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
            branch.remembered = self.now
            above.children["tenant", name] = branch
            self._limited = self._limited or bool(branch.limits)
            if branch.guaranteed:
                for each in path(above):
                    each.guaranteed = True
        return branch

    def leaf(
        self, tenant: TenantNode, user: UserName, weight: tuple[int, int] = (1, 1)
    ) -> UserNode:
        """Return the leaf of a user. It is created on first use."""
        leaf = tenant.children.get(("user", user))
        if leaf is None:
            leaf = UserNode(TenantName(str(tenant.name)), user, tenant, weight)
            leaf.remembered = self.now
            tenant.children["user", user] = leaf
            while len(self._dirty) <= leaf.depth:
                self._dirty.append({})
        assert isinstance(leaf, UserNode)
        return leaf

    def leaf_of(self, tenant: TenantName, user: UserName) -> UserNode | None:
        """Return the leaf of a user. None if it does not exist."""
        branch = self.tenants.get(tenant)
        leaf = branch.children.get(("user", user)) if branch is not None else None
        return leaf if isinstance(leaf, UserNode) else None

    def drop(self, leaf: UserNode) -> None:
        """Remove a user that has no queue and no usage."""
        assert leaf.parent is not None
        assert not leaf.queue
        self._dirty[leaf.depth].pop(leaf, None)
        if leaf.key is not None:  # its queue became empty after the last `settle`
            del leaf.parent.waiting[leaf.key]
            self._dirty[leaf.parent.depth][leaf.parent] = None
        self._undecided.drop(leaf)
        self._mixed.pop(leaf, None)
        del leaf.parent.children["user", str(leaf.name)]

    def leaves(self) -> Iterator[UserNode]:
        """Yield every user, waiting or not."""
        return leaves(self.root)

    def leaf_with(self, shape: EquivalenceClass) -> UserNode | None:
        """Return the first user in order, by level, with a waiting workload of a class, if any."""
        branch: TenantNode | None = self.root
        while branch is not None and not isinstance(branch, UserNode):
            branch = next((child for child in self.children(branch) if shape in child.shapes), None)
        return branch

    def advance(self, now: Millis) -> None:
        """Advance the time. If history counts, time alone changes the order."""
        if now > self.now:
            self.now = now
            if self._kappa:
                self._renew(waiting=True)

    def enqueue(self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Add a waiting workload to a user's queue."""
        leaf.queue.add(queue_key, shape)
        self._stubborn += not shape.preemptible
        for branch in path(leaf):
            branch.shapes[shape] = branch.shapes.get(shape, 0) + 1
        if len(leaf.shapes) > 1:
            self._mixed[leaf] = None
        self._touch(leaf)

    def dequeue(self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Remove a waiting workload from its queue."""
        leaf.queue.remove(queue_key, shape)
        self._stubborn -= not shape.preemptible
        for branch in path(leaf):
            left = branch.shapes[shape] - 1
            if left:
                branch.shapes[shape] = left
            else:
                del branch.shapes[shape]
        if len(leaf.shapes) < 2:
            self._mixed.pop(leaf, None)
        self._touch(leaf)

    def use(self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int = 1) -> None:
        """Add usage to a user and all tenants above it. `sign` -1 subtracts."""
        cost = self.scale.cost(pool, demand)
        for branch in path(leaf):
            if branch.parent is not None:
                self._remember(branch)
                branch.use(pool, cost, sign)
                self._touch_all(branch)
        if self._undecided:
            self._touch_undecided(leaf)

    def linger(self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int = 1) -> None:
        """Mark usage as ended, so that it counts only for the score. `sign` -1 removes the mark."""
        for branch in path(leaf):
            branch.linger(pool, self.scale.cost(pool, demand), sign)
            self._touch_all(branch)
        if self._undecided:
            self._touch_undecided(leaf)

    def serve(self, leaf: TenantNode, served: Served) -> None:
        """Record the last release of a user and all tenants above it. It never goes back."""
        for branch in path(leaf):
            branch.served = max(branch.served, served)
            self._dirty[branch.depth][branch] = None

    def rescale(self, scale: Scale) -> None:
        """Use another scale: the size of the cluster or the worth of units changed."""
        self._recall(self.root)
        self.scale = scale
        self._costs.clear()
        self._remeasure(self.root)
        self._renew(waiting=False)

    def reopen(self) -> None:
        """Recompute the order after the closed pools changed."""
        self._renew(waiting=True)

    def reopen_leaf(self, tenant: TenantName, user: UserName) -> None:
        """Recompute the order after a user was closed out or admitted again."""
        leaf = self.leaf_of(tenant, user)
        for branch in path(leaf) if leaf is not None else ():
            self._dirty[branch.depth][branch] = None

    def settle(self) -> None:
        """Sort every changed branch into its siblings again."""
        for leaf in self._undecided.moved():
            self._touch(leaf)
        self._touch_mixed()
        for depth in range(len(self._dirty) - 1, 0, -1):
            level = self._dirty[depth]
            above = self._dirty[depth - 1]
            for branch in level:
                if self._rekey(branch) and branch.parent is not None:
                    above[branch.parent] = None
            level.clear()
        self._dirty[0].clear()

    def next(self) -> UserNode | None:
        """Return the leaf with the first head in order. None if its limits block that head."""
        first = self.first(self.root)
        if first is None or first.key is None or first.key.blocked:
            return None
        return first.source

    def children(self, branch: TenantNode) -> Iterator[TenantNode]:
        """Yield the children that have a head, in order. Do not change the tree meanwhile."""
        if self._kappa:
            return tied(branch.waiting)
        return map(branch.waiting.__getitem__, branch.waiting)

    def first(self, branch: TenantNode) -> TenantNode | None:
        """Return the child that is first in order. None if no child has a head."""
        if not branch.waiting:
            return None
        if self._kappa:
            return next(tied(branch.waiting))
        child: TenantNode = branch.waiting.peekitem(0)[1]
        return child

    def rival(self, branch: TenantNode) -> TenantNode | None:
        """Return the first in order of a branch's siblings. None if no sibling has a head."""
        assert branch.parent is not None
        siblings = self.children(branch.parent)
        first = next(siblings, None)
        return next(siblings, None) if first is branch else first

    def rank(self, branch: TenantNode, shape: EquivalenceClass, pool: PoolName) -> Rank:
        """Return the rank of a branch for a workload that would go to a pool."""
        cost = self.cost(shape, pool)
        used = branch.part_of_guarantee(pool, cost, self._shift) if branch.guarantees else None
        blocked = bool(branch.limits) and not branch.allows(pool, cost)
        if not (shape.preemptible or isinstance(branch, UserNode) or branch.guards(pool, cost)):
            blocked = True  # its borrowed part could not be reclaimed
        if used is not None:
            return Rank(blocked, GUARANTEED, used)
        score = self.score(branch, self.doubled(branch, pool, cost, 1))
        return Rank(blocked, BORROWING if branch.weight[0] else LEFTOVERS, score)

    def is_open(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether closures permit the release of a workload into a pool now."""
        return not self.closures or self.closures.is_open(leaf, shape, pool)

    def allows(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether all limits, up to the root, allow a workload in a pool."""
        if not self._may_block:
            return True
        branch: TenantNode = leaf
        while branch.parent is not None:
            if self._blocks(branch, shape, pool):
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
            cost = costs[pool] = self.scale.cost_of_all(pool, shape.parts, shape.total)
        return cost

    def doubled(self, branch: TenantNode, pool: PoolName, cost: Cost, times: int) -> UsedAmounts:
        """Return twice the borrowed amount, plus `times` the amount added by a workload."""
        values = {r: 2 * over for r, over in branch.over.items()}
        guarantee = branch.guarantees.get(pool)
        for r, amount, grains, columns in cost:
            added = branch.beyond(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + times * added * grains
        return values

    @property
    def unit(self) -> int:
        """The whole cluster in the unit of `dominant`: half grains, or 1 with history."""
        return 1 if self._kappa else 2 * self.scale.whole

    def score(self, branch: TenantNode, doubled: UsedAmounts) -> float:
        """Return the weighted dominant share: an exact integer without history, else a float."""
        owed, per = branch.weight
        dominant = self.dominant(branch, doubled)
        if isinstance(dominant, int):
            return (dominant * per << self._shift) // (owed or 1)
        return dominant * per / (owed or 1)

    def dominant(self, branch: TenantNode, doubled: UsedAmounts) -> float:
        """Return the largest borrowed share, including history, in parts of `unit`."""
        if not self._kappa:
            return max(doubled.values(), default=0)
        size, past = 2 * self.scale.whole, self.history(branch)
        parts = (
            doubled.get(r, 0) / size + self._kappa * past.get(r, 0.0) for r in {**doubled, **past}
        )
        return max(parts, default=0.0)

    def standing(self, branch: TenantNode, pool: PoolName, cost: Cost, times: int) -> float:
        """Return the weighted share borrowed, including history, plus `times` half workloads."""
        owed, per = branch.weight
        dominant = self.dominant(branch, self.doubled(branch, pool, cost, times))
        return dominant * per / (self.unit * (owed or 1))

    def history(self, branch: TenantNode, at: Millis | None = None) -> dict[Resource, float]:
        """Return the decayed average of borrowing in parts of the cluster. `at` None: now."""
        now = self.now if at is None else at
        span, past = now - branch.remembered, branch.history
        if span <= 0:
            return past
        faded: float = 0.5 ** (span / self._half_life)
        whole = self.scale.whole
        return {
            r: over / whole + (past.get(r, 0.0) - over / whole) * faded
            for r, over in branch.over.items()
        }

    def target(
        self, leaf: UserNode, shape: EquivalenceClass, fitting: Sequence[PoolName]
    ) -> PoolName:
        """Return the pool for a workload: allowed, open, fits now, borrows least, packs best."""
        if len(shape.pools) == 1:
            return shape.pools[0]
        tenant = leaf.parent
        assert tenant is not None

        def unfitness(pool: PoolName) -> tuple[bool, bool, bool, int]:
            after = self.doubled(tenant, pool, self.cost(shape, pool), 2)
            borrowed = max(after.values(), default=0)
            allowed, is_open = self.allows(leaf, shape, pool), self.is_open(leaf, shape, pool)
            return (not allowed, not is_open, pool not in fitting, borrowed)

        candidates = [*fitting, *(pool for pool in shape.pools if pool not in fitting)]
        return min(candidates, key=unfitness)

    def _touch(self, leaf: UserNode) -> None:
        self._dirty[leaf.depth][leaf] = None

    def _renew(self, *, waiting: bool) -> None:
        for leaf in self.leaves():
            if leaf.queue or not waiting:
                for branch in path(leaf):
                    self._dirty[branch.depth][branch] = None

    def _remember(self, branch: TenantNode) -> None:
        branch.history = self.history(branch)
        branch.remembered = self.now

    def _recall(self, branch: TenantNode) -> None:
        self._remember(branch)
        for child in branch.children.values():
            self._recall(child)

    def _remeasure(self, branch: TenantNode) -> None:
        branch.measure(self.scale)
        for child in branch.children.values():
            self._remeasure(child)

    def _rekey(self, branch: TenantNode) -> bool:
        """Sort a branch into its siblings. Return whether its parent must be sorted again."""
        parent, before = branch.parent, branch.head
        assert parent is not None
        if isinstance(branch, UserNode):
            branch.head = self._head_of(branch)
            self._undecided.follow(branch, before[1] if before else None)
        else:
            first = self.first(branch)
            if self._may_block:
                first = self._foremost(branch) or first
            branch.source = first.source if first else None
            branch.head = first.head if first else None
        key = None
        if branch.head is not None:
            queue_key, shape, pool = branch.head
            blocked, band, score = self.rank(branch, shape, pool)
            if self._may_block and branch.source is not branch and branch.source is not None:
                blocked = not self.allows(branch.source, shape, pool)
            if branch.source is not None and not self.is_open(branch.source, shape, pool):
                blocked = True
            key = SiblingKey(blocked, band, score, branch.served, queue_key.since, queue_key.uid)
        if key == branch.key:
            return branch.head != before
        if branch.key is not None:
            del parent.waiting[branch.key]
        branch.key = key
        if key is not None:
            parent.waiting[key] = branch
        return True

    def _foremost(self, branch: TenantNode) -> TenantNode | None:
        """Return the first child with a head that no limit blocks. None if there is no such child.

        A head that exceeds a limit does not block the other heads of the tenant.
        """
        for child in self.children(branch):
            if child.key is None or child.head is None or child.key.blocked:
                return None
            _, shape, pool = child.head
            if not any(self._blocks(each, shape, pool) for each in path(branch)):
                return child
        return None

    def _blocks(self, branch: TenantNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        if branch.parent is None or not (branch.limits or not shape.preemptible):
            return False
        return self.rank(branch, shape, pool).blocked

    @property
    def _may_block(self) -> bool:
        """Whether any limit, closure or waiting non-preemptible workload could block a head."""
        return self._limited or self._stubborn > 0 or bool(self.closures)

    def _touch_all(self, branch: TenantNode) -> None:
        """Mark a branch as changed, and its descendants if limits may block one of their heads."""
        self._dirty[branch.depth][branch] = None
        if branch.limits or self._stubborn:
            self._limiting.add(branch)
            self._touch_below(branch)

    def _touch_mixed(self) -> None:
        """Choose other heads where limits block the head, or blocked the first of the queue."""
        for leaf in self._mixed if self._limiting else ():
            if not self._limiting.isdisjoint(path(leaf)) and not self._has_first(leaf):
                self._touch(leaf)
        self._limiting.clear()

    def _has_first(self, leaf: UserNode) -> bool:
        """Return whether the head is the first of the queue, and limits permit it."""
        head = leaf.head
        return head is not None and leaf.queue.head() == head[:2] and self._permits(leaf, head[1])

    def _touch_undecided(self, leaf: UserNode) -> None:
        """Sort multi-pool heads again, because borrowing per pool decides their pool."""
        borrowers = set(path(leaf))
        for other in self._undecided:
            if self._limited or other.parent in borrowers:
                self._touch(other)

    def _touch_below(self, branch: TenantNode) -> None:
        for child in branch.children.values():
            if not isinstance(child, UserNode):
                self._dirty[child.depth][child] = None
                self._touch_below(child)

    def _head_of(self, leaf: UserNode) -> tuple[QueueKey, EquivalenceClass, PoolName] | None:
        """Return the first workload that limits and closures permit; if there is none, the first.

        docs/decisions/0074 has the reasons.
        """
        head = leaf.queue.head()
        if head is None:
            return None
        if self._may_block and leaf in self._mixed:
            classes = islice(leaf.queue.heads(), MOST_TRIED)
            head = next((each for each in classes if self._permits(leaf, each[1])), head)
        queue_key, shape = head
        return queue_key, shape, self.target(leaf, shape, self._undecided.fitted(shape))

    def _permits(self, leaf: UserNode, shape: EquivalenceClass) -> bool:
        """Return whether limits and closures permit a workload in any of its pools."""
        return any(
            self.is_open(leaf, shape, pool) and self.allows(leaf, shape, pool)
            for pool in shape.pools
        )
