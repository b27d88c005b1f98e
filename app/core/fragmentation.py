"""What kinds of pods come, and how much of what is free on a node they could use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023: devices that are free but of no use to a kind of pod are
fragmented for it. A pod goes where it takes least from what the others, weighed by how often
they come, could have used. Beyond the paper, kinds that may go to few pools weigh more. Integers
only; the same pods give the same figures in any order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import le, mul

from app.core.backlog import Parts
from app.core.devices import Devices, place
from app.core.model import Amounts, PoolName, Resource
from app.core.sites import Layout, Room

Kind = tuple[tuple[tuple[Resource, int], ...], tuple[PoolName, ...]]
"""A kind of pod: what it asks for, sorted, and the pools it may go to; none: any."""

_PLAIN = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-", "attachable-volumes-")


def is_device(resource: Resource) -> bool:
    """Tell whether a resource is worth keeping whole: everything but the native ones."""
    return not resource.startswith(_PLAIN)


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

    __slots__ = ("_due", "_known", "_seen", "_tallies", "sample", "stamp", "supply")

    def __init__(self) -> None:
        self.stamp = 0
        self.supply: dict[PoolName, Mapping[Resource, int]] = {}
        self.sample: tuple[tuple[Kind, int], ...] = ()
        self._seen = 0
        self._due = 1
        self._tallies: dict[Kind, _Tally] = {}
        self._known: dict[tuple[int, tuple[PoolName, ...]], tuple[Parts, _Counted]] = {}

    def saw(self, parts: Parts, pools: tuple[PoolName, ...] = ()) -> None:
        """A workload came that may go to these pools; none named: to any."""
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
        ranked = self._ranked()
        self.sample = tuple((t.kind, self._weight(t)) for t in ranked[: self.SAMPLE])
        self.stamp += 1
        if len(ranked) > self.KINDS or self._seen >= self.MEMORY:
            self._forget(ranked)
        self._due = self._seen + min(max(self._seen, 1), self.MEMORY // 2)
        return True

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


class Gauge:
    """Reads from a sample how much of what is free on a node of one pool could be used."""

    __slots__ = ("_columns", "_demands", "_levels", "_values", "_weights", "devices")

    CACHED = 1 << 16
    """Most states remembered."""

    def __init__(
        self, layout: Layout, sample: tuple[tuple[Kind, int], ...], pool: PoolName
    ) -> None:
        self.devices = [i for i, r in enumerate(layout.resources) if is_device(r)]
        demands: dict[tuple[int, int], list[tuple[int, dict[int, int]]]] = {}
        for (demand, pools), count in sample:
            if (pools and pool not in pools) or any(r not in layout.index for r, _ in demand):
                continue
            needs = {layout.index[resource]: value for resource, value in demand}
            for index in needs.keys() & set(self.devices):
                others = {i: value for i, value in needs.items() if i != index}
                demands.setdefault((index, needs[index]), []).append((count, others))
        self._demands = sorted(demands)
        rows = [demands[key] for key in self._demands]
        asked = sorted({i for row in rows for _, others in row for i in others})
        levels = {i: sorted({o[i] for row in rows for _, o in row if i in o}) for i in asked}
        self._levels = list(levels.items())
        self._columns = [
            [
                (count, [bisect_right(level, others.get(i, 0)) for i, level in levels.items()])
                for count, others in row
            ]
            for row in rows
        ]
        self._weights: dict[tuple[int, ...], list[int]] = {}
        self._values: dict[tuple[tuple[Devices, ...], tuple[int, ...]], list[int]] = {}

    def usable(self, room: Room) -> int:
        """Return the thousandths of devices in a room that pods could use, times their number."""
        free, devices = room
        ranks = tuple([bisect_right(level, free[i]) for i, level in self._levels])
        weights = self._weights.get(ranks)
        if weights is None:
            if len(self._weights) >= self.CACHED:
                self._weights.clear()
            weights = self._weights[ranks] = [
                sum(count for count, least in column if all(map(le, least, ranks)))
                for column in self._columns
            ]
        state = (devices, tuple([free[i] for i in self.devices]))
        values = self._values.get(state)
        if values is None:
            if len(self._values) >= self.CACHED:
                self._values.clear()
            values = self._values[state] = self._read(room)
        return sum(map(mul, weights, values))

    def spare(self, room: Room) -> int:
        """Return the thousandths of devices in a room that are free."""
        free, devices = room
        sizes = {one.row: one.size for one in devices}
        return sum(max(0, free[i]) * 1000 // sizes.get(i, 1) for i in self.devices)

    def _read(self, room: Room) -> list[int]:
        free, devices = room
        sold = {one.row: one for one in devices}
        values = []
        for index, demand in self._demands:
            one = sold.get(index)
            if one is None:
                values.append(free[index] * 1000 if free[index] >= demand else 0)
            elif place(one, demand) is None:
                values.append(0)
            else:
                least = min(demand, one.size)
                parts = sum(part for part in one.parts if part >= least)
                values.append((one.whole * one.size + parts) * 1000 // one.size)
        return values
