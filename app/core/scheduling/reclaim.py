"""Victim search: finds the pods to evict so that the next workload can start.

The search removes victims from the share tree and the nodes on trial, and restores everything
afterwards. It does not evict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from app.core.effects import ReclaimCause
from app.core.fairshare.tree_node import TenantNode, UserNode, users_below
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import NodeName, PoolName, Resource, TenantName
from app.core.placement.allocations import Allocations, ReservedCapacity
from app.core.placement.autoscaling_capacity import FUTURE_NODE
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Reclaim, WithinQueue
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns
from app.core.scheduling.reclaim_rules import ReclaimRules, diverging_ancestors
from app.core.scheduling.reclaim_trial import ReclaimTrial, SearchTotals
from app.core.scheduling.victim_candidates import VictimCandidates
from app.core.scheduling.victims import ReclaimCheck, ReclaimPlan, Victim


class Reclaimer:
    """Searches victims: see `find_victims`. `totals` sums up the searches of a cycle.

    `withheld` returns the capacity that a workload may not use, because it is reserved for others.
    """

    def __init__(
        self,
        registry: PodRegistry,
        placement: Allocations,
        cooldowns: ReclaimCooldowns,
        withheld: Callable[[UserNode, QueueKey, EquivalenceClass, PoolName], ReservedCapacity],
    ) -> None:
        self._withheld = withheld
        self.totals = SearchTotals()
        self.candidates = VictimCandidates(registry, self.totals)
        self._registry = registry
        self._placement = placement
        self._rules = ReclaimRules(cooldowns)

    def find_victims(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> ReclaimPlan | None:
        """Return the victims for a workload in a pool; None if no permitted set suffices.

        Terminating pods of the pool count as gone. If that suffices, there are no victims. If there
        are no such pods, and the workload fits without victims, the result is None. Pods that do
        not end soon count only if there is no other way.
        """
        for terminating in self._terminating_pods(pool):
            plan = self._find_victims(leaf, queue_key, shape, pool, terminating)
            if plan is not None:
                return plan
        return None

    def _terminating_pods(self, pool: PoolName) -> Iterator[list[PodRecord]]:
        """Yield the terminating pods of a pool that end soon, and then all, if these are more."""
        ends = self.candidates.terminating_pods(pool)
        soon = [t for t in ends if self.candidates.ends_soon(t)]
        yield soon
        if len(soon) < len(ends):
            yield ends

    def _find_victims(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        terminating: list[PodRecord],
    ) -> ReclaimPlan | None:
        trial = self._new_trial(leaf, queue_key, shape, pool)
        own = self._own_victims(trial)
        if not self._may_help(trial, own):
            return None
        try:
            trial.remove_terminating(terminating)
            if not self._collect_victims(trial, own):
                return None
            self._spare_unneeded(trial)
            plan = trial.find_assignment()
            if plan is None or not self._rules.are_all_permitted(trial):
                return None
            if not (trial.victims or trial.terminating):
                return None  # new nodes can hold the workload, or it starts without an eviction
            rooms: dict[NodeName, dict[Resource, int]] = {}
            demands = [demand for demand, count in shape.request_counts for _ in range(count)]
            for node, demand in zip(plan.nodes, demands, strict=True):
                add_to(rooms.setdefault(node or FUTURE_NODE, {}), demand, 1)
            victims, compared = self._rules.final_victims(trial)
            near = [t for t in trial.terminating if plan.has_future_nodes or t.node in rooms]
            awaited = frozenset(t.pod.uid for t in near)
            return ReclaimPlan(victims, dict(rooms), compared, awaited)
        finally:
            trial.restore()

    def recheck_victims(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        victims: Sequence[Victim],
    ) -> ReclaimCheck:
        """Check the victims of an earlier plan again, after their notice."""
        for terminating in self._terminating_pods(pool):
            check = self._recheck(leaf, queue_key, shape, pool, victims, terminating)
            if check.fits:
                break
        return check

    def _recheck(
        self,
        leaf: UserNode,
        queue_key: QueueKey,
        shape: EquivalenceClass,
        pool: PoolName,
        victims: Sequence[Victim],
        terminating: list[PodRecord],
    ) -> ReclaimCheck:
        trial = self._new_trial(leaf, queue_key, shape, pool)
        try:
            trial.remove_terminating(terminating)
            for victim in victims:
                trial.take(victim)
            fits, is_permitted = trial.fits(), self._rules.are_all_permitted(trial)
            if fits and not is_permitted:  # other pods of the losing tenant have ended meanwhile
                is_permitted = self._spare_forbidden(trial)
            if fits and is_permitted:
                self._spare_unneeded(trial)
            needed, compared = self._rules.final_victims(trial)
            return ReclaimCheck(needed, compared, is_permitted, fits)
        finally:
            trial.restore()

    def _new_trial(
        self, leaf: UserNode, queue_key: QueueKey, shape: EquivalenceClass, pool: PoolName
    ) -> ReclaimTrial:
        withheld = self._withheld(leaf, queue_key, shape, pool)
        return ReclaimTrial(
            self._registry, self._placement, self.totals, leaf, queue_key, shape, pool, withheld
        )

    def _may_help(self, trial: ReclaimTrial, own: list[Victim]) -> bool:
        """Return, by a cheap check, whether a victim search can succeed."""
        if own:
            return True
        if self._registry.usage.policy.reclaim is Reclaim.OFF:
            return False
        fronts = self._rules.reclaim_pairs(trial)
        return any(
            self._rules.may_reclaim_from(trial, mine, rival)
            for mine, rivals in fronts
            for rival in rivals
        )

    def _collect_victims(self, trial: ReclaimTrial, own: list[Victim]) -> bool:
        """Take victims until the workload fits. Return whether it does.

        Those of the user come first, except for pods whose eviction was refused before.
        """
        refused = [victim for victim in own if self.candidates.was_refused(victim)]
        for victim in own:
            if victim not in refused and not trial.fits():
                self._take_rest(trial, victim)
        lines: dict[TenantNode, list[Victim]] = {}
        while not trial.fits():
            worst = self._next_victim(trial, lines)
            if worst is not None:
                trial.take(worst)
            elif refused:
                self._take_rest(trial, refused.pop(0))
            else:
                return False
        return True

    def _take_rest(self, trial: ReclaimTrial, victim: Victim) -> None:
        rest = self.candidates.without_taken(victim, trial.victims)
        if rest.pods:
            trial.take(rest)

    def _next_victim(
        self, trial: ReclaimTrial, lines: dict[TenantNode, list[Victim]]
    ) -> Victim | None:
        """Return the next victim: the first one of the tenant with the highest score.

        Pods whose eviction was refused before come after those of all tenants.

        A victim that is not permitted now is never permitted in this search: tenants only lose
        usage.
        """
        tree = self._registry.usage.tree
        fronts = [
            (rival.weight[0] == 0, tree.weighted_share(rival, trial.pool, (), 0), mine, rival)
            for mine, rivals in self._rules.reclaim_pairs(trial)
            for rival in rivals
            if self._rules.may_reclaim_from(trial, mine, rival)
        ]
        fronts.sort(key=lambda f: (not f[0], -f[1], f[3].depth, str(f[3].name)))
        for _, _, _, rival in fronts:
            if rival not in lines:
                lines[rival] = self._victims_of_tenant(trial, rival)[::-1]
        for may_be_refused in (False, True):
            for _, _, mine, rival in fronts:
                line = lines[rival]
                while line and (may_be_refused or not self.candidates.was_refused(line[-1])):
                    victim = self.candidates.without_taken(line.pop(), trial.victims)
                    taken = not victim.pods or victim in trial.victims
                    if not taken and self._rules.may_take(trial, mine, rival, victim):
                        return victim
        return None

    def _spare_forbidden(self, trial: ReclaimTrial) -> bool:
        """Spare victims that the rules do not permit, then others, while the workload still fits.

        Return whether those that remain are permitted.
        """
        last_first = list(reversed(trial.victims))
        for victim in sorted(last_first, key=lambda each: self._rules.is_permitted(trial, each)):
            if self._rules.are_all_permitted(trial):
                return True
            if victim.is_extra_pod and trial.loses_minimum(victim):
                continue
            index = trial.victims.index(victim)
            trial.spare(victim)
            if not trial.fits():
                trial.take(victim, index)
        return self._rules.are_all_permitted(trial)

    def _spare_unneeded(self, trial: ReclaimTrial) -> None:
        """Spare victims that turned out to be unneeded, the last taken first.

        The others keep their order, in which they are checked again after a notice. Those without a
        pod on a planned node are spared together: their number may be large, and the check of each
        one visits all others.
        """
        plan = trial.find_assignment()
        if plan is not None and not plan.has_future_nodes:
            planned = frozenset(plan.nodes)
            self._spare_others(trial, [v for v in trial.victims if not v.is_on_any(planned)])
        for index, victim in reversed(list(enumerate(trial.victims))):
            if victim.is_extra_pod and trial.loses_minimum(victim):
                continue
            trial.spare(victim)
            if not (trial.fits() and self._rules.are_all_permitted(trial, victim)):
                trial.take(victim, index)

    def _spare_others(self, trial: ReclaimTrial, others: list[Victim]) -> None:
        """Spare these victims together if the rules permit it, else those of each tenant."""
        if self._spare_together(trial, others):
            return
        by_tenant: dict[TenantName, list[Victim]] = {}
        for victim in reversed(others):
            by_tenant.setdefault(victim.leaf.tenant, []).append(victim)
        for group in by_tenant.values():
            self._spare_together(trial, group)

    def _spare_together(self, trial: ReclaimTrial, group: list[Victim]) -> bool:
        """Spare victims if the workload still fits and all others are permitted. Return whether."""
        if len(group) < 2 or any(victim.is_extra_pod for victim in group):
            return False
        before, spared = trial.victims, set(group)
        trial.replace_victims([victim for victim in before if victim not in spared])
        if trial.fits() and self._rules.are_all_permitted(trial):
            return True
        trial.replace_victims(before)
        return False

    def _own_victims(self, trial: ReclaimTrial) -> list[Victim]:
        if self._registry.usage.policy.within_queue is WithinQueue.NEVER:
            return []
        held = self._registry.find_workload(trial.queue_key.uid)
        priority = max((t.pod.priority for t in held.members), default=0) if held else 0
        mine = self.candidates.victims_of_user(trial.leaf, trial.pool, ReclaimCause.PRIORITY)
        lower = [v for v in mine if max(t.pod.priority for t in v.pods) < priority]
        return self._without_joined(trial, lower)

    def _without_joined(self, trial: ReclaimTrial, victims: list[Victim]) -> list[Victim]:
        """Drop victims that use a claim of the workload.

        It could not start on their devices: it waits for the claims while they are evicted.
        """
        workload = self._registry.find_workload(trial.queue_key.uid)
        joined = self._registry.users_of_claims_to_join(workload) if workload and victims else set()
        if not joined:
            return victims
        return [v for v in victims if not any(t.pod.uid in joined for t in v.pods)]

    def _victims_of_tenant(self, trial: ReclaimTrial, rival: TenantNode) -> list[Victim]:
        mine, _ = diverging_ancestors(trial.leaf, rival)
        cause = (
            ReclaimCause.GUARANTEE
            if self._rules.is_within_guarantee(trial, mine)
            else ReclaimCause.FAIR
        )
        found = [
            v
            for leaf in users_below(rival)
            for v in self.candidates.victims_of_user(leaf, trial.pool, cause)
        ]
        # Claims belong to a namespace, so only users of the same tenant can share them.
        if any(v.leaf.tenant == trial.leaf.tenant for v in found):
            found = self._without_joined(trial, found)
        return sorted(found, key=self.candidates.eviction_order)
