"""One node: its capacity, its allocations, and which devices each pod has.

A node accepts allocations that do not fit, because running pods are facts. `after` and `capacity`
check a pod against the free capacity (`FreeCapacity`).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model import Amounts, NodeName, Resource
from app.core.placement.shared_devices import Devices, DeviceTray, Seats, drain, place, times
from app.core.podspec.device_fractions import SIDES, whole_devices

FreeCapacity = tuple[tuple[int, ...], tuple[Devices, ...]]
"""Free capacity of a node: an amount for each resource of the layout, and the devices of fractional
resources. Nodes with equal values are interchangeable."""


_NOTHING: Mapping[int, int] = {}


class IndexedRequest:
    """The requests of one pod as (index, amount) pairs of a layout, amounts > 0.

    `lacking`: no node has some requested resource. `whole`: number of whole devices by index of a
    HAMi resource, if the pod does not request fractions. Compared by identity: interned.
    """

    __slots__ = ("amounts", "lacking", "needs", "whole")

    def __init__(
        self,
        needs: tuple[tuple[int, int], ...],
        lacking: bool,
        whole: Mapping[int, int] = _NOTHING,
    ) -> None:
        self.needs = needs
        self.amounts = dict(needs)
        self.lacking = lacking
        self.whole = whole

    def of(self, row: int, size: int) -> int:
        """Return the requested amount of a fractional resource with devices of this size."""
        return self.amounts.get(row, 0) or self.whole.get(row, 0) * size


class ResourceIndex:
    """The resources of the nodes of a pool, each with its index. It only grows."""

    __slots__ = ("_asks", "_known", "_named", "index", "resources")

    KNOWN = 10_000
    """Maximum number of demands that are cached by identity. Callers should intern demands."""
    NAMED = 50_000
    """Maximum number of resources in all cached demands: a pod can list hundreds."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.index: dict[Resource, int] = {}
        self._asks: dict[frozenset[tuple[Resource, int]], IndexedRequest] = {}
        self._known: dict[int, tuple[Amounts, IndexedRequest]] = {}
        self._named = 0

    def admit(self, offer: Amounts) -> bool:
        """Add new resources. Return whether any was new; then every `IndexedRequest` is invalid."""
        fresh = sorted(resource for resource in offer if resource not in self.index)
        for resource in fresh:
            self.index[resource] = len(self.resources)
            self.resources.append(resource)
        if fresh:
            self._asks.clear()
            self._known.clear()
            self._named = 0
        return bool(fresh)

    def trim(self, most: int) -> None:
        """Empty the caches if they have more entries than this."""
        if len(self._known) > most:
            self._known.clear()
            self._asks.clear()
            self._named = 0

    def ask(self, demand: Amounts) -> IndexedRequest:
        """Return the interned `IndexedRequest` of a demand. Do not change the demand afterwards."""
        known = self._known.get(id(demand))
        if known is not None:
            return known[1]
        self._named += len(demand)
        if len(self._known) >= self.KNOWN or self._named > self.NAMED:
            self._known.clear()
            self._asks.clear()
            self._named = len(demand)
        wanted = frozenset(pair for pair in demand.items() if pair[1] > 0)
        ask = self._asks.get(wanted)
        if ask is None:
            needs = sorted((self.index[r], value) for r, value in wanted if r in self.index)
            count = whole_devices(demand)
            sides = [self.index[side] for side in SIDES if side in self.index] if count else []
            whole = dict.fromkeys(sides, count)
            ask = self._asks[wanted] = IndexedRequest(tuple(needs), len(needs) < len(wanted), whole)
        self._known[id(demand)] = (
            demand,
            ask,
        )  # keeps the object alive, so that its id stays unique
        return ask


class NodeAllocation:
    """The allocation of one pod on one node. Release it with `PoolNodes.give`."""

    __slots__ = ("demand", "proper", "seats", "site")

    def __init__(self, site: NodeInfo, demand: Amounts) -> None:
        self.site = site
        self.demand = demand
        self.seats: dict[int, Seats] = {}
        self.proper = True

    @property
    def node(self) -> NodeName:
        """The node of the allocation."""
        return self.site.name

    def devices(self, resource: Resource) -> Seats:
        """Return the allocated devices of a fractional resource, and the amount on each."""
        return self.seats.get(self.site.layout.index.get(resource, -1), [])


class NodeInfo:
    """A node. `seen` is False while only its allocations are known, and not the node itself."""

    __slots__ = (
        "_crowded", "_slots", "fractions", "free", "layout", "name", "offer", "open", "seen",
        "trays",
    )  # fmt: skip

    def __init__(self, name: NodeName, layout: ResourceIndex) -> None:
        self.name = name
        self.layout = layout
        self.offer: Amounts = {}
        self.fractions: Amounts = {}
        self.open = self.seen = False
        self.free: list[int] = [0] * len(layout.resources)
        self.trays: dict[int, DeviceTray] = {}
        self._slots: dict[NodeAllocation, None] = {}
        self._crowded: dict[NodeAllocation, None] = {}

    def __bool__(self) -> bool:
        """Return whether the node or any allocation on it is known."""
        return self.seen or bool(self._slots)

    def set_capacity(self, offer: Amounts, fractions: Amounts, open: bool) -> None:
        """Replace the capacity. The layout must contain its resources."""
        self.offer, self.fractions, self.open, self.seen = offer, fractions, open, True
        self.recount()

    def recount(self) -> None:
        """Compute the free capacity again from the capacity and the allocations."""
        self.free = [self.offer.get(resource, 0) for resource in self.layout.resources]
        # The layout may lack a fractional resource if no ready node has it.
        known = self.layout.index
        sizes = {known[r]: size for r, size in self.fractions.items() if size > 0 and r in known}
        trays = {i: DeviceTray(i, size, self.free[i]) for i, size in sorted(sizes.items())}
        for slot in self._slots:
            for index, value in self.layout.ask(slot.demand).needs:
                self.free[index] -= value
        kinds = {i: (tray.size, tray.offer) for i, tray in trays.items()}
        if kinds != {i: (tray.size, tray.offer) for i, tray in self.trays.items()}:
            self.trays = trays
            for slot in self._slots:
                slot.seats = {}
                self._seat(slot)

    def allocate(self, demand: Amounts) -> NodeAllocation:
        """Allocate a pod, even if it does not fit."""
        slot = NodeAllocation(self, demand)
        free = self.free
        for index, value in self.layout.ask(demand).needs:
            free[index] -= value
        self._slots[slot] = None
        if self.trays:
            self._seat(slot)
        return slot

    def give(self, slot: NodeAllocation) -> bool:
        """Release an allocation. Return False if it is not on this node."""
        if slot not in self._slots:
            return False
        del self._slots[slot]
        for index, value in self.layout.ask(slot.demand).needs:
            self.free[index] += value
        if slot.seats:
            self._unseat(slot)
        if self._crowded:
            self._crowded.pop(slot, None)
            for waiting in list(self._crowded):
                self._unseat(waiting)
                self._seat(waiting)
        return True

    def room(self) -> FreeCapacity:
        """Return the free capacity as a value."""
        if not self.trays:
            return tuple(self.free), ()
        return tuple(self.free), tuple([tray.value() for tray in self.trays.values()])

    def _seat(self, slot: NodeAllocation) -> None:
        slot.proper = True
        ask = self.layout.ask(slot.demand)
        for index, tray in self.trays.items():
            value = ask.of(index, tray.size)
            if value:
                slot.seats[index], proper = tray.seat(value)
                slot.proper = slot.proper and proper
        if slot.proper:
            self._crowded.pop(slot, None)
        else:
            self._crowded[slot] = None

    def _unseat(self, slot: NodeAllocation) -> None:
        for index, seats in slot.seats.items():
            self.trays[index].unseat(seats)
        slot.seats = {}


def after(room: FreeCapacity, ask: IndexedRequest) -> FreeCapacity | None:
    """Return the free capacity left after a pod was placed. None if it does not fit."""
    free, devices = room
    left = list(free)
    for index, value in ask.needs:
        left[index] -= value
        if left[index] < 0:
            return None
    if not devices:
        return tuple(left), devices
    placed = []
    for one in devices:
        value = ask.of(one.row, one.size)
        rest = place(one, value) if value else one
        if rest is None:
            return None
        placed.append(rest)
    return tuple(left), tuple(placed)


def without(room: FreeCapacity, ask: IndexedRequest) -> FreeCapacity:
    """Return the free capacity left after a reserved amount is subtracted, even below 0."""
    free, devices = room
    left = list(free)
    for index, value in ask.needs:
        left[index] -= value
    kept = [drain(d, value) if (value := ask.of(d.row, d.size)) else d for d in devices]
    return tuple(left), tuple(kept)


def capacity(room: FreeCapacity, ask: IndexedRequest) -> int:
    """Return how many such pods fit. `MANY` if they request no resource."""
    free, devices = room
    count = min([free[index] // value for index, value in ask.needs], default=MANY)
    for one in devices:
        value = ask.of(one.row, one.size)
        if value and count > 0:
            count = min(count, times(one, value))
    return max(0, count)


MANY = 1 << 62
