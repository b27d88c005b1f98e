"""Devices of ResourceSlices: the pools of devices, and the devices of each node.

Only the newest generation of a pool counts. An incomplete or invalid pool has no capacity.
`device_capacity` counts the devices as resources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.model import Node, NodeName
from app.core.podspec.devices import CounterUse, Device, DeviceId, NodeReach, ResourceSlice

PoolKey = tuple[str, str]
"""Driver and name of a pool of devices."""


class PlacedDevice(NamedTuple):
    """A device, its slice, and the nodes that can use it."""

    source: ResourceSlice
    device: Device
    reach: NodeReach

    @property
    def id(self) -> DeviceId:
        """Return its identity in the cluster."""
        return DeviceId(self.source.driver, self.source.pool, self.device.name)


@dataclass(slots=True)
class DevicePool:
    """The devices of the newest generation of a pool. `problem`: why it has no capacity, or ""."""

    problem: str = ""
    local_devices: dict[NodeName, list[PlacedDevice]] = field(default_factory=dict)
    """Devices that one node can use, by node."""
    multi_node_devices: list[PlacedDevice] = field(default_factory=list)
    """Devices that several nodes may use."""
    by_name: dict[str, PlacedDevice] = field(default_factory=dict)
    counters: dict[tuple[str, str], int] = field(default_factory=dict)


def build_pool(slices: Iterable[ResourceSlice]) -> DevicePool:
    """Return the newest generation of the slices of one pool."""
    known = sorted(slices, key=lambda each: each.name)
    newest = max(each.generation for each in known)
    current = [each for each in known if each.generation == newest]
    pool, count = DevicePool(), current[0].count
    if len(current) != count:
        word = "slice" if count == 1 else "slices"
        pool.problem = f"{len(current)} of {count} {word} of generation {newest} exist"
        return pool
    for each in current:
        for use in each.counters:
            pool.counters[use.counter_set, use.counter] = use.amount
        for device in each.devices:
            if device.name in pool.by_name:
                return DevicePool(f"two devices have the name {device.name}")
            placed = PlacedDevice(each, device, device.reach or each.reach)
            pool.by_name[device.name] = placed
            if placed.reach.node is not None:
                pool.local_devices.setdefault(placed.reach.node, []).append(placed)
            else:
                pool.multi_node_devices.append(placed)
    return pool


class DeviceInventory:
    """The observed slices and nodes. `drain_changed_nodes` returns the nodes with other devices.

    A device that several nodes can use is counted on the ready node with the first name.
    """

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._members: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pools: dict[PoolKey, DevicePool] = {}
        self._stale: dict[PoolKey, None] = {}
        self._of_node: dict[NodeName, dict[PoolKey, None]] = {}
        self._multi_node_pools: dict[PoolKey, None] = {}
        self._nodes: dict[NodeName, Node] = {}
        self._node_by_reach: dict[NodeReach, NodeName | None] = {}
        self._changed: dict[NodeName, None] = {}

    def __bool__(self) -> bool:
        """Return whether any slice exists."""
        return bool(self._slices)

    def put_slice(self, published: ResourceSlice) -> None:
        """Add or replace a slice."""
        known = self._slices.get(published.name)
        if known == published:
            return
        if known is not None and known.key != published.key:
            self.drop_slice(published.name)
        self._slices[published.name] = published
        self._members.setdefault(published.key, {})[published.name] = published
        self._stale[published.key] = None

    def drop_slice(self, name: str) -> None:
        """Remove a slice. An unknown name is ignored."""
        known = self._slices.pop(name, None)
        if known is not None:
            members = self._members[known.key]
            del members[name]
            if not members:
                del self._members[known.key]
            self._stale[known.key] = None

    def put_node(self, node: Node) -> None:
        """Add or replace a node, as observed."""
        known = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if known is None or (known.labels, known.ready) != (node.labels, node.ready):
            self._update_counting_nodes()

    def drop_node(self, name: NodeName) -> None:
        """Remove a node. An unknown name is ignored."""
        if self._nodes.pop(name, None) is not None:
            self._changed.pop(name, None)
            self._update_counting_nodes()

    def node(self, name: NodeName) -> Node | None:
        """Return a node as observed, or None."""
        return self._nodes.get(name)

    def nodes(self) -> Iterable[Node]:
        """Return the nodes as observed."""
        return self._nodes.values()

    def drain_changed_nodes(self) -> list[NodeName]:
        """Return, once, the existing nodes whose devices may have changed, by name."""
        self.refresh()
        changed, self._changed = self._changed, {}
        return sorted(name for name in changed if name in self._nodes)

    def pools_of(self, name: NodeName) -> list[DevicePool]:
        """Return the pools with devices that count on a node."""
        self.refresh()
        keys = {**self._of_node.get(name, {}), **self._multi_node_pools}
        return [self._pools[key] for key in sorted(keys)]

    def devices_in(self, pool: DevicePool, name: NodeName) -> list[PlacedDevice]:
        """Return the devices of a pool that count on a node."""
        wide = (
            [each for each in pool.multi_node_devices if self._counting_node(each.reach) == name]
            if pool.multi_node_devices
            else []
        )
        return [*pool.local_devices.get(name, ()), *wide]

    def devices_of(self, name: NodeName) -> list[PlacedDevice]:
        """Return the devices that count on a node."""
        return [each for pool in self.pools_of(name) for each in self.devices_in(pool, name)]

    def usable_devices(self, node: Node) -> list[PlacedDevice]:
        """Return the devices that a node can use."""
        found = []
        for pool in self.pools_of(node.name):
            found += pool.local_devices.get(node.name, [])
            found += [
                each
                for each in pool.multi_node_devices
                if each.reach.matches(node.name, node.labels)
            ]
        return found

    def node_of(self, device: DeviceId) -> NodeName | None:
        """Return the node on which a device counts. None if it does not count."""
        self.refresh()
        pool = self._pools.get((device.driver, device.pool))
        placed = pool.by_name.get(device.device) if pool is not None else None
        return None if placed is None else self._counting_node(placed.reach)

    def find_device(self, device: DeviceId) -> PlacedDevice | None:
        """Return a device of a pool that counts, or None."""
        self.refresh()
        pool = self._pools.get((device.driver, device.pool))
        return pool.by_name.get(device.device) if pool is not None else None

    def pool_of_device(self, placed: PlacedDevice) -> DevicePool | None:
        """Return the pool of a device, or None if it is gone."""
        self.refresh()
        return self._pools.get(placed.source.key)

    def problems(self) -> dict[PoolKey, str]:
        """Return the pools without capacity, each with the reason."""
        self.refresh()
        return {key: p.problem for key, p in sorted(self._pools.items()) if p.problem}

    def refresh(self) -> None:
        """Build the pools with changed slices again."""
        stale, self._stale = self._stale, {}
        for key in stale:
            before = self._pools.pop(key, None)
            if before is not None:
                self._unindex_pool(key, before)
            members = self._members.get(key)
            if members is not None:
                self._pools[key] = pool = build_pool(members.values())
                self._index_pool(key, pool)
        if stale and self._multi_node_pools:
            self._update_counting_nodes()

    def _index_pool(self, key: PoolKey, pool: DevicePool) -> None:
        for name in pool.local_devices:
            self._of_node.setdefault(name, {})[key] = None
            self._changed[name] = None
        if pool.multi_node_devices:
            self._multi_node_pools[key] = None
            self._mark_counting_nodes(pool)

    def _unindex_pool(self, key: PoolKey, pool: DevicePool) -> None:
        for name in pool.local_devices:
            del self._of_node[name][key]
            if not self._of_node[name]:
                del self._of_node[name]
            self._changed[name] = None
        if pool.multi_node_devices:
            self._mark_counting_nodes(pool)
            del self._multi_node_pools[key]

    def _mark_counting_nodes(self, pool: DevicePool) -> None:
        homes = {self._counting_node(each.reach) for each in pool.multi_node_devices}
        self._changed.update(dict.fromkeys(sorted(home for home in homes if home is not None)))

    def _update_counting_nodes(self) -> None:
        """Find the nodes again on which devices of several nodes count."""
        before, self._node_by_reach = self._node_by_reach, {}
        for key in self._multi_node_pools:
            for each in self._pools[key].multi_node_devices:
                home = self._counting_node(each.reach)
                if each.reach in before and before[each.reach] != home:
                    old = before[each.reach]
                    moved = [name for name in (old, home) if name is not None]
                    self._changed.update(dict.fromkeys(moved))

    def _counting_node(self, reach: NodeReach) -> NodeName | None:
        if reach.node is not None:
            return reach.node
        if reach not in self._node_by_reach:
            able = (n for n in self._nodes.values() if n.ready and reach.matches(n.name, n.labels))
            self._node_by_reach[reach] = min((node.name for node in able), default=None)
        return self._node_by_reach[reach]


def remaining_counters(
    pool: DevicePool, allocated: Iterable[PlacedDevice]
) -> dict[tuple[str, str], int]:
    """Return what allocated devices leave of the shared counters of a pool."""
    left = dict(pool.counters)
    for each in allocated:
        subtract_counters(left, each.device.uses)
    return left


def subtract_counters(left: dict[tuple[str, str], int], uses: tuple[CounterUse, ...]) -> None:
    """Subtract what a device uses from counters, even below 0."""
    for use in uses:
        key = (use.counter_set, use.counter)
        left[key] = left.get(key, 0) - use.amount


def has_enough_counters(left: dict[tuple[str, str], int], uses: tuple[CounterUse, ...]) -> bool:
    """Return whether counters suffice for a device."""
    return all(left.get((use.counter_set, use.counter), 0) >= use.amount for use in uses)
