"""Checks of the devices of nodes and of DRA. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from app.commands.doctor.findings import Check, Finding, count, names, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot
from app.core.quantities import ManagedResources

ACCELERATORS = (
    "nvidia.com/",
    "amd.com/",
    "gpu.intel.com/",
    "habana.ai/",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "huawei.com/",
    "cambricon.com/",
    "metax-tech.com/",
    "iluvatar.ai/",
    "hygon.com/",
)
"""Beginnings of the resource names of accelerators."""


READ_DRA = "resource.k8s.io/v1"


def is_accelerator(resource: str) -> bool:
    """Return whether the name of an extended resource is probably that of an accelerator."""
    return resource.startswith(ACCELERATORS) or "gpu" in resource.lower()


def unmanaged_devices(seen: ClusterSnapshot) -> list[str]:
    """Return the accelerators of the nodes that Fairgate does not manage."""
    managed = ManagedResources(seen.assumptions.managed)
    return sorted(each for each in seen.resources if each not in managed and is_accelerator(each))


def check_devices(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check that Fairgate manages the devices that nodes report."""
    if not seen.is_known("nodes"):
        return
    managed = ManagedResources(seen.assumptions.managed)
    for each in unmanaged_devices(seen):
        yield problem(
            Check.DEVICES,
            f"nodes have {seen.resources[each]} of {each}, which Fairgate does not queue.",
            "Add it to extraManagedResources.",
            [each],
        )
    found = {name: total for name, total in sorted(seen.resources.items()) if name in managed}
    others = [n for n in sorted(seen.resources) if n not in managed and not is_accelerator(n)]
    rest = f" Other extended resources, not queued: {names(others)}." if others else ""
    if found:
        text = ", ".join(f"{total} {name}" for name, total in found.items())
        yield ok(Check.DEVICES, f"{count(seen.nodes, 'node')} with {text}.{rest}")
    elif not seen.drivers:
        yield warning(
            Check.DEVICES,
            f"no node reports a managed resource ({count(seen.nodes, 'node')}).{rest}",
            "Install the device plugin or DRA driver of the GPUs.",
        )


def uncounted_classes(seen: ClusterSnapshot) -> dict[str, str]:
    """Return the device classes that count as no managed resource, with their own resource name.

    The name is "" for a class without `extendedResourceName`.
    """
    managed = ManagedResources(seen.assumptions.managed)
    return {
        name: extended
        for name, extended in sorted(seen.device_classes.items())
        if name not in seen.assumptions.classes and not (extended and extended in managed)
    }


def check_device_classes(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check that the devices of all DRA device classes are counted."""
    if not seen.is_known("deviceclasses", "resourceslices", "resource.k8s.io"):
        return
    uncounted = uncounted_classes(seen)
    if seen.device_classes and seen.dra != READ_DRA:
        yield warning(
            Check.DEVICE_CLASSES,
            f"the cluster serves {seen.dra}, and Fairgate reads {READ_DRA}, so devices of "
            "resource claims are not counted.",
            "Upgrade Kubernetes to 1.34 or newer.",
            [seen.dra],
        )
    for name in uncounted:
        yield warning(
            Check.DEVICE_CLASSES,
            f"DeviceClass {name} counts as no managed resource, so its devices are not counted.",
            "If they are GPUs, add it to deviceClasses, with the resource that they count as.",
            [name],
        )
    if seen.device_classes and not uncounted:
        drivers = ", ".join(f"{n} of {driver}" for driver, n in sorted(seen.drivers.items()))
        found = f" ResourceSlices have {drivers}." if drivers else ""
        yield ok(
            Check.DEVICE_CLASSES,
            f"{names(sorted(seen.device_classes))}: all are counted.{found}",
        )
    elif not seen.device_classes:
        yield ok(Check.DEVICE_CLASSES, "the cluster has no DeviceClass.")
