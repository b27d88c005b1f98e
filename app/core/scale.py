"""What amounts count for in shares: how large the cluster is, and what a unit is worth.

All parts of the cluster are whole numbers of one small unit, the grain, so that shares are
compared exactly without fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import lcm

from app.core.model import Amounts, PoolName, Resource

Cost = tuple[tuple[Resource, int, int], ...]
"""The resources of a demand that shares are about: name, amount, grains of one unit."""


class Scale:
    """The size of the cluster in each resource that shares are about, and the worth of a unit.

    `size[r]` is the sum over pools of worth times capacity; a resource that is absent from it
    (not managed, or none there) counts for nothing. `worth[p][r]` is 1 where absent.
    The whole cluster is `whole` grains in every resource.
    """

    __slots__ = ("_grains", "size", "whole", "worth")

    def __init__(
        self,
        size: Mapping[Resource, Fraction],
        worth: Mapping[PoolName, Mapping[Resource, Fraction]],
    ) -> None:
        self.size = size
        self.worth = worth
        parts = {
            (pool, resource): units.get(resource, Fraction(1)) / total
            for pool, units in worth.items()
            for resource, total in size.items()
        }
        self.whole = lcm(*(part.denominator for part in parts.values()))
        self._grains: dict[PoolName, dict[Resource, int]] = {pool: {} for pool in worth}
        for (pool, resource), part in parts.items():
            self._grains[pool][resource] = int(part * self.whole)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and (self.size, self.worth) == (other.size, other.worth)

    def grains(self, pool: PoolName) -> Mapping[Resource, int]:
        """Return the grains of one unit of each resource of a pool; none in an unknown pool."""
        return self._grains.get(pool, {})

    def cost(self, pool: PoolName, demand: Amounts) -> Cost:
        """Return what a demand counts for in a pool."""
        grains = self.grains(pool)
        return tuple((r, v, grains[r]) for r, v in demand.items() if v > 0 and r in grains)
