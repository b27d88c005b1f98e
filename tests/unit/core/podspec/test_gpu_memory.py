"""The device memory that a pod needs, and the pools that have enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.errors import InvalidInput
from app.core.model import (
    Amounts,
    ClaimRef,
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Resource,
)
from app.core.placement.pools import Pools
from app.core.podspec.gpu_memory import (
    declared_memory,
    describe_shortage,
    need_of,
    parse_declared_memory,
)
from app.core.podspec.requests import ContainerRequest, effective_requests
from app.core.quantities import GIB, MIB, PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources(
    [GPU, "nvidia.com/mig-*", "nvidia.com/gpu.shared", "nvidia.com/gpucores", "nvidia.com/gpumem"]
)
MEMORY, SIZE = "fairgate.io/gpu-memory", "fairgate.io/model-size"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("7B", 13 * GIB),
        ("13B", 26 * GIB),
        ("70B", 140 * GIB),
        (" 7b ", 13 * GIB),
        ("8B", 19_200_000_000),
        ("0.5B", 1_200_000_000),
        ("405B", 972_000_000_000),
        ("1.5T", 3_600_000_000_000),
        ("350M", 840_000_000),
    ],
)
def test_a_size_is_the_memory_that_the_model_takes(size: str, expected: int) -> None:
    assert parse_declared_memory({SIZE: size}) == expected


@pytest.mark.parametrize(
    ("memory", "expected"), [("40Gi", 40 * GIB), ("16G", 16 * 10**9), ("1.5Gi", 3 * GIB // 2)]
)
def test_memory_is_a_quantity(memory: str, expected: int) -> None:
    assert parse_declared_memory({MEMORY: memory}) == expected


def test_pod_without_a_declaration_needs_no_memory() -> None:
    assert parse_declared_memory({"fairgate.io/pools": "a"}) == 0


def test_stated_memory_overrides_the_model_size() -> None:
    """A quantised model needs less than its number of parameters suggests."""
    assert parse_declared_memory({MEMORY: "6Gi", SIZE: "7B"}) == 6 * GIB


@pytest.mark.parametrize(
    "annotations",
    [
        {MEMORY: "40GB"},
        {MEMORY: "much"},
        {MEMORY: "40"},
        {MEMORY: "0"},
        {MEMORY: "-8Gi"},
        {MEMORY: ""},
        {SIZE: "large"},
        {SIZE: "7"},
        {SIZE: "0B"},
        {SIZE: "-7B"},
        {SIZE: "7B7"},
        {SIZE: "\uff17B"},
        {MEMORY: "40Gi", SIZE: "huge"},
    ],
)
def test_error_for_an_invalid_annotation_names_it_and_its_format(
    annotations: dict[str, str],
) -> None:
    with pytest.raises(InvalidInput, match=r"fairgate\.io/(gpu-memory|model-size).* write it"):
        parse_declared_memory(annotations)
    assert declared_memory(annotations) == 0


@pytest.mark.parametrize(
    ("demand", "each", "memory"),
    [
        ({GPU: 1}, 16 * GIB, 16 * GIB),
        ({GPU: 4}, 40 * GIB, 160 * GIB),
        ({Resource("nvidia.com/mig-3g.40gb"): 1}, 80 * GIB, 40 * GIB),
        ({Resource("nvidia.com/mig-1g.10gb"): 3}, None, 30 * GIB),
        ({Resource("nvidia.com/mig-1g.10gb.me"): 1}, None, 10 * GIB),
        ({Resource("nvidia.com/mig-1c.3g.20gb"): 1}, None, 20 * GIB),
        ({Resource("nvidia.com/gpu.shared"): 3}, 16 * GIB, 16 * GIB),
        ({Resource("nvidia.com/gpucores"): 50}, 16 * GIB, 16 * GIB),
        ({GPU: 2, Resource("nvidia.com/gpucores"): 100}, 16 * GIB, 32 * GIB),
        ({Resource("nvidia.com/gpumem"): 3000}, 16 * GIB, 3000 * MIB),
        ({GPU: 2, Resource("nvidia.com/gpumem"): 6000}, 16 * GIB, 6000 * MIB),
        ({GPU: 1, Resource("rdma/hca"): 8, Resource("cpu"): 9000}, 16 * GIB, 16 * GIB),
    ],
)
def test_need_is_met_up_to_the_exact_memory_of_the_devices(
    demand: Amounts, each: int | None, memory: int
) -> None:
    assert need_of(memory, demand, MANAGED).is_met_by(each) is True
    assert need_of(memory + 1, demand, MANAGED).is_met_by(each) is False
    assert describe_shortage(need_of(memory + 1, demand, MANAGED), each)
    assert not describe_shortage(need_of(memory, demand, MANAGED), each)


def test_memory_requested_per_device_counts_for_each_of_two_devices() -> None:
    """HAMi reads gpumem as the memory of each device. The total is computed once, by the parser."""
    asked = ContainerRequest(limits={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 10240})
    need = need_of(20 * GIB, effective_requests([asked]), MANAGED)
    assert need.is_met_by(None) is True
    assert replace(need, needed=20 * GIB + 1).is_met_by(None) is False


def test_need_has_no_answer_for_devices_of_unknown_memory() -> None:
    assert need_of(GIB, {GPU: 1}, MANAGED).is_met_by(None) is None


def wanting(gib: int, devices: int = 1, name: str = "p") -> Pod:
    return replace(held_pod(name, "a", devices), gpu_memory=gib * GIB)


def node(name: str, label: str = "", devices: int = 8) -> Node:
    labels = {"kind": name.rpartition("-")[0]} | ({"nvidia.com/gpu.memory": label} if label else {})
    return Node(NodeName(name), labels, {GPU: devices, PODS: 110}, True)


def known(*pools: Pool, nodes: tuple[Node, ...]) -> Pools:
    made = Pools(ManagedResources([GPU]))
    for pool in pools:
        made.put_pool(pool)
    for each in nodes:
        made.put_node(each)
    made.rebuild_if_stale()
    return made


def kind(name: str, gib: int | None = None) -> Pool:
    return Pool(PoolName(name), {"kind": name}, gpu_memory=None if gib is None else gib * GIB)


A100, H100, T4 = kind("a100", 40), kind("h100", 80), kind("t4", 16)
NODES = (node("a100-0"), node("h100-0"), node("t4-0"))


@pytest.mark.parametrize(
    ("gib", "devices", "pools"),
    [
        (13, 1, ("t4", "a100", "h100")),
        (26, 1, ("a100", "h100")),
        (26, 2, ("t4", "a100", "h100")),
        (80, 1, ("h100",)),
        (140, 1, ()),
        (140, 2, ("h100",)),
        (0, 1, ("a100", "h100", "t4")),
    ],
)
def test_pools_with_enough_memory_are_eligible_smallest_device_first(
    gib: int, devices: int, pools: tuple[str, ...]
) -> None:
    assert known(A100, H100, T4, nodes=NODES).eligible_pools(wanting(gib, devices), None) == pools


def test_smallest_node_gives_the_memory_of_a_pool_that_states_none() -> None:
    pools = known(kind("x"), nodes=(node("x-0", "81559"), node("x-1", "15360")))
    assert pools.eligible_pools(wanting(15), None) == ("x",)
    assert pools.eligible_pools(wanting(16), None) == ()
    pools.drop_node(NodeName("x-1"))
    pools.rebuild_if_stale()
    assert pools.eligible_pools(wanting(79), None) == ("x",)


@pytest.mark.parametrize("label", ["", "much", "0", "-1", "9" * 40])
def test_pool_of_unknown_memory_is_eligible_but_last(label: str) -> None:
    pools = known(H100, kind("a"), nodes=(node("h100-0"), node("a-0", label)))
    assert pools.eligible_pools(wanting(70), None) == ("h100", "a")
    assert pools.eligible_pools(wanting(500), None) == ("a",)


def test_pod_with_only_a_claim_is_eligible_whatever_its_memory_need() -> None:
    pod = replace(wanting(500, 0), claims=(ClaimRef("c", "c"),), container_requests={})
    assert known(T4, nodes=NODES).eligible_pools(replace(pod, demand={PODS: 1}), None) == ("t4",)


def world(*pools: Pool, nodes: tuple[Node, ...] = NODES) -> VirtualCluster:
    return VirtualCluster(ManagedResources([GPU]), nodes, pools=pools)


def went(world: VirtualCluster) -> list[str]:
    world.advance_to(Millis(0))
    return [str(each.pool) for each in world.started]


def test_small_model_gets_small_devices_while_they_are_free() -> None:
    there = world(A100, H100, T4, nodes=(node("a100-0"), node("h100-0"), node("t4-0", devices=2)))
    for number in range(4):
        there.submit(wanting(13, name=f"p{number}"), Millis(0), None)
    assert went(there) == ["t4", "t4", "a100", "a100"]


def test_pod_without_a_declaration_is_packed_as_usual() -> None:
    there = world(A100, T4)
    there.submit(wanting(13, 6, "a"), Millis(0), None)
    there.submit(wanting(0, 2, "b"), Millis(0), None)
    assert went(there) == ["t4", "t4"]


def test_gang_gets_a_pool_with_enough_memory_for_all_its_pods() -> None:
    there = world(A100, T4)
    for number, gib in enumerate((13, 30)):
        pod = replace(wanting(gib, name=f"m{number}"), gang="g", gang_size=2)
        there.submit(pod, Millis(0), None)
    assert went(there) == ["a100", "a100"]


def test_reason_of_a_wait_names_the_devices_that_are_too_small() -> None:
    there = world(A100, kind("x"), nodes=(node("a100-0"), node("x-0", "15360")))
    pod = wanting(60)
    there.submit(pod, Millis(0), None)
    assert went(there) == []
    why = there.engine.queries.explain_wait(pod.uid)
    assert why is not None
    assert "may go to, or no node has the GPU memory that it needs" in why.text
    lacking = "it needs 60Gi of device memory, and asks for 1 device of {}"
    assert why.numbers == {"pool a100": lacking.format("40Gi"), "pool x": lacking.format("15Gi")}
