"""Refuses in-place resizes that would take charged cpu or memory outside the fair order.

A resize needs no release, so a limit or a queue would not stop it. Devices cannot be resized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model import Amounts, Pool, PoolName, Resource
from app.core.podspec.requests import RESIZED
from app.core.quantities import ManagedResources, format_amount

GROWTH = (
    "Fairgate: this resize raises {resource} from {before} to {after}, and {reason}; delete the "
    "pod and create it again with the larger request, so that it waits for its turn. Until its "
    "node has applied a resize, a container counts as the larger of its old and new request."
)


@dataclass(frozen=True, slots=True)
class Resize:
    """A resize of a held or released pod.

    `requests_before`: what it requested. If that stays, an infeasible earlier resize is no growth.
    """

    charge_before: Amounts
    requests_before: Amounts
    charge_after: Amounts


def refuse_resize(
    resize: Resize, pools: Mapping[PoolName, Pool], managed: ManagedResources
) -> str | None:
    """Return why a resize is refused, None if it is allowed.

    Shares, guarantees and limits count a resource that is managed, or that has a weight in a Pool.
    Only such a resource may not grow. A request that stays as it was is no growth.
    """
    for resource in RESIZED:
        before, after = resize.charge_before.get(resource, 0), resize.charge_after.get(resource, 0)
        if after <= before or after == resize.requests_before.get(resource, 0):
            continue
        reason = _reason(resource, pools, managed)
        if reason is not None:
            amounts = {
                "before": format_amount(resource, before),
                "after": format_amount(resource, after),
            }
            return GROWTH.format(resource=resource, reason=reason, **amounts)
    return None


def _reason(
    resource: Resource, pools: Mapping[PoolName, Pool], managed: ManagedResources
) -> str | None:
    if resource in managed:
        return f"{resource} is a managed resource"
    weighing = sorted(name for name, pool in pools.items() if resource in pool.weights)
    return f"{resource} has a weight in pool {weighing[0]}" if weighing else None
