"""The price of a resource unit in each pool, in whole devices, and the scale of shares.

The price of a fraction in a pool is the highest price of its nodes, so that a pod cannot pay less
on another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource
from app.core.podspec.device_fractions import (
    CORES,
    HAMI_DIMENSIONS,
    MEMORY,
    WHOLE,
    count_devices,
    device_sizes,
    is_device_fraction,
    prices,
)
from app.core.pricing.share_units import Columns, DefaultSides, Scale
from app.core.quantities import ManagedResources

_ONE = Fraction(1)
_Counts = dict[PoolName, dict[Resource, dict[Fraction, int]]]
"""Number of nodes with each price, by pool and resource."""


@dataclass(frozen=True, slots=True)
class _NodePrices:
    """The prices on a node, and the device sizes of its HAMi resources."""

    node: Node
    pool: PoolName
    prices: Mapping[Resource, Fraction]
    sizes: Amounts

    @property
    def sells_sides(self) -> bool:
        return not HAMI_DIMENSIONS.isdisjoint(self.prices)


class PoolPrices:
    """The prices on the nodes of each pool. Call `clear` before pools change."""

    def __init__(self) -> None:
        self._prices_by_node: dict[NodeName, _NodePrices] = {}
        self._counts: _Counts = {}
        self._client_slots: _Counts = {}
        self._available_by_node: dict[PoolName, dict[NodeName, Amounts]] = {}

    def clear(self) -> None:
        """Remove every node."""
        self._prices_by_node.clear()
        self._counts.clear()
        self._client_slots.clear()
        self._available_by_node.clear()

    def update_node(
        self, node: Node, pool: PoolName, room: Amounts, memory: int | None = None
    ) -> Amounts:
        """Add or update a node of a pool. Return the device sizes of its HAMi resources.

        `room`: its capacity for released pods. `memory`: bytes of one device from the Pool, for
        nodes without a memory label.
        """
        known = self._prices_by_node.get(node.name)
        if known is None or known.node is not node or known.pool != pool:
            self.drop_node(node.name)
            found = prices(node.labels, node.allocatable, memory)
            whole = device_sizes(node.labels, node.allocatable, memory)
            known = self._prices_by_node[node.name] = _NodePrices(node, pool, found, whole)
            self._count(known, 1)
        if known.sells_sides:
            self._available_by_node.setdefault(pool, {})[node.name] = room
        return known.sizes

    def drop_node(self, name: NodeName) -> None:
        """Remove a node from its pool. An unknown name is ignored."""
        known = self._prices_by_node.pop(name, None)
        if known is not None:
            self._count(known, -1)
            self._available_by_node.get(known.pool, {}).pop(name, None)

    def price(self, pool: PoolName, resource: Resource) -> Fraction | None:
        """Return the fraction of a device that one unit is. None if unknown.

        The sources are the nodes of the pool, then the other pools, then the resource name.
        """
        own = self._prices_in_pool(pool).get(resource)
        if own:
            return max(own)
        pools = {**self._counts, **self._client_slots}
        there = [max(told) for each in pools if (told := self._prices_in_pool(each).get(resource))]
        return max(there) if there else prices({}, {resource: 1}).get(resource)

    def default_sides(self, pool: PoolName) -> DefaultSides | None:
        """Return the default side resources per device of a pool. None if no node uses HAMi."""
        told = self._prices_in_pool(pool)
        sold = [side for side in (CORES, MEMORY) if told.get(side)]
        if not sold:
            return None
        return WHOLE, tuple((side, int(1 / max(told[side]))) for side in sold)

    def _prices_in_pool(self, pool: PoolName) -> dict[Resource, dict[Fraction, int]]:
        """Return the prices on the nodes of a pool. HAMi client slots replace whole devices."""
        seats = {r: told for r, told in self._client_slots.get(pool, {}).items() if told}
        return {**self._counts.get(pool, {}), **seats}

    def scale(
        self,
        capacity: Mapping[PoolName, Amounts],
        pools: Mapping[PoolName, Pool],
        managed: ManagedResources,
    ) -> Scale:
        """Return the size of the cluster in resources that are managed or that pools weigh."""
        weights = {name: pool.weights for name, pool in pools.items()}
        offers: dict[PoolName, dict[Resource, int]] = {}
        named = {resource for units in weights.values() for resource in units}
        for name, offered in capacity.items():
            offers[name] = {
                r: v for r, v in offered.items() if v > 0 and (r in managed or r in named)
            }
        counted = {r for offered in offers.values() for r in offered}
        known = {pool: {r: self.price(pool, r) for r in counted} for pool in pools}
        priced = {r for told in known.values() for r, price in told.items() if price}
        if not any(is_device_fraction(r) or self._is_fractional(r) for r in priced):
            return Scale(_sum_sizes(offers, weights), weights)
        return self._scale_in_devices(offers, weights, priced)

    def _scale_in_devices(
        self,
        offers: Mapping[PoolName, Amounts],
        weights: Mapping[PoolName, Mapping[Resource, Fraction]],
        priced: set[Resource],
    ) -> Scale:
        """Return the scale of a cluster with device fractions, measured in whole devices."""
        sides = HAMI_DIMENSIONS & priced
        every: Columns = (WHOLE, *sorted(sides))
        worth = {pool: self._worth(pool, units, priced) for pool, units in weights.items()}
        columns: dict[PoolName, dict[Resource, Columns]] = {}
        devices = Fraction(0)
        for pool in worth:
            told = self._prices_in_pool(pool)
            alone = sides | {WHOLE} if any(told.get(side) for side in sides) else sides
            columns[pool] = {r: (r,) if r in alone else every for r in priced}
            devices += self._devices(pool, offers.get(pool, {}), weights[pool], priced)
        others = {
            pool: {r: v for r, v in offered.items() if r not in priced}
            for pool, offered in offers.items()
        }
        size = _sum_sizes(others, weights) | dict.fromkeys(every, devices)
        fills = {pool: self.default_sides(pool) for pool in worth}
        kept = {pool: fill for pool, fill in fills.items() if fill is not None}
        return Scale({c: v for c, v in size.items() if v > 0}, worth, columns, kept)

    def _worth(
        self, pool: PoolName, weights: Mapping[Resource, Fraction], priced: Iterable[Resource]
    ) -> Mapping[Resource, Fraction]:
        """Return the weights. A fraction has the weight of its device unless the pool sets one."""
        device = weights.get(WHOLE, _ONE)
        parts = {r: weights.get(r, device) * (self.price(pool, r) or _ONE) for r in priced}
        return {**weights, **parts}

    def _devices(
        self,
        pool: PoolName,
        offered: Amounts,
        weights: Mapping[Resource, Fraction],
        priced: set[Resource],
    ) -> Fraction:
        """Return the number of devices of a pool: by node with HAMi, otherwise by sum."""
        device, rest, total = weights.get(WHOLE, _ONE), dict(offered), Fraction(0)
        for name, room in self._available_by_node.get(pool, {}).items():
            for resource in rest:
                rest[resource] -= room.get(resource, 0)
            weighed = {
                r: price * weights.get(r, device)
                for r, price in self._prices_by_node[name].prices.items()
                if r in priced
            }
            total += count_devices(room, weighed)
        plain = {r: told for r, told in self._counts.get(pool, {}).items() if told}
        for resource, value in rest.items():
            if resource in priced and value > 0:
                own = plain.get(resource)
                price = max(own) if own else self.price(pool, resource) or _ONE
                total += value * price * weights.get(resource, device)
        return total

    def _is_fractional(self, resource: Resource) -> bool:
        """Return whether a unit is less than a whole device on any node."""
        return any(
            set(told.get(resource, ())) - {_ONE}
            for counts in (self._counts, self._client_slots)
            for told in counts.values()
        )

    def _count(self, known: _NodePrices, sign: int) -> None:
        for resource, price in known.prices.items():
            seats = known.sells_sides and resource == WHOLE
            counts = self._client_slots if seats else self._counts
            told = counts.setdefault(known.pool, {}).setdefault(resource, {})
            told[price] = told.get(price, 0) + sign
            if not told[price]:
                del told[price]


def _sum_sizes(
    offers: Mapping[PoolName, Amounts], weights: Mapping[PoolName, Mapping[Resource, Fraction]]
) -> dict[Resource, Fraction]:
    size: dict[Resource, Fraction] = {}
    for pool, offered in offers.items():
        for resource, value in offered.items():
            unit = weights.get(pool, {}).get(resource, _ONE)
            size[resource] = size.get(resource, Fraction(0)) + unit * value
    return {r: v for r, v in size.items() if v > 0}
