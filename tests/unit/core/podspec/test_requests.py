"""Effective requests of a pod, case by case. Amounts are GPUs unless stated otherwise."""

from __future__ import annotations

import pytest

from app.core.errors import InvalidQuantity
from app.core.podspec.requests import ContainerRequest, effective_requests

GPU = "nvidia.com/gpu"


def gpus(count: int, sidecar: bool = False) -> ContainerRequest:
    return ContainerRequest({GPU: str(count)}, {GPU: str(count)}, sidecar)


@pytest.mark.parametrize(
    ("containers", "inits", "expected"),
    [
        ([gpus(2)], [], 2),
        ([gpus(2), gpus(3)], [], 5),
        # Init containers run before the containers, one at a time: the largest one counts.
        ([gpus(2)], [gpus(3), gpus(1)], 3),
        ([gpus(4)], [gpus(3)], 4),
        # A sidecar stays running, so it adds to the containers.
        ([gpus(2)], [gpus(1, sidecar=True)], 3),
        ([gpus(2)], [gpus(1, sidecar=True), gpus(1, sidecar=True)], 4),
        # It also adds to later init containers, but not to earlier ones.
        ([gpus(1)], [gpus(1, sidecar=True), gpus(3)], 4),
        ([gpus(1)], [gpus(3), gpus(1, sidecar=True)], 3),
        ([gpus(0)], [gpus(2, sidecar=True), gpus(2), gpus(1, sidecar=True)], 4),
    ],
)
def test_containers_sidecars_and_init_containers_add_up_by_their_order(
    containers: list[ContainerRequest], inits: list[ContainerRequest], expected: int
) -> None:
    assert effective_requests(containers, inits)[GPU] == expected


def test_a_limit_alone_counts_as_the_request() -> None:
    assert effective_requests([ContainerRequest(limits={GPU: "2"})])[GPU] == 2


def test_a_request_wins_over_its_limit() -> None:
    assert effective_requests([ContainerRequest({"cpu": "1"}, {"cpu": "4"})])["cpu"] == 1000


def test_overhead_is_added() -> None:
    total = effective_requests(
        [ContainerRequest({"cpu": "1"})], overhead={"cpu": "250m", "memory": "10Mi"}
    )

    assert total == {"cpu": 1250, "memory": 10 * 2**20, "pods": 1}


def test_a_pod_level_request_replaces_the_sum_of_cpu_and_memory() -> None:
    total = effective_requests(
        [ContainerRequest({"cpu": "1", "memory": "1Gi"})],
        pod_level=ContainerRequest({"cpu": "3"}),
        overhead={"cpu": "1"},
    )

    assert total == {"cpu": 4000, "memory": 2**30, "pods": 1}


def test_a_pod_level_request_cannot_hide_devices() -> None:
    assert effective_requests([gpus(2)], pod_level=ContainerRequest({GPU: "0"}))[GPU] == 2


def test_every_pod_requests_one_unit_of_pods() -> None:
    assert effective_requests([]) == {"pods": 1}


@pytest.mark.parametrize("where", ["requests", "limits"])
def test_negative_amount_is_refused(where: str) -> None:
    with pytest.raises(InvalidQuantity, match="negative"):
        effective_requests([gpus(2), ContainerRequest(**{where: {GPU: "-1"}})])


def test_negative_overhead_is_refused() -> None:
    with pytest.raises(InvalidQuantity, match="negative"):
        effective_requests([gpus(2)], overhead={GPU: "-2"})


def resized(stated: str, *granted: str, infeasible: bool = False) -> ContainerRequest:
    amounts = tuple({"cpu": each} for each in granted)
    return ContainerRequest({"cpu": stated}, granted=amounts, infeasible=infeasible)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (resized("4", "2", "2"), 4),  # grows: the request counts before the node grants it
        (resized("2", "4", "2"), 4),  # shrinks: the allocation counts until the node gives it back
        (resized("2", "2", "4"), 4),  # shrinks: the containers still have the larger amount
        (resized("8", "2", "2", infeasible=True), 2),
        (resized("8", "2", "4", infeasible=True), 4),
        (resized("8", infeasible=True), 8),  # no grant is known
    ],
)
def test_a_resize_counts_as_the_largest_of_request_allocation_and_use(
    container: ContainerRequest, expected: int
) -> None:
    assert effective_requests([container])["cpu"] == expected * 1000


def test_a_granted_amount_never_changes_the_devices() -> None:
    container = ContainerRequest({GPU: "1", "cpu": "1"}, granted=({GPU: "4"},), infeasible=True)

    assert effective_requests([container])[GPU] == 1


def test_a_granted_amount_at_pod_level_counts_for_a_stated_resource_only() -> None:
    total = effective_requests(
        [ContainerRequest({"cpu": "1", "memory": "1Gi"})],
        pod_level=ContainerRequest({"cpu": "2"}, granted=({"cpu": "6", "memory": "9Gi"},)),
    )

    assert (total["cpu"], total["memory"]) == (6000, 2**30)
