"""Fractional devices: from which physical device of a node a fraction of a resource is taken.

Less than one device comes from a single device: the one with least left that suffices. Whole
devices come from unused devices. `Devices` only counts. `DeviceTray` identifies devices. Both
choose alike.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

DeviceAmounts = list[tuple[int, int]]
"""The devices of one pod: number of the device, and the amount on that device."""


class Devices(NamedTuple):
    """Devices of `size` each: the number of unused ones, and what remains of partly used ones.

    `row`: index of the resource in the layout. `parts`: sorted, without used-up devices.
    """

    row: int
    size: int
    whole: int
    parts: tuple[int, ...]


def subtract_demand(devices: Devices, demand: int) -> Devices | None:
    """Return the devices after `demand` is placed. None if it does not fit."""
    row, size, whole, parts = devices
    count, rest = divmod(demand, size)
    whole -= count
    if rest:
        spot = bisect_left(parts, rest)
        if spot < len(parts):
            remains = parts[spot] - rest
            parts = parts[:spot] + parts[spot + 1 :]
        else:
            whole -= 1
            remains = size - rest
        if remains:
            spot = bisect_left(parts, remains)
            parts = (*parts[:spot], remains, *parts[spot:])
    return Devices(row, size, whole, parts) if whole >= 0 else None


def count_fitting_demands(devices: Devices, demand: int) -> int:
    """Return how often `demand` > 0 can be placed, one after the other."""
    count, rest = divmod(demand, devices.size)
    if not rest:
        return devices.whole // count
    spots = sum(part // rest for part in devices.parts)
    if not count:
        return spots + devices.whole * (devices.size // rest)
    low, high = 0, devices.whole // count
    while low < high:  # a fraction that fits on no partly used device opens an unused one
        middle = (low + high + 1) // 2
        opened = -(-max(0, middle - spots) // (devices.size // rest))
        low, high = (
            (middle, high) if count * middle + opened <= devices.whole else (low, middle - 1)
        )
    return low


def subtract_forcibly(devices: Devices, demand: int) -> Devices:
    """Return the devices after `demand` is subtracted, even if it does not properly fit."""
    proper = subtract_demand(devices, demand)
    if proper is not None:
        return proper
    left = [*devices.parts, *([devices.size] * devices.whole)]
    while demand and left:
        most = left.pop()
        if most > demand:
            insort(left, most - demand)
        demand -= min(most, demand)
    whole = left.count(devices.size)
    return devices._replace(whole=whole, parts=tuple(left[: len(left) - whole]))


class DeviceTray:
    """Numbered devices. A demand that does not fit is recorded, not refused."""

    __slots__ = ("_partly", "_row", "_unused", "capacity", "size")

    def __init__(self, row: int, size: int, capacity: int) -> None:
        self.size = size
        self.capacity = capacity
        self._row = row
        count, odd = divmod(max(0, capacity), size)
        self._unused = list(range(count - 1, -1, -1))
        self._partly = [(odd, count)] if odd else []

    def device_counts(self) -> Devices:
        """Return the devices as a count."""
        parts = tuple([left for left, _ in self._partly])
        return Devices(self._row, self.size, len(self._unused), parts)

    def allocate(self, demand: int) -> tuple[DeviceAmounts, bool]:
        """Allocate devices. Return them, and whether all of the demand properly fits."""
        count, rest = divmod(demand, self.size)
        spot = bisect_left(self._partly, (rest, -1)) if rest else 0
        opens = 1 if rest and spot == len(self._partly) else 0
        if count + opens > len(self._unused):
            return self._allocate_partly(demand), False
        seats = []
        if rest:
            left, number = (self.size, self._unused.pop()) if opens else self._partly.pop(spot)
            self._store_remainder(number, left - rest)
            seats.append((number, rest))
        seats += [(self._unused.pop(), self.size) for _ in range(count)]
        return seats, True

    def release(self, seats: DeviceAmounts) -> None:
        """Release devices."""
        for number, amount in seats:
            if amount < self.size:
                for spot, (left, other) in enumerate(self._partly):
                    if other == number:
                        amount += left
                        del self._partly[spot]
                        break
            self._store_remainder(number, amount)

    def _allocate_partly(self, demand: int) -> DeviceAmounts:
        """Allocate as much as possible, from the devices with most left."""
        seats: DeviceAmounts = []
        while demand and (self._unused or self._partly):
            if self._unused:
                left, number = self.size, self._unused.pop()
            else:
                left, number = self._partly.pop()
            amount = min(left, demand)
            demand -= amount
            self._store_remainder(number, left - amount)
            seats.append((number, amount))
        return seats

    def _store_remainder(self, number: int, left: int) -> None:
        if left == self.size:
            self._unused.append(number)
        elif left:
            insort(self._partly, (left, number))
