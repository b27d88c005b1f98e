"""A DRA driver for KWOK nodes: it publishes ResourceSlices of devices that do not exist.

The real scheduler allocates the devices. No kubelet plugin prepares them, and KWOK needs none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod

API = "resource.k8s.io/v1"
DRIVER = "gpu.test.example.com"
CLASS = "gpu.test.example.com"
LABEL = "test.example.com/dra"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"


def device_class(name: str = CLASS, *more: str, resource: str = GPU) -> Object:
    """Return a class of the driver's GPUs with an extended resource name."""
    texts = (f"device.driver == '{DRIVER}'", *more)
    selectors = [{"cel": {"expression": text}} for text in texts]
    spec = {"selectors": selectors, "extendedResourceName": resource}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def dra_node(name: str, pool: str) -> Object:
    """Return a KWOK node without extended resources."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "type": "kwok", LABEL: pool}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room},
    }


def gpu(name: str, model: str = "a100", taints: Sequence[Object] = ()) -> Object:
    """Return a device."""
    attributes = {"model": {"string": model}, "uuid": {"string": f"GPU-{name}"}}
    device: Object = {
        "name": name,
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
    }
    return device | ({"taints": list(taints)} if taints else {})


def gpus(count: int, model: str = "a100") -> list[Object]:
    """Return devices gpu-0, gpu-1, ..."""
    return [gpu(f"gpu-{number}", model) for number in range(count)]


def resource_slice(
    node: str, devices: Sequence[Object], *, number: int = 0, generation: int = 1, count: int = 1
) -> Object:
    """Return slice `number` of the pool of a node."""
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{number}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def claim(name: str, count: int = 1, *selectors: str, mode: str = "ExactCount") -> Object:
    """Return a claim for devices of the class."""
    exactly: Object = {"deviceClassName": CLASS, "allocationMode": mode}
    if mode == "ExactCount":
        exactly["count"] = count
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(name: str, count: int = 1, *selectors: str, mode: str = "ExactCount") -> Object:
    """Return a template of such claims."""
    one = claim(name, count, *selectors, mode=mode)
    return {**one, "kind": "ResourceClaimTemplate", "spec": {"spec": one["spec"]}}


def claiming(name: str, **source: str) -> Object:
    """Return a pod that requests one claim: `resourceClaimName` or `resourceClaimTemplateName`."""
    one = pod(name, 0, resourceClaims=[{"name": "d", **source}])
    one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "d"}]}
    return one


class DraNodes:
    """Nodes, slices, a class and a pool that are deleted when the test ends."""

    def __init__(self, stage: Stage, pool: str = "dra") -> None:
        self.stage = stage
        self.pool = pool
        self.put(
            device_class(),
            {
                "apiVersion": "fairgate.io/v1alpha1",
                "kind": "Pool",
                "metadata": {"name": pool},
                "spec": {"nodeSelector": {LABEL: pool}},
            },
        )

    def put(self, *items: Object) -> None:
        """Apply objects that are deleted when the test ends."""
        self.stage.apply("default", *items)
        self.stage.objects += [(item["kind"].lower(), name_of(item)) for item in items]

    def add(self, name: str, devices: Sequence[Object]) -> None:
        """Add a node with these devices."""
        self.put(dra_node(name, self.pool), resource_slice(name, devices))

    def capacity(self) -> int:
        """Return the GPUs in the status of the pool."""
        with self.stage.api() as api:
            found = api.call("GET", f"/apis/fairgate.io/v1alpha1/pools/{self.pool}")
        return int(found.get("status", {}).get("capacity", {}).get(GPU, "0"))
