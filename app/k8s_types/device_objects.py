"""msgspec structs of `resource.k8s.io`: claims, device classes and slices. Needed fields only."""

from __future__ import annotations

import msgspec

from app.k8s_types.objects import Metadata, OwnedMetadata
from app.k8s_types.scheduling import NodeTerms, TaintSpec, TolerationSpec, Wire


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class DeviceAskObject(Wire, frozen=True):
    """`exactly`, or one entry of `firstAvailable`. The API server fills in the defaults."""

    name: str = ""
    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1
    selectors: list[DeviceSelector] | None = None
    tolerations: list[TolerationSpec] | None = None
    admin_access: bool = False


class DeviceRequest(Wire, frozen=True):
    name: str = ""
    exactly: DeviceAskObject | None = None
    first_available: list[DeviceAskObject] | None = None


class DeviceClaim(Wire, frozen=True):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class DeviceAllocationResult(Wire, frozen=True):
    results: list[DeviceRequestAllocationResult] | None = None


class AllocationResult(Wire, frozen=True):
    devices: DeviceAllocationResult = DeviceAllocationResult()


class ResourceClaimStatus(Wire, frozen=True):
    allocation: AllocationResult | None = None


class ResourceClaimObject(Wire, frozen=True):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassSpec(Wire, frozen=True):
    extended_resource_name: str | None = None
    selectors: list[DeviceSelector] | None = None


class DeviceClassObject(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class AttributeObject(Wire, frozen=True):
    """Exactly one field is set."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    integers: list[int] | None = msgspec.field(default=None, name="ints")
    booleans: list[bool] | None = msgspec.field(default=None, name="bools")
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityObject(Wire, frozen=True):
    value: str | int | float = "0"


class CounterConsumption(Wire, frozen=True):
    counter_set: str = ""
    counters: dict[str, CapacityObject] | None = None


class CounterSet(Wire, frozen=True):
    name: str = ""
    counters: dict[str, CapacityObject] | None = None


class DeviceObject(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, AttributeObject] | None = None
    capacity: dict[str, CapacityObject] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool = False
    taints: list[TaintSpec] | None = None
    allow_multiple_allocations: bool = False


class SlicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[DeviceObject] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSliceObject(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()
