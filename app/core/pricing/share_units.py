"""Share units: the size of the cluster and the worth of a resource unit, as integers.

All parts of the cluster are whole numbers of one small unit, the grain, so shares are compared
exactly without fractions. `device_fractions` computes the fraction of a device that a unit is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm

from app.core.model import Amounts, PoolName, Quota, Resource

Columns = tuple[Resource, ...]
"""The columns in which a resource counts: its own, or all that measure its devices."""

Cost = tuple[tuple[Resource, int, int, Columns], ...]
"""The resources of a demand that count in shares: name, amount, grains of one unit, columns."""

_NOTHING: Mapping[Resource, int] = {}


class Scale:
    """The size of the cluster in each column of the shares, and the worth of a unit.

    `size[c]`: the sum over pools of worth times capacity, over the resources in column c. A
    resource without a column (unmanaged or absent) counts for 0. `worth[p][r]`: 1 if absent.
    `columns[p][r]`: only r if absent. `fills[p]`: default side resources, see `with_default_sides`.
    The whole cluster is `total_grains` grains in every column.
    """

    __slots__ = (
        "_columns",
        "_grains",
        "columns",
        "counted_resources",
        "default_sides",
        "size",
        "total_grains",
        "worth",
    )

    def __init__(
        self,
        size: Mapping[Resource, Fraction],
        worth: Mapping[PoolName, Mapping[Resource, Fraction]],
        columns: Mapping[PoolName, Mapping[Resource, Columns]] | None = None,
        fills: Mapping[PoolName, DefaultSides] | None = None,
    ) -> None:
        self.size = size
        self.worth = worth
        self.columns = columns or {}
        self.default_sides = fills or {}
        into = [columns for pool in self.columns.values() for columns in pool.items()]
        measured = {r for r, columns in into if columns[0] in size}
        shared = {column for _, columns in into for column in columns}
        self.counted_resources = frozenset({*(size.keys() - shared), *measured})
        parts: dict[tuple[PoolName, Resource], Fraction] = {}
        self._columns: dict[PoolName, dict[Resource, Columns]] = {pool: {} for pool in worth}
        for pool, units in worth.items():
            for resource in self.counted_resources:
                counts_in = self.columns.get(pool, {}).get(resource, (resource,))
                if counts_in[0] in size:
                    self._columns[pool][resource] = counts_in
                    unit = units.get(resource, Fraction(1))
                    parts[pool, resource] = unit / size[counts_in[0]]
        self.total_grains = lcm(*(part.denominator for part in parts.values()))
        self._grains: dict[PoolName, dict[Resource, int]] = {pool: {} for pool in worth}
        for (pool, resource), part in parts.items():
            self._grains[pool][resource] = int(part * self.total_grains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self._identity() == other._identity()

    def _identity(self) -> tuple[object, ...]:
        return self.size, self.worth, self.columns, self.default_sides

    def counts_same_amounts(self, other: Scale) -> bool:
        """Return whether both scales count the same amounts, regardless of their worth."""
        return (self.counted_resources, self.default_sides) == (
            other.counted_resources,
            other.default_sides,
        )

    def grains_per_unit(self, pool: PoolName) -> Mapping[Resource, int]:
        """Return the grains of one unit of each resource of a pool. Empty for an unknown pool."""
        return self._grains.get(pool, _NOTHING)

    def cost(self, pool: PoolName, demand: Amounts) -> Cost:
        """Return the cost of one pod's demand in a pool."""
        return self._cost(pool, with_default_sides(demand, self.default_sides.get(pool)))

    def cost_of_all(
        self, pool: PoolName, parts: Iterable[tuple[Amounts, int]], total: Amounts
    ) -> Cost:
        """Return the cost of several pods: demands with their count, and their `total`."""
        fill = self.default_sides.get(pool)
        if fill is None:
            return self._cost(pool, total)
        summed: dict[Resource, int] = {}
        for demand, count in parts:
            for resource, value in with_default_sides(demand, fill).items():
                summed[resource] = summed.get(resource, 0) + count * value
        return self._cost(pool, summed)

    def quota_with_sides(self, pool: PoolName, quota: Quota) -> Quota:
        """Return a quota with default side resources for the devices in it."""
        fill = self.default_sides.get(pool)
        if fill is None:
            return quota
        return Quota(_quota_with_sides(quota.guarantee, fill), _quota_with_sides(quota.limit, fill))

    def usage_in_grains(self, pool: PoolName, held: Amounts) -> dict[Resource, int]:
        """Return used amounts of a pool in grains of every column."""
        return _in_columns(self._cost(pool, held))

    def demand_in_grains(self, pool: PoolName, demand: Amounts) -> dict[Resource, int]:
        """Return the demand of one pod in a pool, in grains of every column."""
        return _in_columns(self.cost(pool, demand))

    def columns_of(self, pool: PoolName, resource: Resource) -> Columns:
        """Return the columns of a resource of a pool. Empty if it does not count."""
        return self._columns.get(pool, {}).get(resource, ())

    def _cost(self, pool: PoolName, amounts: Amounts) -> Cost:
        grains, columns = self.grains_per_unit(pool), self._columns.get(pool, {})
        return tuple(
            (r, v, grains[r], columns[r]) for r, v in amounts.items() if v > 0 and r in grains
        )


def _in_columns(cost: Cost) -> dict[Resource, int]:
    found: dict[Resource, int] = {}
    for _, value, grains, columns in cost:
        for column in columns:
            found[column] = found.get(column, 0) + value * grains
    return found


DefaultSides = tuple[Resource, tuple[tuple[Resource, int], ...]]
"""Default side resources. A pod that requests the device but no cores and no memory is charged this
amount of each per device."""


def with_default_sides(demand: Amounts, fill: DefaultSides | None) -> Amounts:
    """Return a demand with default side resources."""
    if fill is None:
        return demand
    device, sides = fill
    if demand.get(device, 0) <= 0 or any(demand.get(side, 0) for side, _ in sides):
        return demand
    return _add_sides(demand, fill)


def _quota_with_sides(amounts: Amounts, fill: DefaultSides) -> Amounts:
    """Return a quota with default side resources. Named sides stay as written, even if 0."""
    device, sides = fill
    if device not in amounts or any(side in amounts for side, _ in sides):
        return amounts
    return _add_sides(amounts, fill)


def _add_sides(amounts: Amounts, fill: DefaultSides) -> Amounts:
    device, sides = fill
    return {**amounts, **{side: amounts[device] * size for side, size in sides}}
