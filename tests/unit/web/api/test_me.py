"""Route /me: the caller's own workloads and shares, without any right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.core import events as ev
from app.web.api.me import MOST_WORKLOADS
from tests.fakes.fake_api_cluster import GPU, ApiCluster, busy, held, runs
from tests.support.asgi import Reply, call


async def get(town: ApiCluster, path: str) -> Reply:
    return await call(town.app(), "GET", path, b"", {"authorization": "Bearer alices"})


@pytest.fixture
async def town() -> ApiCluster:
    town = ApiCluster()
    await town.open()
    await town.deliver(*busy())
    town.rights.granted = set()
    return town


async def test_a_caller_without_rights_sees_own_workloads_in_queue_order(town: ApiCluster) -> None:
    town.rights.name = "erin@example.com"
    me = (await get(town, "/v1/me")).json
    held_ones = [each for each in me["workloads"] if each["state"] == "held"]
    assert [(each["position"], each["length"]) for each in held_ones] == [
        (place, 7) for place in range(1, 8)
    ]
    assert {each["rule"] for each in held_ones} == {"limit"}
    assert {each["estimateWithheld"] for each in held_ones} == {"There is no estimate yet."}
    assert {each["user"] for each in me["workloads"]} == {"erin@example.com"}
    assert any(each["state"] == "released" for each in me["workloads"])


async def test_use_and_fair_share_are_those_of_the_caller_and_of_the_tenant(
    town: ApiCluster,
) -> None:
    town.rights.name = "erin@example.com"
    [tenant] = (await get(town, "/v1/me")).json["tenants"]
    assert (tenant["tenant"], tenant["pending"]) == ("robotics", 7)
    assert 0 < tenant["used"] < tenant["tenantUsed"]
    assert 0 < tenant["fairShare"] < tenant["tenantFairShare"]
    assert GPU in tenant["amounts"]["h100"]


async def test_a_tenant_in_which_all_pods_of_the_caller_ended_is_not_shown(
    town: ApiCluster,
) -> None:
    town.rights.name = "ivan@example.com"
    ended = runs("ended", "teaching", "ivan@example.com", "t4-03")
    await town.deliver(ended)
    assert len((await get(town, "/v1/me")).json["tenants"]) == 1
    await town.deliver(ev.PodGone(town.now, ended.pod.uid))  # its minimum charge still counts
    me = await get(town, "/v1/me")
    assert (me.status, me.json["tenants"]) == (200, [])


async def test_workloads_of_several_tenants_are_all_shown(town: ApiCluster) -> None:
    await town.deliver(
        held("mine", "teaching", "ivan@example.com"),
        runs("too", "notebooks", "ivan@example.com", "t4-03", 1),
    )
    town.rights.name = "ivan@example.com"
    me = (await get(town, "/v1/me")).json
    assert {(each["namespace"], each["state"]) for each in me["workloads"]} == {
        ("teaching", "held"),
        ("notebooks", "released"),
    }
    assert [each["tenant"] for each in me["tenants"]] == ["ns.notebooks", "teaching"]


async def test_a_caller_without_pods_gets_empty_lists(town: ApiCluster) -> None:
    town.rights.name = "nina@example.com"
    me = (await get(town, "/v1/me")).json
    assert me == {"name": "nina@example.com", "tenants": [], "workloads": [], "leftOut": 0}


async def test_pods_beyond_the_limit_are_counted_and_not_evaluated(town: ApiCluster) -> None:
    evaluated = 0
    pods = [
        held(f"many-{number}", "teaching", "ivan@example.com")
        for number in range(MOST_WORKLOADS + 50)
    ]
    await town.deliver(*pods, runs("one", "teaching", "ivan@example.com", "t4-03", 1))
    town.rights.name = "ivan@example.com"
    queue = town.engine.queries.waiting_workloads

    def counting(*about: Any) -> Iterator[Any]:
        nonlocal evaluated
        for each in queue(*about):
            evaluated += 1
            yield each

    town.engine.queries.waiting_workloads = counting  # type: ignore[method-assign]
    me = (await get(town, "/v1/me")).json
    assert (len(me["workloads"]), me["leftOut"]) == (MOST_WORKLOADS + 1, 50)
    assert evaluated <= MOST_WORKLOADS + 1


async def test_the_own_queue_needs_no_right_and_shows_no_other_user(town: ApiCluster) -> None:
    town.rights.name = "erin@example.com"
    town.rights.granted = set()
    own = (await get(town, "/v1/tenants/robotics/queue?user=erin@example.com")).json
    assert (len(own["items"]), own["pending"]) == (7, 7)
    for query in ("", "?user=dave@example.com"):
        assert (await get(town, f"/v1/tenants/robotics/queue{query}")).status == 403
    # A caller without pods there does not learn whether the tenant exists.
    for tenant in ("vision", "none"):
        path = f"/v1/tenants/{tenant}/queue?user=erin@example.com"
        assert (await get(town, path)).status == 403
