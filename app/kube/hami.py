"""Reads the devices that HAMi's device plugin writes to a node annotation.

HAMi does not advertise cores and memory in `allocatable`, because its own scheduler accounts them.
Source: Project-HAMi/HAMi, `hami.io/node-nvidia-register`: JSON since 2.5, comma-separated before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from app.core.model import Amounts, Resource
from app.core.podspec.device_fractions import CORES, MAX_NODE_DEVICES, MEMORY, WHOLE_CORES

log = logging.getLogger("fairgate.kube")

ANNOTATION = "hami.io/node-nvidia-register"

_MOST = 1 << 31
"""Limit in MiB and percent that no device reaches. A larger number is invalid."""

_LIMITS = {CORES: MAX_NODE_DEVICES * WHOLE_CORES, MEMORY: MAX_NODE_DEVICES * 1024 * 1024}
"""The largest amounts of a node: 1024 devices of 100 % and of 1 TiB. Larger ones are no capacity:
a typing error, or the user of a node who wants a larger pool."""


class _Device(msgspec.Struct, frozen=True):
    devmem: int = 0
    devcore: int = 0
    health: bool = True
    type: str = ""


_DECODER = msgspec.json.Decoder(list[_Device])


def add_hami_devices(node: str, allocatable: Amounts, annotations: Mapping[str, str]) -> Amounts:
    """Return the capacity of a node, with the cores and memory from its annotation.

    Advertised amounts take precedence. An invalid annotation is ignored. Amounts of more devices
    than a node can have are ignored with a warning.
    """
    offered = _with_annotation(allocatable, annotations)
    large = {r: offered[r] for r, most in _LIMITS.items() if offered.get(r, 0) > most}
    if not large:
        return offered
    _warn(node, tuple(large.items()))
    return {resource: value for resource, value in offered.items() if resource not in large}


@lru_cache(maxsize=1024)
def _warn(node: str, amounts: tuple[tuple[Resource, int], ...]) -> None:
    """Warn once of the amounts of a node: its annotation changes often."""
    facts = {"amounts": dict(amounts), "limits": {r: _LIMITS[r] for r, _ in amounts}}
    log.warning(
        "device amounts ignored: no node has so many devices", extra={"node": node, **facts}
    )


def _with_annotation(allocatable: Amounts, annotations: Mapping[str, str]) -> Amounts:
    written = annotations.get(ANNOTATION)
    if not written:
        return allocatable
    healthy = [each for each in _devices(written) if each.health]
    told = {
        CORES: sum(each.devcore for each in healthy),
        MEMORY: sum(each.devmem for each in healthy),
    }
    more = {r: value for r, value in told.items() if value and r not in allocatable}
    return {**allocatable, **more}


def device_product(annotations: Mapping[str, str]) -> str:
    """Return the device type if all devices have the same, else ""."""
    kinds = {each.type.strip() for each in _devices(annotations.get(ANNOTATION, ""))}
    return kinds.pop() if len(kinds) == 1 else ""


def _devices(written: str) -> list[_Device]:
    """Return the devices in an annotation, empty if it is invalid."""
    try:
        found = _DECODER.decode(written) if written.startswith("[") else list(_fields(written))
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
        return []
    fine = all(0 <= each.devmem < _MOST and 0 <= each.devcore < _MOST for each in found)
    return found if fine else []


def _fields(written: str) -> Iterator[_Device]:
    """Parse `id,count,memory,cores,type,numa,health:` for each device."""
    for line in filter(None, written.split(":")):
        fields = line.split(",")
        health = fields[6].strip().lower() == "true" if len(fields) > 6 else True
        yield _Device(int(fields[2]), int(fields[3]), health, fields[4])
