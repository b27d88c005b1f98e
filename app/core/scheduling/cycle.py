"""Scheduling cycle: select, release or evict, and select again until no workload can start.

It turns selections into intents and effects. The rules are in `selection` and `reclaim`. The module
has more than 500 lines because releases and evictions of one cycle share its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from app.core.effects import Effect, EvictForReclaim, Intend, Release
from app.core.engine_options import EngineOptions
from app.core.fairshare.decision import BlockedHead, Decision, DecisionLevel, Selection
from app.core.fairshare.drift import Drift
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.claim_joins import LEFTOVER_MS
from app.core.lifecycle.node_refusals import NodeRefusals
from app.core.lifecycle.pod_record import Gang, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, NodeName, Pod, PoolName, Resource, TenantName, Uid
from app.core.placement.allocations import Allocations
from app.core.placement.equivalence_table import sort_by_part
from app.core.placement.pools import Pools, add_to
from app.core.placement.scheduler_hints import (
    HOSTNAME,
    NO_BINDING,
    NodeBinding,
    constraints_with_hint,
    domain_selector_of,
    node_hint_of,
)
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Mode, Reclaim, WithinQueue
from app.core.quantities import fits
from app.core.release_patch import release_labels
from app.core.retry import Backoff
from app.core.scheduling.blocked_heads import BlockedHeads
from app.core.scheduling.failed_searches import MAX_STEPS_PER_CYCLE, FailedSearches, SearchKey
from app.core.scheduling.least_borrowers import LeastBorrowers
from app.core.scheduling.pending_evictions import PendingEvictions
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.reclaim_cooldown import COOLDOWN_MS, CooldownReports, ReclaimCooldowns
from app.core.scheduling.reclaim_followers import ReclaimFollowers
from app.core.scheduling.release_window import ReleaseWindow
from app.core.scheduling.reservation import MAX_AVOIDED_NODES, Reservation, Reservations
from app.core.scheduling.selection import WorkloadSelector
from app.core.scheduling.victims import ReclaimPlan, losing_tenants
from app.core.well_known import LABEL_POOL

NO_POOL = PoolName("")
"""Pool of a pod that uses no pool."""

MAX_EVALUATIONS = 200_000
"""Maximum number of evaluated equivalence classes per cycle. Another cycle follows at once.

Users may submit thousands of different classes, and a long cycle blocks all other work.
"""

ABANDONED_MS = 120_000
"""Time for which reclaims of others go first after a tenant deleted the pod of a reclaim.

It doubles with each further such deletion.
"""


class SchedulingCycle:
    """Releases workloads in fair order."""

    def __init__(
        self,
        registry: PodRegistry,
        pools: Pools,
        placement: Allocations,
        drift: Drift,
        refusals: NodeRefusals,
        options: EngineOptions,
    ) -> None:
        self.release_window = ReleaseWindow(registry)
        self.reservations = Reservations(placement)
        self.selector = WorkloadSelector(
            registry, placement, self.reservations, options.on_evaluate
        )
        self._least_borrowers = LeastBorrowers(registry, self.reservations)
        self._blocked_heads = BlockedHeads(
            registry, placement, self.reservations, self.selector.fits_now, options.on_evaluate
        )
        self._on_evaluate = options.on_evaluate
        self.in_flight: set[Uid] = set()
        self.cooldowns = ReclaimCooldowns()
        self._reclaimer = Reclaimer(
            registry, placement, self.cooldowns, self.selector.withheld_from_reclaim
        )
        self._followers = ReclaimFollowers(
            registry, self._reclaimer, follows_binding_rate=options.follows_binding_rate
        )
        self.evictions = PendingEvictions(
            registry, self.reservations, self._reclaimer, self.cooldowns, self._followers
        )
        self._cooldown_reports = CooldownReports()
        self._failed_searches = FailedSearches()
        self._registry = registry
        self._pools = pools
        self._placement = placement
        self._drift = drift
        self._refusals = refusals
        self._max_in_flight = options.max_in_flight
        self._evicts = options.evicts
        self._follows_binding_rate = options.follows_binding_rate
        self._sequence = 0
        self._next_cycle_at: Millis | None = None
        self._abandoned = Backoff[TenantName]()
        """Tenants that deleted the pod of a running reclaim."""
        self._awaits_claims_since: dict[PoolName, tuple[Uid, Millis]] = {}
        """Exclusive reservations that wait for claims to be freed, by owner, and since when."""

    def start_term(self) -> None:
        """Start a leader term: the numbering of releases starts again."""
        self._sequence = 0

    def end_term(self) -> None:
        """End a leader term: the outcome of pending releases and evictions is unknown."""
        self.in_flight.clear()
        self.reservations.exclusive.clear()
        self._awaits_claims_since.clear()
        self._abandoned.clear()
        self.reservations.gangs.clear()
        self.evictions.end_term()
        self._cooldown_reports.end_term()

    def run_cycle(self, epoch: int) -> list[Effect]:
        """Release every workload that fits, in fair order."""
        effects = self._release_unmanaged(epoch)
        self.selector.reset_evaluations()
        self._next_cycle_at = None
        self._reclaimer.totals.start_cycle()
        self._failed_searches.start_cycle(self._registry.usage.now)
        effects += self.evictions.notices.due_actions()
        self.reservations.drop_closed_out(self._registry.usage.now, self._cannot_start_yet)
        self._update_exclusions(list(self._registry.gangs.partially_released))
        while (
            len(self.in_flight) < self._max_in_flight
            and self.selector.evaluations < MAX_EVALUATIONS
        ):
            self._on_evaluate(None)
            leaf = self.selector.update_and_get_next_user()
            choice = self._complete_partial_gang()
            if choice is None and leaf is not None:
                choice = self.selector.select_head(leaf)
            backfilled = choice is None
            if choice is None:
                heads = self._blocked_heads.find()
                if self._update_exclusions(
                    [leaf.head[0].uid for leaf, *_ in heads if leaf.head is not None]
                ):
                    continue
                effects += self._reclaim_for_heads(heads)
                choice = (
                    self.selector.select_backfill()
                    if self._registry.usage.policy.backfill
                    else self.selector.select_reservation_owner()
                )
            if choice is None:
                break
            if self._follows_binding_rate and not self.release_window.admit(choice):
                continue
            if self._update_exclusions([choice.queue_key.uid]):
                continue
            effects += self._release(choice, backfilled, epoch)
            self._on_evaluate(None)
            self._registry.update_stale_charges()
        else:
            if self.selector.evaluations >= MAX_EVALUATIONS:
                self._next_cycle_at = Millis(self._registry.usage.now + 1)
        self._on_evaluate(None)
        self.selector.reset_evaluations()
        self._drop_unusable_reservations()
        self.evictions.add(effects)
        self.evictions.cancel_unneeded()
        self.evictions.notices.withdraw_ended_reclaims()
        effects += self.evictions.notices.drain_effects()
        self._least_borrowers.promote_overdue()
        return effects

    def due(self) -> Millis | None:
        """Return when a cycle may find more work without a new event."""
        due = (
            self._reclaimer.totals.retry_at,
            self._failed_searches.due(),
            self.evictions.due(),
            self.reservations.due(),
            self.release_window.due(),
            self._next_cycle_at,
        )
        return min((at for at in due if at is not None), default=None)

    def apply_policy_change(self) -> None:
        """Process a change of the Policy."""
        self._reclaimer.candidates.apply_policy_change()
        self._followers.single_until.clear()

    def record_terminating(self, tracked: PodRecord) -> None:
        """Record that a pod with capacity is terminating."""
        self._reclaimer.candidates.record_terminating(tracked)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod from reservations and from the victim search.

        If the running reclaim of a pool was for this pod, reclaims for others go first for a while:
        a tenant could otherwise keep its turn with pods that it deletes before their notice ends.
        """
        reclaim = self.reservations.exclusive_reservation_of(uid)
        if reclaim is not None and reclaim.victims and len(reclaim.workloads) == 1:
            now = self._registry.usage.now
            self._abandoned.record_failure(reclaim.leaf.tenant, now, ABANDONED_MS)
        self.reservations.forget_pod(uid)
        self._reclaimer.candidates.forget_pod(uid)

    def _release_unmanaged(self, epoch: int) -> list[Effect]:
        """Release held pods without managed requests, without regard to the fair order.

        They take half of all releases in flight at most, so that thousands of them delay no others.
        """
        effects: list[Effect] = []
        if not self._registry.held_unmanaged:
            return effects
        pods = self._registry.pods
        begun = sum(uid in pods and not pods[uid].pod.needs_managed for uid in self.in_flight)
        most = max(1, self._max_in_flight // 2) - begun
        free_slots = self._max_in_flight - len(self.in_flight)
        for tracked in self._next_unmanaged(max(0, min(most, free_slots))):
            effects.append(self._release_one(tracked, NO_POOL, None, epoch, None))
            self.reservations.drop(tracked, tracked.pod.uid)
        return effects

    def _next_unmanaged(self, most: int) -> list[PodRecord]:
        """Return the next held pods without managed requests. Tenants take turns."""
        counts: Counter[TenantName] = Counter()
        turns = []
        for uid, tracked in sorted(self._registry.held_unmanaged.items()):
            tenant = TenantName("") if tracked.leaf is None else tracked.leaf.tenant
            turns.append((counts[tenant], uid))
            counts[tenant] += 1
        return [self._registry.held_unmanaged[uid] for _, uid in sorted(turns)[:most]]

    def _complete_partial_gang(self) -> Selection | None:
        """Return the rest of a partially released gang if it fits. It precedes all other workloads.

        The running pods of the gang are useless without the rest. If the rest does not fit but
        could, capacity is reserved exclusively for it.
        """
        for gang in self._registry.partially_released_gangs():
            assert gang.leaf is not None
            assert gang.queue_key is not None
            assert gang.equivalence_class is not None
            choice = self.selector.select_if_fits(gang.leaf, gang.queue_key, gang.equivalence_class)
            if choice is not None:
                return choice
            allowed = self.selector.pools_within_limits(gang.leaf, gang.equivalence_class)
            mates: dict[NodeName, dict[Resource, int]] = {}
            for mate in gang.members:
                if mate.allocation is not None and mate.allocation.node is not None:
                    add_to(mates.setdefault(mate.allocation.node, {}), mate.pod.demand, 1)
            self.reservations.reserve_for_gang(
                gang.queue_key, gang.leaf, gang.equivalence_class, allowed, mates
            )
        return None

    def _release(self, choice: Selection, backfilled: bool, epoch: int) -> list[Effect]:
        tree, uid = self._registry.usage.tree, choice.queue_key.uid
        workload = self._registry.find_workload(uid)
        assert workload is not None
        half = isinstance(workload, Gang) and workload.is_partially_released
        if not half:
            self._drift.measure(tree, choice, self.selector.could_start)
        decision = self._build_decision(choice, backfilled, half)
        waiting = list(workload.pods_to_release)
        reservation = self.reservations.exclusive_reservation_of(uid)
        if reservation is not None:
            for tracked in waiting:
                tracked.reclaim_protection = (
                    reservation.losing_tenants,
                    Millis(self._registry.usage.now + COOLDOWN_MS),
                )
        preemptible = all(tracked.pod.preemptible for tracked in waiting)
        by_uid = {t.pod.uid: t for t in waiting}
        pods = sort_by_part([t.pod for t in waiting], choice.equivalence_class)
        # The pod that is charged for a claim goes first, so that the charge does not move to a pod
        # that shares it. A pod with a node goes before a pod that waits for a node: the second one
        # could otherwise be expected on that node.
        pairs = sorted(
            zip(pods, choice.assignment.nodes, strict=True),
            key=lambda each: (_claim_order(each[0]), each[1] is None),
        )
        reserved = self.reservations.reserved_nodes(choice.pool, uid)
        refusing = self._refusing_nodes(choice.leaf.tenant, choice.pool)
        avoided_hosts = self._host_names(reserved + refusing)
        effects: list[Effect] = []
        for pod, node in pairs:
            avoided = avoided_hosts
            if node is None:
                avoided = self._reserved_hosts_that_fit(
                    pod, choice.pool, reserved
                ) + self._host_names(refusing)
            binding = self._node_binding(pod, choice.equivalence_class, node, avoided)
            one = by_uid[pod.uid]
            release = self._release_one(one, choice.pool, node, epoch, decision, binding)
            effects.append(replace(release, batch_size=len(pairs), preemptible=preemptible))
        tree.mark_served(choice.leaf, (epoch, self._sequence))
        self.reservations.drop(workload, uid, choice.assignment.nodes)
        now = self._registry.usage.now
        tried = [
            self._refusals.record_release(pod.uid, node, choice.leaf.tenant, now)
            for pod, node in pairs
        ]
        if any(tried):
            self._refusals.update_nodes(now)
        if any(tried) or (isinstance(workload, Gang) and workload.is_elastic):
            self._registry.settle()
        return effects

    def _refusing_nodes(self, tenant: TenantName, pool: PoolName) -> list[NodeName]:
        """Return the nodes of a pool that are excluded because they refused pods."""
        closed = (*self._pools.avoided_nodes, *self._placement.nodes_closed_to(tenant))
        return sorted(name for name in closed if self._pools.pool_of_node(name) == pool)[
            :MAX_AVOIDED_NODES
        ]

    def _release_one(
        self,
        tracked: PodRecord,
        pool: PoolName,
        node: NodeName | None,
        epoch: int,
        decision: Decision | None,
        binding: NodeBinding = NO_BINDING,
    ) -> Release:
        """Start the release of one pod. If it has no pool, it may use any node, uncharged."""
        self._sequence += 1
        pod, leaf = tracked.pod, tracked.leaf
        assert leaf is not None
        demand = pod.demand if pool else {}
        tracked.intent = Intend(
            tracked.ref,
            leaf.tenant,
            pod.user,
            pool,
            demand,
            epoch,
            self._sequence,
            self._registry.usage.now,
        )
        selector = {**self._pools.pools[pool].selector, **binding.domain_selector} if pool else {}
        selector = {k: v for k, v in selector.items() if k not in pod.selector}
        self._registry.mark_releasing(
            tracked, node, constraints_with_hint(pod, selector, binding.node_hint)
        )
        self.in_flight.add(pod.uid)
        tolerations = self._pools.pools[pool].tolerations if pool else ()
        labels = release_labels(leaf.tenant, pod.user, pool)
        return Release(
            intent=tracked.intent,
            expected_annotation=pod.release_annotation,
            selector=selector,
            labels=labels if pool else {k: v for k, v in labels.items() if k != LABEL_POOL},
            has_selector=bool(pod.selector),
            has_labels=pod.has_labels,
            has_annotations=pod.has_annotations,
            preemptible=pod.preemptible,
            waiting_since=pod.created_at,
            node=node,
            decision=decision,
            tolerations=tuple(each for each in tolerations if each not in pod.tolerations),
            has_tolerations=bool(pod.tolerations),
            node_hint=binding.node_hint,
            claims=self._registry.claims_to_grant(pod),
            generated_claims=frozenset(ref.name for ref in pod.claims if ref.generated),
        )

    def _reserved_hosts_that_fit(
        self, pod: Pod, pool: PoolName, reserved: list[NodeName]
    ) -> list[str]:
        """Return the hosts with reserved capacity that could hold a pod now.

        The pod waits for a future node, which the scheduler does not know. Other hosts are not
        named, because some autoscalers add no node for a pod that names any.
        """
        free = self._placement.free_on
        return self._host_names([name for name in reserved if fits(pod.demand, free(pool, name))])

    def _node_binding(
        self, pod: Pod, shape: EquivalenceClass, node: NodeName | None, avoided_hosts: list[str]
    ) -> NodeBinding:
        """Return how the scheduler is directed to the selected node or domain."""
        labels = self._pools.labels_of(node) if node is not None else {}
        return NodeBinding(
            node_hint_of(shape, pod, node, labels, avoided_hosts), domain_selector_of(shape, labels)
        )

    def _host_names(self, nodes: list[NodeName]) -> list[str]:
        hosts = [self._pools.labels_of(name).get(HOSTNAME, "") for name in nodes]
        return [host for host in hosts if host]

    def _build_decision(self, choice: Selection, backfilled: bool, half: bool) -> Decision:
        """Record the compared values before the release changes them."""
        levels = []
        branch: TenantNode = choice.leaf
        while branch.parent is not None:
            rival = self._registry.usage.tree.first_sibling(branch)
            levels.append(
                DecisionLevel(
                    str(branch.name),
                    branch.key,
                    str(rival.name) if rival else None,
                    rival.key if rival else None,
                )
            )
            branch = branch.parent
        usage, leaf = self._registry.usage, choice.leaf
        whose = (usage.now, *leaf.account, choice.pool)
        return Decision(*whose, backfilled, tuple(reversed(levels)), half)

    def _update_exclusions(self, uids: Sequence[Uid]) -> bool:
        """Compare workloads with the anti-affinity of existing pods, before any action for them.

        Return whether this changes which nodes fit. The caller must then evaluate everything again.
        """
        found = [self._registry.find_workload(uid) for uid in uids]
        learned = [self._registry.update_exclusions(each) for each in found if each is not None]
        if any(learned):
            self._registry.settle()
        return any(learned)

    def _reclaim_for_heads(self, heads: Iterable[BlockedHead]) -> list[Effect]:
        """Start reclaims for blocked heads.

        A tenant's second head within its guarantee is tried only in pools where no reclaim for the
        first is or may be pending. Heads of tenants that deleted the pod of a reclaim lately come
        last.
        """
        effects: list[Effect] = []
        now = self._registry.usage.now
        for tenant in self._abandoned.expired_keys(now):
            self._abandoned.clear_failures(tenant)
        late = self._abandoned.active_delays(now)
        taken: set[tuple[TenantNode | None, PoolName]] = set()
        self.evictions.notices.withdraw_ended_reclaims()
        for leaf, is_next, is_guaranteed in sorted(
            heads, key=lambda each: each.leaf.tenant in late
        ):
            assert leaf.head is not None
            shape = leaf.head[1]
            left = [
                pool
                for pool in shape.pools
                if is_next
                or (
                    (leaf.parent, pool) not in taken
                    and self._blocked_heads.is_guaranteed_in(leaf, shape, pool)
                )
            ]
            if left:
                found, pending = self._reclaim(leaf, left)
                effects += found
                if is_guaranteed:
                    taken.update((leaf.parent, pool) for pool in pending)
        return effects

    def _reclaim(
        self, leaf: UserNode, pools: Sequence[PoolName]
    ) -> tuple[list[Effect], Collection[PoolName]]:
        """Start a reclaim for a head in one of these pools.

        Return the effects, and the pools where one is or may be pending.
        """
        usage, reclaimer, failed = self._registry.usage, self._reclaimer, self._failed_searches
        policy = usage.policy
        if not self._evicts or policy.mode is Mode.OBSERVE:
            return [], pools
        if policy.reclaim is Reclaim.OFF and policy.within_queue is WithinQueue.NEVER:
            return [], pools
        assert leaf.head is not None
        queue_key, shape, _ = leaf.head
        self._on_evaluate(queue_key.uid)
        workload = self._registry.find_workload(queue_key.uid)
        if workload is None:
            return [], pools
        running = self.reservations.exclusive_reservation_of(queue_key.uid)
        if running is not None:
            return [], [running.pool]
        pauses = self._registry.reclaim_pauses
        resumes = max(pauses.get(tracked.pod.uid, 0) for tracked in workload.pods_to_release)
        if resumes > usage.now:
            reclaimer.totals.retry_by(Millis(resumes))
            return [], ()  # its release was refused: an eviction for it may be useless
        reclaimer.totals.on_cooldown.clear()
        pending: list[PoolName] = []
        for pool in pools:
            is_open = usage.tree.is_open(leaf, shape, pool)
            if not is_open or (
                self._follows_binding_rate and not self.release_window.may_reclaim(pool)
            ):
                continue  # no pod is evicted for a workload that the scheduler would not bind
            key = SearchKey(leaf, queue_key.precedence, shape, pool)
            if failed.is_paused(key):
                continue
            if pool in self.reservations.exclusive:
                pending.append(pool)
                continue
            if reclaimer.totals.steps >= MAX_STEPS_PER_CYCLE:
                self._next_cycle_at = Millis(usage.now + 1)
                return [], pools
            before = reclaimer.totals.steps
            self._on_evaluate(None)  # the pods of others make a search expensive
            plan = reclaimer.find_victims(leaf, queue_key, shape, pool)
            usage.tree.update_order()
            if plan is not None:
                self.release_window.record_reclaim(pool)
                plan, followers = self._followers.extend_plan(leaf, queue_key, shape, pool, plan)
                return self._evict(leaf, pool, plan, followers), [pool]
            failed.record(key, reclaimer.totals.steps - before, usage.now)
        reports = self._cooldown_reports.report(
            workload.pods_to_release[0].ref, leaf.tenant, reclaimer.totals.on_cooldown, usage.now
        )
        return reports, pending

    def _evict(
        self, leaf: UserNode, pool: PoolName, plan: ReclaimPlan, followers: tuple[QueueKey, ...]
    ) -> list[Effect]:
        assert leaf.head is not None
        queue_key, shape, _ = leaf.head
        workload = self._registry.find_workload(queue_key.uid)
        assert workload is not None
        beneficiary = workload.pods_to_release[0].ref
        judged = zip(plan.victims, plan.weighted_shares, strict=True)
        victims = [(t, v.cause, compared) for v, compared in judged for t in v.pods]
        reservation = self.reservations.exclusive[pool] = Reservation(
            queue_key,
            leaf,
            shape,
            pool,
            dict(plan.capacity_by_node),
            self._placement.pools_version,
            is_exclusive=True,
            victims={t.pod.uid for t, _, _ in victims} | plan.terminating,
            only_awaits=not victims,
            active_since=self._registry.usage.now,
            losing_tenants=losing_tenants(plan.victims),
            followers=followers,
            first_owner=queue_key.uid,
        )
        orders: list[EvictForReclaim] = []
        for tracked, cause, compared in victims:
            tracked.eviction_reason = f"makes room for work of {leaf.tenant}: {cause.explanation}"
            assert tracked.leaf is not None
            whose = (*tracked.leaf.account, beneficiary, leaf.tenant)
            overrides = self.evictions.blocked.overrides_budget(tracked, cause)
            orders.append(
                EvictForReclaim(tracked.ref, *whose, cause, pool, compared, len(victims), overrides)
            )
        return self.evictions.notices.start_reclaim(reservation, plan.victims, orders)

    def _cannot_start_yet(self, reservation: Reservation) -> bool:
        shape, pool = reservation.equivalence_class, reservation.pool
        return (
            self._registry.are_claims_unsettled(reservation.owner.uid)
            or self._registry.usage.closed_pools.is_user_closed_out(reservation.leaf, shape, pool)
            or self._placement.find_limiting_rule(shape, pool) is not None
        )

    def _drop_unusable_reservations(self) -> None:
        """Drop exclusive reservations without remaining victims if others took the capacity.

        The claim of an ended victim may stay allocated for a moment.
        """
        awaits, self._awaits_claims_since = self._awaits_claims_since, {}
        for pool, reservation in list(self.reservations.exclusive.items()):
            placement, leaf = self._placement, reservation.leaf
            shape = reservation.equivalence_class
            withheld = self.selector.withheld_from_reclaim(leaf, reservation.owner, shape, pool)
            fits = placement.find_assignment_for(leaf.account, shape, pool, withheld)
            if reservation.victims or fits or placement.find_limiting_rule(shape, pool):
                continue
            now, uid = self._registry.usage.now, reservation.owner.uid
            owner, since = awaits.get(pool, (uid, now))
            if owner != uid:
                since = now
            if now - since < LEFTOVER_MS and self._registry.has_fresh_leftover_claim(pool):
                self._awaits_claims_since[pool] = (uid, since)
            else:
                del self.reservations.exclusive[pool]


def _claim_order(pod: Pod) -> tuple[bool, Uid]:
    """Return the sort key of a pod within its workload with respect to claims."""
    if pod.container_requests is None:
        return (False, Uid(""))
    pays = sum(pod.demand.values()) > sum(pod.container_requests.values())
    return (not pays, pod.uid)
