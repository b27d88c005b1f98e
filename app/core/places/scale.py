"""What amounts count for in shares: how large the cluster is, and what a unit is worth.

All parts of the cluster are whole numbers of one small unit, the grain, so that shares are
compared exactly without fractions. Which part of a device a unit is, is told by `parts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm

from app.core.model import Amounts, PoolName, Quota, Resource

Columns = tuple[Resource, ...]
"""What a resource counts in: itself, or all that the devices it is a part of are measured in."""

Cost = tuple[tuple[Resource, int, int, Columns], ...]
"""The resources of a demand that shares are about: name, amount, grains of one unit, columns."""

_NOTHING: Mapping[Resource, int] = {}


class Scale:
    """The size of the cluster in each column that shares are about, and the worth of a unit.

    `size[c]` is the sum over pools of worth times capacity, over the resources that count in c;
    a resource that counts in none (not managed, or none there) counts for nothing. `worth[p][r]`
    is 1 where absent, `columns[p][r]` is r alone where absent. `fills[p]` is what a pod takes of
    each device that it does not say how much of: see `filled`.
    The whole cluster is `whole` grains in every column.
    """

    __slots__ = ("_columns", "_grains", "columns", "counted", "fills", "size", "whole", "worth")

    def __init__(
        self,
        size: Mapping[Resource, Fraction],
        worth: Mapping[PoolName, Mapping[Resource, Fraction]],
        columns: Mapping[PoolName, Mapping[Resource, Columns]] | None = None,
        fills: Mapping[PoolName, Filling] | None = None,
    ) -> None:
        self.size = size
        self.worth = worth
        self.columns = columns or {}
        self.fills = fills or {}
        into = [columns for pool in self.columns.values() for columns in pool.items()]
        measured = {r for r, columns in into if columns[0] in size}
        shared = {column for _, columns in into for column in columns}
        self.counted = frozenset({*(size.keys() - shared), *measured})
        parts: dict[tuple[PoolName, Resource], Fraction] = {}
        self._columns: dict[PoolName, dict[Resource, Columns]] = {pool: {} for pool in worth}
        for pool, units in worth.items():
            for resource in self.counted:
                counts_in = self.columns.get(pool, {}).get(resource, (resource,))
                if counts_in[0] in size:
                    self._columns[pool][resource] = counts_in
                    unit = units.get(resource, Fraction(1))
                    parts[pool, resource] = unit / size[counts_in[0]]
        self.whole = lcm(*(part.denominator for part in parts.values()))
        self._grains: dict[PoolName, dict[Resource, int]] = {pool: {} for pool in worth}
        for (pool, resource), part in parts.items():
            self._grains[pool][resource] = int(part * self.whole)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self._identity() == other._identity()

    def _identity(self) -> tuple[object, ...]:
        return self.size, self.worth, self.columns, self.fills

    def counts_alike(self, other: Scale) -> bool:
        """Tell whether both count the same amounts, whatever these are worth."""
        return (self.counted, self.fills) == (other.counted, other.fills)

    def grains(self, pool: PoolName) -> Mapping[Resource, int]:
        """Return the grains of one unit of each resource of a pool; none in an unknown pool."""
        return self._grains.get(pool, _NOTHING)

    def cost(self, pool: PoolName, demand: Amounts) -> Cost:
        """Return what the demand of one pod counts for in a pool."""
        return self._cost(pool, filled(demand, self.fills.get(pool)))

    def cost_of_all(
        self, pool: PoolName, parts: Iterable[tuple[Amounts, int]], total: Amounts
    ) -> Cost:
        """Return what pods count for together: so many of each demand, `total` in all."""
        fill = self.fills.get(pool)
        if fill is None:
            return self._cost(pool, total)
        summed: dict[Resource, int] = {}
        for demand, count in parts:
            for resource, value in filled(demand, fill).items():
                summed[resource] = summed.get(resource, 0) + count * value
        return self._cost(pool, summed)

    def quota(self, pool: PoolName, quota: Quota) -> Quota:
        """Return a quota with the parts of those devices that it counts without naming parts."""
        fill = self.fills.get(pool)
        if fill is None:
            return quota
        return Quota(_covered(quota.guarantee, fill), _covered(quota.limit, fill))

    def measured(self, pool: PoolName, held: Amounts) -> dict[Resource, int]:
        """Return amounts that are held of a pool, by whomever, in grains of every column."""
        return _in_columns(self._cost(pool, held))

    def counted_for(self, pool: PoolName, demand: Amounts) -> dict[Resource, int]:
        """Return what one pod counts for in a pool, in grains of every column."""
        return _in_columns(self.cost(pool, demand))

    def into(self, pool: PoolName, resource: Resource) -> Columns:
        """Return what a resource of a pool counts in; nothing if it counts for nothing."""
        return self._columns.get(pool, {}).get(resource, ())

    def _cost(self, pool: PoolName, amounts: Amounts) -> Cost:
        grains, columns = self.grains(pool), self._columns.get(pool, {})
        return tuple(
            (r, v, grains[r], columns[r]) for r, v in amounts.items() if v > 0 and r in grains
        )


def _in_columns(cost: Cost) -> dict[Resource, int]:
    found: dict[Resource, int] = {}
    for _, value, grains, columns in cost:
        for column in columns:
            found[column] = found.get(column, 0) + value * grains
    return found


Filling = tuple[Resource, tuple[tuple[Resource, int], ...]]
"""Who asks for one of the first, and for nothing of the others, has so much of each of them."""


def filled(demand: Amounts, fill: Filling | None) -> Amounts:
    """Return a demand with what it takes of each device without saying so."""
    if fill is None:
        return demand
    device, sides = fill
    if demand.get(device, 0) <= 0 or any(demand.get(side, 0) for side, _ in sides):
        return demand
    return _with_sides(demand, fill)


def _covered(amounts: Amounts, fill: Filling) -> Amounts:
    """The same of a quota: there 0 is an amount, and a part that is named stands as written."""
    device, sides = fill
    if device not in amounts or any(side in amounts for side, _ in sides):
        return amounts
    return _with_sides(amounts, fill)


def _with_sides(amounts: Amounts, fill: Filling) -> Amounts:
    device, sides = fill
    return {**amounts, **{side: amounts[device] * size for side, size in sides}}
