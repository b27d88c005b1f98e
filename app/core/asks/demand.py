"""What a pod really reserves on its node.

Source: the scheduler's own formula, KEP-753 (sidecar containers), KEP-2837 (pod-level
resources), and pod overhead. Resource claims (DRA) are counted in `claims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.core.asks.parts import SIDES, WHOLE
from app.core.errors import InvalidQuantity
from app.core.model import Amounts, Resource
from app.core.resources import CPU, PODS, add, amounts, largest

Quantities = Mapping[str, str | int | float]

MEMORY = Resource("memory")


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container, or the pod as a whole, asks for, as written."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    restartable: bool = False
    """Only for init containers: `restartPolicy: Always`, a sidecar."""


def reserved(
    containers: Sequence[Ask],
    inits: Sequence[Ask] = (),
    pod_level: Ask | None = None,
    overhead: Quantities | None = None,
) -> dict[Resource, int]:
    """Return what a pod reserves, in base units, one unit of `pods` included.

    A limit without a request counts as the request. Raises InvalidQuantity for anything that is
    no quantity, or is negative.
    """
    main: dict[Resource, int] = {}
    for container in containers:
        main = add(main, _wanted(container))
    sidecars: dict[Resource, int] = {}
    peak: dict[Resource, int] = {}
    for init in inits:
        wanted = _wanted(init)
        at_init = add(sidecars, wanted)
        peak = largest(peak, at_init)
        if init.restartable:
            sidecars = at_init
    total = largest(add(main, sidecars), peak)
    if pod_level is not None:
        # Only for these does the API server accept it; devices are asked for by containers alone.
        stated = {name: value for name, value in _wanted(pod_level).items() if _is_shared(name)}
        total.update(stated)
    if overhead:
        total = add(total, _positive(overhead))
    total[PODS] = 1
    return {resource: value for resource, value in total.items() if value}


def _is_shared(resource: Resource) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _wanted(ask: Ask) -> Amounts:
    if not ask.limits:
        return _of_all_devices(_positive(ask.requests))
    return _of_all_devices({**_positive(ask.limits), **_positive(ask.requests)})


def _of_all_devices(asked: Amounts) -> Amounts:
    """Return an ask with what it wants of each of several devices, as HAMi reads it, in all."""
    count = asked.get(WHOLE, 0)
    if count < 2 or not any(side in asked for side in SIDES):
        return asked
    return {r: value * count if r in SIDES else value for r, value in asked.items()}


def _positive(quantities: Quantities) -> dict[Resource, int]:
    parsed = amounts(quantities)
    for resource, value in parsed.items():
        if value < 0:
            raise InvalidQuantity(
                f"resource {resource[:80]}: {value} is negative; write 0 or more."
            )
    return parsed
