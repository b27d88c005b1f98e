"""Fragmentation of free devices: which kinds of pods come, and how much capacity they could use.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023. A pod goes where it takes least from other kinds, weighted by
frequency. Here a kind can use the devices of as many pods as still fit. The paper counts all
devices as soon as one pod fits. Here kinds with few eligible pools have more weight. Integers only;
the result does not depend on the order of pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import mul

from app.core.model import Amounts, PoolName, Resource
from app.core.placement.node_info import UNLIMITED, FreeCapacity, ResourceIndex
from app.core.placement.shared_devices import Devices, count_fitting_demands
from app.core.podspec.equivalence_class import Parts
from app.core.quantities import is_device

PodKind = tuple[tuple[tuple[Resource, int], ...], tuple[PoolName, ...]]
"""A kind of pod: its requests, sorted, and its eligible pools (empty: any)."""

Sample = tuple[tuple[PodKind, int], ...]
"""Kinds of pods with their weights."""


class _KindCount:
    __slots__ = ("count", "kind")

    def __init__(self, kind: PodKind) -> None:
        self.kind = kind
        self.count = 0


_Counted = list[tuple[_KindCount, int]]


class PodMix:
    """Frequency of recent kinds of pods, shared by the pools of a cluster.

    Only pods that request devices count. `renew_sample` renews the sample when the number of pods
    has doubled, so costs are stable most of the time. `sample_version` identifies the sample.
    `supply`: the devices of each pool, in thousandths. The weight of a kind is divided by the
    square of the part of the devices that it may use. This measured best on a log of pods that name
    models.
    """

    SAMPLE = 256
    """Maximum number of kinds in a sample: the most frequent ones."""
    RESOURCES = 32
    """Maximum number of resources of a pod that counts: users can name any number."""
    KINDS = 1024
    """Maximum number of stored kinds."""
    MEMORY = 8192
    """Number of pods after which older counts are halved."""

    __slots__ = (
        "_counts",
        "_is_fixed",
        "_known",
        "_pods_counted",
        "_renew_at",
        "sample",
        "sample_version",
        "supply",
    )

    def __init__(self, given: Sample | None = None) -> None:
        """`given`: a fixed sample from elsewhere. If set, no pods are counted."""
        self.sample_version = 0
        self.supply: dict[PoolName, Mapping[Resource, int]] = {}
        self.sample: Sample = given or ()
        self._is_fixed = given is not None
        self._pods_counted = 0
        self._renew_at = 1
        self._counts: dict[PodKind, _KindCount] = {}
        self._known: dict[tuple[int, tuple[PoolName, ...]], tuple[Parts, _Counted]] = {}

    def count_workload(self, parts: Parts, pools: tuple[PoolName, ...] = ()) -> None:
        """Count a workload with these eligible pools (empty: any)."""
        if self._is_fixed or any(len(demand) > self.RESOURCES for demand, _ in parts):
            return
        known = self._known.get((id(parts), pools))
        if known is None:
            if len(self._known) >= 4 * self.KINDS:
                self._decay_counts(self._ranked())
            found = [(self._count_of(amounts, pools), count) for amounts, count in parts]
            counted = [(each, count) for each, count in found if each is not None]
            known = self._known[id(parts), pools] = (parts, counted)  # keeps its id unique
        for each, count in known[1]:
            each.count += count
            self._pods_counted += count

    def renew_sample(self) -> bool:
        """Renew the sample if it is due. Return whether it was renewed."""
        if self._pods_counted < self._renew_at:
            return False
        self.sample = self.preview_sample()
        self.sample_version += 1
        if len(self._counts) > self.KINDS or self._pods_counted >= self.MEMORY:
            self._decay_counts(self._ranked())
        self._renew_at = self._pods_counted + min(max(self._pods_counted, 1), self.MEMORY // 2)
        return True

    def preview_sample(self) -> Sample:
        """Return the sample as `renew_sample` would renew it. Changes no state."""
        if self._pods_counted < self._renew_at:
            return self.sample
        return tuple((t.kind, self._weight(t)) for t in self._ranked()[: self.SAMPLE])

    @property
    def kinds(self) -> int:
        """The number of stored kinds."""
        return len(self._counts)

    def _ranked(self) -> list[_KindCount]:
        return sorted(self._counts.values(), key=lambda each: (-each.count, each.kind))

    def _weight(self, counted: _KindCount) -> int:
        demand, pools = counted.kind
        device = next(resource for resource, _ in demand if is_device(resource))
        there = {pool: offer.get(device, 0) for pool, offer in self.supply.items()}
        usable = sum(there.get(pool, 0) for pool in pools or there)
        if usable <= 0:
            return counted.count
        return counted.count * 100 * sum(there.values()) ** 2 // usable**2

    def _decay_counts(self, ranked: list[_KindCount]) -> None:
        if self._pods_counted >= self.MEMORY:
            for each in ranked:
                each.count //= 2
        limit = self.KINDS if len(ranked) <= self.KINDS else self.KINDS // 2
        kept = [each for each in ranked[:limit] if each.count]
        self._counts = {each.kind: each for each in kept}
        self._pods_counted = sum(each.count for each in kept)
        self._renew_at = min(self._renew_at, 2 * self._pods_counted + 1)
        self._known.clear()

    def _count_of(self, amounts: Amounts, pools: tuple[PoolName, ...]) -> _KindCount | None:
        demand = tuple(sorted(pair for pair in amounts.items() if pair[1] > 0))
        if not any(is_device(resource) for resource, _ in demand):
            return None
        kind = (demand, tuple(sorted(pools)))
        counted = self._counts.get(kind)
        if counted is None:
            counted = self._counts[kind] = _KindCount(kind)
        return counted


_Limits = tuple[int, list[int], list[int]]
"""Limits by devices alone: the highest limit, then a limit and a weight for each row."""


class UsabilityGauge:
    """Computes from a sample how much free capacity on a node of one pool is usable.

    A kind can use the devices of as many pods as still fit. Devices without enough CPU on their
    node already count as lost, so taking them has no cost.
    """

    __slots__ = ("_demands", "_known", "_limits", "_needs", "_quotients", "_rows", "devices")

    CACHED = 1 << 14
    """Maximum number of cached free capacities."""

    def __init__(self, layout: ResourceIndex, sample: Sample, pool: PoolName) -> None:
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
        self._known: dict[FreeCapacity, int] = {}

    def usable(self, room: FreeCapacity) -> int:
        """Return the usable thousandths of devices, times the frequency of their kinds."""
        known = self._known.get(room)
        if known is None:
            if len(self._known) >= self.CACHED:
                self._known.clear()
                self._limits.clear()
                self._quotients.clear()
            known = self._known[room] = self._compute_usable(room)
        return known

    def free_devices(self, room: FreeCapacity) -> int:
        """Return the free thousandths of devices."""
        free, devices = room
        sizes = {one.row: one.size for one in devices}
        return sum(max(0, free[i]) * 1000 // sizes.get(i, 1) for i in self.devices)

    def max_usable(self, room: FreeCapacity) -> int:
        """Return the value of `usable` if all free devices could be used."""
        free, devices = room
        sizes = {one.row: one.size for one in devices}
        return sum(
            max(0, free[index]) * 1000 // sizes.get(index, 1) * count
            for (index, _), count in self._rows
        )

    def _compute_usable(self, room: FreeCapacity) -> int:
        free, devices = room
        state = (devices, tuple([free[i] for i in self.devices]))
        found = self._limits.get(state)
        if found is None:
            found = self._limits[state] = self._device_limits(room)
        most, limits, weights = found
        if not most:
            return 0
        # A plentiful resource cannot be the limit.
        short = [
            self._quotient(i, free[i], needs)
            for i, needs, top in self._needs
            if free[i] < most * top
        ]
        return sum(map(mul, weights, map(min, limits, *short) if short else limits))

    def _quotient(self, index: int, free: int, needs: tuple[int, ...]) -> list[int]:
        """Return for each row how many pods one resource alone suffices for."""
        found = self._quotients.get((index, free))
        if found is None:
            left = max(0, free)
            found = [left // need if need else UNLIMITED for need in needs]
            self._quotients[index, free] = found
        return found

    def _device_limits(self, room: FreeCapacity) -> _Limits:
        """Return for each row how many pods the devices alone suffice for, and its weight."""
        free, devices = room
        sold = {one.row: one for one in devices}
        limit, worth = {}, {}
        for wanted in self._demands:
            index, demand = wanted
            one = sold.get(index)
            limit[wanted] = max(
                0, free[index] // demand if one is None else count_fitting_demands(one, demand)
            )
            worth[wanted] = demand * 1000 // (1 if one is None else one.size)
        limits = [limit[wanted] for wanted, _ in self._rows]
        weights = [worth[wanted] * count for wanted, count in self._rows]
        return max(limits, default=0), limits, weights
