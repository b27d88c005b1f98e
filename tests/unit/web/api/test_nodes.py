"""Route /nodes/{node}/pods: the pods of a node, by the rights of the caller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_api_cluster import ApiCluster, busy, runs
from tests.support.asgi import call


@pytest.fixture
async def town() -> ApiCluster:
    town = ApiCluster()
    await town.open()
    await town.deliver(*busy())
    await town.deliver(runs("more", "teaching", "judy@example.com", "h100-07", 2))
    return town


async def pods(town: ApiCluster, node: str = "h100-07") -> dict[str, Any]:
    headers = {"authorization": "Bearer alices"}
    answer = await call(town.app(), "GET", f"/v1/nodes/{node}/pods", b"", headers)
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


async def test_each_released_pod_of_the_node_is_listed(town: ApiCluster) -> None:
    found = await pods(town)
    assert [(each["namespace"], each["user"]) for each in found["items"]] == [
        ("robotics", "erin@example.com"),
        ("teaching", "judy@example.com"),
    ]
    assert found["items"][0]["request"] == {"nvidia.com/gpu": "4"}
    assert found["items"][0]["since"] is not None
    assert found["hidden"] == 0


async def test_pods_of_other_tenants_are_only_counted(town: ApiCluster) -> None:
    town.rights.granted = {("list", "pools"), ("get", "tenants/queue/teaching")}
    found = await pods(town)
    assert [each["tenant"] for each in found["items"]] == ["teaching"]
    assert found["hidden"] == 1


async def test_the_own_pods_are_listed_without_any_right(town: ApiCluster) -> None:
    town.rights.granted, town.rights.name = set(), "erin@example.com"
    found = await pods(town)
    assert [each["name"] for each in found["items"]] == ["run-7"]
    assert found["hidden"] == 0


async def test_an_unknown_node_has_no_pods(town: ApiCluster) -> None:
    assert (await pods(town, "nowhere"))["items"] == []
