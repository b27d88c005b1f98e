"""The tree of tenants and users: what each uses, and whose turn is next.

At every level the order is: allowed by its limits before not allowed, within its guarantee
before borrowing, then the lowest score, the least recently served, the older head, the smaller
uid. Scores are whole numbers that stand in the same order as the exact ratios; only with history
are they floats. Source of the score: the midpoint of start-time fair queueing's two tags (Goyal
and others, SIGCOMM 1996), on the dominant share (Ghodsi and others, NSDI 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from app.core.asks.shape import Shape
from app.core.fair.backlog import Turn
from app.core.fair.branch import Branch, Leaf, Used, leaves, path
from app.core.fair.order import BORROWING, GUARANTEED, LEFTOVERS, Key, Rank, Served, tied
from app.core.fair.undecided import Undecided
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, UserName
from app.core.places.scale import Cost, Scale
from app.core.policy import Policy


class Tree:
    """Tenants, nested to any depth, with users as leaves.

    `fitting` tells in which of its pools a shape fits now, the best packed first. `settle` before
    asking for any order.
    """

    def __init__(
        self,
        scale: Scale,
        policy: Policy,
        finest: int = 1,
        fitting: Callable[[Shape], Sequence[PoolName]] = lambda shape: (),
    ) -> None:
        self.scale = scale
        self.now = Millis(0)
        self.root = Branch(TenantName(""), None, (1, 1), {})
        self.tenants: dict[TenantName, Branch] = {}
        self._kappa = float(policy.history)
        self._half_life = policy.half_life
        # Two different ratios with denominators up to `finest` differ by more than
        # 1 / finest**2, so their multiples by `1 << shift` differ after rounding down.
        self._shift = 2 * finest.bit_length()
        self._stubborn = 0
        self._limited = False
        self._costs: dict[tuple[Shape, PoolName], Cost] = {}
        self._dirty: list[dict[Branch, None]] = [{}, {}]
        self._undecided = Undecided(fitting)

    def tenant(
        self,
        name: TenantName,
        parent: Branch | None,
        weight: tuple[int, int] = (1, 1),
        quotas: dict[PoolName, Quota] | None = None,
    ) -> Branch:
        """Return the branch of a tenant, made on first use."""
        branch = self.tenants.get(name)
        if branch is None:
            above = parent or self.root
            branch = self.tenants[name] = Branch(name, above, weight, quotas or {})
            branch.remembered = self.now
            above.children["tenant", name] = branch
            self._limited = self._limited or bool(branch.limits)
            if branch.pledged:
                for each in path(above):
                    each.pledged = True
        return branch

    def leaf(self, tenant: Branch, user: UserName, weight: tuple[int, int] = (1, 1)) -> Leaf:
        """Return the leaf of a user, made on first use."""
        leaf = tenant.children.get(("user", user))
        if leaf is None:
            leaf = Leaf(TenantName(str(tenant.name)), user, tenant, weight)
            leaf.remembered = self.now
            tenant.children["user", user] = leaf
            while len(self._dirty) <= leaf.depth:
                self._dirty.append({})
        assert isinstance(leaf, Leaf)
        return leaf

    def find(self, tenant: TenantName, user: UserName) -> Leaf | None:
        """Return the leaf of a user, if it was made already."""
        branch = self.tenants.get(tenant)
        leaf = branch.children.get(("user", user)) if branch is not None else None
        return leaf if isinstance(leaf, Leaf) else None

    def leaves(self) -> Iterator[Leaf]:
        """Return every user, waiting or not."""
        return leaves(self.root)

    def advance(self, now: Millis) -> None:
        """Let time pass. With history the order changes by that alone."""
        if now > self.now:
            self.now = now
            if self._kappa:
                self._renew(waiting=True)

    def enqueue(self, leaf: Leaf, turn: Turn, shape: Shape) -> None:
        """Let a workload wait."""
        leaf.queue.add(turn, shape)
        self._stubborn += not shape.preemptible
        for branch in path(leaf):
            branch.shapes[shape] = branch.shapes.get(shape, 0) + 1
        self._touch(leaf)

    def dequeue(self, leaf: Leaf, turn: Turn, shape: Shape) -> None:
        """Take a workload that waits out of its queue."""
        leaf.queue.remove(turn, shape)
        self._stubborn -= not shape.preemptible
        for branch in path(leaf):
            left = branch.shapes[shape] - 1
            if left:
                branch.shapes[shape] = left
            else:
                del branch.shapes[shape]
        self._touch(leaf)

    def use(self, leaf: Leaf, pool: PoolName, demand: Amounts, sign: int = 1) -> None:
        """Add to (or, with sign -1, take from) what a user and all tenants above it use."""
        cost = self.scale.cost(pool, demand)
        for branch in path(leaf):
            if branch.parent is not None:
                self._remember(branch)
                branch.use(pool, cost, sign)
                self._touch_all(branch)
        if self._undecided:
            self._touch_undecided(leaf)

    def linger(self, leaf: Leaf, pool: PoolName, demand: Amounts, sign: int = 1) -> None:
        """Note that part of what is used ended already: it counts for the score alone."""
        for branch in path(leaf):
            branch.linger(pool, self.scale.cost(pool, demand), sign)
            self._touch_all(branch)
        if self._undecided:
            self._touch_undecided(leaf)

    def serve(self, leaf: Branch, served: Served) -> None:
        """Note when a user and all tenants above it were last served. Never goes back."""
        for branch in path(leaf):
            branch.served = max(branch.served, served)
            self._dirty[branch.depth][branch] = None

    def rescale(self, scale: Scale) -> None:
        """Measure against a cluster of another size or worth."""
        self._recall(self.root)
        self.scale = scale
        self._costs.clear()
        self._remeasure(self.root)
        self._renew(waiting=False)

    def settle(self) -> None:
        """Put everything that changed in its place among its siblings again."""
        for leaf in self._undecided.moved():
            self._touch(leaf)
        for depth in range(len(self._dirty) - 1, 0, -1):
            level = self._dirty[depth]
            above = self._dirty[depth - 1]
            for branch in level:
                if self._rekey(branch) and branch.parent is not None:
                    above[branch.parent] = None
            level.clear()
        self._dirty[0].clear()

    def next(self) -> Leaf | None:
        """Return the leaf whose head is next of all that their limits allow, or None."""
        first = self.first(self.root)
        if first is None or first.key is None or first.key.blocked:
            return None
        return first.source

    def children(self, branch: Branch) -> Iterator[Branch]:
        """Return the children that have a head, in order. Do not change the tree meanwhile."""
        if self._kappa:
            return tied(branch.waiting)
        return map(branch.waiting.__getitem__, branch.waiting)

    def first(self, branch: Branch) -> Branch | None:
        """Return the child that is first in order, if any has a head."""
        if not branch.waiting:
            return None
        if self._kappa:
            return next(tied(branch.waiting))
        child: Branch = branch.waiting.peekitem(0)[1]
        return child

    def rival(self, branch: Branch) -> Branch | None:
        """Return the first in order of a branch's siblings, if any of them has a head."""
        assert branch.parent is not None
        siblings = self.children(branch.parent)
        first = next(siblings, None)
        return next(siblings, None) if first is branch else first

    def rank(self, branch: Branch, shape: Shape, pool: PoolName) -> Rank:
        """Return where a branch stands for a workload that would go to a pool."""
        cost = self.cost(shape, pool)
        used = branch.part_of_guarantee(pool, cost, self._shift) if branch.guarantees else None
        blocked = bool(branch.limits) and not branch.allows(pool, cost)
        if not (shape.preemptible or isinstance(branch, Leaf) or branch.guards(pool, cost)):
            blocked = True  # nobody could take back what it would borrow
        if used is not None:
            return Rank(blocked, GUARANTEED, used)
        score = self.score(branch, self.doubled(branch, pool, cost, 1))
        return Rank(blocked, BORROWING if branch.weight[0] else LEFTOVERS, score)

    def allows(self, leaf: Leaf, shape: Shape, pool: PoolName) -> bool:
        """Tell whether limits, all the way up, let a workload go to a pool."""
        if not self._may_block:
            return True
        branch: Branch = leaf
        while branch.parent is not None:
            if self._blocks(branch, shape, pool):
                return False
            branch = branch.parent
        return True

    def cost(self, shape: Shape, pool: PoolName) -> Cost:
        """Return what a workload of a shape counts for in a pool."""
        cost = self._costs.get((shape, pool))
        if cost is None:
            cost = self._costs[shape, pool] = self.scale.cost_of_all(pool, shape.parts, shape.total)
        return cost

    def doubled(self, branch: Branch, pool: PoolName, cost: Cost, times: int) -> Used:
        """Return twice what is borrowed, plus `times` what a workload would add to it."""
        values = {r: 2 * over for r, over in branch.over.items()}
        guarantee = branch.guarantees.get(pool)
        for r, amount, grains, columns in cost:
            added = branch.beyond(guarantee, pool, r, amount) if guarantee else amount
            for column in columns:
                values[column] = values.get(column, 0) + times * added * grains
        return values

    @property
    def unit(self) -> int:
        """What the whole cluster counts for in `dominant`: half grains, or 1 with history."""
        return 1 if self._kappa else 2 * self.scale.whole

    def score(self, branch: Branch, doubled: Used) -> float:
        """Return the weighted dominant share; exact, as a whole number, without history."""
        owed, per = branch.weight
        dominant = self.dominant(branch, doubled)
        if isinstance(dominant, int):
            return (dominant * per << self._shift) // (owed or 1)
        return dominant * per / (owed or 1)

    def dominant(self, branch: Branch, doubled: Used) -> float:
        """Return the largest share, what is remembered included; as parts of `unit`."""
        if not self._kappa:
            return max(doubled.values(), default=0)
        size, past = 2 * self.scale.whole, self.history(branch)
        parts = (
            doubled.get(r, 0) / size + self._kappa * past.get(r, 0.0) for r in {**doubled, **past}
        )
        return max(parts, default=0.0)

    def standing(self, branch: Branch, pool: PoolName, cost: Cost, times: int) -> float:
        """Return the weighted share borrowed, and remembered, with `times` half of a workload."""
        owed, per = branch.weight
        dominant = self.dominant(branch, self.doubled(branch, pool, cost, times))
        return dominant * per / (self.unit * (owed or 1))

    def history(self, branch: Branch, at: Millis | None = None) -> dict[Resource, float]:
        """Return the decayed average of what was borrowed, as parts of the cluster; now or then."""
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

    def target(self, leaf: Leaf, shape: Shape, fitting: Sequence[PoolName]) -> PoolName:
        """Return the pool a workload goes to: allowed, fits now, borrows least, packs best."""
        if len(shape.pools) == 1:
            return shape.pools[0]
        tenant = leaf.parent
        assert tenant is not None

        def unfitness(pool: PoolName) -> tuple[bool, bool, int]:
            after = self.doubled(tenant, pool, self.cost(shape, pool), 2)
            borrowed = max(after.values(), default=0)
            return (not self.allows(leaf, shape, pool), pool not in fitting, borrowed)

        candidates = [*fitting, *(pool for pool in shape.pools if pool not in fitting)]
        return min(candidates, key=unfitness)

    def _touch(self, leaf: Leaf) -> None:
        self._dirty[leaf.depth][leaf] = None

    def _renew(self, *, waiting: bool) -> None:
        for leaf in self.leaves():
            if leaf.queue or not waiting:
                for branch in path(leaf):
                    self._dirty[branch.depth][branch] = None

    def _remember(self, branch: Branch) -> None:
        branch.history = self.history(branch)
        branch.remembered = self.now

    def _recall(self, branch: Branch) -> None:
        self._remember(branch)
        for child in branch.children.values():
            self._recall(child)

    def _remeasure(self, branch: Branch) -> None:
        branch.measure(self.scale)
        for child in branch.children.values():
            self._remeasure(child)

    def _rekey(self, branch: Branch) -> bool:
        """Put a branch in its place; tell whether its parent could notice."""
        parent, before = branch.parent, branch.head
        assert parent is not None
        if isinstance(branch, Leaf):
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
            turn, shape, pool = branch.head
            blocked, band, score = self.rank(branch, shape, pool)
            if self._may_block and branch.source is not branch and branch.source is not None:
                blocked = not self.allows(branch.source, shape, pool)
            key = Key(blocked, band, score, branch.served, turn.since, turn.uid)
        if key == branch.key:
            return branch.head != before
        if branch.key is not None:
            del parent.waiting[branch.key]
        branch.key = key
        if key is not None:
            parent.waiting[key] = branch
        return True

    def _foremost(self, branch: Branch) -> Branch | None:
        """Return the first child whose head everything above lets pass, if any.

        Whoever asks for what a tenant may not have does not stand in the way of the others.
        """
        for child in self.children(branch):
            if child.key is None or child.head is None or child.key.blocked:
                return None
            _, shape, pool = child.head
            if not any(self._blocks(each, shape, pool) for each in path(branch)):
                return child
        return None

    def _blocks(self, branch: Branch, shape: Shape, pool: PoolName) -> bool:
        if branch.parent is None or not (branch.limits or not shape.preemptible):
            return False
        return self.rank(branch, shape, pool).blocked

    @property
    def _may_block(self) -> bool:
        """Whether anything at all waits or is written that could keep a head from its turn."""
        return self._limited or self._stubborn > 0

    def _touch_all(self, branch: Branch) -> None:
        """A branch uses more or less: what it may have decides who is foremost below."""
        self._dirty[branch.depth][branch] = None
        if branch.limits or self._stubborn:
            self._touch_below(branch)

    def _touch_undecided(self, leaf: Leaf) -> None:
        """What a tenant borrows where decides the pool of those whose heads may go to several."""
        borrowers = set(path(leaf))
        for other in self._undecided:
            if self._limited or other.parent in borrowers:
                self._touch(other)

    def _touch_below(self, branch: Branch) -> None:
        for child in branch.children.values():
            if not isinstance(child, Leaf):
                self._dirty[child.depth][child] = None
                self._touch_below(child)

    def _head_of(self, leaf: Leaf) -> tuple[Turn, Shape, PoolName] | None:
        head = leaf.queue.head()
        if head is None:
            return None
        turn, shape = head
        return turn, shape, self.target(leaf, shape, self._undecided.fitted(shape))
