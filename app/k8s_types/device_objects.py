"""msgspec structs of `resource.k8s.io`: claims, device classes and slices. Needed fields only."""

from __future__ import annotations

import msgspec

from app.k8s_types.objects import Metadata, OwnedMetadata
from app.k8s_types.scheduling import KubeStruct, NodeTerms, TaintSpec, TolerationSpec


class CelSelector(KubeStruct, frozen=True):
    expression: str = ""


class DeviceSelector(KubeStruct, frozen=True):
    cel: CelSelector | None = None


class CapacityRequirements(KubeStruct, frozen=True):
    requests: dict[str, str | int | float] | None = None


class DeviceAskObject(KubeStruct, frozen=True):
    """`exactly`, or one entry of `firstAvailable`. The API server fills in the defaults."""

    name: str = ""
    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1
    selectors: list[DeviceSelector] | None = None
    tolerations: list[TolerationSpec] | None = None
    admin_access: bool = False
    capacity: CapacityRequirements | None = None


class DeviceRequest(KubeStruct, frozen=True):
    name: str = ""
    exactly: DeviceAskObject | None = None
    first_available: list[DeviceAskObject] | None = None


class DeviceClaim(KubeStruct, frozen=True):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(KubeStruct, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(KubeStruct, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: dict[str, str | int | float] | None = None


class DeviceAllocationResult(KubeStruct, frozen=True):
    results: list[DeviceRequestAllocationResult] | None = None


class AllocationResult(KubeStruct, frozen=True):
    devices: DeviceAllocationResult = DeviceAllocationResult()


class ResourceClaimStatus(KubeStruct, frozen=True):
    allocation: AllocationResult | None = None


class ResourceClaimObject(KubeStruct, frozen=True):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassSpec(KubeStruct, frozen=True):
    extended_resource_name: str | None = None
    selectors: list[DeviceSelector] | None = None


class DeviceClassObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class AttributeObject(KubeStruct, frozen=True):
    """Exactly one field is set."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    integers: list[int] | None = msgspec.field(default=None, name="ints")
    booleans: list[bool] | None = msgspec.field(default=None, name="bools")
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRequestPolicy(KubeStruct, frozen=True):
    default: str | int | float | None = None


class CapacityObject(KubeStruct, frozen=True):
    value: str | int | float = "0"
    request_policy: CapacityRequestPolicy | None = None


class CounterConsumption(KubeStruct, frozen=True):
    counter_set: str = ""
    counters: dict[str, CapacityObject] | None = None


class CounterSet(KubeStruct, frozen=True):
    name: str = ""
    counters: dict[str, CapacityObject] | None = None


class DeviceObject(KubeStruct, frozen=True):
    name: str = ""
    attributes: dict[str, AttributeObject] | None = None
    capacity: dict[str, CapacityObject] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool = False
    taints: list[TaintSpec] | None = None
    allow_multiple_allocations: bool = False


class SlicePool(KubeStruct, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(KubeStruct, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[DeviceObject] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSliceObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()
