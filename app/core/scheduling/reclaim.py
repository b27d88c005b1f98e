"""Victim search: finds the pods to evict so that the next workload can start.

The rules prevent circular evictions. The search removes victims from the share tree and the nodes
on trial, and restores everything afterwards. It does not evict. The module has more than 500 lines
because the rules and the search share one trial state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from app.core.effects import BorrowedShares, ReclaimCause
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root, users_below
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.lost_work import device_time_lost_by
from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.placement.allocations import Allocations
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_capacity import FUTURE_NODE
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Reclaim, WithinQueue
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, ReclaimRecord
from app.core.scheduling.victims import ReclaimCheck, ReclaimPlan, Victim

MAX_TERMINATION_MS = 600_000
"""Time for which a terminating pod is expected to end. Some pods never end."""


STEPS_PER_TRIAL = 10
"""Work of one change of the trial state, relative to that of listing one pod."""


@dataclass(slots=True)
class _ReclaimContext:
    leaf: UserNode
    queue_key: QueueKey
    shape: EquivalenceClass
    pool: PoolName
    victims: list[Victim]
    terminating: list[PodRecord] = field(default_factory=list)


class Reclaimer:
    """Searches victims: see `find_victims`. `retry_at` is when a rejected victim may become
    eligible. `steps` counts the work of the searches, in units of about 10 µs of CPU time.

    `on_cooldown` contains the reclaims on cooldown, each with the protected
    tenant and the end of the cooldown. The caller empties it before a new workload.
    """

    def __init__(
        self, registry: PodRegistry, placement: Allocations, cooldowns: ReclaimCooldowns
    ) -> None:
        self.retry_at: Millis | None = None
        self.steps = 0
        self.on_cooldown: dict[tuple[Uid, PoolName, TenantName], Millis] = {}
        self._cooldowns = cooldowns
        self._terminating: dict[Uid, tuple[PodRecord, Millis]] = {}
        self._registry = registry
        self._placement = placement
        self._excluded_until: dict[str, Millis] = {}
        self._refusals: Counter[str] = Counter()

    def exclude_until(self, uid: str, until: Millis) -> None:
        """Exclude a pod from reclaims until this time, because its eviction was refused.

        After that time, a pod that has a disruption budget or was refused twice becomes a victim
        only if no other pod can. A notice may last longer than the exclusion, so the same pod would
        be chosen again and again.
        """
        self._excluded_until[uid] = until
        self._refusals[uid] += 1

    def apply_policy_change(self) -> None:
        """Clear these exclusions, because the Policy changed."""
        self._excluded_until.clear()
        self._refusals.clear()

    def record_terminating(self, tracked: PodRecord) -> None:
        """Record that a pod with capacity is terminating."""
        self._terminating.setdefault(tracked.pod.uid, (tracked, self._registry.usage.now))

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._terminating.pop(uid, None)
        self._excluded_until.pop(uid, None)
        self._refusals.pop(uid, None)

    def find_victims(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> ReclaimPlan | None:
        """Return the victims for a workload in a pool; None if no permitted set suffices.

        Terminating pods of the pool count as gone. If that suffices, there are no victims.
        """
        case = _ReclaimContext(leaf, queue_key, shape, pool, [])
        own = self._own_victims(case)
        if not self._may_help(case, own):
            return None
        case.terminating = self._terminating_pods(pool)
        try:
            for tracked in case.terminating:
                self._add_pod_usage(tracked, -1)
            if not self._collect_victims(case, own):
                return None
            self._spare_unneeded(case)
            plan = self._assign_workload(case)
            if plan is None or not self._are_victims_permitted(case):
                return None
            if plan.has_future_nodes and not (case.victims or case.terminating):
                return None  # no eviction if new nodes can hold the workload
            rooms: dict[NodeName, dict[Resource, int]] = {}
            demands = [demand for demand, count in shape.request_counts for _ in range(count)]
            for node, demand in zip(plan.nodes, demands, strict=True):
                add_to(rooms.setdefault(node or FUTURE_NODE, {}), demand, 1)
            victims, compared = self._final_victims(case)
            near = [t for t in case.terminating if plan.has_future_nodes or t.node in rooms]
            awaited = frozenset(t.pod.uid for t in near)
            return ReclaimPlan(victims, dict(rooms), compared, awaited)
        finally:
            for victim in reversed(case.victims):
                self._add_victim_usage(victim, 1)
            for tracked in reversed(case.terminating):
                self._add_pod_usage(tracked, 1)

    def recheck_victims(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        victims: Iterable[Victim],
    ) -> ReclaimCheck:
        """Check the victims of an earlier plan again, after their notice."""
        case = _ReclaimContext(leaf, queue_key, shape, pool, [], self._terminating_pods(pool))
        try:
            for tracked in case.terminating:
                self._add_pod_usage(tracked, -1)
            for victim in victims:
                self._take(case, victim)
            fits, is_permitted = self._fits(case), self._are_victims_permitted(case)
            if fits and not is_permitted:  # other pods of the losing tenant have ended meanwhile
                is_permitted = self._spare_forbidden(case)
            if fits and is_permitted:
                self._spare_unneeded(case)
            needed, compared = self._final_victims(case)
            return ReclaimCheck(needed, compared, is_permitted, fits)
        finally:
            for victim in reversed(case.victims):
                self._add_victim_usage(victim, 1)
            for tracked in reversed(case.terminating):
                self._add_pod_usage(tracked, 1)

    def _terminating_pods(self, pool: PoolName) -> list[PodRecord]:
        """Return the terminating pods of a pool that are expected to end in time."""
        now = self._registry.usage.now
        found = [t for t, _ in self._terminating.values() if not self._is_slow_to_terminate(t, now)]
        return [t for t in found if t.allocation is not None and t.allocation.pool == pool]

    def _is_slow_to_terminate(self, tracked: PodRecord, now: Millis) -> bool:
        """Return whether a terminating pod is not expected to end in time.

        Its grace period is too long, which its owner may choose, or it has been terminating too
        long. A grace period beyond 292 years overflows in the API server, to an end in the past.
        """
        since = self._terminating.get(tracked.pod.uid, (tracked, now))[1]
        end = now if tracked.pod.grace_ends is None else tracked.pod.grace_ends
        return abs(end - now) > MAX_TERMINATION_MS or now - since >= MAX_TERMINATION_MS

    def needs_eviction(self, tracked: PodRecord) -> bool:
        """Return whether a pod ends only if it is evicted."""
        return not tracked.pod.terminating or self._is_slow_to_terminate(
            tracked, self._registry.usage.now
        )

    def _may_help(self, case: _ReclaimContext, own: list[Victim]) -> bool:
        """Return, by a cheap check, whether a victim search can succeed."""
        if own:
            return True
        if self._registry.usage.policy.reclaim is Reclaim.OFF:
            return False
        fronts = self._reclaim_pairs(case)
        return any(
            self._may_reclaim_from(case, mine, rival) for mine, rivals in fronts for rival in rivals
        )

    def _may_reclaim_from(self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether any pod of a rival may be taken in the present state."""
        cost = self._registry.usage.tree.cost(case.shape, case.pool)
        return rival.is_borrowing(case.pool, cost) and self._is_fair_between(case, mine, rival)

    def _collect_victims(self, case: _ReclaimContext, own: list[Victim]) -> bool:
        """Take victims until the workload fits. Return whether it does.

        Those of the user come first, except for pods whose eviction was refused before.
        """
        refused = [victim for victim in own if self._was_refused(victim)]
        for victim in own:
            if victim not in refused and not self._fits(case):
                self._take_rest(case, victim)
        lines: dict[TenantNode, list[Victim]] = {}
        while not self._fits(case):
            worst = self._next_victim(case, lines)
            if worst is not None:
                self._take(case, worst)
            elif refused:
                self._take_rest(case, refused.pop(0))
            else:
                return False
        return True

    def _take_rest(self, case: _ReclaimContext, victim: Victim) -> None:
        rest = self._without_taken(case, victim)
        if rest.pods:
            self._take(case, rest)

    def _next_victim(
        self, case: _ReclaimContext, lines: dict[TenantNode, list[Victim]]
    ) -> Victim | None:
        """Return the next victim: the first one of the tenant with the highest score.

        Pods whose eviction was refused before come after those of all tenants.

        A victim that is not permitted now is never permitted in this search: tenants only lose
        usage.
        """
        tree = self._registry.usage.tree
        fronts = [
            (rival.weight[0] == 0, tree.weighted_share(rival, case.pool, (), 0), mine, rival)
            for mine, rivals in self._reclaim_pairs(case)
            for rival in rivals
            if self._may_reclaim_from(case, mine, rival)
        ]
        fronts.sort(key=lambda f: (not f[0], -f[1], f[3].depth, str(f[3].name)))
        for _, _, _, rival in fronts:
            if rival not in lines:
                lines[rival] = self._victims_of_tenant(case, rival)[::-1]
        for may_be_refused in (False, True):
            for _, _, mine, rival in fronts:
                line = lines[rival]
                while line and (may_be_refused or not self._was_refused(line[-1])):
                    victim = self._without_taken(case, line.pop())
                    taken = not victim.pods or victim in case.victims
                    if not taken and self._may_take(case, mine, rival, victim):
                        return victim
        return None

    def _may_take(
        self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        if not self._is_allowed(case, mine, rival, victim):
            return False
        self._add_victim_usage(victim, -1)
        fair = self._is_fair_between(case, mine, rival)
        self._add_victim_usage(victim, 1)
        return fair and not self._is_spared_now(case, mine, victim)

    def _is_spared_now(self, case: _ReclaimContext, mine: TenantNode, victim: Victim) -> bool:
        """Return whether a recent reclaim protects a victim from this one.

        A guarantee takes from borrowers only, so it never reverses an earlier reclaim for one.
        """
        if self._is_within_guarantee(case, mine):
            return False
        now = self._registry.usage.now
        return self._is_on_cooldown(case, victim) or any(
            _is_spared(tracked, case.leaf, now) for tracked in victim.pods
        )

    def _is_on_cooldown(self, case: _ReclaimContext, victim: Victim) -> bool:
        """Return whether the reclaim is on cooldown as the reverse of a recent reclaim."""
        taking = ReclaimRecord(case.pool, victim.leaf.tenant, case.leaf.tenant)
        until = self._cooldowns.forbidden_until(taking, self._registry.usage.now)
        if until is None:
            return False
        self.on_cooldown[case.queue_key.uid, case.pool, victim.leaf.tenant] = until
        self.retry_at = Millis(min(until, self.retry_at or until))
        return True

    def _is_allowed(
        self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        """Return whether all tenants from the victim up to the rival borrow needed resources."""
        if (
            self._registry.usage.policy.reclaim is Reclaim.GUARANTEE
            and not self._is_within_guarantee(case, mine)
        ):
            return False
        freed = victim.freed_resources()
        cost = self._registry.usage.tree.cost(case.shape, case.pool)
        useful = tuple(each for each in cost if each[0] in freed)
        for branch in path_to_root(victim.leaf):
            if not isinstance(branch, UserNode) and not branch.is_borrowing(case.pool, useful):
                return False
            if branch is rival:
                return True
        return False

    def _is_fair_between(self, case: _ReclaimContext, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether the rival would not have a lower score than the workload's tenant."""
        if self._is_within_guarantee(case, mine):
            return True
        if not (mine.weight[0] and rival.weight[0]):
            return bool(mine.weight[0])  # weight 0 gets only unclaimed capacity
        tree = self._registry.usage.tree
        cost = tree.cost(case.shape, case.pool)
        left = tree.score(rival, tree.twice_borrowed(rival, case.pool, (), 0))
        return left >= tree.score(mine, tree.twice_borrowed(mine, case.pool, cost, 2))

    def _final_victims(
        self, case: _ReclaimContext
    ) -> tuple[tuple[Victim, ...], tuple[BorrowedShares, ...]]:
        """Return the victims with their final causes, and the comparison of each."""
        compared = tuple(self._compare_shares(case, victim) for victim in case.victims)
        return tuple(self._with_final_cause(case, victim) for victim in case.victims), compared

    def _with_final_cause(self, case: _ReclaimContext, victim: Victim) -> Victim:
        """Return a victim with its final cause. Other victims may have been spared meanwhile."""
        if victim.cause is ReclaimCause.PRIORITY:
            return victim
        mine, _ = _diverging_ancestors(case.leaf, victim.leaf)
        return replace(
            victim,
            cause=ReclaimCause.GUARANTEE
            if self._is_within_guarantee(case, mine)
            else ReclaimCause.FAIR,
        )

    def _compare_shares(self, case: _ReclaimContext, victim: Victim) -> BorrowedShares:
        tree, cost = (
            self._registry.usage.tree,
            self._registry.usage.tree.cost(case.shape, case.pool),
        )
        if victim.leaf is case.leaf:
            own = tree.weighted_share(case.leaf, case.pool, cost, 2)
            return BorrowedShares((own, own), ("", ""))
        mine, rival = _diverging_ancestors(case.leaf, victim.leaf)
        theirs = tree.weighted_share(rival, case.pool, (), 0)
        shares = theirs, tree.weighted_share(mine, case.pool, cost, 2)
        return BorrowedShares(
            shares,
            (
                _branch_description(rival, victim.leaf, "its user"),
                _branch_description(mine, case.leaf, "the other user"),
            ),
        )

    def _is_within_guarantee(self, case: _ReclaimContext, mine: TenantNode) -> bool:
        """Return whether the workload is within the guarantee of its tenant."""
        if not mine.guarantees:
            return False
        return self._registry.usage.tree.rank(mine, case.shape, case.pool).band == GUARANTEED

    def _spare_forbidden(self, case: _ReclaimContext) -> bool:
        """Spare victims that the rules do not permit, then others, while the workload still fits.

        Return whether those that remain are permitted.
        """
        last_first = list(reversed(case.victims))
        for victim in sorted(last_first, key=lambda each: self._is_victim_permitted(case, each)):
            if self._are_victims_permitted(case):
                return True
            if victim.is_extra_pod and self._loses_minimum(case, victim):
                continue
            index = case.victims.index(victim)
            self._untake(case, victim)
            if not self._fits(case):
                self._take(case, victim, index)
        return self._are_victims_permitted(case)

    def _spare_unneeded(self, case: _ReclaimContext) -> None:
        """Spare victims that turned out to be unneeded, the last taken first.

        The others keep their order, in which they are checked again after a notice.
        """
        for index, victim in reversed(list(enumerate(case.victims))):
            if victim.is_extra_pod and self._loses_minimum(case, victim):
                continue
            self._untake(case, victim)
            if not (self._fits(case) and self._are_victims_permitted(case, victim)):
                self._take(case, victim, index)

    def _loses_minimum(self, case: _ReclaimContext, victim: Victim) -> bool:
        """Return whether the minimum is taken from the gang of a further pod."""
        return any(each.gang == victim.gang and not each.is_extra_pod for each in case.victims)

    def _are_victims_permitted(self, case: _ReclaimContext, back: Victim | None = None) -> bool:
        """Check every victim again, as if it were the last one taken.

        `back` was just spared. Only victims compared with an ancestor of `back` are checked then.
        """
        above = None if back is None else set(path_to_root(back.leaf))
        return all(self._is_victim_permitted(case, victim, above) for victim in case.victims)

    def _is_victim_permitted(
        self, case: _ReclaimContext, victim: Victim, above: set[TenantNode] | None = None
    ) -> bool:
        """Check a victim as if it were the last one taken.

        With `above`, only a victim that is compared with one of these ancestors is checked.
        """
        if victim.cause is ReclaimCause.PRIORITY:
            return True
        mine, rival = _diverging_ancestors(case.leaf, victim.leaf)
        if above is not None and mine not in above:
            return True
        fair = self._is_fair_between(case, mine, rival)
        self._add_victim_usage(victim, 1)
        lawful = self._is_allowed(case, mine, rival, victim)
        self._add_victim_usage(victim, -1)
        return fair and lawful and not self._is_spared_now(case, mine, victim)

    def _fits(self, case: _ReclaimContext) -> bool:
        if self._assign_workload(case) is None:
            return False
        return self._registry.usage.tree.is_within_limits(case.leaf, case.shape, case.pool)

    def _assign_workload(self, case: _ReclaimContext) -> Assignment | None:
        """Return an assignment of the workload. No pod is evicted for nodes that may not come."""
        plan = self._placement.find_assignment(case.shape, case.pool)
        beyond = self._placement.autoscaling_capacity
        if (
            plan is not None
            and plan.has_future_nodes
            and not beyond.is_scale_up_reliable(case.pool, case.leaf.account)
        ):
            return None
        if (
            plan is not None
            and not plan.has_future_nodes
            and self._placement.count_waiting_for_nodes(case.pool)
        ):
            return None  # freed capacity goes to released pods that wait in the scheduler
        return plan

    def _reclaim_pairs(
        self, case: _ReclaimContext
    ) -> Iterator[tuple[TenantNode, list[TenantNode]]]:
        """Return the tenants above the workload that may reclaim, each with its siblings."""
        if self._registry.usage.policy.reclaim is Reclaim.OFF:
            return
        only_owed = self._registry.usage.policy.reclaim is Reclaim.GUARANTEE
        for branch in path_to_root(case.leaf):
            if isinstance(branch, UserNode) or (
                only_owed and not self._is_within_guarantee(case, branch)
            ):
                continue
            if branch.parent is not None:
                siblings = branch.parent.children.values()
                yield (
                    branch,
                    [s for s in siblings if s is not branch and not isinstance(s, UserNode)],
                )

    def _own_victims(self, case: _ReclaimContext) -> list[Victim]:
        if self._registry.usage.policy.within_queue is WithinQueue.NEVER:
            return []
        held = self._registry.find_workload(case.queue_key.uid)
        priority = max((t.pod.priority for t in held.members), default=0) if held else 0
        mine = self._victims_of_user(case, case.leaf, ReclaimCause.PRIORITY)
        return [v for v in mine if max(t.pod.priority for t in v.pods) < priority]

    def _victims_of_tenant(self, case: _ReclaimContext, rival: TenantNode) -> list[Victim]:
        mine, _ = _diverging_ancestors(case.leaf, rival)
        cause = (
            ReclaimCause.GUARANTEE if self._is_within_guarantee(case, mine) else ReclaimCause.FAIR
        )
        found = [v for leaf in users_below(rival) for v in self._victims_of_user(case, leaf, cause)]
        return sorted(found, key=self._eviction_order)

    def _eviction_order(self, victim: Victim) -> tuple[bool, tuple[object, ...]]:
        """Return the sort key among the victims of a tenant."""
        return self._was_refused(victim), victim.eviction_order()

    def _was_refused(self, victim: Victim) -> bool:
        """Return whether an eviction was refused before, and is likely to be refused again.

        A first refusal of a pod without a budget may be due to a busy API server. A budget that the
        Policy overrides does not protect a pod at the cost of others.
        """
        if not self._refusals:
            return False
        is_overridden = (
            victim.cause is ReclaimCause.GUARANTEE and self._registry.usage.policy.overrides_budgets
        )
        for tracked in victim.pods:
            count = self._refusals.get(tracked.pod.uid)
            if count is None:
                continue
            if self._registry.budgets.budgets_covering(tracked.pod):
                if not is_overridden:
                    return True
            elif count > 1:
                return True
        return False

    def _victims_of_user(
        self, case: _ReclaimContext, leaf: UserNode, cause: ReclaimCause
    ) -> list[Victim]:
        """Return the released workloads of a user that could be evicted for a case, in order."""
        found: list[Victim] = []
        gangs: dict[GangKey, Gang] = {}
        charged = self._registry.charged_by_user.get(leaf, {})
        self.steps += len(charged)
        for tracked in charged.values():
            if (
                tracked.allocation is None
                or tracked.allocation.pool != case.pool
                or not self.needs_eviction(tracked)
            ):
                continue
            if tracked.gang is None:
                found.append(self._make_victim(leaf, (tracked,), cause))
            else:
                gangs[tracked.gang.key] = tracked.gang
        for gang in gangs.values():
            found += self._victims_of_gang(gang, leaf, cause)
        return sorted(filter(self._is_evictable, found), key=self._eviction_order)

    def _victims_of_gang(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Iterator[Victim]:
        """Yield the further pods of a gang, and the whole gang if that is more than these."""
        further = list(self._surplus_victims(gang, leaf, cause))
        whole = self._gang_victim(gang, leaf, cause)
        yield from further
        if not {t.pod.uid for t in whole.pods} <= {each.pods[0].pod.uid for each in further}:
            yield whole

    def _gang_victim(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Victim:
        """Return all preemptible pods of a gang that stay, perhaps none.

        It is broken if fewer pods stay than it needs. A pod that is not preemptible protects only
        itself: the release made those that were released with it not preemptible either, and others
        joined the gang later, perhaps with borrowed capacity.
        """
        pods = [t for t in gang.members if t.allocation is not None]
        left = [t for t in pods if self.needs_eviction(t)]
        needed = min(len(pods), gang.min_count) if gang.is_elastic else len(pods)
        preemptible = tuple(t for t in left if t.pod.preemptible)
        return self._make_victim(leaf, preemptible, cause, len(left) < needed)

    def _surplus_victims(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Iterator[Victim]:
        """Yield the pods that an elastic gang can do without: those released last."""
        if not gang.is_elastic:
            return
        left = [t for t in gang.members if t.allocation is not None and self.needs_eviction(t)]
        left.sort(key=lambda t: (t.release_id, t.pod.uid))
        for tracked in left[max(gang.min_count, gang.required) :]:
            yield replace(self._make_victim(leaf, (tracked,), cause), is_extra_pod=True)

    def _without_taken(self, case: _ReclaimContext, victim: Victim) -> Victim:
        """Return the rest of an elastic gang, if some of its further pods are taken already.

        It has no pods if all are taken.
        """
        if victim.is_extra_pod or victim.gang is None:
            return victim
        taken = {t.pod.uid for each in case.victims if each.is_extra_pod for t in each.pods}
        left = tuple(t for t in victim.pods if t.pod.uid not in taken)
        if len(left) == len(victim.pods):
            return victim
        return self._make_victim(victim.leaf, left, victim.cause, victim.is_broken)

    def _make_victim(
        self, leaf: UserNode, pods: tuple[PodRecord, ...], cause: ReclaimCause, broken: bool = False
    ) -> Victim:
        lost = sum(device_time_lost_by(tracked, self._registry.usage.now) for tracked in pods)
        return Victim(leaf, pods, cause, broken, lost)

    def _is_evictable(self, victim: Victim) -> bool:
        """Return whether a victim may be evicted now.

        The least run time of a gang begins with its oldest pod. Otherwise a gang that gets a new
        pod again and again could never be evicted.
        """
        now, least = self._registry.usage.now, self._registry.usage.policy.min_runtime
        for tracked in victim.pods:
            if (
                not tracked.pod.preemptible
                or tracked.eviction_reason
                or tracked.state is not PodState.USING
            ):
                return False
        begun = min(tracked.released_at or 0 for tracked in victim.pods)
        excluded = max(self._excluded_until.get(t.pod.uid, 0) for t in victim.pods)
        ready = max(begun + least, excluded)
        if ready > now:
            self.retry_at = Millis(min(ready, self.retry_at or ready))
            return False
        return True

    def _take(self, case: _ReclaimContext, victim: Victim, index: int | None = None) -> None:
        """Take a victim. `index` is its place among the victims; by default it becomes the last."""
        self._add_victim_usage(victim, -1)
        case.victims.insert(len(case.victims) if index is None else index, victim)

    def _untake(self, case: _ReclaimContext, victim: Victim) -> None:
        case.victims.remove(victim)
        self._add_victim_usage(victim, 1)

    def _add_victim_usage(self, victim: Victim, sign: int) -> None:
        """Add the usage of a victim to the tree and the nodes. Sign -1 removes it."""
        for tracked in victim.pods:
            self._add_pod_usage(tracked, sign)

    def _add_pod_usage(self, tracked: PodRecord, sign: int) -> None:
        self.steps += STEPS_PER_TRIAL
        allocation, leaf = tracked.allocation, tracked.leaf
        assert allocation is not None
        assert leaf is not None
        self._registry.usage.tree.add_usage(leaf, allocation.pool, allocation.demand, sign)
        if sign > 0:
            self._placement.add_allocation(allocation)
        else:
            self._placement.remove_allocation(allocation)


def _diverging_ancestors(one: TenantNode, other: TenantNode) -> tuple[TenantNode, TenantNode]:
    """Return the two children of the lowest common ancestor, on the paths to both nodes."""
    mine, theirs = list(path_to_root(one)), list(path_to_root(other))
    while len(mine) > 1 and len(theirs) > 1 and mine[-2] is theirs[-2]:
        mine.pop()
        theirs.pop()
    return mine[-2], theirs[-2]


def _branch_description(branch: TenantNode, leaf: UserNode, user: str) -> str:
    """Return a name for a branch above a user that does not tell who the user is."""
    if branch is leaf:
        return user
    above = f" (above tenant {leaf.tenant})" if branch.name != leaf.tenant else ""
    return f"tenant {branch.name}{above}"


def _is_spared(tracked: PodRecord, leaf: UserNode, now: Millis) -> bool:
    """Return whether pods of this tenant were recently evicted to make room for this pod."""
    if tracked.reclaim_protection is None:
        return False
    payers, until = tracked.reclaim_protection
    return leaf.tenant in payers and now < until
