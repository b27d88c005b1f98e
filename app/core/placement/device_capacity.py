"""The capacity of nodes in devices of ResourceSlices, as managed resources.

A device that matches the selectors of a DeviceClass counts as the resource of the class. A node has
a resource either in `status.allocatable` or in slices (KEP-5004), so the larger amount counts. A
tainted device is no capacity unless a claim has it. Devices that share counters exclude each other:
the count assumes that the largest ones are allocated first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from app.core.model import Amounts, Node, NodeName, Resource
from app.core.placement.device_inventory import (
    DeviceInventory,
    DevicePool,
    PlacedDevice,
    PoolKey,
    has_enough_counters,
    remaining_counters,
    subtract_counters,
)
from app.core.podspec.constraints import first_untolerated_taint
from app.core.podspec.devices import AnyDevice, DeviceId, SelectorEvaluator
from app.core.podspec.resource_claims import (
    MOST_DEVICES,
    AllocatedDevice,
    Alternatives,
    Classes,
    DeviceAsk,
    DeviceClass,
    ResourceClaim,
    Shares,
)
from app.core.quantities import max_amounts

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


class DeviceCapacity:
    """The devices that nodes offer, and those that claims have."""

    def __init__(self, classes: Classes, evaluator: SelectorEvaluator | None = None) -> None:
        self.inventory = DeviceInventory()
        self._classes = classes
        self._evaluator = evaluator or AnyDevice()
        self._version = classes.version
        self._claims: dict[ClaimKey, ResourceClaim] = {}
        """The claims with devices."""
        self._claims_by_device: dict[DeviceId, dict[ClaimKey, None]] = {}
        self._consumed: dict[DeviceId, dict[str, int]] = {}
        """The amounts of the capacities of shared devices that claims consume."""
        self._changed: dict[NodeName, None] = {}
        self._nodes_to_recheck: dict[NodeName, None] = {}
        self._has_device_change = False
        self._max_devices: dict[str, int] = {}
        """The largest number of devices of a class on one node."""
        classes.set_all_devices_limit(self._max_devices_of_class)

    def put_node(self, node: Node) -> Node:
        """Add or replace a node, as observed. Return it completed by its devices."""
        if self.inventory.node(node.name) != node:
            self._nodes_to_recheck[node.name] = None
        self.inventory.put_node(node)  # also an equal one: readiness taints are not compared
        return self.with_slice_devices(node)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node."""
        self._nodes_to_recheck[name] = None
        self.inventory.drop_node(name)

    def drain_nodes_to_recheck(self) -> list[NodeName]:
        """Return, once, the nodes with other devices, other free devices, or other labels."""
        judged, self._nodes_to_recheck = sorted(self._nodes_to_recheck), {}
        return judged

    def put_claim(self, claim: ResourceClaim) -> None:
        """Record the devices of a claim."""
        known = self._claims.get(claim.key)
        if (
            known is not None
            and known.uid == claim.uid
            and known.allocated_devices == claim.allocated_devices
        ):
            return
        self.drop_claim(claim.key)
        if claim.allocated_devices is None:
            return
        self._claims[claim.key] = claim
        for each in claim.allocated_devices:
            if not each.is_admin:
                self._claims_by_device.setdefault(each.device, {})[claim.key] = None
                self._consume(each, 1)
                self._mark_node_of(each.device)

    def drop_claim(self, key: ClaimKey) -> None:
        """Record that a claim was deleted, or lost its devices."""
        claim = self._claims.pop(key, None)
        for each in (claim.allocated_devices or ()) if claim is not None else ():
            if not each.is_admin:
                self._consume(each, -1)
            holders = self._claims_by_device.get(each.device)
            if holders is None:
                continue
            holders.pop(key, None)
            if not holders:
                del self._claims_by_device[each.device]
            self._mark_node_of(each.device)

    def devices_of_claim(self, key: ClaimKey) -> tuple[NodeName, Amounts] | None:
        """Return the node and the amounts of the devices of a claim. None: none that count."""
        claim = self._claims.get(key)
        if claim is None or claim.allocated_devices is None:
            return None
        counts = self._classes.count_amounts(claim)
        nodes = (self.inventory.node_of(each.device) for each in claim.allocated_devices)
        node = next((each for each in nodes if each is not None), None)
        return (node, counts) if node is not None and counts else None

    def drain_changed_nodes(self) -> list[Node]:
        """Return, once, the nodes with another capacity, completed by their devices."""
        names = dict.fromkeys(self.inventory.drain_changed_nodes())
        if self._version != self._classes.version:
            self._version = self._classes.version
            names.update(dict.fromkeys(node.name for node in self.inventory.nodes()))
        if names:
            self._max_devices.clear()
            self._has_device_change = True
        names.update(self._changed)
        self._changed = {}
        self._nodes_to_recheck.update(names)
        found = (self.inventory.node(name) for name in sorted(names))
        return [self.with_slice_devices(node) for node in found if node is not None]

    def drain_device_change(self) -> bool:
        """Return, once, whether nodes have other devices. Allocations alone do not count."""
        has_others, self._has_device_change = self._has_device_change, False
        return has_others

    def with_slice_devices(self, node: Node) -> Node:
        """Return a node with the devices of its slices among its allocatable resources."""
        offered = self.slice_capacity(node.name) if self.inventory else {}
        if not offered:
            return node
        return replace(node, allocatable=max_amounts(node.allocatable, offered))

    def slice_capacity(self, name: NodeName) -> dict[Resource, int]:
        """Return the managed resources that the devices of a node count as."""
        total: dict[Resource, int] = {}
        counted = self._classes.managed_classes()
        for pool in self.inventory.pools_of(name) if counted else ():
            devices = self.inventory.devices_in(pool, name)
            for resource in dict.fromkeys(resource for _, resource in counted):
                classes = [each for each, counts_as in counted if counts_as == resource]
                matching = [
                    d for d in devices if any(self._matches_class(each, d) for each in classes)
                ]
                if matching:
                    count = self._count_devices(pool, matching)
                    total[resource] = total.get(resource, 0) + count
        return {resource: value for resource, value in total.items() if value}

    def serves_extended(self, name: NodeName, resource: Resource) -> bool:
        """Return whether a container of a node can request its devices as an extended resource.

        That needs a class with this `extendedResourceName`. True for a node without such devices.
        """
        if not self.slice_capacity(name).get(resource):
            return True
        classes = [
            each
            for each, _ in self._classes.managed_classes()
            if each.extended_resource == resource
        ]
        devices = self.inventory.devices_of(name) if classes else ()
        return any(self._matches_class(each, d) for d in devices for each in classes)

    def describe_amounts(self, asks: Alternatives) -> str:
        """Return why a node must offer more than one alternative needs, as a clause. "": it need
        not.
        """
        counted = [each for each in asks if not each.is_admin]
        resources = {self._classes.resource_of(each.device_class) for each in counted}
        named = sorted(each for each in resources if each is not None)
        if len(named) > 1:
            return f"; its alternatives count together, so the node must have {' and '.join(named)}"
        of_all = [self._max_devices_of_class(each) for each in counted if each.count is None]
        if not (named and of_all):
            return ""
        return f"; all devices count as {max(of_all)}, those of the largest node of the cluster"

    def offered_amount(self, ask: DeviceAsk, node: Node) -> int | None:
        """Return what a node offers of the resource of a request. None: it is not managed."""
        resource = self._classes.resource_of(ask.device_class)
        return (
            None if resource is None else self.with_slice_devices(node).allocatable.get(resource, 0)
        )

    def count_claims(self, device: DeviceId) -> int:
        """Return how many claims have a device."""
        return len(self._claims_by_device.get(device, ()))

    def matching_devices(self, ask: DeviceAsk, node: Node) -> list[PlacedDevice]:
        """Return the devices that a node can use and that a request may get, free or not."""
        known = self._classes.find_class(ask.device_class)
        return [
            each
            for each in self.inventory.usable_devices(node)
            if (known is None or self._matches_class(known, each))
            and all(self._matches_of_user(text, each) for text in ask.selectors)
            and (
                self.count_claims(each.id)
                or first_untolerated_taint(each.device.taints, ask.tolerations) is None
            )
        ]

    def free_devices(
        self, devices: Iterable[PlacedDevice], shares: Shares = ()
    ) -> list[PlacedDevice]:
        """Return the devices that a further claim could get, each on its own.

        `shares`: the amounts that it requests of a shared device.
        """
        left: dict[PoolKey, dict[tuple[str, str], int]] = {}
        found = []
        for each in devices:
            if each.device.is_shared and not self._has_share(each, shares):
                continue
            if self.count_claims(each.id):
                if each.device.is_shared:
                    found.append(each)
                continue
            if each.device.uses:
                key = each.source.key
                if key not in left:
                    pool = self.inventory.pool_of_device(each)
                    left[key] = (
                        remaining_counters(pool, self._allocated_devices(pool))
                        if pool is not None
                        else {}
                    )
                if not has_enough_counters(left[key], each.device.uses):
                    continue
            found.append(each)
        return found

    def _allocated_devices(self, pool: DevicePool) -> list[PlacedDevice]:
        return [each for each in pool.by_name.values() if self.count_claims(each.id)]

    def _count_devices(self, pool: DevicePool, matching: list[PlacedDevice]) -> int:
        """Return the number of allocated devices, plus the devices that still fit."""
        count, partitions = 0, []
        for each in matching:
            held = self.count_claims(each.id)
            count += held if each.device.is_shared else min(held, 1)
            if first_untolerated_taint(each.device.taints, ()) is not None:
                continue
            if each.device.uses:
                if not held:
                    partitions.append(each)
            elif not held or (each.device.is_shared and not self._is_used_up(each)):
                count += 1
        if partitions:
            left = remaining_counters(pool, self._allocated_devices(pool))
            for each in sorted(
                partitions, key=lambda d: (-_counter_fraction(pool, d), d.device.name)
            ):
                if has_enough_counters(left, each.device.uses):
                    subtract_counters(left, each.device.uses)
                    count += 1
        return count

    def _consume(self, each: AllocatedDevice, sign: int) -> None:
        """Add or subtract what a claim consumes of a device."""
        if not each.consumed:
            return
        used = self._consumed.setdefault(each.device, {})
        for name, amount in each.consumed:
            used[name] = used.get(name, 0) + sign * amount
            if not used[name]:
                del used[name]
        if not used:
            del self._consumed[each.device]

    def _has_share(self, placed: PlacedDevice, shares: Shares) -> bool:
        """Return whether a shared device has enough left for these amounts."""
        used, wanted = self._consumed.get(placed.id, {}), dict(shares)
        return all(
            used.get(limit.name, 0) + wanted.get(limit.name, limit.default) <= limit.total
            for limit in placed.device.limits
        )

    def _is_used_up(self, placed: PlacedDevice) -> bool:
        """Return whether claims consume a whole capacity of a shared device."""
        used = self._consumed.get(placed.id, {})
        return any(used.get(limit.name, 0) >= limit.total > 0 for limit in placed.device.limits)

    def _matches_class(self, known: DeviceClass, placed: PlacedDevice) -> bool:
        """Return whether a device may match all selectors of a class."""
        return all(self._matches(text, placed) for text in known.selectors)

    def _matches(self, expression: str, placed: PlacedDevice) -> bool:
        """Return whether a device may match. An expression that cannot be evaluated may match."""
        answer = self._evaluator.matches(expression, placed.source.driver, placed.device)
        return answer is not False

    def _matches_of_user(self, expression: str, placed: PlacedDevice) -> bool:
        """Return the same for an expression of a user, which may be too costly to evaluate."""
        driver = placed.source.driver
        return self._evaluator.matches_of_user(expression, driver, placed.device) is not False

    def _max_devices_of_class(self, ask: DeviceAsk) -> int:
        """Return the largest number of devices of the class on one node: `All` gets no more.

        Selectors and tolerations of the request are ignored. Users write them, and one claim could
        have a thousand selectors for every device of the cluster.
        """
        if not self.inventory:
            return MOST_DEVICES
        if ask.device_class not in self._max_devices:
            known = self._classes.find_class(ask.device_class)
            counts = [
                sum(
                    known is None or self._matches_class(known, each)
                    for each in self.inventory.usable_devices(node)
                )
                for node in self.inventory.nodes()
            ]
            self._max_devices[ask.device_class] = min(
                MOST_DEVICES, max(counts, default=0) or MOST_DEVICES
            )
        return self._max_devices[ask.device_class]

    def _mark_node_of(self, device: DeviceId) -> None:
        """Mark the node of a device, if its capacity depends on which devices claims have."""
        placed = self.inventory.find_device(device)
        if placed is None:
            return
        known, node = placed.device, self.inventory.node_of(device)
        if node is None:
            return
        self._nodes_to_recheck[node] = None
        if placed.reach.node is None:
            self._nodes_to_recheck.update(
                dict.fromkeys(each.name for each in self.inventory.nodes())
            )
        if known.taints or known.uses or known.is_shared:
            self._changed[node] = None


def _counter_fraction(pool: DevicePool, placed: PlacedDevice) -> Fraction:
    """Return the largest part of a shared counter that a device uses."""
    parts = [
        Fraction(use.amount, total)
        for use in placed.device.uses
        if (total := pool.counters.get((use.counter_set, use.counter), 0)) > 0
    ]
    return max(parts, default=Fraction(0))
