"""Fractions of a device: which part of a whole GPU one unit of a resource is.

Covers time-slicing, HAMi and MIG profiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from app.core.model import Amounts, Resource
from app.core.quantities import GIB, MIB, is_device

WHOLE = Resource("nvidia.com/gpu")
"""The whole device. The other resources are fractions of it. HAMi: one client slot on a device."""
SHARED = Resource("nvidia.com/gpu.shared")
CORES = Resource("nvidia.com/gpucores")
MEMORY = Resource("nvidia.com/gpumem")

HAMI_DIMENSIONS = frozenset({CORES, MEMORY})
"""HAMi resources that are two dimensions of the same device. The larger fraction counts, not the
sum."""

WHOLE_CORES = 100

MAX_NODE_DEVICES = 1024
"""Maximum number of numbered devices on a node: each one is an object in memory."""

LABEL_MEMORY = "nvidia.com/gpu.memory"
"""Memory of each device of the node, in MiB."""
LABEL_COUNT = "nvidia.com/gpu.count"
LABEL_PRODUCT = "nvidia.com/gpu.product"
LABEL_GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
LABEL_GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"

_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


def is_device_fraction(resource: Resource) -> bool:
    """Return whether the name of a resource denotes part of a device."""
    return resource == SHARED or resource in HAMI_DIMENSIONS or is_slice(resource)


def whole_devices(demand: Amounts) -> int:
    """Return how many whole devices a pod occupies on a node of HAMi.

    A pod that requests cores or memory of a device occupies no whole device. The result is valid
    only on nodes of HAMi.
    """
    return 0 if any(demand.get(side, 0) for side in HAMI_DIMENSIONS) else demand.get(WHOLE, 0)


def count_devices(offer: Amounts, told: Mapping[Resource, Fraction]) -> Fraction:
    """Return how many devices the amounts of a node add up to. `told`: fraction of each resource.

    Devices, cores and memory of HAMi describe the same devices: only the largest counts.
    """
    parts = {r: told[r] * value for r, value in offer.items() if r in told and value > 0}
    beside = {WHOLE, *HAMI_DIMENSIONS}
    largest = max((v for r, v in parts.items() if r in beside), default=Fraction(0))
    return largest + sum((v for r, v in parts.items() if r not in beside), Fraction(0))


def estimate_devices(demand: Amounts) -> Fraction:
    """Return how many whole devices a demand is, as far as the names of its resources say.

    A slice counts as its fraction, HAMi cores as hundredths. Any other device counts as one.
    """
    found = Fraction(0)
    has_sides = any(demand.get(side, 0) for side in HAMI_DIMENSIONS)
    for resource, value in demand.items():
        if resource == CORES:
            found += Fraction(value, WHOLE_CORES)
        elif is_device(resource) and resource != MEMORY and not (has_sides and resource == WHOLE):
            found += value * ((is_slice(resource) and slice_price(profile_of(resource))) or 1)
    return found


def label_memory(labels: Mapping[str, str]) -> int | None:
    """Return the memory of one device in bytes from the node label. None if unknown."""
    told = _number(labels, LABEL_MEMORY)
    return told * MIB if told else None


def prices(
    labels: Mapping[str, str], offer: Amounts, memory: int | None = None
) -> dict[Resource, Fraction]:
    """Return the fraction of a whole device that one unit of each offered resource is.

    `memory`: bytes of one device, used if the node has no memory label.
    """
    found: dict[Resource, Fraction] = {}
    for resource, value in offer.items():
        if value > 0 and (resource == WHOLE or is_device_fraction(resource)):
            price = _price(resource, labels, offer, memory)
            if price is not None:
                found[resource] = price
    return found


def device_sizes(
    labels: Mapping[str, str], offer: Amounts, memory: int | None = None
) -> dict[Resource, int]:
    """Return the size of one device in units of its HAMi resources. `memory`: see `prices`.

    A resource of more than `MAX_NODE_DEVICES` devices has no size: it is an amount without devices.
    """
    found: dict[Resource, int] = {}
    if offer.get(CORES, 0) > 0:
        found[CORES] = WHOLE_CORES
    if offer.get(MEMORY, 0) > 0:
        size = _memory(labels, offer, memory)
        if size is not None:
            found[MEMORY] = size
    return {r: size for r, size in found.items() if offer[r] // size <= MAX_NODE_DEVICES}


def _price(
    resource: Resource, labels: Mapping[str, str], offer: Amounts, memory: int | None
) -> Fraction | None:
    if resource == WHOLE:
        return _of_plain(labels, offer, memory)
    if resource == SHARED:
        replicas = _number(labels, f"{WHOLE}.replicas") or _counted(resource, labels, offer)
        return Fraction(1, replicas) if replicas else None
    if resource == CORES:
        return Fraction(1, WHOLE_CORES)
    if resource == MEMORY:
        size = _memory(labels, offer, memory)
        return Fraction(1, size) if size else None
    return _of_slice(resource, labels, memory)


def _of_plain(labels: Mapping[str, str], offer: Amounts, memory: int | None) -> Fraction:
    """Return the fraction of a device that one `nvidia.com/gpu` is: HAMi, MIG or time-shared."""
    seats = offer[WHOLE]
    if any(offer.get(side, 0) > 0 for side in HAMI_DIMENSIONS):
        devices = _devices(labels, offer, memory)
        return min(Fraction(1), devices / seats) if devices else Fraction(1)
    product = labels.get(LABEL_PRODUCT, "")
    named = product.rpartition("-MIG-")[2] if "-MIG-" in product else ""
    slice_ = slice_price(named or labels.get(LABEL_GKE_PARTITION, "")) or Fraction(1)
    clients = _number(labels, LABEL_GKE_CLIENTS)
    if not clients and not offer.get(SHARED, 0):
        clients = _number(labels, f"{WHOLE}.replicas")
    return slice_ / (clients or 1)


def _of_slice(resource: Resource, labels: Mapping[str, str], memory: int | None) -> Fraction | None:
    name = resource.removesuffix(SHARES)
    price = slice_price(profile_of(resource), _told(labels, memory))
    if price is None or name == resource:
        return price
    replicas = _number(labels, f"{name}.replicas")
    return price / replicas if replicas else None


def _memory(labels: Mapping[str, str], offer: Amounts, memory: int | None) -> int | None:
    """Return the MiB of one device: from the label, from `memory`, or from the offered total."""
    told = _told(labels, memory)
    if told:
        return told
    devices = offer.get(CORES, 0) // WHOLE_CORES or _number(labels, LABEL_COUNT)
    return (offer.get(MEMORY, 0) // devices or None) if devices else None


def _told(labels: Mapping[str, str], memory: int | None) -> int | None:
    """Return the MiB of one device from the node label, or else from `memory`."""
    return _number(labels, LABEL_MEMORY) or (memory // MIB if memory else None)


def _devices(labels: Mapping[str, str], offer: Amounts, memory: int | None) -> Fraction:
    """Return how many devices the offered HAMi cores, or else the memory, add up to."""
    if offer.get(CORES, 0) > 0:
        return Fraction(offer[CORES], WHOLE_CORES)
    size = _memory(labels, offer, memory)
    return Fraction(offer.get(MEMORY, 0), size) if size else Fraction(0)


def _counted(resource: Resource, labels: Mapping[str, str], offer: Amounts) -> int | None:
    """Return how many clients share one device, from the label with the number of devices."""
    devices = _number(labels, LABEL_COUNT)
    return max(1, offer[resource] // devices) if devices else None


def _number(labels: Mapping[str, str], key: str) -> int | None:
    """Return the number in a label. None if the label is absent, 0 or not a number."""
    text = labels.get(key, "")
    return int(text) if _NUMBER.fullmatch(text) else None


SHARES = ".shared"
"""Suffix of a resource that several pods share in time."""

_MIG = "nvidia.com/mig-"
_PROFILE = re.compile(r"(?:([1-9])c\.)?([1-9]\d?)g\.(\d{1,6})gb(?:[.+-].*)?", re.ASCII)
_MOST = 7
"""Number of compute slices of a device."""

_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the device memory by number of compute slices, of seven."""
_QUARTERED = frozenset({(1, 6), (2, 12), (4, 24), (1, 24), (2, 48), (4, 96)})
"""Profiles of devices with four slices instead of seven: A30 and RTX PRO 6000."""


def is_slice(resource: Resource) -> bool:
    """Return whether a resource is a MIG slice."""
    return resource.startswith(_MIG)


def profile_of(resource: Resource) -> str:
    """Return the MIG profile of a slice resource, with or without time-sharing."""
    return resource.removeprefix(_MIG).removesuffix(SHARES)


def slice_memory(resource: Resource) -> int | None:
    """Return the device memory of one unit in bytes. None if the resource is not a slice."""
    match = _PROFILE.fullmatch(profile_of(resource)) if is_slice(resource) else None
    return int(match[3]) * GIB if match else None


def slice_price(profile: str, memory: int | None = None) -> Fraction | None:
    """Return the fraction of a device that a MIG profile such as `1g.5gb` is. None if invalid.

    It is the larger of the compute and the memory fraction, because the rest of the other is
    unusable. `memory`: MiB of the whole device, if known.
    """
    match = _PROFILE.fullmatch(profile)
    if match is None or int(match[2]) > _MOST:
        return None
    compute, slices, gigabytes = match[1], int(match[2]), int(match[3])
    if memory:
        eighths = (gigabytes * 1024 * 16 + memory) // (2 * memory)  # to the nearest
    elif (slices, gigabytes) in _QUARTERED:
        eighths = 2 * slices
    else:
        eighths = _EIGHTHS.get(slices, slices)
    price: Fraction = max(Fraction(slices, _MOST), Fraction(min(max(eighths, 1), 8), 8))
    return price * Fraction(min(int(compute), slices), slices) if compute else price
