"""What part of a whole device one unit of a resource is, as its name and its node's labels tell.

Slices, time-shared devices, and HAMi's per cent and MiB, all of NVIDIA's; exact fractions.
What cannot be told is left out: then the resource is compared with nothing but itself.
Sources: k8s-device-plugin and GPU feature discovery (labels).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from app.core.asks.slices import SHARES, is_slice, profile_of, slice_price
from app.core.model import Amounts, Resource
from app.core.resources import MIB

WHOLE = Resource("nvidia.com/gpu")
"""The whole device that parts are parts of; with HAMi, a seat on one."""
SHARED = Resource("nvidia.com/gpu.shared")
CORES = Resource("nvidia.com/gpucores")
MEMORY = Resource("nvidia.com/gpumem")

SIDES = frozenset({CORES, MEMORY})
"""What HAMi sells of one device side by side: the larger part counts, not the sum."""

WHOLE_CORES = 100

LABEL_MEMORY = "nvidia.com/gpu.memory"
"""MiB of each device of a node."""
LABEL_COUNT = "nvidia.com/gpu.count"
LABEL_PRODUCT = "nvidia.com/gpu.product"
LABEL_GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
LABEL_GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"

_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


def is_part(resource: Resource) -> bool:
    """Tell whether a resource is sold as part of a device, by its name."""
    return resource == SHARED or resource in SIDES or is_slice(resource)


def whole_devices(demand: Amounts) -> int:
    """Return how many devices a pod has for itself where HAMi sells them: all, if it names no part.

    Elsewhere a device is a device, and this says nothing.
    """
    return 0 if any(demand.get(side, 0) for side in SIDES) else demand.get(WHOLE, 0)


def devices_in(offer: Amounts, told: Mapping[Resource, Fraction]) -> Fraction:
    """Return how many devices a node comes to that sells parts of any size, at these prices."""
    parts = {r: told[r] * value for r, value in offer.items() if r in told and value > 0}
    beside = {WHOLE, *SIDES}
    largest = max((v for r, v in parts.items() if r in beside), default=Fraction(0))
    return largest + sum((v for r, v in parts.items() if r not in beside), Fraction(0))


def label_memory(labels: Mapping[str, str]) -> int | None:
    """Return the bytes of a node's devices as its label tells; None: it does not."""
    told = _number(labels, LABEL_MEMORY)
    return told * MIB if told else None


def prices(
    labels: Mapping[str, str], offer: Amounts, memory: int | None = None
) -> dict[Resource, Fraction]:
    """Return what part of a whole device one unit is, of each resource that a node offers.

    `memory` is that of one device in bytes, where the node's own labels do not tell.
    """
    found: dict[Resource, Fraction] = {}
    for resource, value in offer.items():
        if value > 0 and (resource == WHOLE or is_part(resource)):
            price = _price(resource, labels, offer, memory)
            if price is not None:
                found[resource] = price
    return found


def sizes(
    labels: Mapping[str, str], offer: Amounts, memory: int | None = None
) -> dict[Resource, int]:
    """Return the size of one device, of what a node sells so that any part may be had of it."""
    found: dict[Resource, int] = {}
    if offer.get(CORES, 0) > 0:
        found[CORES] = WHOLE_CORES
    if offer.get(MEMORY, 0) > 0:
        size = _memory(labels, offer, memory)
        if size is not None:
            found[MEMORY] = size
    return found


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
    """What a plugin calls a GPU may be a seat on one, a slice, or one of several clients."""
    seats = offer[WHOLE]
    if any(offer.get(side, 0) > 0 for side in SIDES):
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
    """Return the MiB of one device, as told or as what the node sells comes to."""
    told = _told(labels, memory)
    if told:
        return told
    devices = offer.get(CORES, 0) // WHOLE_CORES or _number(labels, LABEL_COUNT)
    return (offer.get(MEMORY, 0) // devices or None) if devices else None


def _told(labels: Mapping[str, str], memory: int | None) -> int | None:
    """Return the MiB of one device as the node's labels tell, or else as `memory` does."""
    return _number(labels, LABEL_MEMORY) or (memory // MIB if memory else None)


def _devices(labels: Mapping[str, str], offer: Amounts, memory: int | None) -> Fraction:
    """Return how many devices the sides that a node sells add up to."""
    if offer.get(CORES, 0) > 0:
        return Fraction(offer[CORES], WHOLE_CORES)
    size = _memory(labels, offer, memory)
    return Fraction(offer.get(MEMORY, 0), size) if size else Fraction(0)


def _counted(resource: Resource, labels: Mapping[str, str], offer: Amounts) -> int | None:
    """Return how many share one device, if the number of devices is told instead."""
    devices = _number(labels, LABEL_COUNT)
    return max(1, offer[resource] // devices) if devices else None


def _number(labels: Mapping[str, str], key: str) -> int | None:
    """Return a number that a label tells; None if it tells none above 0."""
    text = labels.get(key, "")
    return int(text) if _NUMBER.fullmatch(text) else None
