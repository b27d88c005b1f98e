"""Route /search: found objects, their order, and the rights of the caller."""

from __future__ import annotations

import pytest

from app.core.explain.search import PORTION, Search
from tests.fakes.fake_api_cluster import ApiCluster, busy, held
from tests.support.asgi import Reply, call


@pytest.fixture
async def town() -> ApiCluster:
    town = ApiCluster()
    await town.open()
    await town.deliver(*busy())
    return town


async def search(town: ApiCluster, query: str) -> Reply:
    headers = {"authorization": "Bearer alices"}
    return await call(town.app(), "GET", f"/v1/search?q={query}", b"", headers)


async def found(town: ApiCluster, query: str) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in (await search(town, query)).json["items"]]


@pytest.mark.parametrize(
    ("query", "kind", "name"),
    [
        ("robo", "tenant", "robotics"),
        ("ERIN@", "user", "erin@example.com"),
        ("wait-3", "pod", "wait-3"),
        ("robotics", "namespace", "robotics"),
        ("h100-02", "node", "h100-02"),
    ],
)
async def test_each_kind_is_found_by_a_part_of_its_name(
    town: ApiCluster, query: str, kind: str, name: str
) -> None:
    assert (kind, name) in await found(town, query)


async def test_an_equal_name_comes_before_longer_names(town: ApiCluster) -> None:
    pods = [name for kind, name in await found(town, "wait-1") if kind == "pod"]
    assert pods[0] == "wait-1"
    assert len(pods) == 8


async def test_other_tenants_are_not_found_without_the_right_on_them(town: ApiCluster) -> None:
    town.rights.granted = {("get", "tenants/queue/robotics")}
    town.rights.name = "nina@example.com"
    assert await found(town, "research") == []
    assert await found(town, "h100-02") == []
    assert {name for kind, name in await found(town, "example.com") if kind == "user"} == {
        "dave@example.com",
        "erin@example.com",
    }


async def test_own_pods_are_found_without_any_right(town: ApiCluster) -> None:
    town.rights.granted = set()
    town.rights.name = "erin@example.com"
    items = (await search(town, "wait-")).json["items"]
    assert {each["user"] for each in items} == {"erin@example.com"}
    assert {each["kind"] for each in items} == {"pod"}


async def test_an_empty_search_is_refused(town: ApiCluster) -> None:
    assert (await search(town, "")).status == 400


async def test_a_search_pauses_after_each_portion_of_pods(town: ApiCluster) -> None:
    def pauses() -> int:
        found = Search("many-7", lambda _: True, lambda *_: True, 8)
        return len(list(town.engine.queries.search(found, nodes=True)))

    assert pauses() == 2
    many = (held(f"many-{number}", "teaching", "ivan@example.com") for number in range(2 * PORTION))
    await town.deliver(*many)
    assert pauses() == 4
