"""Effective resource requests of a pod.

Source: kube-scheduler's formula, KEP-753 (sidecar containers), KEP-2837 (pod-level resources),
KEP-1287 (in-place resize), and pod overhead. `resource_claims` counts resource claims (DRA).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.core.errors import InvalidQuantity
from app.core.model import Amounts, Resource
from app.core.podspec.device_fractions import HAMI_DIMENSIONS, WHOLE
from app.core.quantities import CPU, PODS, add_amounts, max_amounts, parse_amounts

Quantities = Mapping[str, str | int | float]

MEMORY = Resource("memory")

RESIZED = (CPU, MEMORY)
"""The resources that an in-place resize can change."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Requests and limits of one container, or of the pod as a whole, as written."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    restartable: bool = False
    """Only for init containers: `restartPolicy: Always`, a sidecar."""
    granted: tuple[Quantities, ...] = ()
    """Requests that its node has granted, as in the status. They count until a smaller grant."""
    infeasible: bool = False
    """The node refused the resize to `requests`, so a granted cpu or memory replaces them."""


def effective_requests(
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
    total = max_amounts(add_amounts(main, sidecars), peak)
    if pod_level is not None:
        # The API server accepts only these resources at pod level. Only containers request devices.
        # The status also sums up resources that the pod level does not state.
        stated = pod_level.requests.keys() | pod_level.limits.keys()
        wanted = _wanted(pod_level).items()
        total.update({r: value for r, value in wanted if r in stated and _is_shared(r)})
    if overhead:
        total = add_amounts(total, _positive(overhead))
    total[PODS] = 1
    return {resource: value for resource, value in total.items() if value}


def _is_shared(resource: Resource) -> bool:
    return resource in RESIZED or resource.startswith("hugepages-")


def _wanted(ask: ContainerRequest) -> Amounts:
    stated = _positive(ask.requests)
    if ask.limits:
        stated = {**_positive(ask.limits), **stated}
    return _of_all_devices(_resized(stated, ask) if ask.granted else stated)


def _resized(stated: Amounts, ask: ContainerRequest) -> Amounts:
    """Return the largest of the stated and granted amounts, as kube-scheduler counts a resize."""
    granted: dict[Resource, int] = {}
    for quantities in ask.granted:
        granted = max_amounts(
            granted, _positive({r: v for r, v in quantities.items() if r in RESIZED})
        )
    if ask.infeasible:
        stated = {resource: value for resource, value in stated.items() if resource not in granted}
    return max_amounts(stated, granted)


def _of_all_devices(asked: Amounts) -> Amounts:
    """Return a request with HAMi cores and memory as totals. As written, they are per device."""
    count = asked.get(WHOLE, 0)
    if count < 2 or not any(side in asked for side in HAMI_DIMENSIONS):
        return asked
    return {r: value * count if r in HAMI_DIMENSIONS else value for r, value in asked.items()}


def _positive(quantities: Quantities) -> dict[Resource, int]:
    parsed = parse_amounts(quantities)
    for resource, value in parsed.items():
        if value < 0:
            raise InvalidQuantity(
                f"resource {resource[:80]}: {value} is negative; write 0 or more."
            )
    return parsed
