"""The decision engine: events in, effects out.

The leader, its standbys and the simulator use the same object. It stores the observed state, and
each pass releases every workload that fits, in fair order. It has no clock and no I/O, and returns
equal effects for equal events. It has more than 500 lines because it alone dispatches every event
and orders the steps of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from app.core import events as ev
from app.core.audit.recorder import AuditRecorder
from app.core.effects import Effect, Intend, Rebuild, Refund, StoreWrite, WakeAt
from app.core.engine_options import DEFAULTS, EngineOptions
from app.core.epochs import highest_plausible
from app.core.explain.leader_state import LeaderState
from app.core.explain.messages import released
from app.core.explain.pod_events import BRIEF_SECONDS, PodNotices
from app.core.explain.queries import EngineQueries
from app.core.explain.views import LeaderStateMessage
from app.core.fairshare.drift import Drift
from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.tenants import TenantDirectory
from app.core.lifecycle.bypass_detection import BypassDetector, Provenance
from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_exchanges import ClaimExchanges
from app.core.lifecycle.claim_holds import ClaimHolds
from app.core.lifecycle.node_refusals import NodeRefusals
from app.core.lifecycle.pod_record import PodRecord, still_walled
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import TRANSITIONS, Observation, PodState, classify
from app.core.lifecycle.scheduling_timeout import CAUSE as UNBOUND
from app.core.lifecycle.stale_pods import StalePods
from app.core.lifecycle.unbound_pods import UnboundPods
from app.core.model import Millis, Pod, Pool, ReleaseOutcome, Tenant, Uid
from app.core.placement.allocations import Allocations
from app.core.placement.device_capacity import DeviceCapacity
from app.core.placement.device_fit import DeviceFit
from app.core.placement.pools import Pools
from app.core.policy import Policy
from app.core.quantities import ManagedResources
from app.core.scheduling.cycle import SchedulingCycle
from app.core.scheduling.release_backoff import ReleaseBackoff
from app.core.usage.checkpoints import CheckpointKeeper
from app.core.usage.store_sync import StoreSync
from app.core.usage.tracker import UsageTracker


class Engine:
    """Holds, orders and releases pods. See `handle`."""

    def __init__(self, managed: ManagedResources, options: EngineOptions = DEFAULTS) -> None:
        self.drift = Drift(options.witnesses)
        self._tenancy = TenantDirectory()
        self._pools = Pools(managed, options.sample)
        self._placement = Allocations(self._pools)
        self._usage = LiveUsage(self._tenancy, self._placement)
        self._claimants = ClaimCharges(managed, options.classes)
        self._devices = DeviceCapacity(self._claimants.classes, options.selectors)
        fit = DeviceFit(self._devices, self._placement.company)
        self._holds = ClaimHolds(self._claimants, self._devices, self._pools, fit)
        self._registry = PodRegistry(self._tenancy, self._pools, self._usage, self._claimants, fit)
        self.memory = CheckpointKeeper(
            self._registry, self._tenancy, managed, forgets=options.copied
        )
        self._running = UsageTracker(self._registry, managed)
        self._copies = StoreSync(self._registry, self._running, silent=not options.copied)
        self._refusals = NodeRefusals(self._pools, self._placement)
        self._cycle = SchedulingCycle(
            self._registry, self._pools, self._placement, self.drift, self._refusals, options
        )
        self._paced = options.paced
        self._resting = ReleaseBackoff(self._registry)
        self._leader_state = LeaderState(self._registry, self._pools.growth)
        self.charge_proposed = self._claimants.charge_proposed
        self.queries = EngineQueries(
            self._registry,
            self._tenancy,
            self._pools,
            self._placement,
            self._cycle.reservations,
            managed,
            self._leader_state,
            self._resting,
            self._running,
            self._cycle.evictions.blocked.by_tenant,
        )
        self._bypasses = BypassDetector(self._registry, options.evicts_bypassed)
        self._exchanges = ClaimExchanges(
            self._registry, self._claimants, self._bypasses, options.evicts_bypassed
        )
        self._unbound_pods = UnboundPods(self._registry, self._pools.growth)
        self.stale_pods = StalePods(self._registry, options.reclaims, self._cycle.evictions.goes)
        self._records = AuditRecorder(
            self._registry,
            self._tenancy,
            self._bypasses,
            self._cycle.cooldowns,
            silent=not options.records,
        )
        self._fresh: set[ev.WatchedSource] = set()
        self._epoch: int | None = None
        self._store_ready = False
        self._notices = PodNotices(self._registry, silent=not options.copied)
        self._effects: list[Effect] = []
        self._woken: Millis | None = None
        self._mode = options.mode
        self.policy_uid: str | None = None
        self._rule(Policy(mode=options.mode))

    @property
    def ready(self) -> bool:
        """Return whether every needed source is complete and fresh."""
        return self._fresh >= ev.NEEDED

    def handle(self, event: ev.Event) -> tuple[Effect, ...]:
        """Process one event and return its effects, in order.

        Releases result only from `Pass`, so that pods that arrived together are ordered together.
        """
        self._effects = []
        self.queries.stale()
        self._usage.advance(event.at)
        self._registry.binding.advance(self._usage.now)
        if not isinstance(event, ev.Pass):
            self._note(event)
        else:
            self._records.remind()
            if self.ready:
                self._resting.wake(event.at)
                self._act()
        self._effects += self._records.drain()
        return tuple(self._effects) if self._epoch is not None else ()

    def apply_leader_state(self, leader_message: LeaderStateMessage) -> None:
        """Apply the leader's state on this follower."""
        self._leader_state.apply(leader_message)
        self.queries.stale()

    def writes(self) -> Iterator[StoreWrite]:
        """Return all writes that a store needs to equal this engine."""
        return self._copies.whole()

    def wants_gone(self, uid: Uid) -> bool:
        """Return whether a pod must still be evicted. The reason may no longer apply."""
        return self._cycle.evictions.wanted(uid)

    def notes(self) -> Iterator[tuple[str, str]]:
        """Return the audit markers of all existing objects."""
        return self._records.notes()

    def held(self) -> Iterator[Pod]:
        """Return the pods that are held, as observed."""
        return (t.pod for t in self._registry.pods.values() if t.life is not PodState.USING)

    def highest_stamp(self, *, fences: bool = True) -> int:
        """Return the highest epoch in the release annotations of pods and in checkpoints.

        `fences`: include pods that were only fenced and not released.
        """
        epochs = (t.stamp[0] for t in self._registry.pods.values() if fences or t.stamp[1] > 0)
        return max(highest_plausible(epochs), highest_plausible(self.memory.epochs()))

    def _act(self) -> None:
        """Run one pass on the current state. A step may use the results of the steps above it.

        1. `NodeRefusals.update_nodes`: close and open nodes. First, because accounting and fit
           depend on the usable nodes.
        2. `ClaimHolds.update`: apply changes of slices and allocated claims to the nodes.
           `ClaimExchanges.secure`: count claims as protected. Then `PodRegistry.compute_charges`:
           account pods again whose claims or budgets changed. It changes single pods, and step 3
           completes the accounting.
        3. `PodRegistry.settle`: process changes of tenants, pools and nodes. The later steps need
           the accounting of every pod.
        4. `CheckpointKeeper.restore`: apply the checkpoints that were read. It needs step 3.
        5. `ReleaseWindow.review`, if paced: close and open pools and users by binding progress,
           before the selection in step 8 reads the closures.
        6. Leader with a known install time: `judge_claims`, `judge_pods` and `check_pods` run in
           this order; `_order` registers and emits their effects, those of `judge_pods` first.
           `check_pods` may defer pods, so accounting is settled again. Follower: drop the pending
           claims, because a new term judges all claims again.
        7. `StoreSync.changes`: emit the store writes so far. They need settled accounting, and
           precede the releases.
        8. Leader with a ready store: `SchedulingCycle.run_cycle`. The detectors and the audit
           recorder register its effects before any answer can arrive. Then settle, and emit the
           store writes that follow from the cycle.
        9. `PodNotices.new_events`: emit events for pods that are still held, so after the releases.
        10. `_set_alarm`: emit `WakeAt`. Last, because every step may set a timer.

        A follower runs every step except 8, and `handle` drops its effects.
        """
        self._refusals.update_nodes(self._usage.now)
        self._holds.update()
        self._exchanges.secure(self._usage.now)
        self._registry.compute_charges()
        self._registry.settle()
        self.memory.restore()
        if self._paced:
            self._cycle.pace.review()
        if self._epoch is not None and self._bypasses.since is not None:
            now = self._usage.now
            exchanges = self._exchanges.judge_claims(now)
            self._order(
                [*self._bypasses.judge_pods(now), *exchanges, *self._unbound_pods.check_pods()]
            )
            self._registry.settle()
        elif self._epoch is None:
            self._exchanges.rest()
        self._effects += self._copies.changes()
        if self._epoch is not None and self._store_ready:
            releases = self._cycle.run_cycle(self._epoch)
            self._bypasses.order(releases)
            self._exchanges.order(releases)
            self._records.ordered(releases)
            self._effects += releases
            self._registry.settle()
            self._effects += self._copies.changes()
        self._effects += self._notices.new_events(leads=self._epoch is not None)
        self._pools.trim(len(self._registry.pods))
        self._set_alarm()

    def _order(self, effects: list[Effect]) -> None:
        """Emit eviction effects and register them as ordered."""
        effects = self._cycle.evictions.ordered(effects)
        self._records.ordered(effects)
        self._effects += effects

    def _set_alarm(self) -> None:
        """Emit `WakeAt` for the next timer, unless it was emitted already."""
        due = [self._resting.due(), self._usage.due(), self._cycle.due()]
        due += (self._refusals.due(self._usage.now), self._registry.budgets.due())
        due.append(self._registry.tenant_gaps.due())
        if self._bypasses.since is not None:
            due += (self._bypasses.due(), self._exchanges.due(), self._unbound_pods.due())
        at = min((each for each in due if each is not None), default=None)
        if at is not None and at != self._woken:
            self._effects.append(WakeAt(at))
        self._woken = at

    def _note(self, event: ev.NewsEvent) -> None:
        match event:
            case ev.ReleaseAnswered(at, uid, answer):
                self._answer(at, uid, answer)
            case ev.ReleaseStuck(_, uid):
                self._cycle.in_flight.discard(uid)  # frees a slot for other releases
            case ev.EvictionAccepted(_, uid):
                self._records.evicted(uid)
                self._effects += self._cycle.evictions.accepted(uid)
            case ev.EvictionRefused(_, uid):
                self._effects += self._cycle.evictions.refused(uid)
            case ev.StalePodFound(_, uid, kind, why):
                self._order(self.stale_pods.record_stale_pod(uid, kind, why))
            case ev.StalePodCleared(_, uid, kind):
                self._cycle.evictions.withdraw(self.stale_pods.clear(uid, kind), kind.value)
            case ev.CostlyPod(at, uid):
                self._postpone(at, uid)
            case ev.Installed(_, since):
                self._bypasses.since = since
            case ev.CheckpointsRead(_, checkpoints):
                for name, checkpoint in checkpoints.items():
                    self.memory.apply_read(name, checkpoint, live=False)
            case ev.StoreReady() | ev.StoreLost():
                self._store_ready = isinstance(event, ev.StoreReady)
            case ev.LeadershipGained():
                self._lead(event)
            case ev.LeadershipLost():
                self._follow()
            case _:
                self._apply_watch_event(event)

    def _apply_watch_event(self, event: ev.ClusterEvent) -> None:
        """Apply an event of a watch."""
        match event:
            case ev.PodObserved(_, pod):
                self._observe(pod)
            case ev.PodGone(_, uid):
                self._pools.drop_unmanaged(uid)
                self._placement.walls.drop(uid)
                self._records.vanished(uid)
                self._forget(uid)
                self._registry.gangs.gone(uid)
            case ev.UnmanagedPodObserved(_, unmanaged_pod):
                self._pools.put_unmanaged(unmanaged_pod)
                self._registry.gangs.see_outside(unmanaged_pod)
                self._forget(unmanaged_pod.uid)
                self._placement.walls.add_pod(
                    unmanaged_pod.uid,
                    unmanaged_pod.holder,
                    unmanaged_pod.node,
                    unmanaged_pod.walls,
                    managed=False,
                )
            case ev.NodeObserved(_, node):
                node = self._devices.put_node(node)
                self._refusals.node_seen(node)
                self._pools.put_node(node)
            case ev.NodeGone(_, name):
                self._refusals.node_gone(name)
                self._devices.drop_node(name)
                self._pools.drop_node(name)
            case ev.PriorityObserved() | ev.PriorityGone():
                pass  # only the webhook needs these: pods have their priority as a number
            case ev.GroupObserved(_, group):
                self._registry.gangs.record_size(group)
            case ev.GroupGone(_, namespace, name):
                self._registry.gangs.drop(namespace, name)
            case ev.BudgetObserved(_, budget):
                self._registry.budgets.record_budget(budget)
            case ev.BudgetGone(_, namespace, name):
                self._registry.budgets.drop(namespace, name)
            case ev.SourceFresh(_, source):
                self._fresh.add(source)
                self._registry.binding.update_timeouts(self._usage.now, self.ready)
            case ev.SourceStale(_, source):
                self._fresh.discard(source)
                self._registry.binding.update_timeouts(self._usage.now, self.ready)
            case _:
                self._configure(event)

    def _configure(self, event: ev.SettingsEvent | ev.DeviceEvent) -> None:
        """Apply a change of the settings, or of dynamic resource allocation."""
        match event:
            case ev.TenantObserved(_, tenant, _, checkpoint):
                self._registry.put_tenant(tenant)
                if checkpoint is not None:
                    self.memory.apply_read(
                        tenant.name, checkpoint, live=ev.WatchedSource.TENANTS in self._fresh
                    )
                self._records.configured(tenant, event.by)
            case ev.TenantGone(_, name):
                self._registry.drop_tenant(name)
                self.memory.remove_tenant(name)
                self._records.dropped(Tenant, name)
            case ev.PoolObserved(_, pool):
                self._pools.put_pool(pool)
                self._records.configured(pool, event.by)
            case ev.PoolGone(_, name):
                self._pools.drop_pool(name)
                self._records.dropped(Pool, name)
            case ev.PolicyObserved(_, policy):
                self.policy_uid = event.uid
                self._rule(policy if event.has_mode else replace(policy, mode=self._mode))
                self._records.configured(policy, event.by, has_mode=event.has_mode)
            case ev.PolicyGone():
                self.policy_uid = None
                self._rule(Policy(mode=self._mode))
                self._records.dropped(Policy)
            case ev.ClaimObserved(_, claim):
                self._claimants.put_claim(claim)
                self._devices.put_claim(claim)
            case ev.ClaimGone(_, namespace, name):
                self._claimants.drop_claim((namespace, name))
                self._devices.drop_claim((namespace, name))
            case ev.ClassObserved(_, device_class):
                self._claimants.put_class(device_class)
            case ev.ClassGone(_, name):
                self._claimants.drop_class(name)
            case ev.SliceObserved(_, published):
                self._devices.inventory.put_slice(published)
            case ev.SliceGone(_, name):
                self._devices.inventory.drop_slice(name)
            case _:
                assert_never(event)

    def _observe(self, pod: Pod) -> None:
        known = self._registry.pods.get(pod.uid)
        seen = classify(pod)
        if pod.plain is None or seen in (Observation.OVER, Observation.LEAVING):
            self._pools.drop_unmanaged(pod.uid)
        if known is not None and known.uses:
            tenant = self._tenancy.tenant_of(pod.namespace)
            self._effects += self._refusals.see(known.ref, known.pod, pod, tenant, self._usage.now)
        life = TRANSITIONS[known.life if known else None, seen]
        if life is PodState.USING and seen in (Observation.GATED, Observation.LEAVING):
            return  # outdated: observed before the release
        if life is None:
            self._registry.gangs.over(pod)
            self._records.over(pod, live=ev.WatchedSource.PODS in self._fresh)
            self._forget(pod.uid)
        elif known is None:
            tracked = self._registry.add(pod, life)
            if life is PodState.HELD and self.ready:
                self._notices.add(tracked)
            # The gate of a terminating pod may have gone in an update that is not known here.
            self._oversee(tracked, new=not pod.terminating)
        else:
            self._registry.change(known, still_walled(pod, known.pod), life)
            self._oversee(known, new=False)

    def _oversee(self, tracked: PodRecord, new: bool) -> None:
        """Check a pod without a gate: whether it was released, and whether a node takes it."""
        if tracked.life is not PodState.USING:
            self._records.seen(tracked)
            return
        if tracked.pod.terminating:
            self._cycle.leave(tracked)
        self._cycle.evictions.notices.see(tracked)
        right = self._bypasses.see(tracked, new=new, live=ev.WatchedSource.PODS in self._fresh)
        if right is Provenance.RELEASED:
            self._cycle.evictions.withdraw(self._unbound_pods.see(tracked), UNBOUND)
        if right is not None:
            self._records.passed(tracked, right)

    def _forget(self, uid: Uid) -> None:
        known = self._registry.pods.get(uid)
        if known is None:
            return
        self._effects += self._copies.gone(known)
        self._records.gone(known)
        allocation, leaf = known.allocation, known.leaf
        if leaf is not None and allocation is not None and allocation.overstayed(self._usage.now):
            self._cycle.picker.bar(leaf, self._usage.now)
        self._effects += self._cycle.evictions.gone(known)
        self._registry.remove(known)
        self._cycle.forget_pod(uid)
        self._bypasses.forget_pod(uid)
        self._exchanges.forget_pod(uid)
        self._unbound_pods.forget_pod(uid)
        self.stale_pods.clear(uid)
        self._refusals.gone(uid)
        self._resting.forget_pod(uid)
        if leaf is not None:
            self.memory.leave(leaf.tenant)

    def _rule(self, policy: Policy) -> None:
        if policy != self._usage.policy:
            self._cycle.rule()
        self._registry.put_policy(policy)
        self._bypasses.rule(policy.mode, self._usage.now)
        self._exchanges.rule(policy.mode)

    def _answer(self, at: Millis, uid: Uid, answer: ReleaseOutcome) -> None:
        self._cycle.in_flight.discard(uid)
        self._records.answered(uid, answer)
        known = self._registry.pods.get(uid)
        if known is None or known.intent is None:
            return
        intent = known.intent
        match answer:
            case ReleaseOutcome.RELEASED:
                pod = replace(known.pod, gates=(), release=intent.stamp, pool=intent.pool)
                self._registry.change(known, pod, PodState.USING)
                waited = max(0, at - known.pod.since) // 1000
                awaits = self._usage.awaited(known.allocation) is not None
                text = released(intent.pool, waited, awaits)
                # Creation times have whole seconds, so `waited` may be a second too long.
                waits = awaits or waited > BRIEF_SECONDS
                self._effects += self._notices.released(known, text, waits=waits)
            case ReleaseOutcome.GONE:
                self._forget(uid)
            case ReleaseOutcome.HELD | ReleaseOutcome.UNSENT:
                if known.life is PodState.RELEASING:
                    self._registry.change(known, known.pod, PodState.HELD)
                    self._effects.append(Refund(uid))
                    self._bypasses.withdraw(uid)
                    self._exchanges.withdraw(uid)
                    if known.pod.terminating:
                        self._forget(uid)
                    elif answer is ReleaseOutcome.HELD:
                        self._resting.start_backoff(at, known)
            case _:
                assert_never(answer)
        known.intent = None

    def _postpone(self, at: Millis, uid: Uid) -> None:
        """Back off a pod, with its gang, that takes too long to evaluate. Followers copy that."""
        if self._epoch is None:
            return
        workload, known = self._registry.workload(uid), self._registry.pods.get(uid)
        members = workload.starting if workload is not None else (known,) if known else ()
        for tracked in tuple(members):
            if tracked.life is PodState.HELD and not tracked.rests:
                self._resting.postpone(at, tracked)

    def _lead(self, gained: ev.LeadershipGained) -> None:
        self._epoch = gained.epoch
        self._woken = None
        self._cycle.start_term()
        self._registry.binding.start_term(self._usage.now)
        self._registry.gangs.readiness.start_term(self._usage.now)
        self._unbound_pods.start_term()
        self._records.start_term(gained.notes, gained.intents)
        self._notices.start_term(self._records.unrecorded_held(), self._usage.now)
        self._bypasses.start_term(gained.epoch, self._records.bypasses())
        self._exchanges.start_term(self._records.marked_claims())
        self.memory.lead(gained.epoch)
        self._store_ready = False
        for intent in gained.unsettled:
            self._resume(intent)
        self._effects.append(Rebuild(gained.epoch))
        self._effects += self._running.take_up(gained.running, gained.intents)

    def _resume(self, intent: Intend) -> None:
        """Count a release of an older leader as used until the result is known."""
        known = self._registry.pods.get(intent.ref.uid)
        if known is not None and known.life is PodState.HELD:
            known.intent, known.entered = intent, intent.begin or None
            self._registry.release(known, None)

    def _follow(self) -> None:
        """Become a follower. The pods themselves show the results of releases in flight later."""
        self.memory.follow()
        self._epoch = None
        self._cycle.end()
        released = self._bypasses.end()
        self._exchanges.end()
        self._records.end()
        self.stale_pods.end()
        for tracked in list(self._registry.pods.values()):
            if tracked.life is PodState.RELEASING:
                self._registry.change(tracked, tracked.pod, PodState.HELD)
                if tracked.pod.terminating:
                    self._forget(tracked.pod.uid)
            tracked.intent = None
        for tracked in released:
            self._oversee(tracked, new=False)
