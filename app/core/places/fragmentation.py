"""What kinds of pods come, and how much of what is free on a node they could use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023: a pod goes where it takes least from what the others, weighed
by how often they come, could have used. Beyond the paper, a kind can use as many devices as its
pods still fit, not all of them as soon as one does; and kinds that may go to few pools weigh more.
Integers only; the same pods give the same figures in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import mul

from app.core.asks.shape import Parts
from app.core.model import Amounts, PoolName, Resource
from app.core.places.devices import Devices, times
from app.core.places.sites import MANY, Layout, Room
from app.core.resources import is_device

Kind = tuple[tuple[tuple[Resource, int], ...], tuple[PoolName, ...]]
"""A kind of pod: what it asks for, sorted, and the pools it may go to; none: any."""

Sample = tuple[tuple[Kind, int], ...]
"""Kinds of pods, and how much each counts."""


class _Tally:
    __slots__ = ("count", "kind")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.count = 0


_Counted = list[tuple[_Tally, int]]


class Mix:
    """How often each kind of pod came, lately; shared by the pools of a cluster.

    Only pods that ask for devices count. Figures are read from a sample that `draw` renews when
    as many have come as were known before, so that they stand still most of the time; `stamp`
    tells samples apart. `supply` is what each pool offers, in thousandths of devices: a kind
    counts the more in the sample, the smaller the part of the devices it may use, by the square,
    which measured best on a log of pods that name models.
    """

    SAMPLE = 256
    """Most kinds in a sample: the most frequent ones."""
    KINDS = 1024
    """Most kinds remembered."""
    MEMORY = 8192
    """Pods after which the past counts half."""

    __slots__ = ("_due", "_given", "_known", "_seen", "_tallies", "sample", "stamp", "supply")

    def __init__(self, given: Sample | None = None) -> None:
        """`given`: a sample drawn elsewhere, which stays; nothing is counted here then."""
        self.stamp = 0
        self.supply: dict[PoolName, Mapping[Resource, int]] = {}
        self.sample: Sample = given or ()
        self._given = given is not None
        self._seen = 0
        self._due = 1
        self._tallies: dict[Kind, _Tally] = {}
        self._known: dict[tuple[int, tuple[PoolName, ...]], tuple[Parts, _Counted]] = {}

    def saw(self, parts: Parts, pools: tuple[PoolName, ...] = ()) -> None:
        """A workload came that may go to these pools; none named: to any."""
        if self._given:
            return
        known = self._known.get((id(parts), pools))
        if known is None:
            if len(self._known) >= 4 * self.KINDS:
                self._forget(self._ranked())
            tallies = [(self._tally(amounts, pools), count) for amounts, count in parts]
            counted = [(tally, count) for tally, count in tallies if tally is not None]
            known = self._known[id(parts), pools] = (parts, counted)  # keeps its id its own
        for tally, count in known[1]:
            tally.count += count
            self._seen += count

    def draw(self) -> bool:
        """Renew the sample if it is time; tell whether it was."""
        if self._seen < self._due:
            return False
        self.sample = self.drawn()
        self.stamp += 1
        if len(self._tallies) > self.KINDS or self._seen >= self.MEMORY:
            self._forget(self._ranked())
        self._due = self._seen + min(max(self._seen, 1), self.MEMORY // 2)
        return True

    def drawn(self) -> Sample:
        """Return the sample as it will be read next. Changes nothing."""
        if self._seen < self._due:
            return self.sample
        return tuple((t.kind, self._weight(t)) for t in self._ranked()[: self.SAMPLE])

    @property
    def kinds(self) -> int:
        """How many kinds are remembered."""
        return len(self._tallies)

    def _ranked(self) -> list[_Tally]:
        return sorted(self._tallies.values(), key=lambda tally: (-tally.count, tally.kind))

    def _weight(self, tally: _Tally) -> int:
        demand, pools = tally.kind
        device = next(resource for resource, _ in demand if is_device(resource))
        there = {pool: offer.get(device, 0) for pool, offer in self.supply.items()}
        usable = sum(there.get(pool, 0) for pool in pools or there)
        if usable <= 0:
            return tally.count
        return tally.count * 100 * sum(there.values()) ** 2 // usable**2

    def _forget(self, ranked: list[_Tally]) -> None:
        if self._seen >= self.MEMORY:
            for tally in ranked:
                tally.count //= 2
        limit = self.KINDS if len(ranked) <= self.KINDS else self.KINDS // 2
        kept = [tally for tally in ranked[:limit] if tally.count]
        self._tallies = {tally.kind: tally for tally in kept}
        self._seen = sum(tally.count for tally in kept)
        self._due = min(self._due, 2 * self._seen + 1)
        self._known.clear()

    def _tally(self, amounts: Amounts, pools: tuple[PoolName, ...]) -> _Tally | None:
        demand = tuple(sorted(pair for pair in amounts.items() if pair[1] > 0))
        if not any(is_device(resource) for resource, _ in demand):
            return None
        kind = (demand, tuple(sorted(pools)))
        tally = self._tallies.get(kind)
        if tally is None:
            tally = self._tallies[kind] = _Tally(kind)
        return tally


_Limits = tuple[int, list[int], list[int]]
"""For the devices of a room alone: the highest limit, then a limit and a weight for each row."""


class Gauge:
    """Reads from a sample how much of what is free on a node of one pool could be used.

    That is, for each kind, the devices of as many pods as still fit there. So devices that the
    cpu beside them is not enough for count as lost already, and cost nothing to take.
    """

    __slots__ = ("_demands", "_known", "_limits", "_needs", "_quotients", "_rows", "devices")

    CACHED = 1 << 14
    """Most rooms remembered."""

    def __init__(self, layout: Layout, sample: Sample, pool: PoolName) -> None:
        self.devices = [i for i, r in enumerate(layout.resources) if is_device(r)]
        rows: dict[tuple[tuple[int, int], tuple[int, ...]], int] = {}
        for (demand, pools), count in sample:
            if (pools and pool not in pools) or any(r not in layout.index for r, _ in demand):
                continue
            needs = {layout.index[resource]: value for resource, value in demand}
            for index in sorted(needs.keys() & set(self.devices)):
                others = [0 if i == index else needs.get(i, 0) for i in range(len(layout.index))]
                row = ((index, needs[index]), tuple(others))
                rows[row] = rows.get(row, 0) + count
        self._rows = [(wanted, rows[wanted, others]) for wanted, others in sorted(rows)]
        self._demands = sorted({wanted for wanted, _ in self._rows})
        columns = enumerate(zip(*[others for _, others in sorted(rows)], strict=True))
        self._needs = [(i, column, max(column)) for i, column in columns if any(column)]
        self._limits: dict[tuple[tuple[Devices, ...], tuple[int, ...]], _Limits] = {}
        self._quotients: dict[tuple[int, int], list[int]] = {}
        self._known: dict[Room, int] = {}

    def usable(self, room: Room) -> int:
        """Return the thousandths of devices that pods could use, times how often they come."""
        known = self._known.get(room)
        if known is None:
            if len(self._known) >= self.CACHED:
                self._known.clear()
                self._limits.clear()
                self._quotients.clear()
            known = self._known[room] = self._read(room)
        return known

    def spare(self, room: Room) -> int:
        """Return the thousandths of devices in a room that are free."""
        free, devices = room
        sizes = {one.row: one.size for one in devices}
        return sum(max(0, free[i]) * 1000 // sizes.get(i, 1) for i in self.devices)

    def wanted(self, room: Room) -> int:
        """Return what `usable` would be if any part of what is free could be used."""
        free, devices = room
        sizes = {one.row: one.size for one in devices}
        return sum(
            max(0, free[index]) * 1000 // sizes.get(index, 1) * count
            for (index, _), count in self._rows
        )

    def _read(self, room: Room) -> int:
        free, devices = room
        state = (devices, tuple([free[i] for i in self.devices]))
        found = self._limits.get(state)
        if found is None:
            found = self._limits[state] = self._limit(room)
        most, limits, weights = found
        if not most:
            return 0
        # What is plentiful cannot be what runs out first.
        short = [
            self._quotient(i, free[i], needs)
            for i, needs, top in self._needs
            if free[i] < most * top
        ]
        return sum(map(mul, weights, map(min, limits, *short) if short else limits))

    def _quotient(self, index: int, free: int, needs: tuple[int, ...]) -> list[int]:
        """Return how often one resource alone suffices for each row."""
        found = self._quotients.get((index, free))
        if found is None:
            left = max(0, free)
            found = [left // need if need else MANY for need in needs]
            self._quotients[index, free] = found
        return found

    def _limit(self, room: Room) -> _Limits:
        """Return how many pods of each row the devices alone suffice for, and what each weighs."""
        free, devices = room
        sold = {one.row: one for one in devices}
        limit, worth = {}, {}
        for wanted in self._demands:
            index, demand = wanted
            one = sold.get(index)
            limit[wanted] = max(0, free[index] // demand if one is None else times(one, demand))
            worth[wanted] = demand * 1000 // (1 if one is None else one.size)
        limits = [limit[wanted] for wanted, _ in self._rows]
        weights = [worth[wanted] * count for wanted, count in self._rows]
        return max(limits, default=0), limits, weights
