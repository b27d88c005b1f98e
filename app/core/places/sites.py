"""One node as a place to put pods: what it offers, what is taken there, which devices by whom.

Takes whatever it is told: what runs, runs. Whether something fits is asked of `Room`, the free
part of a node as a value.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.parts import SIDES, whole_devices
from app.core.model import Amounts, NodeName, Resource
from app.core.places.devices import Devices, Seats, Tray, drain, place, times

Room = tuple[tuple[int, ...], tuple[Devices, ...]]
"""What is free on a node: an amount for every resource of the layout, and the devices of those
sold in fractions. Nodes with equal rooms are alike."""


_NOTHING: Mapping[int, int] = {}


class Ask:
    """What one pod asks for, in the order of a layout: (index, amount) pairs, amounts > 0.

    `lacking`: some resource is offered by no node at all. `whole`: of how many devices it has all
    that is sold in parts, by index, though it does not say so. Compared by identity: interned.
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
        """Return what it takes of devices of a size, sold in parts."""
        return self.amounts.get(row, 0) or self.whole.get(row, 0) * size


class Layout:
    """The resources that the nodes of a pool offer, each with its index; it only grows."""

    __slots__ = ("_asks", "_known", "index", "resources")

    KNOWN = 10_000
    """Most demands remembered by identity: callers intern theirs, but need not."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.index: dict[Resource, int] = {}
        self._asks: dict[frozenset[tuple[Resource, int]], Ask] = {}
        self._known: dict[int, tuple[Amounts, Ask]] = {}

    def admit(self, offer: Amounts) -> bool:
        """Add the resources of an offer; tell whether any was new, which outdates every Ask."""
        fresh = sorted(resource for resource in offer if resource not in self.index)
        for resource in fresh:
            self.index[resource] = len(self.resources)
            self.resources.append(resource)
        if fresh:
            self._asks.clear()
            self._known.clear()
        return bool(fresh)

    def ask(self, demand: Amounts) -> Ask:
        """Return the one Ask of a demand. The demand must not be changed afterwards."""
        known = self._known.get(id(demand))
        if known is not None:
            return known[1]
        if len(self._known) >= self.KNOWN:
            self._known.clear()
            self._asks.clear()
        wanted = frozenset(pair for pair in demand.items() if pair[1] > 0)
        ask = self._asks.get(wanted)
        if ask is None:
            needs = sorted((self.index[r], value) for r, value in wanted if r in self.index)
            count = whole_devices(demand)
            sides = [self.index[side] for side in SIDES if side in self.index] if count else []
            whole = dict.fromkeys(sides, count)
            ask = self._asks[wanted] = Ask(tuple(needs), len(needs) < len(wanted), whole)
        self._known[id(demand)] = (demand, ask)  # keeps it alive, so its id stays its own
        return ask


class Slot:
    """What one pod has taken on one node; give it back to the Nodes that handed it out."""

    __slots__ = ("demand", "proper", "seats", "site")

    def __init__(self, site: Site, demand: Amounts) -> None:
        self.site = site
        self.demand = demand
        self.seats: dict[int, Seats] = {}
        self.proper = True

    @property
    def node(self) -> NodeName:
        """The node it is on."""
        return self.site.name

    def devices(self, resource: Resource) -> Seats:
        """Return the devices it has of a resource sold in fractions, and how much of each."""
        return self.seats.get(self.site.layout.index.get(resource, -1), [])


class Site:
    """A node. `seen` is False while only what was taken there is known, not the node itself."""

    __slots__ = (
        "_crowded", "_slots", "fractions", "free", "layout", "name", "offer", "open", "seen",
        "trays",
    )  # fmt: skip

    def __init__(self, name: NodeName, layout: Layout) -> None:
        self.name = name
        self.layout = layout
        self.offer: Amounts = {}
        self.fractions: Amounts = {}
        self.open = self.seen = False
        self.free: list[int] = [0] * len(layout.resources)
        self.trays: dict[int, Tray] = {}
        self._slots: dict[Slot, None] = {}
        self._crowded: dict[Slot, None] = {}

    def __bool__(self) -> bool:
        """Tell whether anything is known of it at all."""
        return self.seen or bool(self._slots)

    def put(self, offer: Amounts, fractions: Amounts, open: bool) -> None:
        """Replace what it offers; its layout must have admitted that."""
        self.offer, self.fractions, self.open, self.seen = offer, fractions, open, True
        self.recount()

    def recount(self) -> None:
        """Count what is free anew, from what is offered and who sits here."""
        self.free = [self.offer.get(resource, 0) for resource in self.layout.resources]
        # A node that is not ready offers nothing of what it sells in parts.
        known = self.layout.index
        sizes = {known[r]: size for r, size in self.fractions.items() if size > 0 and r in known}
        trays = {i: Tray(i, size, self.free[i]) for i, size in sorted(sizes.items())}
        for slot in self._slots:
            for index, value in self.layout.ask(slot.demand).needs:
                self.free[index] -= value
        kinds = {i: (tray.size, tray.offer) for i, tray in trays.items()}
        if kinds != {i: (tray.size, tray.offer) for i, tray in self.trays.items()}:
            self.trays = trays
            for slot in self._slots:
                slot.seats = {}
                self._seat(slot)

    def take(self, demand: Amounts) -> Slot:
        """Put a pod here, whether it fits or not."""
        slot = Slot(self, demand)
        free = self.free
        for index, value in self.layout.ask(demand).needs:
            free[index] -= value
        self._slots[slot] = None
        if self.trays:
            self._seat(slot)
        return slot

    def give(self, slot: Slot) -> bool:
        """Free what a pod had; False if it has nothing here."""
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

    def room(self) -> Room:
        """Return what is free, as a value."""
        if not self.trays:
            return tuple(self.free), ()
        return tuple(self.free), tuple([tray.value() for tray in self.trays.values()])

    def _seat(self, slot: Slot) -> None:
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

    def _unseat(self, slot: Slot) -> None:
        for index, seats in slot.seats.items():
            self.trays[index].unseat(seats)
        slot.seats = {}


def after(room: Room, ask: Ask) -> Room | None:
    """Return what is left of a room once a pod was put there, or None if it does not fit."""
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


def without(room: Room, ask: Ask) -> Room:
    """Return what is left of a room when so much of it is not to be used, there or not."""
    free, devices = room
    left = list(free)
    for index, value in ask.needs:
        left[index] -= value
    kept = [drain(d, value) if (value := ask.of(d.row, d.size)) else d for d in devices]
    return tuple(left), tuple(kept)


def capacity(room: Room, ask: Ask) -> int:
    """Return how many such pods fit in a room, `MANY` if they ask for nothing."""
    free, devices = room
    count = min([free[index] // value for index, value in ask.needs], default=MANY)
    for one in devices:
        value = ask.of(one.row, one.size)
        if value and count > 0:
            count = min(count, times(one, value))
    return max(0, count)


MANY = 1 << 62
