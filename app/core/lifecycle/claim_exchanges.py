"""Detects ungated pods with other resource claims than those of their release.

The finalizer on these claims prevents that, see `claim_protection`. If it happens anyway, the pod
has bypassed its queue: it is reported, charged at once, and evicted while it has no node. A claim
that is only being deleted is reported too, although the pod gains no resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.core.effects import (
    Bypassed,
    ClaimDeleted,
    Effect,
    EmitEvent,
    EventReason,
    EvictPod,
    Release,
)
from app.core.lifecycle.bypass_detection import BypassDetector
from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_protection import ClaimProtection
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Amounts, GrantedClaim, Millis, Uid
from app.core.podspec.resource_claims import ResourceClaim
from app.core.policy import Mode
from app.core.retry import RetrySchedule

EXCHANGED = (
    "resource claim {claim} is not the one that this pod was released for; the pod is evicted "
    "unless it has a node; create it again, and it waits for its turn with its present claims"
)
DELETED = (
    "resource claim {claim} is being deleted, so no node takes this pod; delete the pod, create "
    "the claim again, then the pod"
)


class ClaimExchanges:
    """Judges the claims of ungated pods in mode Enforce."""

    def __init__(
        self, registry: PodRegistry, claimants: ClaimCharges, bypasses: BypassDetector, evicts: bool
    ) -> None:
        """`evicts`: pods with a node are evicted too."""
        self._registry = registry
        self._claimants = claimants
        self._bypasses = bypasses
        self._evicts = evicts
        self._protection = ClaimProtection(claimants)
        self._mode = Mode.ENFORCE
        self._leads = False
        self._ordered: dict[Uid, dict[str, GrantedClaim]] = {}
        """Claims of requested releases, until the annotation of the pod is observed."""
        self._first: dict[Uid, dict[str, GrantedClaim]] = {}
        """Claims by name that a pod without the annotation had when it was first judged."""
        self._reported: dict[Uid, set[Uid]] = {}
        self._evicting = RetrySchedule()

    def start_term(self, reported: Mapping[Uid, Iterable[Uid]]) -> None:
        """Start a leader term: every claim and every pod with claims is judged again.

        `reported`: uids of the claims that a leader reported, by pod. They are not reported again.
        """
        self._leads = True
        self._reported = {uid: set(claims) for uid, claims in reported.items()}
        self._evicting.clear()
        self._protection.start_term()
        self._claimants.set_secured_required(self._mode is Mode.ENFORCE)
        self._claimants.mark_all_changed()

    def set_mode(self, mode: Mode) -> None:
        """Apply this mode from now on."""
        if mode is not self._mode:
            self._mode = mode
            self._claimants.set_secured_required(self._leads and mode is Mode.ENFORCE)
            self._claimants.mark_all_changed()

    def end_term(self) -> None:
        """End a leader term. Held pods of a follower do not wait for finalizers."""
        self._leads = False
        self._claimants.set_secured_required(False)

    def mark_secured_claims(self, now: Millis) -> None:
        """Record the claims that have had the finalizer for long enough."""
        self._protection.mark_secured_claims(now)

    def record_releases(self, effects: Iterable[Effect]) -> None:
        """Record the claims of requested releases."""
        for effect in effects:
            if isinstance(effect, Release) and effect.claims:
                uid = effect.intent.ref.uid
                self._ordered[uid] = {grant.name: grant for grant in effect.claims}

    def cancel_release(self, uid: Uid) -> None:
        """Record that a requested release certainly did not happen."""
        self._ordered.pop(uid, None)

    def drop_pending_changes(self) -> None:
        """Drop pending changes while this engine does not lead. `start_term` judges all again."""
        self._claimants.drain_changed()

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._ordered.pop(uid, None)
        self._first.pop(uid, None)
        self._reported.pop(uid, None)
        self._evicting.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `judge_claims` has work without a new event."""
        due = [self._protection.due(), self._evicting.due()]
        return min((at for at in due if at is not None), default=None)

    def judge_claims(self, now: Millis) -> list[Effect]:
        """Judge changed claims and pods, and return effects. Call it after every `settle`."""
        keys, pods = self._claimants.drain_changed()
        for key in keys:
            self._protection.check_claim(key, self._mode, now)
        effects: list[Effect] = []
        for uid in pods if self._mode is Mode.ENFORCE else ():
            tracked = self._registry.pods.get(uid)
            if tracked is not None and tracked.state is PodState.USING:
                effects += self._judge(tracked, now)
        for uid in self._evicting.take_due(now):
            tracked = self._registry.pods[uid]
            if tracked.pod.node is not None and not self._evicts:
                self._evicting.drop(uid)
            elif not tracked.pod.terminating:
                why = EXCHANGED.format(
                    claim=", ".join(self._ungranted_claims(tracked)) or "of this pod"
                )
                effects.append(EvictPod(tracked.ref, why, "bypass"))
        return effects + self._protection.due_requests(now)

    def _judge(self, tracked: PodRecord, now: Millis) -> list[Effect]:
        pod = tracked.pod
        if self._bypasses.recorded_provenance(pod.uid) is None or (
            pod.terminating and pod.node is None
        ):
            return []  # the pod is reported as a bypass, or will never get a node
        granted, effects = self._granted(tracked), list[Effect]()
        for claim in self._claims(tracked):
            grant = granted.get(claim.name)
            own = grant is not None and grant.uid == claim.uid
            if own and not (claim.terminating and pod.node is None):
                continue
            if not own and not pod.mirror:
                self._evicting.add(pod.uid, now)
            reported = self._reported.setdefault(pod.uid, set())
            if claim.uid in reported:
                continue
            reported.add(claim.uid)
            if own:
                effects += self._report_deleted_claim(tracked, claim)
            else:
                effects += self._report_exchange(tracked, claim, grant.amounts if grant else {})
        return effects

    def _granted(self, tracked: PodRecord) -> dict[str, GrantedClaim]:
        """Return the claims of a pod's release by name; if unknown, the first observed ones."""
        pod = tracked.pod
        if pod.granted_claims is not None:
            return {grant.name: grant for grant in pod.granted_claims}
        if pod.uid in self._ordered:
            return self._ordered[pod.uid]
        known = self._first.setdefault(pod.uid, {})
        for grant in self._claimants.current_grants(pod):
            known.setdefault(grant.name, grant)
        return known

    def _claims(self, tracked: PodRecord) -> list[ResourceClaim]:
        """Return the existing claims that a pod names now."""
        pod = tracked.pod
        names = dict.fromkeys(ref.name for ref in pod.claims)
        claims = (self._claimants.find_claim((pod.namespace, name)) for name in names)
        return [claim for claim in claims if claim is not None]

    def _ungranted_claims(self, tracked: PodRecord) -> list[str]:
        granted = {grant.uid for grant in self._granted(tracked).values()}
        return [claim.name for claim in self._claims(tracked) if claim.uid not in granted]

    def _report_exchange(
        self, tracked: PodRecord, claim: ResourceClaim, before: Amounts
    ) -> list[Effect]:
        pod, leaf = tracked.pod, tracked.leaf
        assert leaf is not None, "asked before every pod had its place"
        counts = self._claimants.count_amounts(claim)
        gained = {r: v - before.get(r, 0) for r, v in counts.items() if v > before.get(r, 0)}
        found = Bypassed(
            tracked.ref,
            leaf.tenant,
            pod.user,
            pod.node,
            pod.release_annotation,
            pod.created_at,
            claim.name,
            claim.uid,
            gained,
        )
        return [
            found,
            EmitEvent(tracked.ref, EventReason.REFUSED, EXCHANGED.format(claim=claim.name)),
        ]

    def _report_deleted_claim(self, tracked: PodRecord, claim: ResourceClaim) -> list[Effect]:
        assert tracked.leaf is not None, "asked before every pod had its place"
        user, tenant = tracked.pod.user, tracked.leaf.tenant
        found = ClaimDeleted(tracked.ref, tenant, user, claim.name, claim.uid)
        return [
            found,
            EmitEvent(tracked.ref, EventReason.REFUSED, DELETED.format(claim=claim.name)),
        ]
