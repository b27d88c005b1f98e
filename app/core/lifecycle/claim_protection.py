"""Decides which resource claims carry Fairgate's finalizer, so that their names stay reserved.

A claim must carry it while an unfinished ungated pod names the claim. A release adds it before the
pod's gate is removed. This module adds it for other ungated pods, for example adopted ones, and
removes it when no such pod is left.
"""

from __future__ import annotations

from app.core.effects import ClaimAddress, Effect, ProtectClaim, UnprotectClaim
from app.core.lifecycle.claim_charges import ClaimCharges, ClaimKey
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Uid
from app.core.podspec.resource_claims import ResourceClaim
from app.core.policy import Mode
from app.core.retry import RetrySchedule

SETTLE_MS = 5_000
"""How long a finalizer stays on a deleted claim that held pods still name."""


class ClaimProtection:
    """Compares the finalizers of claims with the required ones."""

    def __init__(self, roster: PodRegistry, claimants: ClaimCharges) -> None:
        self._roster = roster
        self._claimants = claimants
        self._protecting = RetrySchedule()
        self._unprotecting = RetrySchedule()

    def start_term(self) -> None:
        """Start a leader term: no request is pending."""
        self._protecting.clear()
        self._unprotecting.clear()

    def check(self, key: ClaimKey, mode: Mode, now: Millis) -> None:
        """Process a change of a claim, its pods or the mode."""
        claim, asked = self._claimants.claim(key), _asked(key)
        needed = mode is Mode.ENFORCE and self._claimants.in_use(key)
        if claim is not None and needed and self._must_protect(claim):
            self._protecting.add(asked, now)
        else:
            self._protecting.drop(asked)
        # A held pod may be released for the claim at any moment, unless the claim is being deleted.
        # In that case a user may just have released the pod by hand, which a watch shows later.
        awaited = mode is Mode.ENFORCE and self._claimants.is_awaited(key)
        kept = needed or (awaited and claim is not None and not claim.terminating)
        if claim is not None and claim.protected and not kept:
            self._unprotecting.add(asked, Millis(now + SETTLE_MS * awaited))
        else:
            self._unprotecting.drop(asked)

    def due(self) -> Millis | None:
        """Return the next time at which `due_requests` has work without a new event."""
        due = [self._protecting.due(), self._unprotecting.due()]
        return min((at for at in due if at is not None), default=None)

    def due_requests(self, now: Millis) -> list[Effect]:
        """Return the finalizers to add and to remove now."""
        effects: list[Effect] = []
        for asked in self._protecting.take_due(now):
            if (claim := self._claimants.claim(_key(asked))) is not None:
                effects.append(ProtectClaim(address(claim)))
        for asked in self._unprotecting.take_due(now):
            if (claim := self._claimants.claim(_key(asked))) is not None:
                effects.append(UnprotectClaim(address(claim), claim.version))
        return effects

    def _must_protect(self, claim: ResourceClaim) -> bool:
        """Return whether a finalizer is missing that no release in progress adds."""
        if claim.protected or claim.terminating:
            return False  # the API server adds no finalizer to an object that is being deleted
        pods = (self._roster.pods.get(uid) for uid in self._claimants.users(claim.key))
        return any(pod is not None and pod.life is PodState.USING for pod in pods)


def address(claim: ResourceClaim) -> ClaimAddress:
    """Return the uid, namespace and name of a claim."""
    return ClaimAddress(claim.uid, claim.namespace, claim.name)


def _asked(key: ClaimKey) -> Uid:
    return Uid("/".join(key))


def _key(asked: Uid) -> ClaimKey:
    namespace, _, name = asked.partition("/")
    return namespace, name
