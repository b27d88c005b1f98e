"""How much work presses, and how much room is out of its reach: for the metrics. Reads only.

Cheaper than a walk over all that waits: the queues know their shapes, and who is oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.fair.branch import Branch, leaves
from app.core.model import Millis, PoolName, TenantName
from app.core.pods.roster import Roster


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a tenant has queued, its child tenants included.

    `pods` counts by the only pool that can serve them; None: there are several. `oldest` is since
    when the oldest of it is held.
    """

    pods: Mapping[PoolName | None, int]
    oldest: Millis | None


def pressure(roster: Roster) -> Mapping[TenantName, Pressure]:
    """Return it for every tenant that is known to the tree."""
    tenants = roster.usage.tree.tenants
    return {name: Pressure(_pods(branch), _oldest(branch)) for name, branch in tenants.items()}


def _pods(branch: Branch) -> dict[PoolName | None, int]:
    found: dict[PoolName | None, int] = {}
    for shape, workloads in branch.shapes.items():
        pool = shape.pools[0] if len(shape.pools) == 1 else None
        each = sum(count for _, count in shape.parts)
        found[pool] = found.get(pool, 0) + each * workloads
    return {pool: count for pool, count in found.items() if count}


def _oldest(branch: Branch) -> Millis | None:
    known = [leaf.queue.oldest() for leaf in leaves(branch)]
    return min((since for since in known if since is not None), default=None)
