"""What HAMi's device plugin notes on a node instead of advertising it: the devices, one by one.

HAMi keeps cores and memory out of `allocatable`, where only its own scheduler would judge them.
Source: Project-HAMi/HAMi, `hami.io/node-nvidia-register`: JSON since 2.5, fields by comma before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from app.core.asks.parts import CORES, MEMORY
from app.core.model import Amounts

ANNOTATION = "hami.io/node-nvidia-register"

_MOST = 1 << 31
"""More MiB or per cent than any device has: such a number is garbage."""


class _Device(msgspec.Struct, frozen=True):
    devmem: int = 0
    devcore: int = 0
    health: bool = True
    type: str = ""


_DECODER = msgspec.json.Decoder(list[_Device])


def with_hami(allocatable: Amounts, annotations: Mapping[str, str]) -> Amounts:
    """Return what a node offers, with the cores and memory that only its annotation tells.

    What is advertised is taken as it is; an annotation that cannot be read tells nothing.
    """
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


def product(annotations: Mapping[str, str]) -> str:
    """Return the kind of the devices, if all are of one; "" otherwise."""
    kinds = {each.type.strip() for each in _devices(annotations.get(ANNOTATION, ""))}
    return kinds.pop() if len(kinds) == 1 else ""


def _devices(written: str) -> list[_Device]:
    """Return the devices that an annotation lists; none if it cannot be read."""
    try:
        found = _DECODER.decode(written) if written.startswith("[") else list(_fields(written))
    except (msgspec.MsgspecError, ValueError, IndexError):
        return []
    fine = all(0 <= each.devmem < _MOST and 0 <= each.devcore < _MOST for each in found)
    return found if fine else []


def _fields(written: str) -> Iterator[_Device]:
    """Read `id,count,memory,cores,type,numa,health:` for each device."""
    for line in filter(None, written.split(":")):
        fields = line.split(",")
        health = fields[6].strip().lower() == "true" if len(fields) > 6 else True
        yield _Device(int(fields[2]), int(fields[3]), health, fields[4])
