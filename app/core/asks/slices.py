"""MIG slices: what the name of one tells of its memory, and of the device that it is cut from.

NVIDIA's only, exact fractions. Source: NVIDIA MIG user guide (profiles).
"""

from __future__ import annotations

import re
from fractions import Fraction

from app.core.model import Resource
from app.core.resources import GIB

SHARES = ".shared"
"""What the name of a resource ends with that several pods share in time."""

_MIG = "nvidia.com/mig-"
_PROFILE = re.compile(r"(?:([1-9])c\.)?([1-9]\d?)g\.(\d{1,6})gb(?:[.+-].*)?", re.ASCII)
_MOST = 7
"""Compute slices of a device."""

_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the memory that come with so many of seven compute slices."""
_QUARTERED = frozenset({(1, 6), (2, 12), (4, 24), (1, 24), (2, 48), (4, 96)})
"""Profiles of devices that are cut into four, not seven: A30 and RTX PRO 6000."""


def is_slice(resource: Resource) -> bool:
    """Tell whether a resource is slices of a device."""
    return resource.startswith(_MIG)


def profile_of(resource: Resource) -> str:
    """Return the profile of a resource that is slices, shared ones or not."""
    return resource.removeprefix(_MIG).removesuffix(SHARES)


def slice_memory(resource: Resource) -> int | None:
    """Return the bytes of device memory that one unit has; None: it is no slice."""
    match = _PROFILE.fullmatch(profile_of(resource)) if is_slice(resource) else None
    return int(match[3]) * GIB if match else None


def slice_price(profile: str, memory: int | None = None) -> Fraction | None:
    """Return what part of a device a MIG profile such as `1g.5gb` is; None: it is none.

    The larger of its parts of compute and memory: nobody can have what it leaves of the other.
    `memory` is that of the whole device in MiB, if known.
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
