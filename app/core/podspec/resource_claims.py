"""ResourceClaims (`resource.k8s.io`): their requests, and the managed resource each counts as.

`claim_charges` decides which pod is charged for a claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.model import NO_UID, Amounts, Pod, Resource, Uid
from app.core.quantities import ManagedResources, add, largest

FINALIZER = "fairgate.io/claim-in-use"
"""Prevents reuse of a claim's name while a pod that was released for the claim is unfinished."""

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of a container resource that requests devices of a class without a claim."""

MOST_DEVICES = 32
"""Maximum number of devices that the API allocates to one claim. `All` may be this many."""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """A number of devices of one class. `count` None: all devices of a node."""

    device_class: str
    count: int | None = 1


Alternatives = tuple[DeviceAsk, ...]
"""One request of a claim: the first alternative that can be allocated. Most requests have one."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """One ResourceClaim. Its requests never change. A later claim may have the same name.

    `owner`: the pod for which it was generated; None if a user wrote it. `of_group`: it was
    generated for a group of pods. Admin access has no field, because it counts like any other
    access. `protected`: it has Fairgate's finalizer. `version`: its resourceVersion.
    """

    namespace: str
    name: str
    requests: tuple[Alternatives, ...]
    owner: Uid | None = None
    of_group: bool = False
    uid: Uid = NO_UID
    terminating: bool = False
    protected: bool = field(default=False, compare=False)
    version: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Return the namespace and the name, by which pods refer to it."""
        return self.namespace, self.name

    def made_for(self, pod: Pod) -> bool:
        """Return whether kube-scheduler accepts it as the claim generated for a pod."""
        return self.owner == pod.uid or self.of_group


class Classes:
    """The managed resource that the devices of each DeviceClass count as.

    The operator's mapping comes first, then the `extendedResourceName` of the DeviceClass.
    """

    def __init__(self, managed: ManagedResources, written: Mapping[str, Resource]) -> None:
        self._managed = managed
        self._written = dict(written)
        self._stated: dict[str, Resource] = {}

    def store_class(self, name: str, stated: Resource | None) -> bool:
        """Store the `extendedResourceName` of a DeviceClass. Return whether anything changed."""
        if self._stated.get(name) == stated:
            return False
        self._stated.pop(name, None)
        if stated is not None:
            self._stated[name] = stated
        return True

    def resource(self, name: str) -> Resource | None:
        """Return the managed resource of a device of this class. None if it is unmanaged."""
        resource = self._written.get(name) or self._stated.get(name)
        return resource if resource is not None and resource in self._managed else None

    def count(self, claim: ResourceClaim) -> dict[Resource, int]:
        """Return the managed resources that a claim counts as: its most expensive alternatives."""
        total: dict[Resource, int] = {}
        for alternatives in claim.requests:
            worst: dict[Resource, int] = {}
            for ask in alternatives:
                resource = self.resource(ask.device_class)
                if resource is not None:
                    devices = MOST_DEVICES if ask.count is None else ask.count
                    worst = largest(worst, {resource: devices})
            total = add(total, worst)
        # Cap at the amount that the API can allocate. Otherwise one claim could fill a pool.
        return {r: min(v, MOST_DEVICES) for r, v in total.items() if v > 0}

    def rename(self, asked: Amounts) -> dict[Resource, int]:
        """Return amounts with each requested device class replaced by the resource it counts as.

        A class without a managed resource is dropped, because no node offers it by that name.
        """
        total: dict[Resource, int] = {}
        for resource, value in asked.items():
            counted: Resource | None = resource
            if resource.startswith(IMPLICIT):
                counted = self.resource(resource.removeprefix(IMPLICIT))
            if counted:
                total[counted] = total.get(counted, 0) + value
        return total


def needs_counting(asked: Amounts) -> bool:
    """Return whether a container requests devices of a class without a claim."""
    return any(resource.startswith(IMPLICIT) for resource in asked)
