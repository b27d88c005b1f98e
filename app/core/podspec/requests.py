"""Effective resource requests of a pod.

Source: the formula of kube-scheduler, KEP-753 (sidecar containers), KEP-2837 (pod-level resources),
and pod overhead. Resource claims (DRA) are counted in `resource_claims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.core.errors import InvalidQuantity
from app.core.model import Amounts, Resource
from app.core.podspec.device_fractions import SIDES, WHOLE
from app.core.quantities import CPU, PODS, add, amounts, largest

Quantities = Mapping[str, str | int | float]

MEMORY = Resource("memory")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Requests and limits of one container, or of the pod as a whole, as written."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    restartable: bool = False
    """Only for init containers: `restartPolicy: Always`, a sidecar."""


def reserved(
    containers: Sequence[ContainerRequest],
    inits: Sequence[ContainerRequest] = (),
    pod_level: ContainerRequest | None = None,
    overhead: Quantities | None = None,
) -> dict[Resource, int]:
    """Return the effective requests of a pod in base units, with one unit of `pods`.

    A limit without a request counts as the request. Raises InvalidQuantity for an unparseable or
    negative value.
    """
    main: dict[Resource, int] = {}
    for container in containers:
        for resource, value in _wanted(container).items():
            main[resource] = main.get(resource, 0) + value
    sidecars: dict[Resource, int] = {}
    peak: dict[Resource, int] = {}
    for init in inits:
        # For a resource that this container does not request, the sidecars before it need less than
        # all sidecars do.
        for resource, value in _wanted(init).items():
            at_init = sidecars.get(resource, 0) + value
            peak[resource] = max(peak.get(resource, 0), at_init)
            if init.restartable:
                sidecars[resource] = at_init
    total = largest(add(main, sidecars), peak)
    if pod_level is not None:
        # The API server accepts only these resources at pod level. Only containers request devices.
        stated = {name: value for name, value in _wanted(pod_level).items() if _is_shared(name)}
        total.update(stated)
    if overhead:
        total = add(total, _positive(overhead))
    total[PODS] = 1
    return {resource: value for resource, value in total.items() if value}


def _is_shared(resource: Resource) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _wanted(ask: ContainerRequest) -> Amounts:
    if not ask.limits:
        return _of_all_devices(_positive(ask.requests))
    return _of_all_devices({**_positive(ask.limits), **_positive(ask.requests)})


def _of_all_devices(asked: Amounts) -> Amounts:
    """Return a request with HAMi cores and memory as totals. As written, they are per device."""
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
