"""Pins only take nodes away: a plan lies on what is left, and is found where there is one."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from app.core.model import NodeName, Pin, Resource
from app.core.nodes import Nodes

GPU = Resource("nvidia.com/gpu")
NAMES = [NodeName(name) for name in "abcd"]

free = st.lists(st.integers(0, 4), min_size=1, max_size=len(NAMES))
some = st.lists(st.sampled_from(NAMES), unique=True).map(sorted).map(tuple)
pin: st.SearchStrategy[Pin] = st.none() | some


def cluster(free: list[int]) -> Nodes:
    nodes = Nodes()
    for name, gpus in zip(NAMES, free, strict=False):
        nodes.put(name, {GPU: gpus}, {}, True)
    return nodes


def exists(free: list[int], pods: list[tuple[int, Pin]]) -> bool:
    """Try every way to put the pods on nodes."""
    for where in product(range(len(free)), repeat=len(pods)):
        left = list(free)
        for number, (gpus, only) in zip(where, pods, strict=True):
            left[number] -= gpus if only is None or NAMES[number] in only else 99
        if min(left) >= 0:
            return True
    return False


@given(free, st.integers(1, 4), st.integers(1, 4), some)
def test_equal_pinned_pods_are_placed_if_and_only_if_their_nodes_have_room(
    free: list[int], gpus: int, count: int, only: tuple[NodeName, ...]
) -> None:
    plan = cluster(free).find((({GPU: gpus}, count),), pins=(only,))
    assert (plan is not None) == exists(free, [(gpus, only)] * count)
    assert plan is None or set(plan.nodes) <= set(only)


@given(free, st.lists(st.tuples(st.integers(1, 4), pin), min_size=1, max_size=4))
def test_what_is_found_for_a_mixed_gang_keeps_every_pin_and_fits(
    free: list[int], pods: list[tuple[int, Pin]]
) -> None:
    parts = tuple(({GPU: gpus}, 1) for gpus, _ in pods)
    plan = cluster(free).find(parts, pins=tuple(only for _, only in pods))
    if plan is None:
        return
    left = dict(zip(NAMES, free, strict=False))
    for node, (gpus, only) in zip(plan.nodes, pods, strict=True):
        assert only is None or node in only
        left[node] -= gpus
    assert min(left.values()) >= 0
