"""Devices of claims that no managed pod uses: they are in use, and no tenant is charged.

Examples are claims of pods in exempt namespaces, and claims that outlive their pods. They reduce
the capacity of their node like unmanaged pods.
"""

from __future__ import annotations

from app.core.lifecycle.claim_charges import ClaimCharges, ClaimKey
from app.core.model import Uid, UnmanagedPod
from app.core.placement.device_capacity import DeviceCapacity
from app.core.placement.device_fit import DeviceFit
from app.core.placement.pools import Pools


class ClaimHolds:
    """Keeps the capacity of nodes equal to their slices and to the claims without a charge."""

    def __init__(
        self, claims: ClaimCharges, devices: DeviceCapacity, pools: Pools, fit: DeviceFit
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._pools = pools
        self._fit = fit
        self._held: dict[ClaimKey, Uid] = {}

    def update(self) -> None:
        """Apply all changes since the last call to the pools."""
        nodes = self._devices.drain_changed_nodes()
        for node in nodes:
            self._pools.put_node(node)
        has_others = self._devices.drain_device_change()
        if has_others:
            self._claims.recount_all_device_claims()
        keys = dict.fromkeys(self._claims.drain_reused())
        if has_others:
            keys.update(dict.fromkeys(self._held))
        for key in keys:
            self._update(key)
        self._fit.update_nodes(self._devices.drain_nodes_to_recheck())

    def _update(self, key: ClaimKey) -> None:
        claim, before = self._claims.find_claim(key), self._held.pop(key, None)
        found = None
        if claim is not None and not self._is_charged(key) and not claim.is_of_extended_resources:
            found = self._devices.devices_of_claim(key)
        uid = None if claim is None or found is None else Uid(f"claim/{claim.uid}")
        if before is not None and before != uid:
            self._pools.drop_unmanaged(before)
        if found is not None and uid is not None:
            node, amounts = found
            self._pools.put_unmanaged(UnmanagedPod(uid, node, amounts))
            self._held[key] = uid

    def _is_charged(self, key: ClaimKey) -> bool:
        """Return whether a pod is charged for the claim, or waits for its turn to use it.

        kube-scheduler's claim for extended resources counts with the requests of its pod.
        """
        return self._claims.is_in_use(key) or self._claims.is_awaited(key)
