"""Victim search: finds the pods to evict so that the next workload can start.

The rules prevent circular evictions. The search removes victims from the share tree and the nodes
on trial, and restores everything afterwards. It does not evict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from app.core.effects import BorrowedShares, ReclaimCause
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tree_node import TenantNode, UserNode, leaves, path
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.lost_work import lost_by
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.placement.allocations import Allocations
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_capacity import TO_COME
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Reclaim, WithinQueue
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, ReclaimRecord
from app.core.scheduling.victims import ReclaimCheck, ReclaimPlan, Victim

LEAVING_MS = 600_000
"""Time for which a terminating pod is expected to end. Some pods never end."""


@dataclass(slots=True)
class _ReclaimContext:
    leaf: UserNode
    queue_key: QueueKey
    shape: EquivalenceClass
    pool: PoolName
    taken: list[Victim]
    leaving: list[PodRecord] = field(default_factory=list)


class Reclaimer:
    """Searches victims: see `judge`. `again_at` is when a rejected victim may become eligible.

    `forbidden` contains the reclaims on cooldown, each with the protected tenant and the end of the
    cooldown. The caller empties it before a new workload.
    """

    def __init__(
        self, registry: PodRegistry, placement: Allocations, cooldowns: ReclaimCooldowns
    ) -> None:
        self.again_at: Millis | None = None
        self.forbidden: dict[tuple[Uid, PoolName, TenantName], Millis] = {}
        self._cooldowns = cooldowns
        self._leaving: dict[Uid, tuple[PodRecord, Millis]] = {}
        self._registry = registry
        self._placement = placement
        self._spared: dict[str, Millis] = {}

    def spare(self, uid: str, until: Millis) -> None:
        """Exclude a pod from reclaims until this time, because its eviction was refused."""
        self._spared[uid] = until

    def rule(self) -> None:
        """Clear these exclusions, because the Policy changed."""
        self._spared.clear()

    def leave(self, tracked: PodRecord) -> None:
        """Record that a pod with capacity is terminating."""
        self._leaving.setdefault(tracked.pod.uid, (tracked, self._registry.usage.now))

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._leaving.pop(uid, None)
        self._spared.pop(uid, None)

    def judge(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> ReclaimPlan | None:
        """Return the victims for a workload in a pool; None if no permitted set suffices.

        Terminating pods of the pool count as gone. If that suffices, there are no victims.
        """
        case = _ReclaimContext(leaf, queue_key, shape, pool, [])
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
                return None  # no eviction if new nodes can hold the workload
            rooms: dict[NodeName, dict[Resource, int]] = {}
            demands = [demand for demand, count in shape.parts for _ in range(count)]
            for node, demand in zip(plan.nodes, demands, strict=True):
                add_to(rooms.setdefault(node or TO_COME, {}), demand, 1)
            compared = tuple(self._compare(case, victim) for victim in case.taken)
            victims = tuple(self._named(case, victim) for victim in case.taken)
            near = [t for t in case.leaving if plan.awaits or t.node in rooms]
            awaited = frozenset(t.pod.uid for t in near)
            return ReclaimPlan(victims, dict(rooms), compared, awaited)
        finally:
            for victim in reversed(case.taken):
                self._move(victim, 1)
            for tracked in reversed(case.leaving):
                self._move_pod(tracked, 1)

    def confirm(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        victims: Iterable[Victim],
    ) -> ReclaimCheck:
        """Check the victims of an earlier plan again, after their notice."""
        case = _ReclaimContext(leaf, queue_key, shape, pool, [], self._going(pool))
        try:
            for tracked in case.leaving:
                self._move_pod(tracked, -1)
            for victim in victims:
                self._take(case, victim)
            fits, is_permitted = self._fits(case), self._permitted(case)
            if fits and is_permitted:
                self._give_back(case)
            return ReclaimCheck(tuple(case.taken), is_permitted, fits)
        finally:
            for victim in reversed(case.taken):
                self._move(victim, 1)
            for tracked in reversed(case.leaving):
                self._move_pod(tracked, 1)

    def _going(self, pool: PoolName) -> list[PodRecord]:
        """Return the terminating pods of a pool that are expected to end in time."""
        now = self._registry.usage.now
        found = [t for t, _ in self._leaving.values() if not self._lingers(t, now)]
        return [t for t in found if t.allocation is not None and t.allocation.pool == pool]

    def _lingers(self, tracked: PodRecord, now: Millis) -> bool:
        """Return whether a terminating pod is not expected to end in time.

        Its grace period is too long, which its owner may choose, or it has been terminating too
        long. A grace period beyond 292 years overflows in the API server, to an end in the past.
        """
        since = self._leaving.get(tracked.pod.uid, (tracked, now))[1]
        end = now if tracked.pod.gone_by is None else tracked.pod.gone_by
        return abs(end - now) > LEAVING_MS or now - since >= LEAVING_MS

    def _stays(self, tracked: PodRecord) -> bool:
        """Return whether a pod ends only if it is evicted."""
        return not tracked.pod.terminating or self._lingers(tracked, self._registry.usage.now)

    def _hopeful(self, case: _ReclaimContext, own: list[Victim]) -> bool:
        """Return, by a cheap check, whether a victim search can succeed."""
        if own:
            return True
        if self._registry.usage.policy.reclaim is Reclaim.OFF:
            return False
        fronts = self._fronts(case)
        return any(self._open(case, mine, rival) for mine, rivals in fronts for rival in rivals)

    def _open(self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether any pod of a rival may be taken in the present state."""
        cost = self._registry.usage.tree.cost(case.shape, case.pool)
        return rival.borrows(case.pool, cost) and self._not_higher(case, mine, rival)

    def _collect(self, case: _ReclaimContext, own: list[Victim]) -> bool:
        """Take victims until the workload fits. Return whether it does."""
        for victim in own:
            if self._fits(case):
                return True
            self._take(case, self._without_taken(case, victim))
        lines: dict[TenantNode, list[Victim]] = {}
        while not self._fits(case):
            worst = self._worst(case, lines)
            if worst is None:
                return False
            self._take(case, worst)
        return True

    def _worst(self, case: _ReclaimContext, lines: dict[TenantNode, list[Victim]]) -> Victim | None:
        """Return the next victim: the first one of the tenant with the highest score.

        A victim that is not permitted now is never permitted in this search: tenants only lose
        usage.
        """
        tree = self._registry.usage.tree
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
                victim = self._without_taken(case, line.pop())
                if victim not in case.taken and self._may_take(case, mine, rival, victim):
                    return victim
        return None

    def _may_take(
        self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        if not self._lawful(case, mine, rival, victim):
            return False
        self._move(victim, -1)
        fair = self._not_higher(case, mine, rival)
        self._move(victim, 1)
        # A guarantee takes from borrowers only, so it never reverses an earlier reclaim for one.
        return fair and (self._owed(case, mine) or not self._undoes(case, victim))

    def _undoes(self, case: _ReclaimContext, victim: Victim) -> bool:
        """Return whether the reclaim is on cooldown as the reverse of a recent reclaim."""
        taking = ReclaimRecord(case.pool, victim.leaf.tenant, case.leaf.tenant)
        until = self._cooldowns.forbids(taking, self._registry.usage.now)
        if until is None:
            return False
        self.forbidden[case.queue_key.uid, case.pool, victim.leaf.tenant] = until
        self.again_at = Millis(min(until, self.again_at or until))
        return True

    def _lawful(
        self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        """Return whether all tenants from the victim up to the rival borrow needed resources."""
        if self._registry.usage.policy.reclaim is Reclaim.GUARANTEE and not self._owed(case, mine):
            return False
        freed = victim.frees()
        cost = self._registry.usage.tree.cost(case.shape, case.pool)
        useful = tuple(each for each in cost if each[0] in freed)
        for branch in path(victim.leaf):
            if not isinstance(branch, UserNode) and not branch.borrows(case.pool, useful):
                return False
            if branch is rival:
                return True
        return False

    def _not_higher(self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether the rival would not have a lower score than the workload's tenant."""
        if self._owed(case, mine):
            return True
        if not (mine.weight[0] and rival.weight[0]):
            return bool(mine.weight[0])  # weight 0 gets only unclaimed capacity
        tree = self._registry.usage.tree
        cost = tree.cost(case.shape, case.pool)
        left = tree.score(rival, tree.doubled(rival, case.pool, (), 0))
        return left >= tree.score(mine, tree.doubled(mine, case.pool, cost, 2))

    def _named(self, case: _ReclaimContext, victim: Victim) -> Victim:
        """Return a victim with its final cause. Other victims may have been spared meanwhile."""
        if victim.cause is ReclaimCause.PRIORITY:
            return victim
        mine, _ = _parting(case.leaf, victim.leaf)
        return replace(
            victim, cause=ReclaimCause.GUARANTEE if self._owed(case, mine) else ReclaimCause.FAIR
        )

    def _compare(self, case: _ReclaimContext, victim: Victim) -> BorrowedShares:
        tree, cost = (
            self._registry.usage.tree,
            self._registry.usage.tree.cost(case.shape, case.pool),
        )
        if victim.leaf is case.leaf:
            own = tree.standing(case.leaf, case.pool, cost, 2)
            return BorrowedShares((own, own), ("", ""))
        mine, rival = _parting(case.leaf, victim.leaf)
        theirs = tree.standing(rival, case.pool, (), 0)
        shares = theirs, tree.standing(mine, case.pool, cost, 2)
        return BorrowedShares(
            shares,
            (_name(rival, victim.leaf, "its user"), _name(mine, case.leaf, "the other user")),
        )

    def _owed(self, case: _ReclaimContext, mine: TenantNode) -> bool:
        """Return whether the workload is within the guarantee of its tenant."""
        if not mine.guarantees:
            return False
        return self._registry.usage.tree.rank(mine, case.shape, case.pool).band == GUARANTEED

    def _give_back(self, case: _ReclaimContext) -> None:
        """Spare victims that turned out to be unneeded, the last taken first."""
        for victim in reversed(case.taken[:]):
            if victim.further and self._loses_minimum(case, victim):
                continue
            self._untake(case, victim)
            if not (self._fits(case) and self._permitted(case, victim)):
                self._take(case, victim)

    def _loses_minimum(self, case: _ReclaimContext, victim: Victim) -> bool:
        """Return whether the minimum is taken from the gang of a further pod."""
        return any(each.gang == victim.gang and not each.further for each in case.taken)

    def _permitted(self, case: _ReclaimContext, back: Victim | None = None) -> bool:
        """Check every victim again, as if it were the last one taken.

        `back` was just spared. Only victims compared with an ancestor of `back` are checked then.
        """
        above = None if back is None else set(path(back.leaf))
        for victim in case.taken:
            if victim.cause is ReclaimCause.PRIORITY:
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

    def _fits(self, case: _ReclaimContext) -> bool:
        if self._plan(case) is None:
            return False
        return self._registry.usage.tree.allows(case.leaf, case.shape, case.pool)

    def _plan(self, case: _ReclaimContext) -> Assignment | None:
        """Return an assignment of the workload. No pod is evicted for nodes that may not come."""
        plan = self._placement.plan(case.shape, case.pool)
        beyond = self._placement.beyond
        if plan is not None and plan.awaits and not beyond.is_sure(case.pool, case.leaf.account):
            return None
        if plan is not None and not plan.awaits and self._placement.awaiting(case.pool):
            return None  # freed capacity goes to released pods that wait in the scheduler
        return plan

    def _fronts(self, case: _ReclaimContext) -> Iterator[tuple[TenantNode, list[TenantNode]]]:
        """Return the tenants above the workload that may reclaim, each with its siblings."""
        if self._registry.usage.policy.reclaim is Reclaim.OFF:
            return
        only_owed = self._registry.usage.policy.reclaim is Reclaim.GUARANTEE
        for branch in path(case.leaf):
            if isinstance(branch, UserNode) or (only_owed and not self._owed(case, branch)):
                continue
            if branch.parent is not None:
                siblings = branch.parent.children.values()
                yield (
                    branch,
                    [s for s in siblings if s is not branch and not isinstance(s, UserNode)],
                )

    def _own(self, case: _ReclaimContext) -> list[Victim]:
        if self._registry.usage.policy.within_queue is WithinQueue.NEVER:
            return []
        held = self._registry.workload(case.queue_key.uid)
        priority = max((t.pod.priority for t in held.members), default=0) if held else 0
        mine = self._victims(case, case.leaf, ReclaimCause.PRIORITY)
        return [v for v in mine if max(t.pod.priority for t in v.pods) < priority]

    def _within(self, case: _ReclaimContext, rival: TenantNode) -> list[Victim]:
        mine, _ = _parting(case.leaf, rival)
        cause = ReclaimCause.GUARANTEE if self._owed(case, mine) else ReclaimCause.FAIR
        found = [v for leaf in leaves(rival) for v in self._victims(case, leaf, cause)]
        return sorted(found, key=Victim.order)

    def _victims(self, case: _ReclaimContext, leaf: UserNode, cause: ReclaimCause) -> list[Victim]:
        """Return the released workloads of a user that could be evicted for a case, in order."""
        found: dict[object, Victim] = {}
        for tracked in self._registry.running.get(leaf, {}).values():
            if (
                tracked.allocation is None
                or tracked.allocation.pool != case.pool
                or not self._stays(tracked)
            ):
                continue
            if tracked.gang is None:
                found[tracked.pod.uid] = self._victim(leaf, (tracked,), cause)
            elif tracked.gang.key not in found:
                found[tracked.gang.key] = self._whole(tracked.gang, leaf, cause)
                for each in self._further(tracked.gang, leaf, cause):
                    found[each.pods[0].pod.uid] = each
        able = [v for v in found.values() if self._evictable(case, v)]
        return sorted(able, key=Victim.order)

    def _whole(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Victim:
        """Return all pods of a gang that stay. It is broken if fewer of them stay than it needs."""
        pods = [t for t in gang.members if t.allocation is not None]
        left = tuple(t for t in pods if self._stays(t))
        needed = min(len(pods), gang.least) if gang.is_elastic else len(pods)
        return self._victim(leaf, left, cause, len(left) < needed)

    def _further(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Iterator[Victim]:
        """Yield the pods that an elastic gang can do without: those released last."""
        if not gang.is_elastic:
            return
        left = [t for t in gang.members if t.allocation is not None and self._stays(t)]
        left.sort(key=lambda t: (t.stamp, t.pod.uid))
        for tracked in left[max(gang.least, gang.need) :]:
            yield replace(self._victim(leaf, (tracked,), cause), further=True)

    def _without_taken(self, case: _ReclaimContext, victim: Victim) -> Victim:
        """Return the rest of an elastic gang, if some of its further pods are taken already."""
        if len(victim.pods) == 1:
            return victim
        taken = {t.pod.uid for each in case.taken if each.further for t in each.pods}
        left = tuple(t for t in victim.pods if t.pod.uid not in taken)
        if len(left) == len(victim.pods):
            return victim
        return self._victim(victim.leaf, left, victim.cause, victim.broken)

    def _victim(
        self, leaf: UserNode, pods: tuple[PodRecord, ...], cause: ReclaimCause, broken: bool = False
    ) -> Victim:
        lost = sum(lost_by(tracked, self._registry.usage.now) for tracked in pods)
        return Victim(leaf, pods, cause, broken, lost)

    def _evictable(self, case: _ReclaimContext, victim: Victim) -> bool:
        now, least = self._registry.usage.now, self._registry.usage.policy.min_runtime
        for tracked in victim.pods:
            if not tracked.pod.preemptible or tracked.evicted or tracked.life is not PodState.USING:
                return False
            if victim.cause is not ReclaimCause.GUARANTEE and _is_spared(tracked, case.leaf, now):
                return False
            ready = max((tracked.released or 0) + least, self._spared.get(tracked.pod.uid, 0))
            if ready > now:
                self.again_at = Millis(min(ready, self.again_at or ready))
                return False
        return True

    def _take(self, case: _ReclaimContext, victim: Victim) -> None:
        self._move(victim, -1)
        case.taken.append(victim)

    def _untake(self, case: _ReclaimContext, victim: Victim) -> None:
        case.taken.remove(victim)
        self._move(victim, 1)

    def _move(self, victim: Victim, sign: int) -> None:
        """Add the usage of a victim to the tree and the nodes. Sign -1 removes it."""
        for tracked in victim.pods:
            self._move_pod(tracked, sign)

    def _move_pod(self, tracked: PodRecord, sign: int) -> None:
        allocation, leaf = tracked.allocation, tracked.leaf
        assert allocation is not None
        assert leaf is not None
        self._registry.usage.tree.use(leaf, allocation.pool, allocation.demand, sign)
        if sign > 0:
            self._placement.resume(allocation)
        else:
            self._placement.leave(allocation)


def _parting(one: TenantNode, other: TenantNode) -> tuple[TenantNode, TenantNode]:
    """Return the two children of the lowest common ancestor, on the paths to both nodes."""
    mine, theirs = list(path(one)), list(path(other))
    while len(mine) > 1 and len(theirs) > 1 and mine[-2] is theirs[-2]:
        mine.pop()
        theirs.pop()
    return mine[-2], theirs[-2]


def _name(branch: TenantNode, leaf: UserNode, user: str) -> str:
    """Return a name for a branch above a user that does not tell who the user is."""
    if branch is leaf:
        return user
    above = f" (above tenant {leaf.tenant})" if branch.name != leaf.tenant else ""
    return f"tenant {branch.name}{above}"


def _is_spared(tracked: PodRecord, leaf: UserNode, now: Millis) -> bool:
    """Return whether pods of this tenant were recently evicted to make room for this pod."""
    if tracked.spared is None:
        return False
    payers, until = tracked.spared
    return leaf.tenant in payers and now < until
