"""The nodes of one pool: free capacity, and the search for the best node assignment.

Pack: the node where the pod takes least capacity that other pods could use, then the node with
least left. Spread: the node with most free capacity. Ties go by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from app.core.model import DEFAULT_POOL, Amounts, NodeName, PlacementStrategy, PoolName, Resource
from app.core.placement.assignment import (
    Assignment,
    AssignmentBuilder,
    AssignmentRequest,
    fits_on_one_node,
)
from app.core.placement.fragmentation import PodMix, UsabilityGauge
from app.core.placement.node_info import (
    FreeCapacity,
    IndexedRequest,
    NodeAllocation,
    NodeInfo,
    ResourceIndex,
    count_fitting,
    subtract_request,
    subtract_reserved,
)
from app.core.placement.node_scoring import (
    ZERO_COST,
    Cost,
    NodeScorer,
    NodeState,
    ScoredNodes,
    StateLog,
    add_costs,
)
from app.core.placement.topology import TopologyPacking, TopologySpreading
from app.core.placement.topology_domains import Domains
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, GangLayout, Parts, Pins
from app.core.quantities import is_device

_NOTHING: Mapping[NodeName, Amounts] = {}
_NOBODY: Mapping[NodeName, Sequence[Amounts]] = {}
_UNLABELLED: Mapping[str, str] = {}


class PoolNodes:
    """The nodes of one pool. Pools that share one `PodMix` have comparable costs.

    `growth_version` changes whenever a workload may fit that did not fit before.
    """

    RANKINGS = 512
    """Maximum number of pod kinds with sorted nodes."""

    NAMED = 200_000
    """Maximum number of node names and resources in cached requests."""

    KEPT, KEPT_PER_POD = 500, 4
    """Cached requests that `trim_caches` leaves: so many, and so many for each pod."""

    def __init__(
        self,
        style: PlacementStrategy = PlacementStrategy.PACK,
        mix: PodMix | None = None,
        pool: PoolName = DEFAULT_POOL,
        topology: tuple[str, ...] = (),
    ) -> None:
        self.growth_version = 0
        self.domains = Domains(topology)
        self._style = style
        self._mix = mix if mix is not None else PodMix()
        self._pool = pool
        self._resource_index = ResourceIndex()
        self._nodes: dict[NodeName, NodeInfo] = {}
        self._ready: dict[NodeName, NodeInfo] = {}
        self._stale: dict[NodeName, None] = {}
        self._grown_nodes: dict[NodeName, None] = {}
        self._states: dict[NodeName, NodeState] = {}
        self._total_capacity: list[int] = []
        self._devices: dict[Resource, int] = {}
        self._mix.supply[pool] = self._devices
        self._requests: dict[tuple[int, Pins, GangLayout], AssignmentRequest] = {}
        self._named = 0
        self._log = StateLog()
        self._rankings: dict[tuple[IndexedRequest, PlacementStrategy], ScoredNodes] = {}
        self._gauge = UsabilityGauge(self._resource_index, (), pool)
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
        if self._resource_index.add_resources(offer):
            self._reindex_resources()
        site = self._node_info(name)
        self._remove_ready(name)
        site.set_capacity(offer, fractions, open)
        if open:
            self._ready[name] = site
            self._count_supply(site, 1)
        self._total_capacity = []
        self._mark_stale(name)
        self._record_growth(name)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node and its allocations. An unknown name is ignored."""
        if self._nodes.pop(name, None) is not None:
            self.domains.drop_node(name)
            self._grown_nodes.pop(name, None)
            self._remove_ready(name)
            self._total_capacity = []
            self._mark_stale(name)

    def allocate(self, node: NodeName, demand: Amounts) -> NodeAllocation:
        """Allocate a pod on a node, known or not, even without capacity. Do not change `demand`."""
        slot = self._node_info(node).allocate(demand)
        self._mark_stale(node)
        return slot

    def release_allocation(self, slot: NodeAllocation) -> None:
        """Release an allocation. Ignored if its node was removed or it was released before."""
        site, name = slot.node_info, slot.node
        if not site.release_allocation(slot) or self._nodes.get(name) is not site:
            return
        if not site:
            del self._nodes[name]
        self._mark_stale(name)
        self._record_growth(name)

    def drain_grown_nodes(self) -> list[NodeName]:
        """Return the open nodes with more free capacity since the last call."""
        grown, self._grown_nodes = [name for name in self._grown_nodes if name in self._ready], {}
        return grown

    def free(self, node: NodeName) -> Amounts:
        """Return the free capacity of a node. It is negative if the node is overcommitted."""
        site = self._nodes.get(node)
        if site is None or not site.is_known:
            return {}
        return dict(zip(self._resource_index.resources, site.free, strict=True))

    def trim_caches(self, pods: int) -> None:
        """Empty the caches of pod requests if they have far more entries than there are pods.

        The entries of deleted pods would keep memory that the process otherwise returns.
        """
        most = self.KEPT + self.KEPT_PER_POD * pods
        if len(self._requests) > most:
            self._requests.clear()
            self._named = 0
        self._resource_index.trim_caches(most)

    def fragmentation(self) -> float | None:
        """Return the part of the free devices that pods like the latest ones could not use.

        None: there is no free device, or no such pod was seen. The call has no side effects, so it
        does not affect any decision.
        """
        rooms = [site.free_capacity() for site in self._ready.values()]
        there = sum(self._gauge.max_usable(room) for room in rooms)
        return 1 - sum(self._gauge.usable(room) for room in rooms) / there if there else None

    def find_assignment(
        self,
        parts: Parts,
        withheld: Mapping[NodeName, Amounts] = _NOTHING,
        pins: Pins = (),
        manner: GangLayout = DEFAULT_LAYOUT,
        beside: Mapping[NodeName, Sequence[Amounts]] = _NOBODY,
    ) -> Assignment | None:
        """Return the node assignment of all pods of a workload, or None. Allocates nothing.

        `withheld`: reserved capacity on nodes. `pins`: the allowed nodes of each part. `manner`:
        the layout of a gang. `beside`: requests of pods that are placed before it. Do not change
        the arguments afterwards. Passing the same `parts` object again for a workload is faster.
        """
        want = self._request_of(parts, pins, manner)
        if want.has_unknown_resource or want.failed_at_version == self.growth_version:
            return None
        if len(self._ready) == 1 and not manner.required_topology_label:
            plan = self._find_on_only_node(want, withheld, beside)
        else:
            self._update_states()
            if manner.topology is not None or (want.count > 1 and self.domains.levels):
                plan = self._find_in_domains(want, withheld, beside)
            elif want.count == 1 and not (withheld or beside):
                ranking = self._ranking(want.requests[0][0], self._style_of(want))
                pin = want.node_set_of_part(0)
                best = ranking.best_node() if pin is None else ranking.best_node_in(pin)
                plan = None if best is None else Assignment((best[1],), best[0])
            else:
                plan = self._assign_pods(want, self._changed_capacity(withheld, beside))
        if plan is None and not (withheld or beside):
            want.failed_at_version = self.growth_version
        return plan

    def _request_of(self, parts: Parts, pins: Pins, manner: GangLayout) -> AssignmentRequest:
        want = self._requests.get((id(parts), pins, manner))
        if want is None:
            named = sum(len(pin) for pin in pins if pin is not None)
            named += sum(len(amounts) for amounts, _ in parts)
            self._named += named
            if len(self._requests) >= ResourceIndex.KNOWN or self._named > self.NAMED:
                self._requests.clear()
                self._named = named
            want = self._requests[id(parts), pins, manner] = AssignmentRequest(
                parts, pins, self._resource_index, manner
            )
        return want

    def _style_of(self, want: AssignmentRequest) -> PlacementStrategy:
        return want.gang_layout.placement_strategy or self._style

    def _find_on_only_node(
        self,
        want: AssignmentRequest,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Assignment | None:
        """Return a plan for a pool with one open node. No nodes are compared."""
        ((name, site),) = self._ready.items()
        if any(pin is not None and name not in pin for pin in want.pins):
            return None
        if want.count == 1 and not (withheld or beside or site.device_trays):
            free = site.free
            for index, value in want.requests[0][0].needs:
                if free[index] < value:
                    return None
        else:
            room = self._remaining_capacity(name, site.free_capacity(), withheld, beside)
            if not fits_on_one_node(room, want, self._part_order(want)):
                return None
        return Assignment(
            (name,) * want.count, lambda: self._cost_on_only_node(want, site.free_capacity())
        )

    def _cost_on_only_node(self, want: AssignmentRequest, room: FreeCapacity) -> Cost:
        self._update_states()
        cost = ZERO_COST
        for number in self._part_order(want):
            ask, count = want.requests[number]
            judge = self._ranking(ask, self._style_of(want)).scorer
            for _ in range(count):
                rest = subtract_request(room, ask)
                if rest is None:
                    return cost
                cost = add_costs(cost, judge.cost(room, rest))
                room = rest
        return cost

    def _find_in_domains(
        self,
        want: AssignmentRequest,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> Assignment | None:
        style, changed = self._style_of(want), self._changed_capacity(withheld, beside)
        asks = [want.requests[number] for number in self._part_order(want)]
        kinds = [(self._ranking(ask, style), count) for ask, count in asks]
        if (
            style is PlacementStrategy.SPREAD
            and want.gang_layout.topology is None
            and len(kinds) == 1
            and not want.pins
        ):
            return self._find_spread(*kinds[0], changed)

        def lay_out(among: Collection[NodeName] | None) -> Assignment | None:
            return self._assign_pods(want, changed, among)

        search = TopologyPacking(want, kinds, self.domains, self._states, changed, style, lay_out)
        return search.find_assignment()

    def _find_spread(
        self, ranking: ScoredNodes, count: int, changed: Mapping[NodeName, FreeCapacity]
    ) -> Assignment | None:
        """Find nodes for equal pods, spread over the domains of each level."""
        room = {name: ranking.count_fitting(state) for name, state in self._states.items()}
        room |= {name: count_fitting(rest, ranking.request) for name, rest in changed.items()}
        cost = ZERO_COST

        def lay_out(among: Collection[NodeName], part: int) -> list[NodeName] | None:
            nonlocal cost
            draft = AssignmentBuilder(changed, self._states, among)
            nodes = draft.place_pods(ranking, part)
            cost = add_costs(cost, draft.cost)
            return nodes

        nodes = TopologySpreading(self.domains, room, lay_out).find_nodes(
            room, self.domains.levels, count
        )
        return None if nodes is None else Assignment(tuple(nodes), cost)

    def _changed_capacity(
        self,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> dict[NodeName, FreeCapacity]:
        """Return the free capacity of open nodes with reservations or pods placed before."""
        return {
            name: self._remaining_capacity(name, self._states[name].free_capacity, withheld, beside)
            for name in {**withheld, **beside}
            if name in self._states
        }

    def _remaining_capacity(
        self,
        name: NodeName,
        room: FreeCapacity,
        withheld: Mapping[NodeName, Amounts],
        beside: Mapping[NodeName, Sequence[Amounts]],
    ) -> FreeCapacity:
        if name in withheld:
            room = subtract_reserved(room, self._resource_index.index_request(withheld[name]))
        for demand in beside.get(name, ()):
            rest = subtract_request(room, self._resource_index.index_request(demand))
            room = (
                rest
                if rest is not None
                else subtract_reserved(room, self._resource_index.index_request(demand))
            )
        return room

    def _assign_pods(
        self,
        want: AssignmentRequest,
        changed: Mapping[NodeName, FreeCapacity],
        among: Collection[NodeName] | None = None,
    ) -> Assignment | None:
        draft = AssignmentBuilder(changed, self._states, among)
        style = self._style_of(want)
        found: dict[int, list[NodeName]] = {}
        for number in self._part_order(want):
            ask, count = want.requests[number]
            ranking = self._ranking(ask, style)
            nodes = draft.place_pods(ranking, count, want.node_set_of_part(number))
            if nodes is None:
                return None
            found[number] = nodes
        return Assignment(tuple(n for number in sorted(found) for n in found[number]), draft.cost)

    def _part_order(self, want: AssignmentRequest) -> list[int]:
        return [0] if len(want.requests) == 1 else want.part_order(self._totals())

    def _totals(self) -> list[int]:
        """Return the total capacity of the open nodes, by resource index."""
        if not self._total_capacity:
            offers = [site.capacity for site in self._ready.values()]
            self._total_capacity = [
                sum(o.get(r, 0) for o in offers) for r in self._resource_index.resources
            ]
        return self._total_capacity

    def _ranking(self, ask: IndexedRequest, style: PlacementStrategy) -> ScoredNodes:
        ranking = self._rankings.get((ask, style))
        if ranking is None or ranking.scorer.totals is not self._totals():
            scarce = self._scarcest(ask)
            if ranking is not None and ranking.scorer.scarce == scarce:
                ranking.scorer.totals = self._totals()
            else:
                if len(self._rankings) >= self.RANKINGS:
                    del self._rankings[next(iter(self._rankings))]
                judge = NodeScorer(style, self._gauge, ask, scarce, self._totals())
                ranking = self._rankings[ask, style] = ScoredNodes(ask, judge, self._log)
        ranking.update()
        return ranking

    def _scarcest(self, ask: IndexedRequest) -> int | None:
        """Return the index of the resource with the largest requested part. Devices win ties."""
        totals, names = self._totals(), self._resource_index.resources
        parts = [
            (Fraction(value, max(1, totals[i])), i in self._gauge.devices, names[i], i)
            for i, value in ask.needs
        ]
        return min(parts, key=lambda p: (-p[0], not p[1], p[2]))[3] if parts else None

    def _update_states(self) -> None:
        """Renew the sample of pod kinds, and update the states of changed nodes."""
        self._mix.renew_sample()
        if self._sampled != self._mix.sample_version:
            self._sampled = self._mix.sample_version
            self._gauge = UsabilityGauge(self._resource_index, self._mix.sample, self._pool)
            self._rankings.clear()
        for name in self._stale:
            site, state = self._ready.get(name), self._states.get(name)
            room = site.free_capacity() if site is not None else None
            if state is not None:
                if state.free_capacity == room:
                    continue
                self._log.remove_node(state, name)
                del self._states[name]
            self.domains.record_change(name)
            if room is not None:
                self._states[name] = self._log.add_node(room, name)
        self._stale.clear()

    def _node_info(self, name: NodeName) -> NodeInfo:
        site = self._nodes.get(name)
        if site is None:
            site = self._nodes[name] = NodeInfo(name, self._resource_index)
        return site

    def _remove_ready(self, name: NodeName) -> None:
        site = self._ready.pop(name, None)
        if site is not None:
            self._count_supply(site, -1)

    def _count_supply(self, site: NodeInfo, sign: int) -> None:
        """Add the devices of an open node to the supply. `sign` -1 subtracts."""
        for resource, amount in site.capacity.items():
            if is_device(resource):
                thousandths = amount * 1000 // (site.fractions.get(resource) or 1)
                known = self._devices.get(resource, 0)
                self._devices[resource] = known + sign * thousandths

    def _record_growth(self, name: NodeName) -> None:
        self._grown_nodes[name] = None
        self.growth_version += 1

    def _mark_stale(self, name: NodeName) -> None:
        self._stale[name] = None

    def _reindex_resources(self) -> None:
        """Recount every node after a new resource was added to the layout."""
        self._requests.clear()
        self._sampled = -1
        for name, site in self._nodes.items():
            site.recount()
            self._stale[name] = None
