"""One node: its capacity, its allocations, and which devices each pod has.

A node accepts allocations that do not fit, because running pods are facts. `subtract_request` and
`count_fitting` check a pod against the free capacity (`FreeCapacity`).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model import Amounts, NodeName, Resource
from app.core.placement.shared_devices import (
    DeviceAmounts,
    Devices,
    DeviceTray,
    count_fitting_demands,
    subtract_demand,
    subtract_forcibly,
)
from app.core.podspec.device_fractions import HAMI_DIMENSIONS, whole_devices

FreeCapacity = tuple[tuple[int, ...], tuple[Devices, ...]]
"""Free capacity of a node: an amount for each resource of the layout, and the devices of fractional
resources. Nodes with equal values are interchangeable."""


_NOTHING: Mapping[int, int] = {}


class IndexedRequest:
    """The requests of one pod as (index, amount) pairs of a layout, amounts > 0.

    `has_unknown_resource`: no node has some requested resource. `whole_devices`: number of whole
    devices by index of a HAMi resource, if the pod does not request fractions. Compared by
    identity: interned.
    """

    __slots__ = ("amounts", "has_unknown_resource", "needs", "whole_devices")

    def __init__(
        self,
        needs: tuple[tuple[int, int], ...],
        has_unknown_resource: bool,
        whole_devices: Mapping[int, int] = _NOTHING,
    ) -> None:
        self.needs = needs
        self.amounts = dict(needs)
        self.has_unknown_resource = has_unknown_resource
        self.whole_devices = whole_devices

    def amount_of(self, row: int, size: int) -> int:
        """Return the requested amount of a fractional resource with devices of this size."""
        return self.amounts.get(row, 0) or self.whole_devices.get(row, 0) * size


class ResourceIndex:
    """The resources of the nodes of a pool, each with its index. It only grows."""

    __slots__ = ("_known", "_named", "_requests", "index", "resources")

    KNOWN = 10_000
    """Maximum number of demands that are cached by identity. Callers should intern demands."""
    NAMED = 50_000
    """Maximum number of resources in all cached demands: a pod can list hundreds."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.index: dict[Resource, int] = {}
        self._requests: dict[frozenset[tuple[Resource, int]], IndexedRequest] = {}
        self._known: dict[int, tuple[Amounts, IndexedRequest]] = {}
        self._named = 0

    def add_resources(self, offer: Amounts) -> bool:
        """Add new resources. Return whether any was new; then every `IndexedRequest` is invalid."""
        fresh = sorted(resource for resource in offer if resource not in self.index)
        for resource in fresh:
            self.index[resource] = len(self.resources)
            self.resources.append(resource)
        if fresh:
            self._requests.clear()
            self._known.clear()
            self._named = 0
        return bool(fresh)

    def trim_caches(self, most: int) -> None:
        """Empty the caches if they have more entries than this."""
        if len(self._known) > most:
            self._known.clear()
            self._requests.clear()
            self._named = 0

    def index_request(self, demand: Amounts) -> IndexedRequest:
        """Return the interned `IndexedRequest` of a demand. Do not change the demand afterwards."""
        known = self._known.get(id(demand))
        if known is not None:
            return known[1]
        self._named += len(demand)
        if len(self._known) >= self.KNOWN or self._named > self.NAMED:
            self._known.clear()
            self._requests.clear()
            self._named = len(demand)
        wanted = frozenset(pair for pair in demand.items() if pair[1] > 0)
        ask = self._requests.get(wanted)
        if ask is None:
            needs = sorted((self.index[r], value) for r, value in wanted if r in self.index)
            count = whole_devices(demand)
            sides = (
                [self.index[side] for side in HAMI_DIMENSIONS if side in self.index]
                if count
                else []
            )
            whole = dict.fromkeys(sides, count)
            ask = self._requests[wanted] = IndexedRequest(
                tuple(needs), len(needs) < len(wanted), whole
            )
        self._known[id(demand)] = (
            demand,
            ask,
        )  # keeps the object alive, so that its id stays unique
        return ask


class NodeAllocation:
    """The allocation of one pod on one node. Release it with `PoolNodes.release_allocation`."""

    __slots__ = ("demand", "device_amounts", "has_fitting_devices", "node_info")

    def __init__(self, node_info: NodeInfo, demand: Amounts) -> None:
        self.node_info = node_info
        self.demand = demand
        self.device_amounts: dict[int, DeviceAmounts] = {}
        self.has_fitting_devices = True

    @property
    def node(self) -> NodeName:
        """The node of the allocation."""
        return self.node_info.name

    def devices(self, resource: Resource) -> DeviceAmounts:
        """Return the allocated devices of a fractional resource, and the amount on each."""
        return self.device_amounts.get(self.node_info.resource_index.index.get(resource, -1), [])


class NodeInfo:
    """A node. `is_known` is False while only its allocations are known, and not the node itself."""

    __slots__ = (
        "_allocations",
        "_overcommitted",
        "capacity",
        "device_trays",
        "fractions",
        "free",
        "is_known",
        "is_ready",
        "name",
        "resource_index",
    )  # fmt: skip

    def __init__(self, name: NodeName, resource_index: ResourceIndex) -> None:
        self.name = name
        self.resource_index = resource_index
        self.capacity: Amounts = {}
        self.fractions: Amounts = {}
        self.is_ready = self.is_known = False
        self.free: list[int] = [0] * len(resource_index.resources)
        self.device_trays: dict[int, DeviceTray] = {}
        self._allocations: dict[NodeAllocation, None] = {}
        self._overcommitted: dict[NodeAllocation, None] = {}

    def __bool__(self) -> bool:
        """Return whether the node or any allocation on it is known."""
        return self.is_known or bool(self._allocations)

    def set_capacity(self, offer: Amounts, fractions: Amounts, open: bool) -> None:
        """Replace the capacity. The layout must contain its resources."""
        self.capacity, self.fractions, self.is_ready, self.is_known = offer, fractions, open, True
        self.recount()

    def recount(self) -> None:
        """Compute the free capacity again from the capacity and the allocations."""
        self.free = [self.capacity.get(resource, 0) for resource in self.resource_index.resources]
        # The layout may lack a fractional resource if no ready node has it.
        known = self.resource_index.index
        sizes = {known[r]: size for r, size in self.fractions.items() if size > 0 and r in known}
        trays = {i: DeviceTray(i, size, self.free[i]) for i, size in sorted(sizes.items())}
        for slot in self._allocations:
            for index, value in self.resource_index.index_request(slot.demand).needs:
                self.free[index] -= value
        kinds = {i: (tray.size, tray.capacity) for i, tray in trays.items()}
        if kinds != {i: (tray.size, tray.capacity) for i, tray in self.device_trays.items()}:
            self.device_trays = trays
            for slot in self._allocations:
                slot.device_amounts = {}
                self._allocate_devices(slot)

    def allocate(self, demand: Amounts) -> NodeAllocation:
        """Allocate a pod, even if it does not fit."""
        slot = NodeAllocation(self, demand)
        free = self.free
        for index, value in self.resource_index.index_request(demand).needs:
            free[index] -= value
        self._allocations[slot] = None
        if self.device_trays:
            self._allocate_devices(slot)
        return slot

    def release_allocation(self, slot: NodeAllocation) -> bool:
        """Release an allocation. Return False if it is not on this node."""
        if slot not in self._allocations:
            return False
        del self._allocations[slot]
        for index, value in self.resource_index.index_request(slot.demand).needs:
            self.free[index] += value
        if slot.device_amounts:
            self._release_devices(slot)
        if self._overcommitted:
            self._overcommitted.pop(slot, None)
            for waiting in list(self._overcommitted):
                self._release_devices(waiting)
                self._allocate_devices(waiting)
        return True

    def free_capacity(self) -> FreeCapacity:
        """Return the free capacity as a value."""
        if not self.device_trays:
            return tuple(self.free), ()
        return tuple(self.free), tuple(
            [tray.device_counts() for tray in self.device_trays.values()]
        )

    def _allocate_devices(self, slot: NodeAllocation) -> None:
        slot.has_fitting_devices = True
        ask = self.resource_index.index_request(slot.demand)
        for index, tray in self.device_trays.items():
            value = ask.amount_of(index, tray.size)
            if value:
                slot.device_amounts[index], proper = tray.allocate(value)
                slot.has_fitting_devices = slot.has_fitting_devices and proper
        if slot.has_fitting_devices:
            self._overcommitted.pop(slot, None)
        else:
            self._overcommitted[slot] = None

    def _release_devices(self, slot: NodeAllocation) -> None:
        for index, seats in slot.device_amounts.items():
            self.device_trays[index].release(seats)
        slot.device_amounts = {}


def subtract_request(room: FreeCapacity, ask: IndexedRequest) -> FreeCapacity | None:
    """Return the free capacity left after a pod was placed. None if it does not fit."""
    free, devices = room
    left = list(free)
    for index, value in ask.needs:
        left[index] -= value
        if left[index] < 0:
            return None
    if not devices:
        return tuple(left), devices
    placed = []
    for one in devices:
        value = ask.amount_of(one.row, one.size)
        rest = subtract_demand(one, value) if value else one
        if rest is None:
            return None
        placed.append(rest)
    return tuple(left), tuple(placed)


def subtract_reserved(room: FreeCapacity, ask: IndexedRequest) -> FreeCapacity:
    """Return the free capacity left after a reserved amount is subtracted, even below 0."""
    free, devices = room
    left = list(free)
    for index, value in ask.needs:
        left[index] -= value
    kept = [
        subtract_forcibly(d, value) if (value := ask.amount_of(d.row, d.size)) else d
        for d in devices
    ]
    return tuple(left), tuple(kept)


def count_fitting(room: FreeCapacity, ask: IndexedRequest) -> int:
    """Return how many such pods fit. `UNLIMITED` if they request no resource."""
    free, devices = room
    count = min([free[index] // value for index, value in ask.needs], default=UNLIMITED)
    for one in devices:
        value = ask.amount_of(one.row, one.size)
        if value and count > 0:
            count = min(count, count_fitting_demands(one, value))
    return max(0, count)


UNLIMITED = 1 << 62
