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
from app.core.explain.messages import release_text
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
from app.core.lifecycle.pod_record import PodRecord, with_known_exclusions
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
        self.drift = Drift(options.compared_siblings)
        self._tenancy = TenantDirectory()
        self._pools = Pools(managed, options.pod_mix)
        self._placement = Allocations(self._pools)
        self._usage = LiveUsage(self._tenancy, self._placement)
        charges = ClaimCharges(managed, options.resource_by_device_class)
        self._claim_charges = charges
        self._devices = DeviceCapacity(self._claim_charges.classes, options.selector_evaluator)
        fit = DeviceFit(self._devices, self._placement.pod_peers)
        registry = PodRegistry(self._tenancy, self._pools, self._usage, charges, fit)
        self._registry = registry
        self._claim_holds = ClaimHolds(charges, self._devices, registry, self._pools, fit)
        writes = options.emits_store_writes
        self.checkpoints = CheckpointKeeper(registry, self._tenancy, managed, forgets=writes)
        self._usage_tracker = UsageTracker(self._registry, managed)
        self._store_sync = StoreSync(registry, self._usage_tracker, silent=not writes)
        self._node_refusals = NodeRefusals(self._pools, self._placement)
        self._cycle = SchedulingCycle(
            self._registry, self._pools, self._placement, self.drift, self._node_refusals, options
        )
        self._follows_binding_rate = options.follows_binding_rate
        self._release_backoff = ReleaseBackoff(self._registry)
        self._leader_state = LeaderState(self._registry, self._pools.autoscaling_backoff)
        self.charge_proposed = self._claim_charges.charge_proposed
        self.queries = EngineQueries(
            self._registry,
            self._tenancy,
            self._pools,
            self._placement,
            self._cycle.reservations,
            managed,
            self._leader_state,
            self._release_backoff,
            self._usage_tracker,
            self._cycle.evictions.blocked.by_tenant,
        )
        self._bypasses = BypassDetector(self._registry, options.evicts_bypassed)
        evicts = options.evicts_bypassed
        self._exchanges = ClaimExchanges(registry, charges, self._bypasses, evicts)
        self._unbound_pods = UnboundPods(self._registry, self._pools.autoscaling_backoff)
        self.stale_pods = StalePods(
            self._registry, options.evicted_stale_reasons, self._cycle.evictions.is_accepted
        )
        self._audit_recorder = AuditRecorder(
            self._registry,
            self._tenancy,
            self._bypasses,
            self._cycle.cooldowns,
            is_disabled=not options.emits_audit_records,
        )
        self._fresh_sources: set[ev.WatchedSource] = set()
        self._epoch: int | None = None
        self._store_ready = False
        self._pod_notices = PodNotices(self._registry, silent=not options.emits_store_writes)
        self._effects: list[Effect] = []
        self._wake_at: Millis | None = None
        self._mode = options.mode
        self.policy_uid: str | None = None
        self._apply_policy(Policy(mode=options.mode))

    @property
    def is_ready(self) -> bool:
        """Return whether every needed source is complete and fresh."""
        return self._fresh_sources >= ev.REQUIRED_SOURCES

    def handle(self, event: ev.Event) -> tuple[Effect, ...]:
        """Process one event and return its effects, in order.

        Releases result only from `Pass`, so that pods that arrived together are ordered together.
        """
        self._effects = []
        self.queries.invalidate_cache()
        self._usage.advance(event.at)
        self._registry.binding.advance(self._usage.now)
        if not isinstance(event, ev.Pass):
            self._apply_event(event)
        else:
            self._audit_recorder.record_backlog()
            if self.is_ready:
                self._release_backoff.expire(event.at)
                self._run_pass()
        self._effects += self._audit_recorder.drain_effects()
        return tuple(self._effects) if self._epoch is not None else ()

    def apply_leader_state(self, leader_message: LeaderStateMessage) -> None:
        """Apply the leader's state on this follower."""
        self._leader_state.apply(leader_message)
        self.queries.invalidate_cache()

    def store_writes(self) -> Iterator[StoreWrite]:
        """Return all writes that a store needs to equal this engine."""
        return self._store_sync.all_writes()

    def is_eviction_needed(self, uid: Uid) -> bool:
        """Return whether a pod must still be evicted. The reason may no longer apply."""
        return self._cycle.evictions.is_still_needed(uid)

    def audit_markers(self) -> Iterator[tuple[str, str]]:
        """Return the audit markers of all existing objects."""
        return self._audit_recorder.audit_markers()

    def held_pods(self) -> Iterator[Pod]:
        """Return the pods that are held, as observed."""
        return (t.pod for t in self._registry.pods.values() if t.state is not PodState.USING)

    def highest_epoch(self, *, fences: bool = True) -> int:
        """Return the highest epoch in the release annotations of pods and in checkpoints.

        `fences`: include pods that were only fenced and not released.
        """
        epochs = (
            t.release_id[0] for t in self._registry.pods.values() if fences or t.release_id[1] > 0
        )
        return max(highest_plausible(epochs), highest_plausible(self.checkpoints.epochs()))

    def _run_pass(self) -> None:
        """Run one pass on the current state. A step may use the results of the steps above it.

        1. `NodeRefusals.update_nodes`: close and open nodes. First, because accounting and fit
           depend on the usable nodes.
        2. `ClaimHolds.update`: apply changes of slices and allocated claims to the nodes.
           `ClaimExchanges.mark_secured_claims`: count claims as protected. Then
           `PodRegistry.update_stale_charges`: account pods again whose claims or budgets changed.
           It changes single pods, and step 3 completes the accounting.
        3. `PodRegistry.settle`: process changes of tenants, pools and nodes. The later steps need
           the accounting of every pod.
        4. `CheckpointKeeper.restore`: apply the checkpoints that were read. It needs step 3.
        5. `ReleaseWindow.update_closed_pools`, if paced: close and open pools and users by binding
           progress, before the selection in step 8 reads the closures.
        6. Leader with a known install time: `judge_claims`, `judge_pods` and `check_pods` run in
           this order; `_emit_evictions` registers and emits their effects, those of `judge_pods`
           first. `check_pods` may defer pods, so accounting is settled again. Follower: drop the
           pending claims, because a new term judges all claims again.
        7. `StoreSync.drain_writes`: emit the store writes so far. They need settled accounting, and
           precede the releases.
        8. Leader with a ready store: `SchedulingCycle.run_cycle`. The detectors and the audit
           recorder register its effects before any answer can arrive. Then settle, and emit the
           store writes that follow from the cycle.
        9. `PodNotices.new_events`: emit events for pods that are still held, so after the releases.
        10. `_emit_next_wake`: emit `WakeAt`. Last, because every step may set a timer.

        A follower runs every step except 8, and `handle` drops its effects.
        """
        self._node_refusals.update_nodes(self._usage.now)
        self._claim_holds.update(self._usage.now)
        self._exchanges.mark_secured_claims(self._usage.now)
        self._registry.update_stale_charges()
        self._registry.settle()
        self.checkpoints.restore()
        if self._follows_binding_rate:
            self._cycle.release_window.update_closed_pools()
        if self._epoch is not None and self._bypasses.installed_at is not None:
            now = self._usage.now
            exchanges = self._exchanges.judge_claims(now)
            self._emit_evictions(
                [*self._bypasses.judge_pods(now), *exchanges, *self._unbound_pods.check_pods()]
            )
            self._registry.settle()
        elif self._epoch is None:
            self._exchanges.drop_pending_changes()
        self._effects += self._store_sync.drain_writes()
        if self._epoch is not None and self._store_ready:
            releases = self._cycle.run_cycle(self._epoch)
            self._bypasses.record_releases(releases)
            self._exchanges.record_releases(releases)
            self._audit_recorder.record_effects(releases)
            self._effects += releases
            self._registry.settle()
            self._effects += self._store_sync.drain_writes()
        self._effects += self._pod_notices.new_events(leads=self._epoch is not None)
        self._pools.trim(len(self._registry.pods))
        self._emit_next_wake()

    def _emit_evictions(self, effects: list[Effect]) -> None:
        """Emit eviction effects and register them as ordered."""
        effects = self._cycle.evictions.add(effects)
        self._audit_recorder.record_effects(effects)
        self._effects += effects

    def _emit_next_wake(self) -> None:
        """Emit `WakeAt` for the next timer, unless it was emitted already."""
        due = [self._release_backoff.due(), self._usage.due(), self._cycle.due()]
        due += (self._node_refusals.due(self._usage.now), self._registry.budgets.due())
        due += (self._registry.tenant_gaps.due(), self._claim_charges.due())
        due += (self._claim_holds.due(),)
        if self._bypasses.installed_at is not None:
            due += (self._bypasses.due(), self._exchanges.due(), self._unbound_pods.due())
        at = min((each for each in due if each is not None), default=None)
        if at is not None and at != self._wake_at:
            self._effects.append(WakeAt(at))
        self._wake_at = at

    def _apply_event(self, event: ev.NewsEvent) -> None:
        match event:
            case ev.ReleaseAnswered(at, uid, answer):
                self._record_release_outcome(at, uid, answer)
            case ev.ReleaseStuck(_, uid):
                self._cycle.in_flight.discard(uid)  # frees a slot for other releases
            case ev.EvictionAccepted(_, uid):
                self._audit_recorder.record_eviction_accepted(uid)
                self._effects += self._cycle.evictions.record_accepted(uid)
            case ev.EvictionRefused(_, uid):
                self._effects += self._cycle.evictions.record_refused(uid)
            case ev.StalePodFound(_, uid, kind, why):
                self._emit_evictions(self.stale_pods.record_stale_pod(uid, kind, why))
            case ev.StalePodCleared(_, uid, kind):
                self._cycle.evictions.cancel(self.stale_pods.clear_finding(uid, kind), kind.value)
            case ev.CostlyPod(at, uid):
                self._postpone(at, uid)
            case ev.Installed(_, since):
                self._bypasses.installed_at = since
            case ev.CheckpointsRead(_, checkpoints):
                for name, checkpoint in checkpoints.items():
                    self.checkpoints.apply_read(name, checkpoint, live=False)
            case ev.StoreReady() | ev.StoreLost():
                self._store_ready = isinstance(event, ev.StoreReady)
            case ev.LeadershipGained():
                self._start_term(event)
            case ev.LeadershipLost():
                self._end_term()
            case _:
                self._apply_watch_event(event)

    def _apply_watch_event(self, event: ev.ClusterEvent) -> None:
        """Apply an event of a watch."""
        match event:
            case ev.PodObserved(_, pod):
                self._observe_pod(pod)
            case ev.PodGone(_, uid):
                self._pools.drop_unmanaged(uid)
                self._placement.existing_anti_affinity.drop_pod(uid)
                self._audit_recorder.record_pod_deleted(uid)
                self._remove_pod(uid)
                self._registry.gangs.forget_pod(uid)
            case ev.UnmanagedPodObserved(_, unmanaged_pod):
                self._pools.put_unmanaged(unmanaged_pod)
                self._registry.gangs.observe_unmanaged_pod(unmanaged_pod)
                self._remove_pod(unmanaged_pod.uid)
                self._placement.existing_anti_affinity.add_pod(
                    unmanaged_pod.uid,
                    unmanaged_pod.rule_holder,
                    unmanaged_pod.node,
                    unmanaged_pod.anti_affinity_terms,
                    managed=False,
                )
            case ev.NodeObserved(_, node):
                node = self._devices.put_node(node)
                self._node_refusals.observe_node(node)
                self._pools.put_node(node)
            case ev.NodeGone(_, name):
                self._node_refusals.forget_node(name)
                self._devices.drop_node(name)
                self._pools.drop_node(name)
            case ev.PriorityObserved() | ev.PriorityGone():
                pass  # only the webhook needs these: pods have their priority as a number
            case ev.GroupObserved(_, group):
                self._registry.gangs.record_declaration(group)
            case ev.GroupGone(_, namespace, name):
                self._registry.gangs.drop_declaration(namespace, name)
            case ev.BudgetObserved(_, budget):
                self._registry.budgets.record_budget(budget)
            case ev.BudgetGone(_, namespace, name):
                self._registry.budgets.drop_budget(namespace, name)
            case ev.SourceFresh(_, source):
                self._fresh_sources.add(source)
                self._registry.binding.update_timeouts(self._usage.now, self.is_ready)
            case ev.SourceStale(_, source):
                self._fresh_sources.discard(source)
                self._registry.binding.update_timeouts(self._usage.now, self.is_ready)
            case _:
                self._apply_settings_event(event)

    def _apply_settings_event(self, event: ev.SettingsEvent | ev.DeviceEvent) -> None:
        """Apply a change of the settings, or of dynamic resource allocation."""
        match event:
            case ev.TenantObserved(_, tenant, _, checkpoint):
                self._registry.record_tenant(tenant)
                if checkpoint is not None:
                    self.checkpoints.apply_read(
                        tenant.name,
                        checkpoint,
                        live=ev.WatchedSource.TENANTS in self._fresh_sources,
                    )
                self._audit_recorder.record_config(tenant, event.changed_by)
            case ev.TenantGone(_, name):
                self._registry.drop_tenant(name)
                self.checkpoints.remove_tenant(name)
                self._audit_recorder.record_config_deleted(Tenant, name)
            case ev.PoolObserved(_, pool):
                self._pools.put_pool(pool)
                self._audit_recorder.record_config(pool, event.changed_by)
            case ev.PoolGone(_, name):
                self._pools.drop_pool(name)
                self._audit_recorder.record_config_deleted(Pool, name)
            case ev.PolicyObserved(_, policy):
                self.policy_uid = event.uid
                self._apply_policy(policy if event.has_mode else replace(policy, mode=self._mode))
                self._audit_recorder.record_config(
                    policy, event.changed_by, has_mode=event.has_mode
                )
            case ev.PolicyGone():
                self.policy_uid = None
                self._apply_policy(Policy(mode=self._mode))
                self._audit_recorder.record_config_deleted(Policy)
            case ev.ClaimObserved(_, claim):
                self._claim_charges.record_claim(claim)
                self._devices.put_claim(claim)
            case ev.ClaimGone(_, namespace, name):
                self._claim_charges.drop_claim((namespace, name))
                self._devices.drop_claim((namespace, name))
            case ev.ClassObserved(_, device_class):
                self._claim_charges.record_class(device_class)
            case ev.ClassGone(_, name):
                self._claim_charges.drop_class(name)
            case ev.SliceObserved(_, published):
                self._devices.inventory.put_slice(published)
            case ev.SliceGone(_, name):
                self._devices.inventory.drop_slice(name)
            case _:
                assert_never(event)

    def _observe_pod(self, pod: Pod) -> None:
        known = self._registry.pods.get(pod.uid)
        seen = classify(pod)
        if pod.container_requests is None or seen in (Observation.OVER, Observation.LEAVING):
            self._pools.drop_unmanaged(pod.uid)
        if known is not None and known.counts_as_used:
            tenant = self._tenancy.tenant_of(pod.namespace)
            self._effects += self._node_refusals.observe_pod(
                known.ref, known.pod, pod, tenant, self._usage.now
            )
        life = TRANSITIONS[known.state if known else None, seen]
        if life is PodState.USING and seen in (Observation.GATED, Observation.LEAVING):
            return  # outdated: observed before the release
        if life is None:
            self._registry.gangs.record_finished_pod(pod)
            self._audit_recorder.record_pod_finished(
                pod, live=ev.WatchedSource.PODS in self._fresh_sources
            )
            self._remove_pod(pod.uid)
        elif known is None:
            tracked = self._registry.add(pod, life)
            if life is PodState.HELD and self.is_ready:
                self._pod_notices.add(tracked)
            # The gate of a terminating pod may have gone in an update that is not known here.
            self._process_pod_state(tracked, new=not pod.terminating)
        else:
            current = with_known_exclusions(pod, known.pod)
            if life is PodState.USING and known.state is not life:
                self._record_released(known, current)
            else:
                self._registry.update_pod(known, current, life)
            self._process_pod_state(known, new=False)

    def _record_released(self, tracked: PodRecord, pod: Pod) -> None:
        """Record that a pod was released."""
        self._registry.update_pod(tracked, pod, PodState.USING)
        self._cycle.reservations.forget_released(tracked)

    def _process_pod_state(self, tracked: PodRecord, new: bool) -> None:
        """Record a held pod, or check of another whether it was released and a node takes it."""
        if tracked.state is not PodState.USING:
            self._audit_recorder.record_pod_held(tracked)
            return
        if tracked.pod.terminating:
            self._cycle.record_terminating(tracked)
        self._cycle.evictions.notices.observe_pod(tracked)
        right = self._bypasses.observe_pod(
            tracked, new=new, live=ev.WatchedSource.PODS in self._fresh_sources
        )
        if right is Provenance.RELEASED:
            self._cycle.evictions.cancel(self._unbound_pods.observe_pod(tracked), UNBOUND)
        if right is not None:
            self._audit_recorder.record_pod_ungated(tracked, right)

    def _remove_pod(self, uid: Uid) -> None:
        known = self._registry.pods.get(uid)
        if known is None:
            return
        self._effects += self._store_sync.removal_writes(known)
        self._audit_recorder.record_pod_untracked(known)
        allocation, leaf = known.allocation, known.leaf
        if (
            leaf is not None
            and allocation is not None
            and allocation.is_past_declared_end(self._usage.now)
        ):
            self._cycle.selector.distrust_runtime(leaf, self._usage.now)
        self._effects += self._cycle.evictions.record_pod_gone(known)
        self._registry.remove(known)
        self._cycle.forget_pod(uid)
        self._bypasses.forget_pod(uid)
        self._exchanges.forget_pod(uid)
        self._unbound_pods.forget_pod(uid)
        self.stale_pods.clear_finding(uid)
        self._node_refusals.forget_pod(uid)
        self._release_backoff.forget_pod(uid)
        if leaf is not None:
            self.checkpoints.count_deleted_pod(leaf.tenant)

    def _apply_policy(self, policy: Policy) -> None:
        if policy != self._usage.policy:
            self._cycle.apply_policy_change()
        self._registry.apply_policy(policy)
        self._bypasses.set_mode(policy.mode, self._usage.now)
        self._exchanges.set_mode(policy.mode)

    def _record_release_outcome(self, at: Millis, uid: Uid, answer: ReleaseOutcome) -> None:
        self._cycle.in_flight.discard(uid)
        self._audit_recorder.record_release_outcome(uid, answer)
        known = self._registry.pods.get(uid)
        if known is None or known.intent is None:
            return
        intent = known.intent
        match answer:
            case ReleaseOutcome.RELEASED:
                pod = replace(
                    known.pod, gates=(), release_annotation=intent.stamp, pool=intent.pool
                )
                self._record_released(known, pod)
                waited = max(0, at - known.pod.created_at) // 1000
                awaits = self._usage.awaited_pool(known.allocation) is not None
                text = release_text(intent.pool, waited, awaits)
                # Creation times have whole seconds, so `waited` may be a second too long.
                waits = awaits or waited > BRIEF_SECONDS
                self._effects += self._pod_notices.release_events(known, text, waits=waits)
            case ReleaseOutcome.GONE:
                self._remove_pod(uid)
            case ReleaseOutcome.HELD | ReleaseOutcome.UNSENT:
                if known.state is PodState.RELEASING:
                    self._registry.update_pod(known, known.pod, PodState.HELD)
                    self._effects.append(Refund(uid))
                    self._bypasses.cancel_release(uid)
                    self._exchanges.cancel_release(uid)
                    if known.pod.terminating:
                        self._remove_pod(uid)
                    elif answer is ReleaseOutcome.HELD:
                        self._release_backoff.start_backoff(at, known)
            case _:
                assert_never(answer)
        known.intent = None

    def _postpone(self, at: Millis, uid: Uid) -> None:
        """Back off a pod, with its gang, that takes too long to evaluate. Followers copy that."""
        if self._epoch is None:
            return
        workload, known = self._registry.find_workload(uid), self._registry.pods.get(uid)
        members = workload.pods_to_release if workload is not None else (known,) if known else ()
        for tracked in tuple(members):
            if tracked.state is PodState.HELD and not tracked.is_backing_off:
                self._release_backoff.postpone(at, tracked)

    def _start_term(self, gained: ev.LeadershipGained) -> None:
        self._epoch = gained.epoch
        self._wake_at = None
        self._cycle.start_term()
        self._registry.binding.start_term(self._usage.now)
        self._registry.gangs.readiness.start_term(self._usage.now)
        self._unbound_pods.start_term()
        self._audit_recorder.start_term(gained.audit_markers, gained.intents)
        self._pod_notices.start_term(self._audit_recorder.unrecorded_held(), self._usage.now)
        self._bypasses.start_term(gained.epoch, self._audit_recorder.bypassed_pods())
        self._exchanges.start_term(self._audit_recorder.marked_claims())
        self.checkpoints.start_term(gained.epoch)
        self._store_ready = False
        for intent in gained.unsettled:
            self._resume_release(intent)
        self._effects.append(Rebuild(gained.epoch))
        self._effects += self._usage_tracker.start_term(gained.open_records, gained.intents)

    def _resume_release(self, intent: Intend) -> None:
        """Count a release of an older leader as used until the result is known."""
        known = self._registry.pods.get(intent.ref.uid)
        if known is not None and known.state is PodState.HELD:
            known.intent, known.counted_since = intent, intent.begin or None
            self._registry.mark_releasing(known, None)

    def _end_term(self) -> None:
        """Become a follower. The pods themselves show the results of releases in flight later."""
        self.checkpoints.end_term()
        self._epoch = None
        self._cycle.end_term()
        released = self._bypasses.end_term()
        self._exchanges.end_term()
        self._audit_recorder.end_term()
        self.stale_pods.end_term()
        for tracked in list(self._registry.pods.values()):
            if tracked.state is PodState.RELEASING:
                self._registry.update_pod(tracked, tracked.pod, PodState.HELD)
                if tracked.pod.terminating:
                    self._remove_pod(tracked.pod.uid)
            tracked.intent = None
        for tracked in released:
            self._process_pod_state(tracked, new=False)
