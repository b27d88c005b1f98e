"""The nodes of one pool: free capacity, and the search for the best node assignment.

Pack: the node where the pod takes least capacity that other pods could use, then the node with
least left. Spread: the node with most free capacity. Ties go by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from app.core.model import DEFAULT_POOL, Amounts, NodeName, PlacementStrategy, PoolName, Resource
from app.core.placement.assignment import Assignment, AssignmentBuilder, AssignmentRequest, stack
from app.core.placement.fragmentation import PodMix, UsabilityGauge
from app.core.placement.node_info import (
    FreeCapacity,
    IndexedRequest,
    NodeAllocation,
    NodeInfo,
    ResourceIndex,
    after,
    capacity,
    without,
)
from app.core.placement.node_scoring import (
    FREE,
    Cost,
    NodeScorer,
    NodeState,
    ScoredNodes,
    StateLog,
    plus,
)
from app.core.placement.topology import TopologyPacking, TopologySpreading
from app.core.placement.topology_domains import Domains
from app.core.podspec.equivalence_class import ANYHOW, GangLayout, Parts, Pins
from app.core.quantities import is_device

_NOTHING: Mapping[NodeName, Amounts] = {}
_NOBODY: Mapping[NodeName, Sequence[Amounts]] = {}
_UNLABELLED: Mapping[str, str] = {}


class PoolNodes:
    """The nodes of one pool. Pools that share one `PodMix` have comparable costs.

    `grown` changes whenever a workload may fit that did not fit before.
    """

    RANKINGS = 512
    """Maximum number of pod kinds with sorted nodes."""

    NAMED = 200_000
    """Maximum number of node names and resources in cached requests."""

    KEPT, KEPT_PER_POD = 500, 4
    """Cached requests that `trim` leaves: so many, and so many for each pod."""

    def __init__(
        self,
        style: PlacementStrategy = PlacementStrategy.PACK,
        mix: PodMix | None = None,
        pool: PoolName = DEFAULT_POOL,
        topology: tuple[str, ...] = (),
    ) -> None:
        self.grown = 0
        self.domains = Domains(topology)
        self._style = style
        self._mix = mix if mix is not None else PodMix()
        self._pool = pool
        self._layout = ResourceIndex()
        self._sites: dict[NodeName, NodeInfo] = {}
        self._open: dict[NodeName, NodeInfo] = {}
        self._stale: dict[NodeName, None] = {}
        self._grew: dict[NodeName, None] = {}
        self._states: dict[NodeName, NodeState] = {}
        self._offered: list[int] = []
        self._devices: dict[Resource, int] = {}
        self._mix.supply[pool] = self._devices
        self._wants: dict[tuple[int, Pins, GangLayout], AssignmentRequest] = {}
        self._named = 0
        self._log = StateLog()
        self._rankings: dict[tuple[IndexedRequest, PlacementStrategy], ScoredNodes] = {}
        self._gauge = UsabilityGauge(self._layout, (), pool)
        self._sampled = -1

    def set_node(
        self,
        name: NodeName,
        offer: Amounts,
        fractions: Amounts,
        open: bool,
        labels: Mapping[str, str] = _UNLABELLED,
    ) -> None:
        """Add or replace a node with this capacity. Its allocations stay.

        `fractions[r]`: the size of one device of r, if pods can request fractions. If the node is
        not `open`, no pod is assigned to it. `labels`: determine its topology domains.
        """
        self.domains.set_labels(name, labels)
        if self._layout.admit(offer):
            self._relayout()
        site = self._site(name)
        self._close(name)
        site.set_capacity(offer, fractions, open)
        if open:
            self._open[name] = site
            self._supply(site, 1)
        self._offered = []
        self._touch(name)
        self._grow(name)

    def drop(self, name: NodeName) -> None:
        """Remove a node and its allocations. An unknown name is ignored."""
        if self._sites.pop(name, None) is not None:
            self.domains.drop(name)
            self._grew.pop(name, None)
            self._close(name)
            self._offered = []
            self._touch(name)

    def allocate(self, node: NodeName, demand: Amounts) -> NodeAllocation:
        """Allocate a pod on a node, known or not, even without capacity. Do not change `demand`."""
        slot = self._site(node).allocate(demand)
        self._touch(node)
        return slot

    def give(self, slot: NodeAllocation) -> None:
        """Release an allocation. Ignored if its node was removed or it was released before."""
        site, name = slot.site, slot.node
        if not site.give(slot) or self._sites.get(name) is not site:
            return
        if not site:
            del self._sites[name]
        self._touch(name)
        self._grow(name)

    def take_grown(self) -> list[NodeName]:
        """Return the open nodes with more free capacity since the last call."""
        grown, self._grew = [name for name in self._grew if name in self._open], {}
        return grown

    def free(self, node: NodeName) -> Amounts:
        """Return the free capacity of a node. It is negative if the node is overcommitted."""
        site = self._sites.get(node)
        if site is None or not site.seen:
            return {}
        return dict(zip(self._layout.resources, site.free, strict=True))

    def trim(self, pods: int) -> None:
        """Empty the caches of pod requests if they have far more entries than there are pods.

        The entries of deleted pods would keep memory that the process otherwise returns.
        """
        most = self.KEPT + self.KEPT_PER_POD * pods
        if len(self._wants) > most:
            self._wants.clear()
            self._named = 0
        self._layout.trim(most)

    def fragmentation(self) -> float | None:
        """Return the part of the free devices that pods like the latest ones could not use.

        None: there is no free device, or no such pod was seen. The call has no side effects, so it
        does not affect any decision.
        """
        rooms = [site.room() for site in self._open.values()]
        there = sum(self._gauge.wanted(room) for room in rooms)
        return 1 - sum(self._gauge.usable(room) for room in rooms) / there if there else None

    def find(
        self,
        parts: Parts,
        withheld: Mapping[NodeName, Amounts] = _NOTHING,
        pins: Pins = (),
        manner: GangLayout = ANYHOW,
        beside: Mapping[NodeName, Sequence[Amounts]] = _NOBODY,
    ) -> Assignment | None:
        """Return the node assignment of all pods of a workload, or None. Allocates nothing.

        `withheld`: reserved capacity on nodes. `pins`: the allowed nodes of each part. `manner`:
        the layout of a gang. `beside`: requests of pods that are placed before it. Do not change
        the arguments afterwards. Passing the same `parts` object again for a workload is faster.
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
                plan = None if best is None else Assignment((best[1],), best[0])
            else:
                plan = self._lay_out(want, self._changed(withheld, beside))
        if plan is None and not (withheld or beside):
            want.lost = self.grown
        return plan

    def _want(self, parts: Parts, pins: Pins, manner: GangLayout) -> AssignmentRequest:
        want = self._wants.get((id(parts), pins, manner))
        if want is None:
            named = sum(len(pin) for pin in pins if pin is not None)
            named += sum(len(amounts) for amounts, _ in parts)
            self._named += named
            if len(self._wants) >= ResourceIndex.KNOWN or self._named > self.NAMED:
                self._wants.clear()
                self._named = named
            want = self._wants[id(parts), pins, manner] = AssignmentRequest(
                parts, pins, self._layout, manner
            )
        return want

    def _style_of(self, want: AssignmentRequest) -> PlacementStrategy:
        return want.manner.style or self._style

    def _find_alone(
        self,
        want: AssignmentRequest,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Assignment | None:
        """Return a plan for a pool with one open node. No nodes are compared."""
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
        return Assignment((name,) * want.count, lambda: self._cost_alone(want, site.room()))

    def _cost_alone(self, want: AssignmentRequest, room: FreeCapacity) -> Cost:
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
        want: AssignmentRequest,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Assignment | None:
        style, changed = self._style_of(want), self._changed(withheld, beside)
        asks = [want.asks[number] for number in self._order(want)]
        kinds = [(self._ranking(ask, style), count) for ask, count in asks]
        if (
            style is PlacementStrategy.SPREAD
            and want.manner.near is None
            and len(kinds) == 1
            and not want.pins
        ):
            return self._find_even(*kinds[0], changed)

        def lay_out(among: Collection[NodeName] | None) -> Assignment | None:
            return self._lay_out(want, changed, among)

        search = TopologyPacking(want, kinds, self.domains, self._states, changed, style, lay_out)
        return search.find_assignment()

    def _find_even(
        self, ranking: ScoredNodes, count: int, changed: Mapping[NodeName, FreeCapacity]
    ) -> Assignment | None:
        """Find nodes for equal pods, spread over the domains of each level."""
        room = {name: ranking.capacity(state) for name, state in self._states.items()}
        room |= {name: capacity(rest, ranking.ask) for name, rest in changed.items()}
        cost = FREE

        def lay_out(among: Collection[NodeName], part: int) -> list[NodeName] | None:
            nonlocal cost
            draft = AssignmentBuilder(changed, self._states, among)
            nodes = draft.place_pods(ranking, part)
            cost = plus(cost, draft.cost)
            return nodes

        nodes = TopologySpreading(self.domains, room, lay_out).find(
            room, self.domains.levels, count
        )
        return None if nodes is None else Assignment(tuple(nodes), cost)

    def _changed(
        self,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> dict[NodeName, FreeCapacity]:
        """Return the free capacity of open nodes with reservations or pods placed before."""
        return {
            name: self._left(name, self._states[name].room, withheld, beside)
            for name in {**withheld, **beside}
            if name in self._states
        }

    def _left(
        self,
        name: NodeName,
        room: FreeCapacity,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> FreeCapacity:
        if name in withheld:
            room = without(room, self._layout.ask(withheld[name]))
        for demand in beside.get(name, ()):
            rest = after(room, self._layout.ask(demand))
            room = rest if rest is not None else without(room, self._layout.ask(demand))
        return room

    def _lay_out(
        self,
        want: AssignmentRequest,
        changed: Mapping[NodeName, FreeCapacity],
        among: Collection[NodeName] | None = None,
    ) -> Assignment | None:
        draft = AssignmentBuilder(changed, self._states, among)
        style = self._style_of(want)
        found: dict[int, list[NodeName]] = {}
        for number in self._order(want):
            ask, count = want.asks[number]
            ranking = self._ranking(ask, style)
            nodes = draft.place_pods(ranking, count, want.within(number))
            if nodes is None:
                return None
            found[number] = nodes
        return Assignment(tuple(n for number in sorted(found) for n in found[number]), draft.cost)

    def _order(self, want: AssignmentRequest) -> list[int]:
        return [0] if len(want.asks) == 1 else want.order(self._totals())

    def _totals(self) -> list[int]:
        """Return the total capacity of the open nodes, by resource index."""
        if not self._offered:
            offers = [site.offer for site in self._open.values()]
            self._offered = [sum(o.get(r, 0) for o in offers) for r in self._layout.resources]
        return self._offered

    def _ranking(self, ask: IndexedRequest, style: PlacementStrategy) -> ScoredNodes:
        ranking = self._rankings.get((ask, style))
        if ranking is None or ranking.judge.totals is not self._totals():
            scarce = self._scarcest(ask)
            if ranking is not None and ranking.judge.scarce == scarce:
                ranking.judge.totals = self._totals()
            else:
                if len(self._rankings) >= self.RANKINGS:
                    del self._rankings[next(iter(self._rankings))]
                judge = NodeScorer(style, self._gauge, ask, scarce, self._totals())
                ranking = self._rankings[ask, style] = ScoredNodes(ask, judge, self._log)
        ranking.update()
        return ranking

    def _scarcest(self, ask: IndexedRequest) -> int | None:
        """Return the index of the resource with the largest requested part. Devices win ties."""
        totals, names = self._totals(), self._layout.resources
        parts = [
            (Fraction(value, max(1, totals[i])), i in self._gauge.devices, names[i], i)
            for i, value in ask.needs
        ]
        return min(parts, key=lambda p: (-p[0], not p[1], p[2]))[3] if parts else None

    def _settle(self) -> None:
        """Renew the sample of pod kinds, and update the states of changed nodes."""
        self._mix.draw()
        if self._sampled != self._mix.stamp:
            self._sampled = self._mix.stamp
            self._gauge = UsabilityGauge(self._layout, self._mix.sample, self._pool)
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

    def _site(self, name: NodeName) -> NodeInfo:
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = NodeInfo(name, self._layout)
        return site

    def _close(self, name: NodeName) -> None:
        site = self._open.pop(name, None)
        if site is not None:
            self._supply(site, -1)

    def _supply(self, site: NodeInfo, sign: int) -> None:
        """Add the devices of an open node to the supply. `sign` -1 subtracts."""
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
        """Recount every node after a new resource was added to the layout."""
        self._wants.clear()
        self._sampled = -1
        for name, site in self._sites.items():
            site.recount()
            self._stale[name] = None
