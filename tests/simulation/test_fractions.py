"""Fractions and whole devices are compared in units of whole devices; uses the public command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.model import Amounts, Node, NodeName, PoolName, Resource
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.pools import Pools
from app.core.quantities import ManagedResources
from app.sim.replay.trace_files import DEVICE, THOUSANDTHS, read_log
from tests.simulation.logs import log_file
from tests.support.command_line import fairgate

HERE = Path(__file__).parent
GPU, SLICE, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"
CORES, MEMORY = "nvidia.com/gpucores", "nvidia.com/gpumem"


def played(name: str) -> dict[str, Any]:
    done = fairgate("simulate", HERE / f"{name}.yaml", "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def held(tenant: dict[str, Any]) -> dict[str, float]:
    return {resource: count for resource, count in tenant["used"].items() if count}


@pytest.mark.parametrize(
    ("name", "a", "b", "share"),
    [
        ("s01-slices-beside-cards", {SLICE: 14, GPU: 3}, {GPU: 5}, 1 / 2),
        ("s02-shared-beside-cards", {SHARED: 8, GPU: 1}, {GPU: 3}, 1 / 2),
        (
            "s03-hami-beside-cards",
            {GPU: 9, CORES: 80, MEMORY: 81920},  # eight shares of one device
            {GPU: 3},
            1 / 2,
        ),
    ],
)
def test_tenants_of_partial_and_whole_devices_hold_equal_amounts(
    name: str, a: dict[str, int], b: dict[str, int], share: float
) -> None:
    outcome = played(name)
    tenants = outcome["tenants"]
    assert (held(tenants["a"]), held(tenants["b"])) == (a, b)
    assert tenants["a"]["share"] == tenants["b"]["share"] == share
    assert outcome["metrics"]["jain"] == 1
    assert outcome["metrics"]["drift_over_bound_max"] <= 1 + 1e-9


def by_thousandths(demand: Amounts) -> Amounts:
    """A pod of the log, as the simulator reads it."""
    return {DEVICE: demand[DEVICE]}


def by_per_cent(demand: Amounts) -> Amounts:
    """The same pod as a HAMi request: one share with a percentage, or whole devices."""
    count, rest = divmod(demand[DEVICE], THOUSANDTHS)
    assert not (count and rest)
    assert rest % 10 == 0
    return {DEVICE: 1, Resource(CORES): rest // 10} if rest else {DEVICE: count}


def ground(node: Node) -> tuple[Pools, PoolNodes]:
    pools = Pools(ManagedResources(["nvidia.com/*"]))
    pools.put_node(node)
    pools.rebuild_if_stale()
    return pools, pools.nodes_by_pool[PoolName("default")]


DEVICES = 640


def test_the_pods_of_a_real_log_cost_and_fit_the_same_by_per_cent_as_by_thousandths() -> None:
    log = log_file("openb_2023.csv.gz")
    asked = [w.demand for w in read_log(log).works if w.demand.get(DEVICE, 0)]
    assert sum(each[DEVICE] % THOUSANDTHS > 0 for each in asked) > 3000, "most are parts"
    name, default = NodeName("n"), PoolName("default")
    parts = {DEVICE: DEVICES * THOUSANDTHS}
    cents = {DEVICE: DEVICES * 10, Resource(CORES): DEVICES * 100}
    pools, hami = ground(Node(name, {}, cents, True))
    _, plain = ground(Node(name, {}, parts, True, {DEVICE: THOUSANDTHS}))
    scale = pools.scale()
    taken = 0
    for demand in asked:
        one, other = by_thousandths(demand), by_per_cent(demand)
        fits = plain.find_assignment(((one, 1),)) is not None
        assert fits == (hami.find_assignment(((other, 1),)) is not None)
        counted = scale.demand_in_grains(default, other)[Resource(CORES)]
        assert counted * DEVICES * THOUSANDTHS == one[DEVICE] * scale.total_grains
        if fits:
            plain.allocate(name, one)
            hami.allocate(name, other)
            taken += one[DEVICE]
    assert taken > 0.99 * DEVICES * THOUSANDTHS, "the node is full"
