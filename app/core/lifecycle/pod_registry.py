"""Registry of all managed pods, each in a queue or charged to a pool.

All accounting is derived from observed objects. If tenants, pools or nodes change, every pod is
accounted again, so counters equal a full recount. The module has more than 500 lines because each
change of a pod moves it between queue, charge and gang in one place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.sort_key import NEVER
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import queue_key_of
from app.core.lifecycle.binding_progress import BindingProgress
from app.core.lifecycle.budget_registry import BudgetRegistry
from app.core.lifecycle.claim_charges import ClaimCharges, ClaimUse
from app.core.lifecycle.gangs import Gangs
from app.core.lifecycle.pod_record import Gang, PodRecord, Workload, kind_of, same_use, stamp_of
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
from app.core.placement.node_filter import terms_of
from app.core.placement.pod_affinity import distances_of
from app.core.placement.pools import Pools
from app.core.podspec.constraints import NodeConstraints
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
        claimants: ClaimCharges,
        fit: DeviceFit,
    ) -> None:
        self.pods: dict[Uid, PodRecord] = {}
        self.idle: dict[Uid, PodRecord] = {}
        """Held pods that request no managed resource, as their claims show."""
        self.pending: Counter[TenantName] = Counter()
        self.waiting: dict[UserNode, dict[Uid, PodRecord]] = {}
        """Pods that are held or being released, by user. `pending` counts these pods."""
        self.running: dict[UserNode, dict[Uid, PodRecord]] = {}
        self.touched: dict[Uid, PodRecord] = {}
        self.usage = usage
        self._tenancy = tenancy
        self._pools = pools
        self._claimants = claimants
        self._fit = fit
        self._shapes = EquivalenceTable()
        self.gangs = Gangs(usage, self._shapes)
        self.budgets = BudgetRegistry()
        self.binding = BindingProgress()
        self.tenant_gaps = TenantGaps(tenancy)
        self.banned: frozenset[BackoffKey] = frozenset()
        """Backoff keys of pods that are excluded from the order."""
        self._changed: list[PodRecord] = []
        self._pinned: dict[NodeName, dict[Uid, PodRecord]] = {}
        """Pods whose pool depends on a node: the node is their only choice, or they run on it."""
        self._names: dict[tuple[str, str], Uid] = {}
        self._seen: tuple[int, int] = (-1, -1)
        self._dirty = True
        self._peak = 0

    def put_tenant(self, tenant: Tenant) -> None:
        """Record the observed state of a Tenant."""
        known = self._tenancy.tenants.get(tenant.name)
        if known != tenant:
            self._tenancy.add_tenant(tenant)
            self._dirty = True
            if known is not None:
                self.tenant_gaps.see_change(known, self.usage.now)

    def drop_tenant(self, name: TenantName) -> None:
        """Record that a Tenant was deleted."""
        known = self._tenancy.tenants.get(name)
        if known is not None:
            self._tenancy.drop(name)
            self._dirty = True
            self.tenant_gaps.see_change(known, self.usage.now)

    def put_policy(self, policy: Policy) -> None:
        """Apply this Policy from now on."""
        if policy != self.usage.policy:
            self.usage.policy = policy
            self.budgets.respect(not policy.reclaims_over_budgets)
            self._dirty = True

    def find_pod(self, namespace: str, name: str) -> PodRecord | None:
        """Return the newest pod with this name, or None. A deleted pod may not be gone yet."""
        uid = self._names.get((namespace, name))
        return self.pods.get(uid) if uid is not None else None

    def add(self, pod: Pod, life: PodState) -> PodRecord:
        """Add a newly observed pod and account it."""
        queue_key = queue_key_of(pod.priority, pod.since, pod.uid)
        tracked = self.pods[pod.uid] = PodRecord(pod, life, stamp_of(pod.release), queue_key)
        if life is PodState.USING:
            tracked.released = self._start_of(pod)
            if tracked.released is not None and tracked.stamp > NEVER:
                tracked.entered = tracked.released
        tracked.pod = self._charged(tracked, pod, life)
        self._names[pod.namespace, pod.name] = pod.uid
        self._place(tracked)
        return tracked

    def change(self, tracked: PodRecord, pod: Pod, life: PodState) -> None:
        """Update a known pod after an observation or a change of its state."""
        pod = self._charged(tracked, pod, life)
        if tracked.pod == pod and tracked.life is life:
            return
        stays = (
            life is PodState.USING
            and tracked.uses
            and tracked.allocation
            and same_use(tracked, pod)
        )
        tracked.update(pod)
        if not stays:
            self._unplace(tracked)
        elif tracked.life is not PodState.USING and tracked.leaf is not None:
            self._pend(tracked, tracked.leaf, -1)
            self.touched[pod.uid] = tracked
        tracked.pod, tracked.life = pod, life
        tracked.stamp = max(tracked.stamp, stamp_of(pod.release))
        if life is PodState.USING and tracked.released is None:
            # another actor released it
            tracked.released = self._start_of(pod) or self.usage.now
        if not stays:
            tracked.queue_key = queue_key_of(pod.priority, pod.since, pod.uid)
            self._place(tracked)
        else:
            if tracked.allocation is not None and pod.terminating:
                self.usage.part(tracked.allocation)
            self.binding.see(tracked)
        self.gangs.seen(tracked)

    def release(
        self, tracked: PodRecord, at: NodeName | None, terms: NodeConstraints | None = None
    ) -> None:
        """Charge a held pod to the pool of its intent, on node `at`, with constraints `terms`."""
        self._unplace(tracked)
        tracked.aimed, tracked.ordered = at, terms
        tracked.life, tracked.released = PodState.RELEASING, self.usage.now
        tracked.pod = self._charged(tracked, tracked.pod, tracked.life)
        self._place(tracked, at)
        self.gangs.seen(tracked)

    def learn_walls(self, workload: Workload) -> bool:
        """Find the rules that close nodes to the pods of a workload before its release.

        Sources are the anti-affinity of existing pods, nodes that refused pods of the tenant, and
        devices that do not match.
        Return whether the rules changed. The caller must then call `settle` before it continues.
        """
        mates = {wall.group: wall for each in workload.starting for wall in each.pod.walls}
        if len(workload.starting) == 1:
            mates.clear()  # its own anti-affinity applies to other pods only
        learned = False
        for tracked in workload.starting:
            found = self.usage.walls.against(tracked.pod, mates.values())
            found += self._fit.rules(self._claimants.needs(tracked.pod))
            if tracked.leaf is not None:
                found += self.usage.closed_to(tracked.leaf.tenant)
            if tracked.pod.walled != found:
                self.change(tracked, replace(tracked.pod, walled=found), tracked.life)
                learned = True
        return learned

    def compute_charges(self) -> None:
        """Account again pods after a change of their claims, claim users or disruption budgets."""
        while stale := self._claimants.take_stale():
            for tracked in [self.pods[uid] for uid in stale if uid in self.pods]:
                self.change(tracked, tracked.pod, tracked.life)
        for uid in self.budgets.take_stale(self.usage.now):
            kept = self.pods[uid]
            if kept.life is PodState.HELD and self.budgets.keeper(kept.pod) != kept.pod.kept_by:
                self.change(kept, kept.pod, kept.life)

    def devices_of(self, pod: Pod) -> str:
        """Return which devices match the claims of a pod, as a clause."""
        return self._fit.text(self._claimants.needs(pod))

    def grants(self, pod: Pod) -> tuple[GrantedClaim, ...]:
        """Return the claims that a release of this pod is for. Empty in mode Observe."""
        if not pod.claims or self.usage.policy.mode is not Mode.ENFORCE:
            return ()
        return self._claimants.grants(pod)

    def rest(self, tracked: PodRecord, rests: bool) -> None:
        """Exclude a held pod from the order during a backoff, or include it again."""
        self._unplace(tracked)
        tracked.rests = rests
        tracked.is_postponed = rests and tracked.is_postponed
        self._place(tracked)

    def _move(self, tracked: PodRecord) -> None:
        """Account a pod again because its eligible pools changed."""
        expected = tracked.node
        self._unplace(tracked)
        self._place(tracked, expected)

    def ban(self, kinds: frozenset[BackoffKey]) -> None:
        """Exclude exactly the held pods with these backoff keys from the order."""
        changed, self.banned = kinds ^ self.banned, kinds
        if not changed:
            return
        for tracked in self.pods.values():
            leaf = tracked.leaf
            if leaf is None or tracked.life is not PodState.HELD:
                continue
            if kind_of(leaf, tracked.pod) in changed:
                self._unplace(tracked)
                self._place(tracked)

    def remove(self, tracked: PodRecord) -> None:
        """Remove a pod. It may be charged until `minCharge` has passed, unless it was evicted."""
        least = self.usage.policy.min_charge
        until = None
        if least and tracked.released is not None and not tracked.evicted:
            until = Millis(tracked.released + least)
        self._unplace(tracked, until)
        self.gangs.leave(tracked)
        self._claimants.leave(tracked.pod.uid)
        self.budgets.gone(tracked.pod)
        self.usage.walls.drop(tracked.pod.uid)
        self.binding.drop(tracked.pod.uid)
        del self.pods[tracked.pod.uid]
        if self._names.get((tracked.pod.namespace, tracked.pod.name)) == tracked.pod.uid:
            del self._names[tracked.pod.namespace, tracked.pod.name]
        self.touched.pop(tracked.pod.uid, None)

    def workload(self, uid: Uid) -> Workload | None:
        """Return the workload that waits under this uid, or None."""
        gang = self.gangs.waiting.get(uid)
        if gang is not None:
            return gang
        tracked = self.pods.get(uid)
        return tracked if tracked is not None and tracked.shape is not None else None

    def half_gangs(self) -> list[Gang]:
        """Return the partially released gangs, in queue order."""
        half = self.gangs.half
        return [half[uid] for uid in sorted(half, key=lambda uid: (half[uid].queue_key, uid))]

    def settle(self) -> None:
        """Bring the accounting of all pods up to date.

        This is cheap unless tenants, pools or nodes changed.
        """
        pools = self._pools
        pools.settle()
        self._peak = max(self._peak, len(self.pods), FEW)
        if 2 * len(self.pods) < self._peak > FEW:
            self._peak = len(self.pods)
            self.usage.trim()  # most cached answers concern deleted pods
        # The recount may itself change the capacity, hence a loop. Its second iteration is cheap.
        while self._dirty or self._seen != (pools.version, pools.resized):
            scale = pools.scale()
            # Amounts of uncounted resources were not recorded, so other counted resources need a
            # recount.
            same = self._seen[0] == pools.version and scale.counts_alike(self.usage.tree.scale)
            stays = not self._dirty and same
            self._seen = (pools.version, pools.resized)
            if not stays:
                self._recount(scale)
            elif scale != self.usage.tree.scale:
                self.usage.tree.rescale(scale)
        for name in pools.take_squeezed():
            self.usage.reconsider(name)
        self.usage.land()
        for name in pools.take_moved():
            for tracked in list(self._pinned.get(name, {}).values()):
                self._move(tracked)  # its node belongs to another pool now
        rerouted = pools.take_rerouted()
        for tracked in list(self.pods.values()) if rerouted else ():
            pod = tracked.pod
            placed = pod.node or pod.only or (tracked.uses and pod.pool in pools.pools)
            if not placed and terms_of(pod) in rerouted:
                self._move(tracked)
        ended = self.tenant_gaps.take_ended(self.usage.now)
        for tracked in list(self.pods.values()) if ended else ():
            if tracked.pod.namespace in ended and tracked.life is PodState.HELD:
                self._move(tracked)
        for tracked in self.gangs.take_moved():
            if self.pods.get(tracked.pod.uid) is tracked and tracked.life is PodState.HELD:
                self._move(tracked)
        regrouped = self.gangs.settle()
        self.touched.update((member.pod.uid, member) for member in regrouped)
        self._changed += regrouped

    def take_changed(self) -> list[PodRecord]:
        """Return, once, the held pods with a changed wait reason."""
        changed, self._changed = self._changed, []
        held = [t for t in changed if self.pods.get(t.pod.uid) is t and t.life is PodState.HELD]
        news = [t for t in held if t.announced_wait is not t.wait]
        for tracked in news:
            tracked.announced_wait = tracked.wait
        return news

    def _recount(self, scale: Scale) -> None:
        """Account every pod again, as if all had just been observed."""
        nodes = {t.pod.uid: t.node for t in self.pods.values() if t.allocation is not None}
        self.usage.replant(scale)
        self.pending.clear()
        self.waiting.clear()
        self.running.clear()
        self._shapes.clear()
        self._pools.forget_answers()
        self.gangs.clear()
        self._pinned.clear()
        self.idle.clear()
        self._dirty = False
        # Bound pods first: the others are expected where capacity is left beside them.
        for tracked in sorted(self.pods.values(), key=lambda t: t.pod.node is None):
            tracked.leaf = tracked.allocation = None
            self._place(tracked, nodes.get(tracked.pod.uid))
        self.usage.resume()

    def _place(self, tracked: PodRecord, node: NodeName | None = None) -> None:
        if self._dirty or not self._pools.settled:
            self._dirty = True
            return
        pod = tracked.pod
        name = self._tenancy.tenant_of(pod.namespace)
        tenant = self._tenancy.tenants.get(name)
        leaf = tracked.leaf = self.usage.leaf(name, pod.user)
        self.touched[pod.uid] = tracked
        if pod.walls and tracked.life is not PodState.HELD:
            holder = (pod.namespace, pod.name)
            self.usage.walls.add_pod(pod.uid, holder, pod.node, pod.walls, managed=True)
        elif pod.walls:
            self.usage.walls.drop(pod.uid)
        if pod.gang and tracked.gang is None:
            self.gangs.join(tracked)
        if tracked.life is PodState.HELD:
            self._wait(tracked, leaf, tenant)
        elif not pod.asks:
            tracked.wait = tracked.shape = None
        else:
            tracked.wait = tracked.shape = None
            intended = tracked.intent.pool if tracked.intent else None
            tracked.pool = intended or self._pools.pool_of(pod, tenant)
            if tracked.pool is not None:
                self._enter(tracked, leaf, tracked.pool, node)
            elif pod.node is not None:
                self._pinned.setdefault(pod.node, {})[pod.uid] = tracked
            if tracked.stamp > NEVER:
                self.usage.tree.serve(leaf, tracked.stamp)
        if tracked.life is not PodState.USING:
            self._pend(tracked, leaf, 1)
        self.binding.see(tracked)

    def _enter(
        self, tracked: PodRecord, leaf: UserNode, pool: PoolName, expected: NodeName | None
    ) -> None:
        pod, ends = tracked.pod, None
        if pod.max_runtime is not None and tracked.released is not None:
            ends = Millis(tracked.released + pod.max_runtime)
        tracked.entered = self.usage.now if tracked.entered is None else tracked.entered
        tracked.allocation = self.usage.enter(
            leaf,
            pool,
            pod.demand,
            node=pod.node or expected,
            bound=pod.node is not None,
            ends=ends,
            only=pod.only,
            terms=tracked.terms,
            spacings=distances_of(pod, marked=True),
            leaving=pod.terminating,
        )
        self.running.setdefault(leaf, {})[pod.uid] = tracked

    def _start_of(self, pod: Pod) -> Millis | None:
        """Return when its node started a pod: not before its creation, and not in the future."""
        if pod.started is None:
            return None
        return min(max(pod.started, pod.since), self.usage.now)

    def _charged(self, tracked: PodRecord, pod: Pod, life: PodState) -> Pod:
        """Return the pod with its charged requests and the budget that forbids its eviction."""
        self.budgets.seen(pod)
        keeper = self.budgets.keeper(pod) if life is PodState.HELD else ""
        if pod.kept_by != keeper:
            pod = replace(pod, kept_by=keeper)
        if pod.plain is None:
            return pod
        use, intent = None, tracked.intent
        if life is not PodState.HELD:
            served = max(tracked.stamp, stamp_of(pod.release))
            if intent is not None:
                served = (intent.epoch, intent.sequence)
            use = ClaimUse(served, (intent.pool if intent else pod.pool) or None)
        pod = self._claimants.compute_charges(pod, use)
        if use is not None and not pod.asks and pod.node is not None:
            self._pools.put_unmanaged(UnmanagedPod(pod.uid, pod.node, pod.demand))
        else:
            self._pools.drop_unmanaged(pod.uid)
        return pod

    def _unplace(self, tracked: PodRecord, charged_until: Millis | None = None) -> None:
        leaf, tracked.leaf = tracked.leaf, None
        self.idle.pop(tracked.pod.uid, None)
        if self._dirty or leaf is None:
            return  # a recount is due, or the pod is not accounted
        if tracked.life is not PodState.USING:
            self._pend(tracked, leaf, -1)
        self._unpin(tracked.pod)
        self.gangs.unready(tracked)
        if tracked.shape is not None:
            self.usage.tree.dequeue(leaf, tracked.queue_key, tracked.shape)
            tracked.shape = None
        if tracked.allocation is not None:
            self.usage.leave(leaf, tracked.allocation, charged_until=charged_until)
            running = self.running[leaf]
            del running[tracked.pod.uid]
            if not running:
                del self.running[leaf]
            tracked.pool = tracked.allocation = None

    def _pend(self, tracked: PodRecord, leaf: UserNode, sign: int) -> None:
        """Count a pod as not released. Sign -1 ends that."""
        self.pending[leaf.tenant] += sign
        if sign > 0:
            self.waiting.setdefault(leaf, {})[tracked.pod.uid] = tracked
            return
        waiting = self.waiting[leaf]
        del waiting[tracked.pod.uid]
        if not waiting:
            del self.waiting[leaf]

    def _unpin(self, pod: Pod) -> None:
        for name in self._pinned.keys() & {*(pod.only or ()), pod.node}:
            pinned = self._pinned[name]
            pinned.pop(pod.uid, None)
            if not pinned:
                del self._pinned[name]

    def _wait(self, tracked: PodRecord, leaf: UserNode, tenant: Tenant | None) -> None:
        pod = tracked.pod
        tracked.pool = tracked.shape = None
        for name in pod.only or ():
            self._pinned.setdefault(name, {})[pod.uid] = tracked
        pools = self._pools.serving(pod, tenant)
        shape = self._shapes.of([pod], pools)
        if tracked.announced_wait is None and pools:
            self._pools.mix.saw(shape.parts, pools)
        if pod.too_large:
            tracked.wait = Wait.TOO_LARGE
        elif any(gate != GATE for gate in pod.gates):
            tracked.wait = Wait.OTHER_GATE
        elif pod.awaits or pod.no_class or pod.securing:
            tracked.wait = Wait.CLAIM
        elif not pod.asks:
            tracked.wait = Wait.REFUSED if tracked.rests else Wait.TURN
            if not tracked.rests:
                self.idle[pod.uid] = tracked
        elif self.tenant_gaps.reason(pod.namespace):
            tracked.wait = Wait.NO_TENANT
        elif self.usage.paused(leaf):
            tracked.wait = Wait.TENANT_PAUSED
        elif not pools:
            tracked.wait = Wait.NO_POOL
        elif tracked.rests:
            tracked.wait = Wait.POSTPONED if tracked.is_postponed else Wait.REFUSED
        elif self.banned and kind_of(leaf, pod) in self.banned:
            tracked.wait = Wait.NO_NODE
        elif tracked.gang is not None:
            tracked.wait = Wait.GANG_INCOMPLETE
            self.gangs.wait(tracked, pools)
        else:
            tracked.wait = Wait.TURN
            tracked.shape = shape
            self.usage.tree.enqueue(leaf, tracked.queue_key, shape)
        if tracked.announced_wait is None:
            tracked.announced_wait = tracked.wait
        elif tracked.announced_wait is not tracked.wait:
            self._changed.append(tracked)
