"""Devices that DRA drivers publish in ResourceSlices (`resource.k8s.io`). Values only.

`resource_claims` has the requests for such devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.core.model import NodeName
from app.core.podspec.constraints import RequiredAffinity, Taint


class Attribute(NamedTuple):
    """An attribute or a capacity of a device.

    `kind`: `int`, `bool`, `string`, `version`, or `quantity`, in the plural for a tuple of
    values. The value of a `quantity` is its text. The kind also distinguishes 1 from True.
    """

    domain: str
    name: str
    kind: str
    value: str | int | bool | tuple[str | int | bool, ...]


class DeviceId(NamedTuple):
    """The identity of a device in the cluster."""

    driver: str
    pool: str
    device: str


class CounterUse(NamedTuple):
    """An amount that a device takes from a counter that devices of its pool share."""

    counter_set: str
    counter: str
    amount: int


class ShareLimit(NamedTuple):
    """A capacity of a shared device that its claims consume (KEP-5075), in thousandths.

    `default`: the amount of a request that names none.
    """

    name: str
    total: int
    default: int


@dataclass(frozen=True, slots=True)
class NodeReach:
    """The nodes that can use a device: one node, the nodes of a selector, or every node.

    An empty reach matches no node.
    """

    node: NodeName | None = None
    selector: RequiredAffinity | None = None
    every: bool = False

    def matches(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        """Return whether a node can use the device."""
        if self.node is not None:
            return name == self.node
        if self.selector is not None:
            return any(term.matches(name, labels) for term in self.selector)
        return self.every


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice.

    `facts`: its attributes and capacities. `taints`: those that keep claims off. `reach`: its own
    nodes, None for those of its slice. `uses`: its amounts of shared counters. `is_shared`:
    several claims may have parts of it, which `limits` bound.
    """

    name: str
    facts: tuple[Attribute, ...] = ()
    taints: tuple[Taint, ...] = ()
    reach: NodeReach | None = None
    uses: tuple[CounterUse, ...] = ()
    is_shared: bool = False
    limits: tuple[ShareLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Some devices of a pool of a driver.

    `count`: number of slices of the pool in this `generation`. `counters`: shared counters that it
    defines.
    """

    name: str
    driver: str
    pool: str
    generation: int = 0
    count: int = 1
    reach: NodeReach = NodeReach()
    devices: tuple[Device, ...] = ()
    counters: tuple[CounterUse, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Return the driver and the pool."""
        return self.driver, self.pool


class SelectorEvaluator(Protocol):
    """Evaluates CEL selectors of device classes and requests."""

    def matches(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return whether a device matches. None: the expression cannot be evaluated."""
        ...

    def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return the same for an expression of a user, which must not cost much time."""
        ...


class AnyDevice:
    """A `SelectorEvaluator` that evaluates no expression, so every device may match."""

    def matches(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return None."""
        return None

    def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return None."""
        return None
