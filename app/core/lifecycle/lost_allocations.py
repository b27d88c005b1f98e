"""Devices of ResourceClaims that lost their allocation while bound pods used them.

These pods keep the devices, so they stay charged. The next pod pays for the next allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import Amounts, Uid
from app.core.podspec.resource_claims import AllocatedDevice, ResourceClaim


@dataclass(slots=True)
class _LostAllocation:
    """Devices that a claim lost while these bound pods used them."""

    devices: tuple[AllocatedDevice, ...]
    amounts: Amounts
    pods: set[Uid]


class LostAllocations:
    """The lost allocations of each claim that bound pods still use."""

    def __init__(self) -> None:
        self._lost: dict[ClaimKey, list[_LostAllocation]] = {}

    def __contains__(self, key: ClaimKey) -> bool:
        return key in self._lost

    def amounts_of(self, key: ClaimKey) -> list[Amounts]:
        """Return the amounts of each lost allocation of a claim."""
        return [each.amounts for each in self._lost.get(key, ())]

    def add(self, claim: ResourceClaim, amounts: Amounts, bound_pods: set[Uid]) -> None:
        """Record that a claim loses its allocation, which is `amounts`, under these pods."""
        assert claim.allocated_devices is not None, "the caller passes the allocated claim"
        lost = self._lost.get(claim.key, [])
        pods = bound_pods.difference(*(each.pods for each in lost))
        if amounts and pods:
            new = _LostAllocation(claim.allocated_devices, amounts, pods)
            self._lost[claim.key] = [*lost, new]

    def restore(self, key: ClaimKey, devices: tuple[AllocatedDevice, ...]) -> None:
        """Record that a claim has devices again: it may be those that it lost."""
        self._set(key, (each for each in self._lost.get(key, ()) if each.devices != devices))

    def forget_pod(self, key: ClaimKey, uid: Uid) -> bool:
        """Record that a pod no longer uses a claim. Return whether an allocation has no pod now."""
        lost = self._lost.get(key, [])
        for each in lost:
            each.pods.discard(uid)
        self._set(key, (each for each in lost if each.pods))
        return len(self._lost.get(key, ())) < len(lost)

    def _set(self, key: ClaimKey, lost: Iterable[_LostAllocation]) -> None:
        kept = list(lost)
        if kept:
            self._lost[key] = kept
        else:
            self._lost.pop(key, None)
