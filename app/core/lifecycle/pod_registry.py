"""Registry of all managed pods, each in a queue or charged to a pool.

All accounting is derived from observed objects. If tenants, pools or nodes change, every pod is
accounted again, so counters equal a full recount. The module has more than 500 lines because each
change of a pod moves it between queue, charge and gang in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.sort_key import NEVER_SERVED
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import queue_key_of
from app.core.lifecycle.binding_progress import BindingProgress
from app.core.lifecycle.budget_registry import BudgetRegistry
from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_users import ClaimKey, ClaimUse
from app.core.lifecycle.gangs import Gangs
from app.core.lifecycle.leftover_claims import LeftoverClaims
from app.core.lifecycle.pod_record import (
    Gang,
    PodRecord,
    Workload,
    backoff_key_of,
    is_same_usage,
    release_id_of,
)
from app.core.lifecycle.pod_state import PodState
from app.core.lifecycle.tenant_gaps import TenantGaps
from app.core.model import (
    BackoffKey,
    GrantedClaim,
    Millis,
    NodeName,
    Pod,
    PoolName,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    Wait,
)
from app.core.placement.device_fit import DeviceFit
from app.core.placement.equivalence_table import EquivalenceTable
from app.core.placement.node_filter import node_constraints_of
from app.core.placement.pod_affinity import distance_rules_of
from app.core.placement.pools import Pools
from app.core.podspec.constraints import NodeConstraints, PodDistanceRule
from app.core.policy import Mode, Policy
from app.core.pricing.share_units import Scale
from app.core.well_known import GATE

FEW = 100
"""Below this peak number of pods, caches are not trimmed."""


class PodRegistry:
    """Stores every managed pod and its queue or pool."""

    def __init__(
        self,
        tenancy: TenantDirectory,
        pools: Pools,
        usage: LiveUsage,
        claim_charges: ClaimCharges,
        fit: DeviceFit,
    ) -> None:
        self.pods: dict[Uid, PodRecord] = {}
        self.held_unmanaged: dict[Uid, PodRecord] = {}
        """Held pods that request no managed resource, as their claims show."""
        self.pending_by_tenant: Counter[TenantName] = Counter()
        self.pending_by_user: dict[UserNode, dict[Uid, PodRecord]] = {}
        """Pods that are held or being released, by user. `pending_by_tenant` counts these pods."""
        self.charged_by_user: dict[UserNode, dict[Uid, PodRecord]] = {}
        self.changed_pods: dict[Uid, PodRecord] = {}
        self.usage = usage
        self._tenancy = tenancy
        self._pools = pools
        self._claim_charges = claim_charges
        self._fit = fit
        self._equivalence_table = EquivalenceTable()
        self.gangs = Gangs(usage, self._equivalence_table)
        self.budgets = BudgetRegistry()
        self.binding = BindingProgress()
        self.reclaim_pauses: dict[Uid, Millis] = {}
        """Until when no pod is evicted for a held pod, because its release was refused."""
        self.tenant_gaps = TenantGaps(tenancy)
        self.banned_backoff_keys: frozenset[BackoffKey] = frozenset()
        """Backoff keys of pods that are excluded from the order."""
        self._changed_waits: list[PodRecord] = []
        self._pinned: dict[NodeName, dict[Uid, PodRecord]] = {}
        """Pods whose pool depends on a node: the node is their only choice, or they run on it."""
        self.leftover_claims = LeftoverClaims(usage, pools, tenancy, self.defers_accounting)
        self._uids_by_name: dict[str, dict[str, Uid]] = {}
        """The newest pod with each name, by namespace."""
        self._accounted_versions: tuple[int, int] = (-1, -1)
        self._needs_recount = True
        self._may_end_protection = False
        """Whether a gang may have lost its pods that are not preemptible."""
        self._peak = 0

    def record_tenant(self, tenant: Tenant) -> None:
        """Record the observed state of a Tenant."""
        known = self._tenancy.tenants.get(tenant.name)
        if known == tenant:
            return
        self._tenancy.add_tenant(tenant)
        if known is not None:
            self.tenant_gaps.record_change(known, self.usage.now)
        # Admins may change weights at any rate, and a recount costs time for each pod.
        if not (_differ_in_weights_only(known, tenant) and self.usage.apply_weights(tenant)):
            self._needs_recount = True

    def drop_tenant(self, name: TenantName) -> None:
        """Record that a Tenant was deleted."""
        known = self._tenancy.tenants.get(name)
        if known is not None:
            self._tenancy.drop_tenant(name)
            self._needs_recount = True
            self.tenant_gaps.record_change(known, self.usage.now)

    def apply_policy(self, policy: Policy) -> None:
        """Apply this Policy from now on."""
        if policy != self.usage.policy:
            self.usage.policy = policy
            self.budgets.set_respected(not policy.reclaims_over_budgets)
            self._needs_recount = True

    def find_pod(self, namespace: str, name: str) -> PodRecord | None:
        """Return the newest pod with this name, or None. A deleted pod may not be gone yet."""
        uid = self._uids_by_name.get(namespace, {}).get(name)
        return self.pods.get(uid) if uid is not None else None

    def add(self, pod: Pod, life: PodState) -> PodRecord:
        """Add a newly observed pod and account it."""
        queue_key = queue_key_of(pod.priority, pod.created_at, pod.uid)
        tracked = self.pods[pod.uid] = PodRecord(
            pod, life, release_id_of(pod.release_annotation), queue_key
        )
        if life is PodState.USING:
            tracked.released_at = self._start_of(pod)
            if tracked.released_at is not None and tracked.release_id > NEVER_SERVED:
                tracked.counted_since = tracked.released_at
        tracked.pod = self._update_charges(tracked, pod, life)
        self._uids_by_name.setdefault(pod.namespace, {})[pod.name] = pod.uid
        self._account(tracked)
        return tracked

    def update_pod(self, tracked: PodRecord, pod: Pod, life: PodState) -> None:
        """Update a known pod after an observation or a change of its state."""
        pod = self._update_charges(tracked, pod, life)
        if tracked.pod == pod and tracked.state is life:
            return
        known = tracked.pod
        if (known.preemptible, known.gang, tracked.state) != (pod.preemptible, pod.gang, life):
            self._may_end_protection = True
        stays = (
            life is PodState.USING
            and tracked.counts_as_used
            and tracked.allocation
            and is_same_usage(tracked, pod)
        )
        tracked.update_constraints(pod)
        if not stays:
            self._unaccount(tracked)
            self.gangs.leave_former_gang(tracked, pod)
        elif tracked.state is not PodState.USING and tracked.leaf is not None:
            self._count_pending(tracked, tracked.leaf, -1)
            self.changed_pods[pod.uid] = tracked
        tracked.pod, tracked.state = pod, life
        tracked.release_id = max(tracked.release_id, release_id_of(pod.release_annotation))
        if life is PodState.USING and tracked.released_at is None:
            # another actor released it
            tracked.released_at = self._start_of(pod) or self.usage.now
        if not stays:
            tracked.queue_key = queue_key_of(pod.priority, pod.created_at, pod.uid)
            self._account(tracked)
        else:
            if tracked.allocation is not None and pod.terminating:
                self.usage.mark_terminating(tracked.allocation)
            self.binding.observe_pod(tracked)
        self.gangs.observe_pod(tracked)

    def mark_releasing(
        self, tracked: PodRecord, at: NodeName | None, terms: NodeConstraints | None = None
    ) -> None:
        """Charge a held pod to the pool of its intent, on node `at`, with constraints `terms`."""
        self._unaccount(tracked)
        tracked.target_node, tracked.pending_constraints = at, terms
        tracked.state, tracked.released_at = PodState.RELEASING, self.usage.now
        for ref in tracked.pod.claims:
            self.leftover_claims.drop((tracked.pod.namespace, ref.name))  # the pod pays from now on
        tracked.pod = self._update_charges(tracked, tracked.pod, tracked.state)
        self._account(tracked, at)
        self.gangs.observe_pod(tracked)

    def update_exclusions(self, workload: Workload, *, compares_claims: bool = True) -> bool:
        """Find the rules that close nodes to the pods of a workload before its release.

        Sources are the anti-affinity of existing pods, nodes that refused pods of the tenant, and
        devices that do not match. With `compares_claims`, find also the claims that its pods may
        not join now. Return whether the rules changed. The caller must then call `settle` before it
        continues.
        """
        changed = [
            (tracked, found)
            for tracked, found in self._exclusions(workload)
            if tracked.pod.excluded_by != found
        ]
        for tracked, found in changed:
            self.update_pod(tracked, replace(tracked.pod, excluded_by=found), tracked.state)
        return (compares_claims and self._refuse_claims(workload)) or bool(changed)

    def _refuse_claims(self, workload: Workload) -> bool:
        """Mark claims that the pods of a workload may not join. Return whether a mark is new."""
        charges, found = self._claim_charges, False
        stays = any(not tracked.pod.preemptible for tracked in workload.pods_to_release)
        for tracked in workload.pods_to_release:
            pod = tracked.pod
            if not pod.claims:
                continue
            for key in charges.claims_to_join(pod.uid):
                if not charges.joins.is_reclaimed(key) and self._is_charged_pod_evicted(key):
                    charges.set_reclaimed(key, True)
                    found = True
            if stays and pod.preemptible and pod.uid not in charges.joins.protected:
                charges.mark_protected(pod.uid)
                found = True
        if found:
            self.update_stale_charges()
        return found

    def _is_charged_pod_evicted(self, key: ClaimKey) -> bool:
        uid = self._claim_charges.charged_pod_of(key)
        charged = self.pods.get(uid) if uid is not None else None
        return charged is not None and bool(charged.eviction_reason)

    def shared_claims_of(self, tracked: PodRecord) -> list[ClaimKey]:
        """Return the claims for devices that a released pod shares with other released pods."""
        if tracked.pod.container_requests is None:  # the usual case
            return []
        return self._claim_charges.shared_claims_of(tracked.pod.uid)

    def is_charged_for(self, tracked: PodRecord, key: ClaimKey) -> bool:
        """Return whether a pod is the one that is charged for a claim."""
        return self._claim_charges.charged_pod_of(key) == tracked.pod.uid

    def has_own_devices(self, tracked: PodRecord) -> bool:
        """Return whether a pod has devices besides those of shared claims."""
        plain, charges = tracked.pod.container_requests, self._claim_charges
        return (
            plain is None
            or charges.has_devices(plain)
            or charges.has_unshared_devices(tracked.pod.uid)
        )

    def has_fresh_leftover_claim(self, pool: PoolName) -> bool:
        """Return whether a claim of a pool may soon be freed, because its last pod just ended."""
        return any(
            map(
                self._claim_charges.joins.is_fresh_leftover,
                self.leftover_claims.claims_of_pool(pool),
            )
        )

    def users_of_claims_to_join(self, workload: Workload) -> set[Uid]:
        """Return the released pods that use claims of the held pods of a workload."""
        charges = self._claim_charges
        return {
            user
            for tracked in workload.pods_to_release
            if tracked.pod.claims
            for key in charges.claims_to_join(tracked.pod.uid)
            for user in charges.ungated_users(key)
        }

    def users_of_claim(self, key: ClaimKey) -> list[PodRecord]:
        """Return the released pods that use a claim, in order of release."""
        found = map(self.pods.get, self._claim_charges.ungated_users(key))
        return [each for each in found if each is not None]

    def are_exclusions_current(self, workload: Workload) -> bool:
        """Return whether `update_exclusions` would change nothing."""
        return all(
            tracked.pod.excluded_by == found for tracked, found in self._exclusions(workload)
        )

    def _exclusions(
        self, workload: Workload
    ) -> Iterator[tuple[PodRecord, tuple[PodDistanceRule, ...]]]:
        """Yield each pod to release of a workload with the rules that close nodes to it."""
        pods = tuple(workload.pods_to_release)
        mates = {wall.group: wall for each in pods for wall in each.pod.anti_affinity_terms}
        if len(pods) == 1:
            mates.clear()  # its own anti-affinity applies to other pods only
        for tracked in pods:
            found = self.usage.existing_anti_affinity.rules_excluding(tracked.pod, mates.values())
            found += self._fit.rules(self._claim_charges.device_needs(tracked.pod))
            if tracked.leaf is not None:
                found += self.usage.closed_node_rules(tracked.leaf.tenant)
            yield tracked, found

    def update_stale_charges(self) -> None:
        """Account again pods after a change of their claims, claim users or disruption budgets."""
        for key in self._claim_charges.joins.reclaimed_claims:
            if not self._is_charged_pod_evicted(key):
                self._claim_charges.set_reclaimed(key, False)
        if self._may_end_protection:
            self._may_end_protection = False
            self._end_protection()
        while stale := self._claim_charges.drain_stale_pods(self.usage.now):
            for tracked in [self.pods[uid] for uid in stale if uid in self.pods]:
                self.update_pod(tracked, tracked.pod, tracked.state)
        for uid in self.budgets.drain_stale_pods(self.usage.now):
            kept = self.pods[uid]
            if (
                kept.state is PodState.HELD
                and self.budgets.budget_reason(kept.pod) != kept.pod.budget_reason
            ):
                self.update_pod(kept, kept.pod, kept.state)

    def _end_protection(self) -> None:
        """Find held pods whose gang protects them from reclaims no longer."""
        mixed: dict[int, bool] = {}
        for uid in sorted(self._claim_charges.joins.protected):
            tracked = self.pods[uid]
            gang = tracked.gang
            if tracked.state is not PodState.HELD:
                continue
            if gang is not None and id(gang) not in mixed:
                mixed[id(gang)] = any(not t.pod.preemptible for t in gang.pods.values())
            if gang is None or not mixed[id(gang)]:
                self._claim_charges.unmark_protected(uid)

    def defers_accounting(self) -> bool:
        """Return whether all pods are accounted again soon, because pools or tenants changed."""
        if not self._pools.is_current:
            self._needs_recount = True
        return self._needs_recount

    def describe_devices(self, pod: Pod) -> str:
        """Return which devices match the claims of a pod, as a clause."""
        return self._fit.describe_devices(self._claim_charges.device_needs(pod))

    def claims_to_grant(self, pod: Pod) -> tuple[GrantedClaim, ...]:
        """Return the claims that a release of this pod is for. Empty in mode Observe."""
        if not pod.claims or self.usage.policy.mode is not Mode.ENFORCE:
            return ()
        return self._claim_charges.current_grants(pod)

    def set_backing_off(self, tracked: PodRecord, rests: bool) -> None:
        """Exclude a held pod from the order during a backoff, or include it again."""
        self._unaccount(tracked)
        tracked.is_backing_off = rests
        tracked.is_postponed = rests and tracked.is_postponed
        self._account(tracked)

    def _account_again(self, tracked: PodRecord) -> None:
        """Account a pod again because its eligible pools changed."""
        expected = tracked.node
        self._unaccount(tracked)
        self._account(tracked, expected)

    def set_banned(self, kinds: frozenset[BackoffKey]) -> None:
        """Exclude exactly the held pods with these backoff keys from the order."""
        changed, self.banned_backoff_keys = kinds ^ self.banned_backoff_keys, kinds
        if not changed:
            return
        for tracked in self.pods.values():
            leaf = tracked.leaf
            if leaf is None or tracked.state is not PodState.HELD:
                continue
            if backoff_key_of(leaf, tracked.pod) in changed:
                self._unaccount(tracked)
                self._account(tracked)

    def remove(self, tracked: PodRecord) -> None:
        """Remove a pod. It may be charged until `minCharge` has passed, unless it was evicted."""
        least = self.usage.policy.min_charge
        until = None
        if least and tracked.released_at is not None and not tracked.eviction_reason:
            until = Millis(tracked.released_at + least)
        self._unaccount(tracked, until if until is not None and until > self.usage.now else None)
        self.gangs.remove_member(tracked)
        self._may_end_protection = True
        self._claim_charges.forget_pod(tracked.pod.uid)
        self.budgets.forget_pod(tracked.pod)
        self.usage.existing_anti_affinity.drop_pod(tracked.pod.uid)
        self.binding.forget_pod(tracked.pod.uid)
        del self.pods[tracked.pod.uid]
        self._forget_name(tracked.pod)
        self.changed_pods.pop(tracked.pod.uid, None)

    def _forget_name(self, pod: Pod) -> None:
        """Remove the name of a pod, unless a newer pod has it."""
        uids = self._uids_by_name.get(pod.namespace, {})
        if uids.get(pod.name) == pod.uid:
            del uids[pod.name]
            if not uids:
                del self._uids_by_name[pod.namespace]

    def find_workload(self, uid: Uid) -> Workload | None:
        """Return the workload that waits under this uid, or None."""
        gang = self.gangs.waiting.get(uid)
        if gang is not None:
            return gang
        tracked = self.pods.get(uid)
        return tracked if tracked is not None and tracked.equivalence_class is not None else None

    def are_claims_unsettled(self, uid: Uid) -> bool:
        """Return whether a pod, or a member of its gang, waits until a claim stops changing."""
        tracked = self.pods.get(uid)
        members = (tracked.gang or tracked).members if tracked is not None else ()
        return any(each.pod.claims_unsettled for each in members)

    def partially_released_gangs(self) -> list[Gang]:
        """Return the partially released gangs, in queue order."""
        half = self.gangs.partially_released
        return [half[uid] for uid in sorted(half, key=lambda uid: (half[uid].queue_key, uid))]

    def settle(self) -> None:
        """Bring the accounting of all pods up to date.

        This is cheap unless tenants, pools or nodes changed.
        """
        pools = self._pools
        pools.rebuild_if_stale()
        self._peak = max(self._peak, len(self.pods), FEW)
        if 2 * len(self.pods) < self._peak > FEW:
            self._peak = len(self.pods)
            self.usage.trim_affinity_cache()  # most cached answers concern deleted pods
        # The recount may itself change the capacity, hence a loop. Its second iteration is cheap.
        while self._needs_recount or self._accounted_versions != (
            pools.version,
            pools.capacity_version,
        ):
            scale = pools.scale()
            # Amounts of uncounted resources were not recorded, so other counted resources need a
            # recount.
            same = self._accounted_versions[0] == pools.version and scale.counts_same_amounts(
                self.usage.tree.scale
            )
            stays = not self._needs_recount and same
            self._accounted_versions = (pools.version, pools.capacity_version)
            if not stays:
                self._recount(scale)
            elif scale != self.usage.tree.scale:
                self.usage.tree.rescale(scale)
        for name in pools.drain_overfull_nodes():
            self.usage.reassign_assumed_pods(name)
        self.usage.assign_waiting()
        for name in pools.drain_moved_nodes():
            for tracked in list(self._pinned.get(name, {}).values()):
                self._account_again(tracked)  # its node belongs to another pool now
            self.leftover_claims.apply_node_move(name)
        rerouted = pools.drain_changed_constraints()
        for tracked in list(self.pods.values()) if rerouted else ():
            pod = tracked.pod
            placed = (
                pod.node or pod.node_names or (tracked.counts_as_used and pod.pool in pools.pools)
            )
            if not placed and node_constraints_of(pod) in rerouted:
                self._account_again(tracked)
        ended = self.tenant_gaps.drain_ended(self.usage.now)
        for tracked in list(self.pods.values()) if ended else ():
            if tracked.pod.namespace in ended and tracked.state is PodState.HELD:
                self._account_again(tracked)
        for tracked in self.gangs.drain_moved_pods():
            if self.pods.get(tracked.pod.uid) is tracked and tracked.state is PodState.HELD:
                self._account_again(tracked)
        regrouped = self.gangs.settle()
        self.changed_pods.update((member.pod.uid, member) for member in regrouped)
        self._changed_waits += regrouped

    def drain_changed_waits(self) -> list[PodRecord]:
        """Return, once, the held pods with a changed wait reason."""
        changed, self._changed_waits = self._changed_waits, []
        held = [t for t in changed if self.pods.get(t.pod.uid) is t and t.state is PodState.HELD]
        news = [t for t in held if t.announced_wait is not t.wait_reason]
        for tracked in news:
            tracked.announced_wait = tracked.wait_reason
        return news

    def _recount(self, scale: Scale) -> None:
        """Account every pod again, as if all had just been observed."""
        nodes = {t.pod.uid: t.node for t in self.pods.values() if t.allocation is not None}
        self.usage.rebuild_tree(scale)
        self.pending_by_tenant.clear()
        self.pending_by_user.clear()
        self.charged_by_user.clear()
        self._equivalence_table.clear()
        self._pools.drop_cached_answers()
        self.gangs.reset_for_new_tree()
        self._pinned.clear()
        self.held_unmanaged.clear()
        self._needs_recount = False
        self.leftover_claims.recount()
        # Bound pods first: the others are expected where capacity is left beside them.
        for tracked in sorted(self.pods.values(), key=lambda t: t.pod.node is None):
            tracked.leaf = tracked.allocation = None
            self._account(tracked, nodes.get(tracked.pod.uid))
        self.usage.reapply_lingering()

    def _account(self, tracked: PodRecord, node: NodeName | None = None) -> None:
        if self.defers_accounting():
            return
        pod = tracked.pod
        name = self._tenancy.tenant_of(pod.namespace)
        tenant = self._tenancy.tenants.get(name)
        leaf = tracked.leaf = self.usage.get_or_add_user(name, pod.user)
        self.changed_pods[pod.uid] = tracked
        if pod.anti_affinity_terms and tracked.state is not PodState.HELD:
            holder = (pod.namespace, pod.name)
            self.usage.existing_anti_affinity.add_pod(
                pod.uid, holder, pod.node, pod.anti_affinity_terms, managed=True
            )
        elif pod.anti_affinity_terms:
            self.usage.existing_anti_affinity.drop_pod(pod.uid)
        if pod.gang and tracked.gang is None:
            self.gangs.add_pod(tracked)
        if tracked.state is PodState.HELD:
            self._queue_pod(tracked, leaf, tenant)
        elif not pod.needs_managed:
            tracked.wait_reason = tracked.equivalence_class = None
        else:
            tracked.wait_reason = tracked.equivalence_class = None
            intended = tracked.intent.pool if tracked.intent else None
            exists = intended in self._pools.pools  # it may be gone since the release began
            tracked.pool = intended if exists else self._pools.pool_of(pod, tenant)
            if tracked.pool is not None:
                self._start_usage(tracked, leaf, tracked.pool, node)
            elif pod.node is not None:
                self._pinned.setdefault(pod.node, {})[pod.uid] = tracked
            if tracked.release_id > NEVER_SERVED:
                self.usage.tree.mark_served(leaf, tracked.release_id)
        if tracked.state is not PodState.USING:
            self._count_pending(tracked, leaf, 1)
        self.binding.observe_pod(tracked)

    def _start_usage(
        self, tracked: PodRecord, leaf: UserNode, pool: PoolName, expected: NodeName | None
    ) -> None:
        pod = tracked.pod
        tracked.counted_since = (
            self.usage.now if tracked.counted_since is None else tracked.counted_since
        )
        tracked.allocation = self.usage.start_usage(
            leaf,
            pool,
            pod.demand,
            node=pod.node or expected,
            bound=pod.node is not None,
            declared_end=tracked.declared_end(pod),
            node_names=pod.node_names,
            node_constraints=tracked.node_constraints,
            distance_rules=distance_rules_of(pod, marked=True),
            terminating=pod.terminating,
        )
        self.charged_by_user.setdefault(leaf, {})[pod.uid] = tracked

    def _start_of(self, pod: Pod) -> Millis | None:
        """Return when its node started a pod: not before its creation, and not in the future."""
        if pod.started_at is None:
            return None
        return min(max(pod.started_at, pod.created_at), self.usage.now)

    def _update_charges(self, tracked: PodRecord, pod: Pod, life: PodState) -> Pod:
        """Return the pod with its charged requests and the budget that forbids its eviction."""
        self.budgets.observe_pod(pod)
        keeper = self.budgets.budget_reason(pod) if life is PodState.HELD else ""
        if pod.budget_reason != keeper:
            pod = replace(pod, budget_reason=keeper)
        if pod.container_requests is None:
            return pod
        use, intent = None, tracked.intent
        if life is not PodState.HELD:
            served = max(tracked.release_id, release_id_of(pod.release_annotation))
            if intent is not None:
                served = (intent.epoch, intent.sequence)
            kept = not pod.preemptible or pod.uid in self._claim_charges.joins.protected
            use = ClaimUse(served, (intent.pool if intent else pod.pool) or None, kept)
        pod = self._claim_charges.charge_pod(pod, use)
        if use is not None and not pod.needs_managed and pod.node is not None:
            self._pools.put_unmanaged(UnmanagedPod(pod.uid, pod.node, pod.demand))
        else:
            self._pools.drop_unmanaged(pod.uid)
        return pod

    def _unaccount(self, tracked: PodRecord, charged_until: Millis | None = None) -> None:
        leaf, tracked.leaf = tracked.leaf, None
        self.held_unmanaged.pop(tracked.pod.uid, None)
        if self._needs_recount:  # until then the usage of the pod is still counted
            allocation = tracked.allocation
            if allocation is not None and charged_until is not None:
                name = self._tenancy.tenant_of(tracked.pod.namespace)
                whose = (name, tracked.pod.user, allocation.pool)
                self.usage.add_remainder(*whose, allocation.demand, charged_until)
            return
        if leaf is None:
            return  # the pod is not accounted
        if tracked.state is not PodState.USING:
            self._count_pending(tracked, leaf, -1)
        self._unpin(tracked.pod)
        self.gangs.unmark_ready(tracked)
        if tracked.equivalence_class is not None:
            self.usage.tree.dequeue(leaf, tracked.queue_key, tracked.equivalence_class)
            tracked.equivalence_class = None
        if tracked.allocation is not None:
            self.usage.end_usage(leaf, tracked.allocation, charged_until=charged_until)
            running = self.charged_by_user[leaf]
            del running[tracked.pod.uid]
            if not running:
                del self.charged_by_user[leaf]
            tracked.pool = tracked.allocation = None

    def _count_pending(self, tracked: PodRecord, leaf: UserNode, sign: int) -> None:
        """Count a pod as not released. Sign -1 ends that."""
        self.pending_by_tenant[leaf.tenant] += sign
        if sign > 0:
            self.pending_by_user.setdefault(leaf, {})[tracked.pod.uid] = tracked
            return
        waiting = self.pending_by_user[leaf]
        del waiting[tracked.pod.uid]
        if not waiting:
            del self.pending_by_user[leaf]

    def _unpin(self, pod: Pod) -> None:
        for name in self._pinned.keys() & {*(pod.node_names or ()), pod.node}:
            pinned = self._pinned[name]
            pinned.pop(pod.uid, None)
            if not pinned:
                del self._pinned[name]

    def _queue_pod(self, tracked: PodRecord, leaf: UserNode, tenant: Tenant | None) -> None:
        pod = tracked.pod
        tracked.pool = tracked.equivalence_class = None
        for name in pod.node_names or ():
            self._pinned.setdefault(name, {})[pod.uid] = tracked
        pools = self._pools.eligible_pools(pod, tenant)
        shape = self._equivalence_table.class_of([pod], pools)
        if tracked.announced_wait is None and pools:
            self._pools.pod_mix.count_workload(shape.request_counts, pools)
        if pod.too_large:
            tracked.wait_reason = Wait.TOO_LARGE
        elif any(gate != GATE for gate in pod.gates):
            tracked.wait_reason = Wait.OTHER_GATE
        elif (
            pod.claims_unsettled
            or pod.finalizer_is_new
            or pod.missing_claims
            or pod.missing_class
            or pod.claim_refusal
        ):
            tracked.wait_reason = Wait.CLAIM
        elif not pod.needs_managed:
            tracked.wait_reason = Wait.REFUSED if tracked.is_backing_off else Wait.TURN
            if not tracked.is_backing_off:
                self.held_unmanaged[pod.uid] = tracked
        elif self.tenant_gaps.gap_reason(pod.namespace):
            tracked.wait_reason = Wait.NO_TENANT
        elif self.usage.is_paused(leaf):
            tracked.wait_reason = Wait.TENANT_PAUSED
        elif not pools:
            tracked.wait_reason = Wait.NO_POOL
        elif tracked.is_backing_off:
            tracked.wait_reason = Wait.POSTPONED if tracked.is_postponed else Wait.REFUSED
        elif self.banned_backoff_keys and backoff_key_of(leaf, pod) in self.banned_backoff_keys:
            tracked.wait_reason = Wait.NO_NODE
        elif tracked.gang is not None:
            tracked.wait_reason = Wait.GANG_INCOMPLETE
            self.gangs.mark_ready(tracked, pools)
        else:
            tracked.wait_reason = Wait.TURN
            tracked.equivalence_class = shape
            self.usage.tree.enqueue(leaf, tracked.queue_key, shape)
        if tracked.announced_wait is None:
            tracked.announced_wait = tracked.wait_reason
        elif tracked.announced_wait is not tracked.wait_reason:
            self._changed_waits.append(tracked)


def _differ_in_weights_only(known: Tenant | None, tenant: Tenant) -> bool:
    """Return whether two versions of a Tenant have the same namespaces, parent and quotas."""
    return known is not None and tenant == replace(
        known,
        weight=tenant.weight,
        user_weights=tenant.user_weights,
        generation=tenant.generation,
    )
