"""ResourceClaims (`resource.k8s.io`): their requests, and the managed resource each counts as.

`claim_charges` decides which pod is charged for a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.model import NO_UID, Amounts, Pod, Resource, Uid
from app.core.podspec.constraints import Toleration
from app.core.podspec.devices import DeviceId
from app.core.quantities import ManagedResources, add_amounts, max_amounts

FINALIZER = "fairgate.io/claim-in-use"
"""Prevents reuse of a claim's name while a pod that was released for the claim is unfinished."""

DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own finalizer: it keeps a claim while devices are allocated to it."""

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of a container resource that requests devices of a class without a claim."""

MOST_DEVICES = 32
"""Maximum number of devices that the API allocates to one claim. `All` may be this many."""


Shares = tuple[tuple[str, int], ...]
"""Amounts of the capacities of a shared device, by name, in thousandths."""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """A number of devices of one class. `count` None: all devices of a node.

    `name`: of the request, or `request/alternative`, as in the result of the allocation.
    `selectors`: CEL expressions that each device must match, besides those of the class.
    `is_admin`: admin access, which takes the device from nobody. `shares`: its amounts of a shared
    device.
    """

    device_class: str
    count: int | None = 1
    name: str = field(default="", compare=False)
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    is_admin: bool = False
    shares: Shares = ()


Alternatives = tuple[DeviceAsk, ...]
"""One request of a claim: the first alternative that can be allocated. Most requests have one."""


class AllocatedDevice(NamedTuple):
    """A device, or a part of a shared one, that the scheduler allocated to a request of a claim."""

    request: str
    device: DeviceId
    is_admin: bool = False
    consumed: Shares = ()


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """One ResourceClaim. Its requests never change. A later claim may have the same name.

    `owner`: the pod for which it was generated; None if a user wrote it. `is_of_group`: it was
    generated for a group of pods. `is_of_extended_resources`: kube-scheduler made it for the
    extended resources of its owner. `allocated_devices`: its devices, None before the allocation.
    `has_finalizer`: it has Fairgate's finalizer. `resource_version`: its resourceVersion.
    """

    namespace: str
    name: str
    requests: tuple[Alternatives, ...]
    owner: Uid | None = None
    is_of_group: bool = False
    uid: Uid = NO_UID
    terminating: bool = False
    is_of_extended_resources: bool = False
    allocated_devices: tuple[AllocatedDevice, ...] | None = None
    has_finalizer: bool = field(default=False, compare=False)
    resource_version: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Return the namespace and the name, by which pods refer to it."""
        return self.namespace, self.name

    @property
    def class_names(self) -> set[str]:
        """The device classes that it names."""
        return {ask.device_class for alternatives in self.requests for ask in alternatives}

    def is_made_for(self, pod: Pod) -> bool:
        """Return whether kube-scheduler accepts it as the claim generated for a pod."""
        return self.owner == pod.uid or self.is_of_group


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One DeviceClass. `extended_resource`: its `extendedResourceName`. A device must match all
    selectors.
    """

    name: str
    extended_resource: Resource | None = None
    selectors: tuple[str, ...] = ()


class Classes:
    """The managed resource that the devices of each DeviceClass count as.

    The operator's mapping comes first, then the `extendedResourceName` of the DeviceClass.
    `version` changes with any class.
    """

    def __init__(self, managed: ManagedResources, written: Mapping[str, Resource]) -> None:
        self.version = 0
        self._managed = managed
        self._written = dict(written)
        self._known: dict[str, DeviceClass] = {}
        self._most: Callable[[DeviceAsk], int] = lambda _: MOST_DEVICES

    def set_all_devices_limit(self, most: Callable[[DeviceAsk], int]) -> None:
        """Set the function that returns how many devices of a node a request for all may get."""
        self._most = most

    def store_class(self, known: DeviceClass) -> bool:
        """Store a DeviceClass. Return whether anything changed."""
        if self._known.get(known.name) == known:
            return False
        self._known[known.name] = known
        self.version += 1
        return True

    def drop_class(self, name: str) -> bool:
        """Remove a deleted DeviceClass. Return whether it was known."""
        if self._known.pop(name, None) is None:
            return False
        self.version += 1
        return True

    def resource_of(self, name: str) -> Resource | None:
        """Return the managed resource of a device of this class. None if it is unmanaged."""
        known = self._known.get(name)
        resource = self._written.get(name) or (
            known.extended_resource if known is not None else None
        )
        return resource if resource is not None and resource in self._managed else None

    def find_class(self, name: str) -> DeviceClass | None:
        """Return an existing DeviceClass, or None."""
        return self._known.get(name)

    def first_missing(self, names: Iterable[str]) -> str:
        """Return the first class, by name, whose resource is unknown; "" if there is none.

        Such a class does not exist, and the operator maps it to no resource. It may count as
        devices once it exists.
        """
        absent = (name for name in names if name not in self._known and name not in self._written)
        return min(absent, default="")

    def managed_classes(self) -> list[tuple[DeviceClass, Resource]]:
        """Return the existing classes of managed devices with their resource, by name."""
        found = [(each, self.resource_of(name)) for name, each in sorted(self._known.items())]
        return [(each, resource) for each, resource in found if resource is not None]

    def count_amounts(self, claim: ResourceClaim) -> dict[Resource, int]:
        """Return the managed resources that a claim counts as.

        These are its allocated devices. Before the allocation they are `count_max_amounts`.
        """
        if claim.allocated_devices is None:
            return self.count_max_amounts(claim)
        return _capped(self._count_allocated(claim, claim.allocated_devices))

    def count_max_amounts(self, claim: ResourceClaim) -> dict[Resource, int]:
        """Return what an allocation of a claim can count as: its most expensive alternatives."""
        total: dict[Resource, int] = {}
        for alternatives in claim.requests:
            worst: dict[Resource, int] = {}
            for ask in alternatives:
                resource = self.resource_of(ask.device_class)
                if resource is not None and not ask.is_admin:
                    devices = self._most(ask) if ask.count is None else ask.count
                    worst = max_amounts(worst, {resource: devices})
            total = add_amounts(total, worst)
        return _capped(total)

    def _count_allocated(
        self, claim: ResourceClaim, allocated: tuple[AllocatedDevice, ...]
    ) -> dict[Resource, int]:
        asks = {ask.name: ask for alternatives in claim.requests for ask in alternatives}
        total: dict[Resource, int] = {}
        for each in allocated:
            ask = asks.get(each.request)
            resource = self.resource_of(ask.device_class) if ask is not None else None
            if resource is not None and not each.is_admin:
                total[resource] = total.get(resource, 0) + 1
        return total

    def replace_classes(self, asked: Amounts) -> dict[Resource, int]:
        """Return amounts with each requested device class replaced by the resource it counts as.

        A class without a managed resource is dropped, because no node offers it by that name.
        """
        total: dict[Resource, int] = {}
        for resource, value in asked.items():
            counted: Resource | None = resource
            if resource.startswith(IMPLICIT):
                counted = self.resource_of(resource.removeprefix(IMPLICIT))
            if counted:
                total[counted] = total.get(counted, 0) + value
        return total


def _capped(amounts: Amounts) -> dict[Resource, int]:
    """Return at most what the API can allocate. Otherwise one claim could fill a pool."""
    return {r: min(v, MOST_DEVICES) for r, v in amounts.items() if v > 0}


def has_implicit_claims(asked: Amounts) -> bool:
    """Return whether a container requests devices of a class without a claim."""
    return any(resource.startswith(IMPLICIT) for resource in asked)
