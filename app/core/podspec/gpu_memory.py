"""The device memory that a pod declares, and whether its requested devices provide it.

Model sizes 7B, 13B and 70B are those of the product's sources. Any other size counts two bytes per
parameter plus a fifth for memory other than the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.errors import InvalidInput, InvalidQuantity
from app.core.model import Amounts
from app.core.podspec.device_fractions import CORES, MEMORY, SHARED, SHARES, WHOLE, slice_memory
from app.core.quantities import GIB, MIB, ManagedResources, parse_quantity
from app.core.safe_text import quote_text
from app.core.well_known import ANNOTATION_GPU_MEMORY, ANNOTATION_MODEL_SIZE

_KNOWN = {"7B": 13 * GIB, "13B": 26 * GIB, "70B": 140 * GIB}
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([MBT])", re.ASCII)
_PARAMETERS = {"M": 10**6, "B": 10**9, "T": 10**12}
_BYTES_EACH = Fraction(2 * 120, 100)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The device memory that a pod needs in bytes, and the requests that provide it.

    `own`: bytes that follow from the names or amounts of the requested resources. `devices`: number
    of requested devices of the size that the pool has.
    """

    needed: int
    own: int
    devices: int

    def is_met_by(self, each: int | None) -> bool | None:
        """Return whether devices of `each` bytes suffice. None if their memory is unknown."""
        if self.own >= self.needed or not self.devices:
            return self.own >= self.needed
        return None if each is None else self.own + self.devices * each >= self.needed


def declared_memory(annotations: Mapping[str, str]) -> int:
    """Return the device memory that a pod declares, in bytes; 0 if absent or invalid."""
    try:
        return parse_declared_memory(annotations)
    except InvalidInput:
        return 0


def parse_declared_memory(annotations: Mapping[str, str]) -> int:
    """Return the device memory that a pod declares, in bytes; 0 if absent. Raises InvalidInput.

    The memory annotation comes before the model size, which is only an estimate.
    """
    size, memory = annotations.get(ANNOTATION_MODEL_SIZE), annotations.get(ANNOTATION_GPU_MEMORY)
    guessed = _model(size) if size is not None else 0
    return _memory(memory) if memory is not None else guessed


def need_of(needed: int, demand: Amounts, managed: ManagedResources) -> MemoryNeed:
    """Return the memory need of a pod with this demand. Fractions of several devices are summed."""
    own = devices = 0
    metered = demand.get(MEMORY, 0) > 0
    for resource, value in demand.items():
        if value <= 0 or resource not in managed:
            continue
        each = slice_memory(resource)
        if resource == MEMORY:  # of all devices together: see `requests`
            own += value * MIB
        elif each is not None:
            own += value * each
        elif metered and resource in (WHOLE, SHARED, CORES):
            continue
        elif resource == CORES:
            devices += 0 if demand.get(WHOLE) else 1
        else:  # two fractions of shared devices may be on one device
            devices += 1 if resource.endswith(SHARES) else value
    return MemoryNeed(needed, own, devices)


def describe_shortage(need: MemoryNeed, each: int | None) -> str:
    """Return why devices of `each` bytes are too small. Empty string if sufficient or unknown."""
    if need.is_met_by(each) is not False:
        return ""
    if not need.devices:
        return (
            f"it needs {format_memory(need.needed)} of device memory, and asks for "
            f"{format_memory(need.own)}"
        )
    one = f"{need.devices} devices of {format_memory(each or 0)} each"
    those = one if need.devices > 1 else f"1 device of {format_memory(each or 0)}"
    also = f" and {format_memory(need.own)} besides" if need.own else ""
    return f"it needs {format_memory(need.needed)} of device memory, and asks for {those}{also}"


def declaring_annotation(annotations: Mapping[str, str]) -> str:
    """Return the annotation that declares the device memory, as the user wrote it."""
    for key in (ANNOTATION_GPU_MEMORY, ANNOTATION_MODEL_SIZE):
        if key in annotations:
            return f"{key}: {annotations[key]}"
    return ""


def format_memory(value: int) -> str:
    """Return bytes in readable form: GiB with at most two decimals."""
    hundredths = (value * 100 + GIB - 1) // GIB
    whole, rest = divmod(hundredths, 100)
    return f"{whole}.{rest:02}".rstrip("0").rstrip(".") + "Gi"


def _memory(text: str) -> int:
    try:
        value = parse_quantity(text.strip())
    except InvalidQuantity as error:
        raise InvalidInput(
            f"{ANNOTATION_GPU_MEMORY}: {quote_text(text)} is not an amount of memory; "
            "write it as 40Gi."
        ) from error
    if value < MIB:
        raise InvalidInput(
            f"{ANNOTATION_GPU_MEMORY}: {quote_text(text)} is less than 1Mi, which no model fits "
            "in; write it with its unit, as 40Gi."
        )
    return -(-value.numerator // value.denominator)


def _model(text: str) -> int:
    name = text.strip().upper()
    match = _SIZE.fullmatch(name)
    parameters = Fraction(match[1]) * _PARAMETERS[match[2]] if match else Fraction(0)
    if not parameters:
        raise InvalidInput(
            f"{ANNOTATION_MODEL_SIZE}: {quote_text(text)} is not a number of "
            "parameters; write it as "
            "7B, 13B, 70B or 0.5B, or state the memory in " + ANNOTATION_GPU_MEMORY + "."
        )
    if name in _KNOWN:
        return _KNOWN[name]
    value = parameters * _BYTES_EACH
    return -(-value.numerator // value.denominator)
