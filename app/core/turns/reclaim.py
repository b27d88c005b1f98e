"""Whom to evict, so that a workload that is next in order can start. Provably without loops.

A set of victims is tried out on the tree and the nodes themselves, and everything is put back;
what was learned is the answer. It evicts nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from app.core.asks.shape import Shape
from app.core.effects import Cause
from app.core.fair.backlog import Turn
from app.core.fair.branch import Branch, Leaf, leaves, path
from app.core.fair.order import GUARANTEED
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.places.beyond import TO_COME
from app.core.places.placement import Placement
from app.core.places.plans import Plan
from app.core.places.pools import add_to
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.policy import Reclaim, WithinQueue
from app.core.turns.truces import Taking, Truces
from app.core.turns.victims import Clearance, Victim

LEAVING_MS = 600_000
"""So long a pod that is on its way out is counted on to go; some never do."""


@dataclass(slots=True)
class _Case:
    leaf: Leaf
    turn: Turn
    shape: Shape
    pool: PoolName
    taken: list[Victim]
    leaving: list[Tracked] = field(default_factory=list)


class Reclaimer:
    """Answers `judge`. `again_at` is when one who is too young to be evicted comes of age.

    `forbidden` are the reclaims that were not done because they would undo one, each with the
    tenant from which nothing is taken and until when; emptied before a workload is judged.
    """

    def __init__(self, roster: Roster, placement: Placement, truces: Truces) -> None:
        self.again_at: Millis | None = None
        self.forbidden: dict[tuple[Uid, PoolName, TenantName], Millis] = {}
        self._truces = truces
        self._leaving: dict[Uid, tuple[Tracked, Millis]] = {}
        self._roster = roster
        self._placement = placement
        self._spared: dict[str, Millis] = {}

    def spare(self, uid: str, until: Millis) -> None:
        """A pod could not be evicted: leave it alone for a while."""
        self._spared[uid] = until

    def leave(self, tracked: Tracked) -> None:
        """A pod that uses something is on its way out."""
        self._leaving.setdefault(tracked.pod.uid, (tracked, self._roster.usage.now))

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._leaving.pop(uid, None)
        self._spared.pop(uid, None)

    def judge(self, leaf: Leaf, turn: Turn, shape: Shape, pool: PoolName) -> Clearance | None:
        """Return whom to evict so that a workload fits in a pool; None: nobody may be.

        What is on its way out there counts as gone: if that is enough, nobody has to be evicted.
        """
        case = _Case(leaf, turn, shape, pool, [])
        own = self._own(case)
        if not self._hopeful(case, own):
            return None
        case.leaving = self._going(pool)
        try:
            for tracked in case.leaving:
                self._move_pod(tracked, -1)
            if not self._collect(case, own):
                return None
            self._give_back(case)
            plan = self._plan(case)
            if plan is None or not self._permitted(case):
                return None
            if plan.awaits and not (case.taken or case.leaving):
                return None  # nobody need go for what new nodes can carry
            rooms: dict[NodeName, dict[Resource, int]] = {}
            demands = [demand for demand, count in shape.parts for _ in range(count)]
            for node, demand in zip(plan.nodes, demands, strict=True):
                add_to(rooms.setdefault(node or TO_COME, {}), demand, 1)
            compared = tuple(self._compare(case, victim) for victim in case.taken)
            victims = tuple(self._named(case, victim) for victim in case.taken)
            near = [t for t in case.leaving if plan.awaits or t.node in rooms]
            awaited = frozenset(t.pod.uid for t in near)
            return Clearance(victims, dict(rooms), compared, awaited)
        finally:
            for victim in reversed(case.taken):
                self._move(victim, 1)
            for tracked in reversed(case.leaving):
                self._move_pod(tracked, 1)

    def _going(self, pool: PoolName) -> list[Tracked]:
        """Return the pods on their way out of a pool that can be counted on to go."""
        now = self._roster.usage.now
        found = [t for t, since in self._leaving.values() if now - since < LEAVING_MS]
        return [t for t in found if t.stay is not None and t.stay.pool == pool]

    def _hopeful(self, case: _Case, own: list[Victim]) -> bool:
        """Tell, cheaply, whether looking any further could help."""
        if own:
            return True
        if self._roster.usage.policy.reclaim is Reclaim.OFF:
            return False
        fronts = self._fronts(case)
        return any(self._open(case, mine, rival) for mine, rivals in fronts for rival in rivals)

    def _open(self, case: _Case, mine: Branch, rival: Branch) -> bool:
        """Tell whether anything at all might be taken from a rival as it is now."""
        cost = self._roster.usage.tree.cost(case.shape, case.pool)
        return rival.borrows(case.pool, cost) and self._not_higher(case, mine, rival)

    def _collect(self, case: _Case, own: list[Victim]) -> bool:
        """Take victims until the workload fits; tell whether it does."""
        for victim in own:
            if self._fits(case):
                return True
            self._take(case, victim)
        lines: dict[Branch, list[Victim]] = {}
        while not self._fits(case):
            worst = self._worst(case, lines)
            if worst is None:
                return False
            self._take(case, worst)
        return True

    def _worst(self, case: _Case, lines: dict[Branch, list[Victim]]) -> Victim | None:
        """Return the next victim: of the tenant with the highest score, the first in order.

        Who may not be taken now may not be taken later in this case either: tenants only lose.
        """
        tree = self._roster.usage.tree
        fronts = [
            (rival.weight[0] == 0, tree.standing(rival, case.pool, (), 0), mine, rival)
            for mine, rivals in self._fronts(case)
            for rival in rivals
            if self._open(case, mine, rival)
        ]
        fronts.sort(key=lambda f: (not f[0], -f[1], f[3].depth, str(f[3].name)))
        for _, _, mine, rival in fronts:
            if rival not in lines:
                lines[rival] = self._within(case, rival)[::-1]
            line = lines[rival]
            while line:
                victim = line.pop()
                if victim not in case.taken and self._may_take(case, mine, rival, victim):
                    return victim
        return None

    def _may_take(self, case: _Case, mine: Branch, rival: Branch, victim: Victim) -> bool:
        if not self._lawful(case, mine, rival, victim):
            return False
        self._move(victim, -1)
        fair = self._not_higher(case, mine, rival)
        self._move(victim, 1)
        # What is owed is taken from who borrows only, so it never undoes what was owed before.
        return fair and (self._owed(case, mine) or not self._undoes(case, victim))

    def _undoes(self, case: _Case, victim: Victim) -> bool:
        """Tell whether the victim's tenant won a place in this pool from the workload's lately."""
        taking = Taking(case.pool, victim.leaf.tenant, case.leaf.tenant)
        until = self._truces.forbids(taking, self._roster.usage.now)
        if until is None:
            return False
        self.forbidden[case.turn.uid, case.pool, victim.leaf.tenant] = until
        self.again_at = Millis(min(until, self.again_at or until))
        return True

    def _lawful(self, case: _Case, mine: Branch, rival: Branch, victim: Victim) -> bool:
        """Tell whether the victim's tenants, up to the rival, all borrow what is needed."""
        if self._roster.usage.policy.reclaim is Reclaim.GUARANTEE and not self._owed(case, mine):
            return False
        freed = victim.frees()
        cost = self._roster.usage.tree.cost(case.shape, case.pool)
        useful = tuple(each for each in cost if each[0] in freed)
        for branch in path(victim.leaf):
            if not isinstance(branch, Leaf) and not branch.borrows(case.pool, useful):
                return False
            if branch is rival:
                return True
        return False

    def _not_higher(self, case: _Case, mine: Branch, rival: Branch) -> bool:
        """Tell whether the rival, as it is now, would not stand below the workload's tenant."""
        if self._owed(case, mine):
            return True
        if not (mine.weight[0] and rival.weight[0]):
            return bool(mine.weight[0])  # weight 0 has only what nobody else wants
        tree = self._roster.usage.tree
        cost = tree.cost(case.shape, case.pool)
        left = tree.score(rival, tree.doubled(rival, case.pool, (), 0))
        return left >= tree.score(mine, tree.doubled(mine, case.pool, cost, 2))

    def _named(self, case: _Case, victim: Victim) -> Victim:
        """Return a victim with the cause that holds in the end: some were spared meanwhile."""
        if victim.cause is Cause.PRIORITY:
            return victim
        mine, _ = _parting(case.leaf, victim.leaf)
        return replace(victim, cause=Cause.GUARANTEE if self._owed(case, mine) else Cause.FAIR)

    def _compare(self, case: _Case, victim: Victim) -> tuple[float, float]:
        tree, cost = self._roster.usage.tree, self._roster.usage.tree.cost(case.shape, case.pool)
        if victim.leaf is case.leaf:
            own = tree.standing(case.leaf, case.pool, cost, 2)
            return own, own
        mine, rival = _parting(case.leaf, victim.leaf)
        theirs = tree.standing(rival, case.pool, (), 0)
        return theirs, tree.standing(mine, case.pool, cost, 2)

    def _owed(self, case: _Case, mine: Branch) -> bool:
        """Tell whether the workload lies within the guarantee of its tenant."""
        if not mine.guarantees:
            return False
        return self._roster.usage.tree.rank(mine, case.shape, case.pool).band == GUARANTEED

    def _give_back(self, case: _Case) -> None:
        """Spare whoever turned out not to be needed, the last taken first."""
        for victim in reversed(case.taken[:]):
            self._untake(case, victim)
            if not (self._fits(case) and self._permitted(case, victim)):
                self._take(case, victim)

    def _permitted(self, case: _Case, back: Victim | None = None) -> bool:
        """Check every victim again, as if it were the last one taken.

        `back` was put back just now: that only speaks for those who are taken from others than it.
        """
        above = None if back is None else set(path(back.leaf))
        for victim in case.taken:
            if victim.cause is Cause.PRIORITY:
                continue
            mine, rival = _parting(case.leaf, victim.leaf)
            if above is not None and mine not in above:
                continue
            fair = self._not_higher(case, mine, rival)
            self._move(victim, 1)
            lawful = self._lawful(case, mine, rival, victim)
            self._move(victim, -1)
            if not (fair and lawful):
                return False
        return True

    def _fits(self, case: _Case) -> bool:
        if self._plan(case) is None:
            return False
        return self._roster.usage.tree.allows(case.leaf, case.shape, case.pool)

    def _plan(self, case: _Case) -> Plan | None:
        """Return where the workload would go; nobody goes for nodes that may not come."""
        plan = self._placement.plan(case.shape, case.pool)
        beyond = self._placement.beyond
        if plan is not None and plan.awaits and not beyond.is_sure(case.pool, case.leaf.account):
            return None
        if plan is not None and not plan.awaits and self._placement.awaiting(case.pool):
            return None  # what comes free goes to those who wait in the scheduler already
        return plan

    def _fronts(self, case: _Case) -> Iterator[tuple[Branch, list[Branch]]]:
        """Return the tenants above the workload that may take, each with its siblings."""
        if self._roster.usage.policy.reclaim is Reclaim.OFF:
            return
        only_owed = self._roster.usage.policy.reclaim is Reclaim.GUARANTEE
        for branch in path(case.leaf):
            if isinstance(branch, Leaf) or (only_owed and not self._owed(case, branch)):
                continue
            if branch.parent is not None:
                siblings = branch.parent.children.values()
                yield branch, [s for s in siblings if s is not branch and not isinstance(s, Leaf)]

    def _own(self, case: _Case) -> list[Victim]:
        if self._roster.usage.policy.within_queue is WithinQueue.NEVER:
            return []
        held = self._roster.workload(case.turn.uid)
        priority = max((t.pod.priority for t in held.members), default=0) if held else 0
        mine = self._victims(case, case.leaf, Cause.PRIORITY)
        return [v for v in mine if max(t.pod.priority for t in v.pods) < priority]

    def _within(self, case: _Case, rival: Branch) -> list[Victim]:
        mine, _ = _parting(case.leaf, rival)
        cause = Cause.GUARANTEE if self._owed(case, mine) else Cause.FAIR
        found = [v for leaf in leaves(rival) for v in self._victims(case, leaf, cause)]
        return sorted(found, key=Victim.order)

    def _victims(self, case: _Case, leaf: Leaf, cause: Cause) -> list[Victim]:
        """Return the released work of a user that could be evicted for a case, in order."""
        found: dict[object, Victim] = {}
        for tracked in self._roster.running.get(leaf, {}).values():
            if tracked.stay is None or tracked.stay.pool != case.pool or tracked.pod.terminating:
                continue
            if tracked.gang is None:
                found[tracked.pod.uid] = Victim(leaf, (tracked,), cause)
            elif tracked.gang.key not in found:
                pods = tuple(t for t in tracked.gang.members if t.stay is not None)
                left = tuple(t for t in pods if not t.pod.terminating)
                found[tracked.gang.key] = Victim(leaf, left, cause, len(left) < len(pods))
        able = [v for v in found.values() if self._evictable(case, v)]
        return sorted(able, key=Victim.order)

    def _evictable(self, case: _Case, victim: Victim) -> bool:
        now, least = self._roster.usage.now, self._roster.usage.policy.min_runtime
        for tracked in victim.pods:
            if not tracked.pod.preemptible or tracked.evicted or tracked.life is not Life.USING:
                return False
            if victim.cause is not Cause.GUARANTEE and _is_spared(tracked, case.leaf, now):
                return False
            ready = max((tracked.released or 0) + least, self._spared.get(tracked.pod.uid, 0))
            if ready > now:
                self.again_at = Millis(min(ready, self.again_at or ready))
                return False
        return True

    def _take(self, case: _Case, victim: Victim) -> None:
        self._move(victim, -1)
        case.taken.append(victim)

    def _untake(self, case: _Case, victim: Victim) -> None:
        case.taken.remove(victim)
        self._move(victim, 1)

    def _move(self, victim: Victim, sign: int) -> None:
        """Let a victim's use count, or with sign -1 not, in the tree and on the nodes."""
        for tracked in victim.pods:
            self._move_pod(tracked, sign)

    def _move_pod(self, tracked: Tracked, sign: int) -> None:
        stay, leaf = tracked.stay, tracked.leaf
        assert stay is not None
        assert leaf is not None
        self._roster.usage.tree.use(leaf, stay.pool, stay.demand, sign)
        if sign > 0:
            self._placement.resume(stay)
        else:
            self._placement.leave(stay)


def _parting(one: Branch, other: Branch) -> tuple[Branch, Branch]:
    """Return the two children of the lowest common ancestor, on the ways to both."""
    mine, theirs = list(path(one)), list(path(other))
    while len(mine) > 1 and len(theirs) > 1 and mine[-2] is theirs[-2]:
        mine.pop()
        theirs.pop()
    return mine[-2], theirs[-2]


def _is_spared(tracked: Tracked, leaf: Leaf, now: Millis) -> bool:
    """Tell whether a pod stands on room that was lately freed by the tenant who wants it now."""
    if tracked.spared is None:
        return False
    payers, until = tracked.spared
    return leaf.tenant in payers and now < until
