"""The search over topology domains against exhaustive search, on small pools."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from app.core.model import NodeName, PlacementStrategy, Resource, TopologyConstraint
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.equivalence_class import GangLayout

GPU = Resource("nvidia.com/gpu")
RACK, CLIQUE = "rack", "clique"

Place = tuple[int, str, str]
"""Devices of a node, its rack, and its clique in the rack ("" if the label is missing)."""

places = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["", "r1", "r2", "r3"]), st.sampled_from("xy")),
    min_size=2,
    max_size=6,
)
steps = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["take", "drop", "move"]), st.integers(1, 3)),
    max_size=6,
)
styles = st.sampled_from([None, *PlacementStrategy])


def labels_of(rack: str, clique: str) -> dict[str, str]:
    return {RACK: rack, CLIQUE: f"{rack}.{clique}"} if rack else {}


def build(some: Mapping[str, Place], taken: Mapping[str, int]) -> PoolNodes:
    nodes = PoolNodes(topology=(RACK, CLIQUE))
    for name, (gpus, rack, clique) in some.items():
        nodes.set_node(NodeName(name), {GPU: gpus}, {}, True, labels_of(rack, clique))
    for name, value in taken.items():
        nodes.allocate(NodeName(name), {GPU: value})
    return nodes


def free(some: Mapping[str, Place], taken: Mapping[str, int], each: int) -> dict[str, int]:
    return {n: max(0, p[0] - taken.get(n, 0)) // each for n, p in some.items()}


def by_rack(some: Mapping[str, Place], room: Mapping[str, int]) -> dict[str, int]:
    held: dict[str, int] = {}
    for name, (_, rack, _) in some.items():
        if rack:
            held[rack] = held.get(rack, 0) + room[name]
    return held


def fewest(held: Mapping[str, int], count: int) -> int | None:
    """Return the smallest number of racks that fit `count` pods, by trying every set."""
    for size in range(1, len(held) + 1):
        if any(sum(chosen) >= count for chosen in itertools.combinations(held.values(), size)):
            return size
    return None


@given(places, steps, st.integers(2, 9), st.integers(1, 2), st.booleans(), styles)
def test_the_search_agrees_with_trying_everything(
    written: list[Place],
    changes: list[tuple[int, str, int]],
    count: int,
    each: int,
    required: bool,
    style: PlacementStrategy | None,
) -> None:
    some = {f"n{number}": place for number, place in enumerate(written)}
    taken: dict[str, int] = {}
    nodes = build(some, taken)
    parts = (({GPU: each}, count),)
    manner = GangLayout(style, TopologyConstraint(RACK, required))
    nodes.find_assignment(parts, manner=manner)  # the figures are cached from here on
    for number, what, value in changes:
        name = f"n{number}"
        if name not in some:
            continue
        if what == "drop":
            del some[name]
            taken.pop(name, None)
            nodes.drop_node(NodeName(name))
        elif what == "take":
            taken[name] = taken.get(name, 0) + value
            nodes.allocate(NodeName(name), {GPU: value})
        else:
            some[name] = (some[name][0], "r1", "x")
            nodes.set_node(NodeName(name), {GPU: some[name][0]}, {}, True, labels_of("r1", "x"))
        nodes.find_assignment(parts, manner=manner)
    plan = nodes.find_assignment(parts, manner=manner)
    room = free(some, taken, each)
    held = by_rack(some, room)
    whole = [rack for rack, pods in held.items() if pods >= count]
    assert (plan is not None) == (bool(whole) if required else sum(room.values()) >= count)
    fresh = build(some, taken).find_assignment(parts, manner=manner)
    assert (plan and plan.nodes) == (fresh and fresh.nodes)
    if plan is None:
        return
    assert all(plan.nodes.count(NodeName(name)) <= pods for name, pods in room.items())
    racks = {some[name][1] for name in plan.nodes}
    if whole:
        assert len(racks) == 1
        assert racks != {""}
    elif fewest(held, count) is not None and style is not PlacementStrategy.SPREAD:
        assert len(racks) == fewest(held, count)


@given(places, st.integers(2, 6))
def test_gang_that_fits_one_clique_gets_the_smallest_fitting_clique(
    written: list[Place], count: int
) -> None:
    some = {f"n{number}": place for number, place in enumerate(written)}
    plan = build(some, {}).find_assignment(
        (({GPU: 1}, count),), manner=GangLayout(topology=TopologyConstraint(RACK, True))
    )
    cliques: dict[tuple[str, str], int] = {}
    for gpus, rack, clique in some.values():
        if rack:
            cliques[rack, clique] = cliques.get((rack, clique), 0) + gpus
    whole = {place: pods for place, pods in cliques.items() if pods >= count}
    if whole:
        assert plan is not None
        used = {some[name][1:] for name in plan.nodes}
        assert len(used) == 1
        assert whole[used.pop()] == min(whole.values())


@given(places, st.lists(st.integers(1, 4), min_size=2, max_size=5), st.booleans())
def test_unlike_pods_never_leave_the_domain_they_must_not_leave(
    written: list[Place], sizes: list[int], required: bool
) -> None:
    some = {f"n{number}": place for number, place in enumerate(written)}
    parts = tuple(({GPU: size}, sizes.count(size)) for size in sorted(set(sizes)))
    manner = GangLayout(topology=TopologyConstraint(RACK, required))
    plan = build(some, {}).find_assignment(parts, manner=manner)
    if plan is None:
        return
    demands = [size for size in sorted(set(sizes)) for _ in range(sizes.count(size))]
    left = {name: place[0] for name, place in some.items()}
    for name, size in zip(plan.nodes, demands, strict=True):
        left[name] -= size
    assert min(left.values()) >= 0
    if required:
        racks = {some[name][1] for name in plan.nodes}
        assert len(racks) == 1
        assert racks != {""}
