"""Builds devices, slices and claims of a DRA driver for tests of the core."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.model import NodeName, Resource, Uid
from app.core.podspec.constraints import Taint
from app.core.podspec.devices import (
    Attribute,
    CounterUse,
    Device,
    DeviceId,
    NodeReach,
    ResourceSlice,
    ShareLimit,
)
from app.core.podspec.resource_claims import (
    AllocatedDevice,
    DeviceAsk,
    DeviceClass,
    ResourceClaim,
    Shares,
)

DRIVER = "gpu.example.com"
GPU = Resource("nvidia.com/gpu")
IS_GPU = "type == gpu"
GPUS = DeviceClass("gpu.nvidia.com", None, (IS_GPU,))
SICK = Taint("sick", "", "NoSchedule")


class Words:
    """Evaluates selectors `attribute == value`. Any other text has no answer."""

    def matches(self, expression: str, driver: str, device: Device) -> bool | None:
        name, equal, value = expression.partition(" == ")
        if not equal:
            return None
        return any(fact.name == name and str(fact.value) == value for fact in device.facts)

    def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
        return self.matches(expression, driver, device)


def device(
    name: str,
    kind: str = "gpu",
    *taints: Taint,
    uses: Sequence[CounterUse] = (),
    reach: NodeReach | None = None,
    shared: bool = False,
    limits: Sequence[ShareLimit] = (),
) -> Device:
    facts = (Attribute(DRIVER, "type", "string", kind),)
    return Device(name, facts, taints, reach, tuple(uses), shared, tuple(limits))


def gpus(count: int, kind: str = "gpu") -> tuple[Device, ...]:
    return tuple(device(f"gpu-{i}", kind) for i in range(count))


def published(
    node: str | NodeReach,
    *devices: Device,
    name: str = "",
    pool: str = "",
    generation: int = 1,
    count: int = 1,
    counters: Sequence[CounterUse] = (),
) -> ResourceSlice:
    """Return a slice of a node, or of a reach."""
    reach = NodeReach(NodeName(node)) if isinstance(node, str) else node
    home = node if isinstance(node, str) else "wide"
    return ResourceSlice(
        name or f"{home}-{generation}",
        DRIVER,
        pool or home,
        generation,
        count,
        reach,
        devices,
        tuple(counters),
    )


def allocated(
    name: str,
    node: str,
    *devices: str,
    count: int = 1,
    admin: bool = False,
    namespace: str = "a",
    consumed: Shares = (),
) -> ResourceClaim:
    """Return a claim that has devices of a node."""
    ask = DeviceAsk("gpu.nvidia.com", count, "r", is_admin=admin)
    results = tuple(
        AllocatedDevice("r", DeviceId(DRIVER, node, each), admin, consumed) for each in devices
    )
    return ResourceClaim(
        namespace, name, ((ask,),), uid=Uid(f"uid-{name}"), allocated_devices=results or None
    )
