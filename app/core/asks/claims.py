"""Claims for devices (`resource.k8s.io`): what a claim asks for, and as which resource it counts.

Values and counting only. Which pod is charged for a claim is decided in `claimants`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model import Amounts, Pod, Resource, Uid
from app.core.resources import ManagedResources, add, largest

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""What the name of a resource begins with that a container asks for instead of by a claim."""

MOST_DEVICES = 32
"""The API allocates no more devices to one claim. `All` may be as many."""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """Devices of one class. `count` is None for all that a node has."""

    device_class: str
    count: int | None = 1


Alternatives = tuple[DeviceAsk, ...]
"""One request of a claim: whichever of these is allocated first. Most have one."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """One ResourceClaim. Its requests never change; its name may be used again for another.

    `owner` is the pod it was generated for (None: somebody wrote it), `of_group` that it was
    generated for a group of pods. Admin access is no field: it counts like any other.
    """

    namespace: str
    name: str
    requests: tuple[Alternatives, ...]
    owner: Uid | None = None
    of_group: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Return what pods find it by."""
        return self.namespace, self.name

    def made_for(self, pod: Pod) -> bool:
        """Tell whether the scheduler takes it for the claim generated for a pod."""
        return self.owner == pod.uid or self.of_group


class Classes:
    """As which managed resource the devices of a class count.

    What the operator wrote holds; for other classes what their DeviceClass says.
    """

    def __init__(self, managed: ManagedResources, written: Mapping[str, Resource]) -> None:
        self._managed = managed
        self._written = dict(written)
        self._stated: dict[str, Resource] = {}

    def put(self, name: str, stated: Resource | None) -> bool:
        """Note the `extendedResourceName` of a DeviceClass; tell whether anything changed."""
        if self._stated.get(name) == stated:
            return False
        self._stated.pop(name, None)
        if stated is not None:
            self._stated[name] = stated
        return True

    def resource(self, name: str) -> Resource | None:
        """Return what a device of this class counts as; None: nothing that is managed."""
        resource = self._written.get(name) or self._stated.get(name)
        return resource if resource is not None and resource in self._managed else None

    def count(self, claim: ResourceClaim) -> dict[Resource, int]:
        """Return what a claim counts as, at worst: of alternatives, the most of each resource."""
        total: dict[Resource, int] = {}
        for alternatives in claim.requests:
            worst: dict[Resource, int] = {}
            for ask in alternatives:
                resource = self.resource(ask.device_class)
                if resource is not None:
                    devices = MOST_DEVICES if ask.count is None else ask.count
                    worst = largest(worst, {resource: devices})
            total = add(total, worst)
        # More than the API can allocate must not count: whoever writes it could fill a pool.
        return {r: min(v, MOST_DEVICES) for r, v in total.items() if v > 0}

    def rename(self, asked: Amounts) -> dict[Resource, int]:
        """Return amounts with device classes, asked for by name, as what they count as.

        A class that counts as nothing drops out: no node offers it by that name.
        """
        total: dict[Resource, int] = {}
        for resource, value in asked.items():
            if resource.startswith(IMPLICIT):
                counted = self.resource(resource.removeprefix(IMPLICIT))
                total = add(total, {counted: value}) if counted else total
            else:
                total = add(total, {resource: value})
        return total


def needs_counting(asked: Amounts) -> bool:
    """Tell whether device classes are asked for by name."""
    return any(resource.startswith(IMPLICIT) for resource in asked)
