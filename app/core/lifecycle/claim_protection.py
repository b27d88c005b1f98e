"""Decides which resource claims carry Fairgate's finalizer, so that their names stay reserved.

A claim must carry it while an unfinished ungated pod names the claim. It is added as soon as a held
pod names the claim, and the pod is released `SECURE_MS` later: the API server does not look at the
finalizers again during a deletion that began before. It is removed when no such pod is left.
"""

from __future__ import annotations

from app.core.effects import ClaimAddress, Effect, ProtectClaim, UnprotectClaim
from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import Millis, Uid
from app.core.podspec.resource_claims import ResourceClaim
from app.core.policy import Mode
from app.core.retry import RetrySchedule

SECURE_MS = 2_000
"""How long a claim has the finalizer before a pod is released for it. A deletion takes less time
between its check of the finalizers and the removal of the object."""

SETTLE_MS = 5_000
"""How long a finalizer stays on a deleted claim that held pods still name."""


class ClaimProtection:
    """Compares the finalizers of claims with the required ones."""

    def __init__(self, claimants: ClaimCharges) -> None:
        self._claimants = claimants
        self._protecting = RetrySchedule()
        self._unprotecting = RetrySchedule()
        self._securing: dict[ClaimKey, tuple[Uid, Millis]] = {}
        """Claims with a new finalizer: the uid, and the time at which they are secured."""

    def start_term(self) -> None:
        """Start a leader term: no request is pending."""
        self._protecting.clear()
        self._unprotecting.clear()
        self._securing.clear()

    def check_claim(self, key: ClaimKey, mode: Mode, now: Millis) -> None:
        """Process a change of a claim, its pods or the mode."""
        claim, asked = self._claimants.find_claim(key), _asked(key)
        needed = mode is Mode.ENFORCE and self._claimants.is_in_use(key)
        awaited = mode is Mode.ENFORCE and self._claimants.is_awaited(key)
        # The API server adds no finalizer to an object that is being deleted.
        lacks = claim is not None and not (claim.has_finalizer or claim.terminating)
        if lacks and (needed or awaited):
            self._protecting.add(asked, now)
        else:
            self._protecting.drop(asked)
        self._update_secure_timer(key, claim if awaited else None, now)
        # A held pod may be released for the claim at any moment, unless the claim is being deleted.
        # In that case a user may just have released the pod by hand, which a watch shows later.
        kept = needed or (awaited and claim is not None and not claim.terminating)
        if claim is not None and claim.has_finalizer and not kept:
            self._unprotecting.add(asked, Millis(now + SETTLE_MS * awaited))
        else:
            self._unprotecting.drop(asked)

    def _update_secure_timer(self, key: ClaimKey, claim: ResourceClaim | None, now: Millis) -> None:
        """Start the time until a claim is secured, or end it. None: no held pod names the claim."""
        due = self._securing.get(key)
        if claim is None or not claim.has_finalizer or self._claimants.is_secured(claim):
            self._securing.pop(key, None)
        elif due is None or due[0] != claim.uid:
            self._securing.pop(key, None)  # the entries are in order of time
            self._securing[key] = (claim.uid, Millis(now + SECURE_MS))

    def mark_secured_claims(self, now: Millis) -> None:
        """Record the claims that have had the finalizer for `SECURE_MS`."""
        while self._securing:
            key, (uid, at) = next(iter(self._securing.items()))
            if at > now:
                return
            del self._securing[key]
            claim = self._claimants.find_claim(key)
            if claim is not None and claim.uid == uid:
                self._claimants.mark_secured(key)

    def due(self) -> Millis | None:
        """Return the next time at which there is work without a new event."""
        first = next(iter(self._securing.values()), None)
        due = [self._protecting.due(), self._unprotecting.due(), first and first[1]]
        return min((at for at in due if at is not None), default=None)

    def due_requests(self, now: Millis) -> list[Effect]:
        """Return the finalizers to add and to remove now."""
        effects: list[Effect] = []
        for asked in self._protecting.take_due(now):
            if (claim := self._claimants.find_claim(_key(asked))) is not None:
                effects.append(ProtectClaim(address(claim)))
        for asked in self._unprotecting.take_due(now):
            if (claim := self._claimants.find_claim(_key(asked))) is not None:
                self._claimants.unmark_secured(claim.key)
                effects.append(UnprotectClaim(address(claim), claim.resource_version))
        return effects


def address(claim: ResourceClaim) -> ClaimAddress:
    """Return the uid, namespace and name of a claim."""
    return ClaimAddress(claim.uid, claim.namespace, claim.name)


def _asked(key: ClaimKey) -> Uid:
    return Uid("/".join(key))


def _key(asked: Uid) -> ClaimKey:
    namespace, _, name = asked.partition("/")
    return namespace, name
