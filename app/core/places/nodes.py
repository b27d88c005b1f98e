"""The nodes of one pool: what is free, whether a workload fits, and where it is best put.

Packed: the node where the pod takes least from what others could use, then the one with least
left. Spread: the node with most free. Ties go by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from app.core.asks.shape import ANYHOW, Manner, Parts, Pins
from app.core.model import DEFAULT_POOL, Amounts, NodeName, PoolName, Resource, Style
from app.core.places.compact import Compact
from app.core.places.domains import Domains
from app.core.places.even import Even
from app.core.places.fragmentation import Gauge, Mix
from app.core.places.plans import Draft, Plan, Want, stack
from app.core.places.ranking import FREE, Cost, Judge, Log, Ranking, State, plus
from app.core.places.sites import Ask, Layout, Room, Site, Slot, after, capacity, without
from app.core.resources import is_device

_NOTHING: Mapping[NodeName, Amounts] = {}
_NOBODY: Mapping[NodeName, Sequence[Amounts]] = {}
_UNLABELLED: Mapping[str, str] = {}


class Nodes:
    """See the module. Several Nodes may share one Mix; then their costs can be compared.

    `grown` changes whenever something may fit that did not.
    """

    RANKINGS = 512
    """Most kinds of pods that nodes are kept in order for."""

    NAMED = 200_000
    """Most nodes that are named in what is remembered of pins."""

    def __init__(
        self,
        style: Style = Style.PACK,
        mix: Mix | None = None,
        pool: PoolName = DEFAULT_POOL,
        topology: tuple[str, ...] = (),
    ) -> None:
        self.grown = 0
        self.domains = Domains(topology)
        self._style = style
        self._mix = mix if mix is not None else Mix()
        self._pool = pool
        self._layout = Layout()
        self._sites: dict[NodeName, Site] = {}
        self._open: dict[NodeName, Site] = {}
        self._stale: dict[NodeName, None] = {}
        self._grew: dict[NodeName, None] = {}
        self._states: dict[NodeName, State] = {}
        self._offered: list[int] = []
        self._devices: dict[Resource, int] = {}
        self._mix.supply[pool] = self._devices
        self._wants: dict[tuple[int, Pins, Manner], Want] = {}
        self._named = 0
        self._log = Log()
        self._rankings: dict[tuple[Ask, Style], Ranking] = {}
        self._gauge = Gauge(self._layout, (), pool)
        self._sampled = -1

    def put(
        self,
        name: NodeName,
        offer: Amounts,
        fractions: Amounts,
        open: bool,
        labels: Mapping[str, str] = _UNLABELLED,
    ) -> None:
        """A node offers this much in all. Replaces what was known; what is taken stays taken.

        `fractions[r]` is the size of one device of r, where less than one is sold. If not `open`,
        nothing more is put there. `labels` tell its domains.
        """
        self.domains.put(name, labels)
        if self._layout.admit(offer):
            self._relayout()
        site = self._site(name)
        self._close(name)
        site.put(offer, fractions, open)
        if open:
            self._open[name] = site
            self._supply(site, 1)
        self._offered = []
        self._touch(name)
        self._grow(name)

    def drop(self, name: NodeName) -> None:
        """Forget a node and what was taken there; harmless if it is unknown."""
        if self._sites.pop(name, None) is not None:
            self.domains.drop(name)
            self._grew.pop(name, None)
            self._close(name)
            self._offered = []
            self._touch(name)

    def take(self, node: NodeName, demand: Amounts) -> Slot:
        """A pod runs on a node, known or not, whether it fits or not. Keep `demand` as it is."""
        slot = self._site(node).take(demand)
        self._touch(node)
        return slot

    def give(self, slot: Slot) -> None:
        """A pod has left its node. Harmless if the node was forgotten, or it was given before."""
        site, name = slot.site, slot.node
        if not site.give(slot) or self._sites.get(name) is not site:
            return
        if not site:
            del self._sites[name]
        self._touch(name)
        self._grow(name)

    def take_grown(self) -> list[NodeName]:
        """Return, once, the open nodes that may hold what they could not."""
        grown, self._grew = [name for name in self._grew if name in self._open], {}
        return grown

    def free(self, node: NodeName) -> Amounts:
        """Return what is offered and not taken; below 0 where more runs than fits."""
        site = self._sites.get(node)
        if site is None or not site.seen:
            return {}
        return dict(zip(self._layout.resources, site.free, strict=True))

    def fragmentation(self) -> float | None:
        """Return the part of the free devices that pods like the latest could not use.

        None: nothing is free, or no such pod was seen. Changes nothing, so whoever asks, and when,
        makes no difference to what is decided.
        """
        rooms = [site.room() for site in self._open.values()]
        there = sum(self._gauge.wanted(room) for room in rooms)
        return 1 - sum(self._gauge.usable(room) for room in rooms) / there if there else None

    def find(
        self,
        parts: Parts,
        withheld: Mapping[NodeName, Amounts] = _NOTHING,
        pins: Pins = (),
        manner: Manner = ANYHOW,
        beside: Mapping[NodeName, Sequence[Amounts]] = _NOBODY,
    ) -> Plan | None:
        """Return where all pods of a workload would go, or None. Takes nothing.

        `withheld` is room to leave alone, `pins` says where each part may go, `manner` how they are
        to stand, `beside` what pods that come before them ask for. `parts`, and what is asked for
        and withheld, must not be changed afterwards; the same object for the same workload is
        answered faster.
        """
        want = self._want(parts, pins, manner)
        if want.lacking or want.lost == self.grown:
            return None
        if len(self._open) == 1 and not manner.confined:
            plan = self._find_alone(want, withheld, beside)
        else:
            self._settle()
            if manner.near is not None or (want.count > 1 and self.domains.levels):
                plan = self._find_close(want, withheld, beside)
            elif want.count == 1 and not (withheld or beside):
                ranking = self._ranking(want.asks[0][0], self._style_of(want))
                pin = want.within(0)
                best = ranking.best() if pin is None else ranking.best_of(pin)
                plan = None if best is None else Plan((best[1],), best[0])
            else:
                plan = self._lay_out(want, self._changed(withheld, beside))
        if plan is None and not (withheld or beside):
            want.lost = self.grown
        return plan

    def _want(self, parts: Parts, pins: Pins, manner: Manner) -> Want:
        want = self._wants.get((id(parts), pins, manner))
        if want is None:
            self._named += sum(len(pin) for pin in pins if pin is not None)
            if len(self._wants) >= Layout.KNOWN or self._named > self.NAMED:
                self._wants.clear()
                self._named = 0
            want = self._wants[id(parts), pins, manner] = Want(parts, pins, self._layout, manner)
        return want

    def _style_of(self, want: Want) -> Style:
        return want.manner.style or self._style

    def _find_alone(
        self,
        want: Want,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Plan | None:
        """Return a plan for a pool of one node, where nothing need be compared."""
        ((name, site),) = self._open.items()
        if any(pin is not None and name not in pin for pin in want.pins):
            return None
        if want.count == 1 and not (withheld or beside or site.trays):
            free = site.free
            for index, value in want.asks[0][0].needs:
                if free[index] < value:
                    return None
        else:
            room = self._left(name, site.room(), withheld, beside)
            if not stack(room, want, self._order(want)):
                return None
        return Plan((name,) * want.count, lambda: self._cost_alone(want, site.room()))

    def _cost_alone(self, want: Want, room: Room) -> Cost:
        self._settle()
        cost = FREE
        for number in self._order(want):
            ask, count = want.asks[number]
            judge = self._ranking(ask, self._style_of(want)).judge
            for _ in range(count):
                rest = after(room, ask)
                if rest is None:
                    return cost
                cost = plus(cost, judge.cost(room, rest))
                room = rest
        return cost

    def _find_close(
        self,
        want: Want,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Plan | None:
        style, changed = self._style_of(want), self._changed(withheld, beside)
        asks = [want.asks[number] for number in self._order(want)]
        kinds = [(self._ranking(ask, style), count) for ask, count in asks]
        if style is Style.SPREAD and want.manner.near is None and len(kinds) == 1 and not want.pins:
            return self._find_even(*kinds[0], changed)

        def lay_out(among: Collection[NodeName] | None) -> Plan | None:
            return self._lay_out(want, changed, among)

        search = Compact(want, kinds, self.domains, self._states, changed, style, lay_out)
        return search.find()

    def _find_even(
        self, ranking: Ranking, count: int, changed: Mapping[NodeName, Room]
    ) -> Plan | None:
        """Find nodes for equal pods, spread over the domains of each level."""
        room = {name: ranking.capacity(state) for name, state in self._states.items()}
        room |= {name: capacity(rest, ranking.ask) for name, rest in changed.items()}
        cost = FREE

        def lay_out(among: Collection[NodeName], part: int) -> list[NodeName] | None:
            nonlocal cost
            draft = Draft(changed, self._states, among)
            nodes = draft.put(ranking, part)
            cost = plus(cost, draft.cost)
            return nodes

        nodes = Even(self.domains, room, lay_out).find(room, self.domains.levels, count)
        return None if nodes is None else Plan(tuple(nodes), cost)

    def _changed(
        self,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> dict[NodeName, Room]:
        """Return what is left of the open nodes of which something is withheld or taken."""
        return {
            name: self._left(name, self._states[name].room, withheld, beside)
            for name in {**withheld, **beside}
            if name in self._states
        }

    def _left(
        self,
        name: NodeName,
        room: Room,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Room:
        if name in withheld:
            room = without(room, self._layout.ask(withheld[name]))
        for demand in beside.get(name, ()):
            rest = after(room, self._layout.ask(demand))
            room = rest if rest is not None else without(room, self._layout.ask(demand))
        return room

    def _lay_out(
        self,
        want: Want,
        changed: Mapping[NodeName, Room],
        among: Collection[NodeName] | None = None,
    ) -> Plan | None:
        draft = Draft(changed, self._states, among)
        style = self._style_of(want)
        found: dict[int, list[NodeName]] = {}
        for number in self._order(want):
            ask, count = want.asks[number]
            ranking = self._ranking(ask, style)
            nodes = draft.put(ranking, count, want.within(number))
            if nodes is None:
                return None
            found[number] = nodes
        return Plan(tuple(n for number in sorted(found) for n in found[number]), draft.cost)

    def _order(self, want: Want) -> list[int]:
        return [0] if len(want.asks) == 1 else want.order(self._totals())

    def _totals(self) -> list[int]:
        """What the open nodes offer in all, by index."""
        if not self._offered:
            offers = [site.offer for site in self._open.values()]
            self._offered = [sum(o.get(r, 0) for o in offers) for r in self._layout.resources]
        return self._offered

    def _ranking(self, ask: Ask, style: Style) -> Ranking:
        ranking = self._rankings.get((ask, style))
        if ranking is None or ranking.judge.totals is not self._totals():
            scarce = self._scarcest(ask)
            if ranking is not None and ranking.judge.scarce == scarce:
                ranking.judge.totals = self._totals()
            else:
                if len(self._rankings) >= self.RANKINGS:
                    del self._rankings[next(iter(self._rankings))]
                judge = Judge(style, self._gauge, ask, scarce, self._totals())
                ranking = self._rankings[ask, style] = Ranking(ask, judge, self._log)
        ranking.update()
        return ranking

    def _scarcest(self, ask: Ask) -> int | None:
        """Return which resource an ask wants the largest part of; devices before others."""
        totals, names = self._totals(), self._layout.resources
        parts = [
            (Fraction(value, max(1, totals[i])), i in self._gauge.devices, names[i], i)
            for i, value in ask.needs
        ]
        return min(parts, key=lambda p: (-p[0], not p[1], p[2]))[3] if parts else None

    def _settle(self) -> None:
        """Bring states and figures up to date with what was told since."""
        self._mix.draw()
        if self._sampled != self._mix.stamp:
            self._sampled = self._mix.stamp
            self._gauge = Gauge(self._layout, self._mix.sample, self._pool)
            self._rankings.clear()
        for name in self._stale:
            site, state = self._open.get(name), self._states.get(name)
            room = site.room() if site is not None else None
            if state is not None:
                if state.room == room:
                    continue
                self._log.quit(state, name)
                del self._states[name]
            self.domains.note(name)
            if room is not None:
                self._states[name] = self._log.enter(room, name)
        self._stale.clear()

    def _site(self, name: NodeName) -> Site:
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = Site(name, self._layout)
        return site

    def _close(self, name: NodeName) -> None:
        site = self._open.pop(name, None)
        if site is not None:
            self._supply(site, -1)

    def _supply(self, site: Site, sign: int) -> None:
        """Count the devices of an open node, or with sign -1 count them no more."""
        for resource, amount in site.offer.items():
            if is_device(resource):
                thousandths = amount * 1000 // (site.fractions.get(resource) or 1)
                known = self._devices.get(resource, 0)
                self._devices[resource] = known + sign * thousandths

    def _grow(self, name: NodeName) -> None:
        self._grew[name] = None
        self.grown += 1

    def _touch(self, name: NodeName) -> None:
        self._stale[name] = None

    def _relayout(self) -> None:
        """A resource came that no node had: count all anew."""
        self._wants.clear()
        self._sampled = -1
        for name, site in self._sites.items():
            site.recount()
            self._stale[name] = None
