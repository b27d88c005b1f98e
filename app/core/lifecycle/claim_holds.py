"""Devices of allocated claims that no managed pod uses.

A claim may stay allocated after its last pod: for a moment, or for ever if its pod failed while it
was being bound. These devices are not free, so the user of that pod stays charged. A waiting pod
that names the claim may use it, but only after `LEFTOVER_MS`: devices that are about to be freed
belong to the next workload in order. The devices must be within the limits, because a new leader
charges them to no user until a pod waits for the claim.

Other examples are claims of pods in exempt namespaces. They are charged to no user, and reduce
the capacity of their node like unmanaged pods.
"""

from __future__ import annotations

from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_joins import JOINS_LEFTOVER, JOINS_OVER_LIMIT, LEFTOVER_MS
from app.core.lifecycle.claim_users import ClaimKey
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, Uid, UnmanagedPod
from app.core.placement.device_capacity import DeviceCapacity
from app.core.placement.device_fit import DeviceFit
from app.core.placement.pools import Pools


class ClaimHolds:
    """Keeps nodes and charges equal to the slices and to the allocated claims without users."""

    def __init__(
        self,
        claims: ClaimCharges,
        devices: DeviceCapacity,
        registry: PodRegistry,
        pools: Pools,
        fit: DeviceFit,
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._registry = registry
        self._pools = pools
        self._fit = fit
        self._held: dict[ClaimKey, Uid | None] = {}
        """Allocated claims without users. None: a user is charged; else the uid of the capacity."""
        self._unplaced: dict[ClaimKey, None] = {}
        """Allocated claims without users whose devices are in no known slice of a node."""
        self._joinable_at: dict[ClaimKey, Millis] = {}
        """When waiting pods may use a charged claim, in order of time."""
        self._joinable: dict[ClaimKey, None] = {}
        """Charged claims that waiting pods may use within the limits."""

    def update(self, now: Millis) -> None:
        """Apply all changes since the last call to the pools and charges."""
        nodes = self._devices.drain_changed_nodes()
        for node in nodes:
            self._pools.put_node(node)
        has_others = self._devices.drain_device_change()
        if has_others:
            self._claims.recount_all_device_claims()
        keys = dict.fromkeys(self._claims.drain_reused())
        if has_others:
            keys.update(dict.fromkeys((*self._held, *self._unplaced)))
        for key in keys:
            self._update(key, now)
        while self._joinable_at:
            key, at = next(iter(self._joinable_at.items()))
            if at > now:
                break
            del self._joinable_at[key]
            self._joinable[key] = None
        for key in self._joinable:
            is_over = self._registry.leftover_claims.is_over_limit(key)
            self._claims.set_leftover(key, JOINS_OVER_LIMIT if is_over else "")
        self._fit.update_nodes(self._devices.drain_nodes_to_recheck())

    def due(self) -> Millis | None:
        """Return the next time at which `update` has work without a new event."""
        return next(iter(self._joinable_at.values()), None)

    def _update(self, key: ClaimKey, now: Millis) -> None:
        claim, before = self._claims.find_claim(key), self._held.pop(key, None)
        found = None
        self._unplaced.pop(key, None)
        # kube-scheduler's claim for extended resources counts with the requests of its pod.
        if not (claim is None or self._claims.is_in_use(key) or claim.is_of_extended_resources):
            found = self._devices.devices_of_claim(key)
            if found is None and claim.allocated_devices is not None:
                self._unplaced[key] = None
        user = None if found is None else self._claims.leftover_user(key)
        uid = Uid(f"claim/{claim.uid}") if claim is not None and found is not None else None
        if user is not None:
            uid = None
        if before is not None and before != uid:
            self._pools.drop_unmanaged(before)
        if found is None or user is None:
            self._registry.leftover_claims.drop(key)
            self._claims.set_leftover(key, None)
            self._joinable_at.pop(key, None)
            self._joinable.pop(key, None)
        if found is None:
            return
        self._held[key] = uid
        node, amounts = found
        if uid is not None:
            self._pools.put_unmanaged(UnmanagedPod(uid, node, amounts))
        elif user is not None:
            self._registry.leftover_claims.charge(key, user, node, amounts)
            if not self._claims.joins.is_leftover(key):
                self._joinable_at[key] = Millis(now + LEFTOVER_MS)
                self._claims.set_leftover(key, JOINS_LEFTOVER)
