"""What a unit of each resource is worth in each pool, in whole devices, and so the scale of shares.

Nodes come and go; a pool's price of a part is the highest that any of its nodes tells, so that
nobody pays less for being put on another. Pools themselves are `pools`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.asks.parts import CORES, MEMORY, SIDES, WHOLE, devices_in, is_part, prices, sizes
from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource
from app.core.places.scale import Columns, Filling, Scale
from app.core.resources import ManagedResources

_ONE = Fraction(1)
_Counts = dict[PoolName, dict[Resource, dict[Fraction, int]]]
"""How many nodes tell which price, by pool and resource."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a node tells: prices, and the sizes of devices that any part is sold of."""

    node: Node
    pool: PoolName
    prices: Mapping[Resource, Fraction]
    sizes: Amounts

    @property
    def sells_sides(self) -> bool:
        return not SIDES.isdisjoint(self.prices)


class Tariff:
    """The prices that the nodes of each pool tell. `clear` before pools change."""

    def __init__(self) -> None:
        self._told: dict[NodeName, _Told] = {}
        self._counts: _Counts = {}
        self._seats: _Counts = {}
        self._rooms: dict[PoolName, dict[NodeName, Amounts]] = {}

    def clear(self) -> None:
        """Forget every node."""
        self._told.clear()
        self._counts.clear()
        self._seats.clear()
        self._rooms.clear()

    def put(self, node: Node, pool: PoolName, room: Amounts, memory: int | None = None) -> Amounts:
        """A node belongs to a pool; return the sizes of its devices that any part is sold of.

        `room` is what it offers to what Fairgate releases, `memory` the bytes of one device as
        the pool says, for nodes that do not tell.
        """
        known = self._told.get(node.name)
        if known is None or known.node is not node or known.pool != pool:
            self.drop(node.name)
            found = prices(node.labels, node.allocatable, memory)
            whole = sizes(node.labels, node.allocatable, memory)
            known = self._told[node.name] = _Told(node, pool, found, whole)
            self._count(known, 1)
        if known.sells_sides:
            self._rooms.setdefault(pool, {})[node.name] = room
        return known.sizes

    def drop(self, name: NodeName) -> None:
        """A node left its pool; harmless if it is unknown."""
        known = self._told.pop(name, None)
        if known is not None:
            self._count(known, -1)
            self._rooms.get(known.pool, {}).pop(name, None)

    def price(self, pool: PoolName, resource: Resource) -> Fraction | None:
        """Return what part of a device a unit is.

        Where a pool's own nodes do not tell, it is as elsewhere; else as its name says, if it does.
        """
        own = self._told_of(pool).get(resource)
        if own:
            return max(own)
        pools = {**self._counts, **self._seats}
        there = [max(told) for each in pools if (told := self._told_of(each).get(resource))]
        return max(there) if there else prices({}, {resource: 1}).get(resource)

    def filling(self, pool: PoolName) -> Filling | None:
        """Return what a pod takes of each device of a pool if it does not say how much."""
        told = self._told_of(pool)
        sold = [side for side in (CORES, MEMORY) if told.get(side)]
        if not sold:
            return None
        return WHOLE, tuple((side, int(1 / max(told[side]))) for side in sold)

    def _told_of(self, pool: PoolName) -> dict[Resource, dict[Fraction, int]]:
        """Return the prices that a pool's nodes tell; of seats, where there are any."""
        seats = {r: told for r, told in self._seats.get(pool, {}).items() if told}
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
        if not any(is_part(r) or self._is_split(r) for r in priced):
            return Scale(_sizes(offers, weights), weights)
        return self._in_devices(offers, weights, priced)

    def _in_devices(
        self,
        offers: Mapping[PoolName, Amounts],
        weights: Mapping[PoolName, Mapping[Resource, Fraction]],
        priced: set[Resource],
    ) -> Scale:
        """The same, where parts of devices are sold: they are measured with the whole ones."""
        sides = SIDES & priced
        every: Columns = (WHOLE, *sorted(sides))
        worth = {pool: self._worth(pool, units, priced) for pool, units in weights.items()}
        columns: dict[PoolName, dict[Resource, Columns]] = {}
        devices = Fraction(0)
        for pool in worth:
            told = self._told_of(pool)
            alone = sides | {WHOLE} if any(told.get(side) for side in sides) else sides
            columns[pool] = {r: (r,) if r in alone else every for r in priced}
            devices += self._devices(pool, offers.get(pool, {}), weights[pool], priced)
        others = {
            pool: {r: v for r, v in offered.items() if r not in priced}
            for pool, offered in offers.items()
        }
        size = _sizes(others, weights) | dict.fromkeys(every, devices)
        fills = {pool: self.filling(pool) for pool in worth}
        kept = {pool: fill for pool, fill in fills.items() if fill is not None}
        return Scale({c: v for c, v in size.items() if v > 0}, worth, columns, kept)

    def _worth(
        self, pool: PoolName, weights: Mapping[Resource, Fraction], priced: Iterable[Resource]
    ) -> Mapping[Resource, Fraction]:
        """A part is weighed as the whole device is, if the pool does not weigh it itself."""
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
        """Return how many devices a pool comes to: by node where sides are sold, else in sum."""
        device, rest, total = weights.get(WHOLE, _ONE), dict(offered), Fraction(0)
        for name, room in self._rooms.get(pool, {}).items():
            for resource in rest:
                rest[resource] -= room.get(resource, 0)
            weighed = {
                r: price * weights.get(r, device)
                for r, price in self._told[name].prices.items()
                if r in priced
            }
            total += devices_in(room, weighed)
        plain = {r: told for r, told in self._counts.get(pool, {}).items() if told}
        for resource, value in rest.items():
            if resource in priced and value > 0:
                own = plain.get(resource)
                price = max(own) if own else self.price(pool, resource) or _ONE
                total += value * price * weights.get(resource, device)
        return total

    def _is_split(self, resource: Resource) -> bool:
        """Tell whether a unit is less than a whole device anywhere."""
        return any(
            set(told.get(resource, ())) - {_ONE}
            for counts in (self._counts, self._seats)
            for told in counts.values()
        )

    def _count(self, known: _Told, sign: int) -> None:
        for resource, price in known.prices.items():
            seats = known.sells_sides and resource == WHOLE
            counts = self._seats if seats else self._counts
            told = counts.setdefault(known.pool, {}).setdefault(resource, {})
            told[price] = told.get(price, 0) + sign
            if not told[price]:
                del told[price]


def _sizes(
    offers: Mapping[PoolName, Amounts], weights: Mapping[PoolName, Mapping[Resource, Fraction]]
) -> dict[Resource, Fraction]:
    size: dict[Resource, Fraction] = {}
    for pool, offered in offers.items():
        for resource, value in offered.items():
            unit = weights.get(pool, {}).get(resource, _ONE)
            size[resource] = size.get(resource, Fraction(0)) + unit * value
    return {r: v for r, v in size.items() if v > 0}
