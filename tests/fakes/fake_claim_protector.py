"""A ClaimProtector without an API server."""

from __future__ import annotations

from dataclasses import replace

from app.core.effects import ClaimAddress
from app.core.errors import ClusterRefused
from app.core.podspec.resource_claims import ResourceClaim


class FakeClaims:
    """`ports.cluster.ClaimProtector` on `claims`, keyed by namespace and name."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.claims = {claim.key: claim for claim in claims}
        self._writes = 0

    async def protect(self, ref: ClaimAddress) -> None:
        claim = self._find(ref)
        if claim.terminating and not claim.has_finalizer:
            raise ClusterRefused("no new finalizers can be added", 422)
        self._write(replace(claim, has_finalizer=True), changes=False)

    async def stamp_release(self, ref: ClaimAddress) -> ResourceClaim:
        """Record a release, as `ClaimFinalizers.stamp_release` does."""
        return self._write(self._find(ref))

    def _find(self, ref: ClaimAddress) -> ResourceClaim:
        claim = self.claims.get((ref.namespace, ref.name))
        if claim is None:
            raise ClusterRefused("not found", 404)
        if claim.uid != ref.uid:
            raise ClusterRefused("uid: field is immutable", 422)
        return claim

    async def unprotect(self, ref: ClaimAddress, version: str) -> None:
        claim = self.claims.get((ref.namespace, ref.name))
        if claim is None or claim.uid != ref.uid or claim.resource_version != version:
            return
        if claim.terminating:
            del self.claims[claim.key]
        else:
            self._write(replace(claim, has_finalizer=False))

    def _write(self, claim: ResourceClaim, *, changes: bool = True) -> ResourceClaim:
        known = self.claims[claim.key]
        if changes or known.has_finalizer != claim.has_finalizer:
            self._writes += 1
            claim = replace(claim, resource_version=f"w{self._writes}")
        self.claims[claim.key] = claim
        return claim
