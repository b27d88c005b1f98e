"""REST answers about tenants, users, queues, pools, quotas and single pods."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import pytest

from app.core import events as ev
from app.core.explain.views import LeaderStateMessage, PublishedReservation
from app.core.model import Millis, NodeName, Phase, Pod, PoolName, Quota, TenantName, Uid
from app.core.well_known import RELEASE_ADOPTED
from app.ports.api import QuotaThen
from app.ports.forecasts import Estimate
from app.sim.cluster.virtual_cluster import held_pod
from app.web.api.pagination import LONGEST_TOKEN, page_token
from tests.support.asgi import call
from tests.support.rest_app import GPU, NOW, Both, node, pool, problem, tenant

H100 = {"gpu": "h100"}


def pod(name: str, namespace: str = "team-a", gpus: int = 1, **more: Any) -> Pod:
    user = more.pop("user", "alice")
    since = more.pop("since", NOW - 60_000)
    made = held_pod(name, namespace, gpus, user=user, since=since, priority=more.pop("priority", 0))
    return replace(made, **more)


def running(name: str, namespace: str = "team-a", gpus: int = 1, **more: Any) -> Pod:
    return replace(
        pod(name, namespace, gpus, **more),
        gates=(),
        release_annotation="1.1",
        node=NodeName("n0"),
        pool=PoolName("h100"),
        phase=Phase.RUNNING,
        started_at=Millis(NOW - 1000),
    )


@pytest.fixture
async def both() -> Both:
    """Two teams and a pool of 16 devices with 14 in use."""
    both = Both()
    both.rights.everything = True
    quotas = {"h100": Quota({GPU: 4}, {GPU: 6})}
    await both.hear(
        pool("h100", gpu="h100"),
        node("n0", 8, gpu="h100"),
        node("n1", 8, gpu="h100"),
        tenant("team-a", 2, users={"alice": Fraction(3, 2)}, quotas=quotas, max_pending=5),
        tenant("team-b"),
    )
    await both.see(running("r1", gpus=5), running("r2", "team-b", 9, user="eve", uid=Uid("r2")))
    await both.open()
    return both


async def items(both: Both, path: str) -> list[Any]:
    reply = await both.get(path)
    assert reply.status == 200, reply.body
    found: list[Any] = reply.json["items"]
    return found


async def test_tenant_shows_its_configuration_and_current_use(both: Both) -> None:
    await both.see(pod("p1", gpus=2), pod("p2", gpus=2))

    reply = await both.get("/v1/tenants/team-a")

    assert reply.headers["etag"] == '"u-team-a-3"'
    assert reply.json == {
        "name": "team-a",
        "exists": True,
        "parent": None,
        "weight": "2",
        "namespaces": ["team-a"],
        "users": [{"name": "alice", "weight": "1.5"}],
        "quotas": [
            {"pool": "h100", "guarantee": {"nvidia.com/gpu": "4"}, "limit": {"nvidia.com/gpu": "6"}}
        ],
        "pools": [],
        "maxPending": 5,
        "paused": False,
        "share": "0.3125",
        "weightedShare": "0.1562",
        "used": {"h100": {"nvidia.com/gpu": "5"}},
        "borrowed": {"h100": {"nvidia.com/gpu": "1"}},
        "pending": 2,
        "fairShare": "0.3750",  # its limit: 6 of 16 devices
    }


async def test_tenants_without_a_resource_are_listed_once_they_want_something(both: Both) -> None:
    assert [each["name"] for each in await items(both, "/v1/tenants")] == ["team-a", "team-b"]

    await both.see(pod("p", "stray"))

    those = await items(both, "/v1/tenants")
    assert [each["name"] for each in those] == ["default", "ns.stray", "team-a", "team-b"]
    assert (those[1]["exists"], those[1]["parent"], those[1]["pending"]) == (False, "default", 1)


async def test_unknown_tenant_is_404_if_the_caller_may_read_all(both: Both) -> None:
    for path in ("", "/users", "/queue"):
        assert "nobody" in problem(await both.get(f"/v1/tenants/nobody{path}"))
        # A namespace owned by a tenant does not form its own tenant.
        assert (await both.get(f"/v1/tenants/ns.team-a{path}")).status == 404
        assert (await both.get(f"/v1/tenants/ns.some{path}")).status == 200


async def test_users_show_their_use_and_pending_workloads(both: Both) -> None:
    await both.see(pod("p1"), pod("p2", user="bob"), pod("p3", user="bob"))

    assert await items(both, "/v1/tenants/team-a/users") == [
        {
            "name": "alice",
            "weight": "1.5",
            "used": {"h100": {"nvidia.com/gpu": "5"}},
            "pending": 1,
            "share": "0.3125",
            "fairShare": "0.2250",
        },
        {
            "name": "bob",
            "weight": "1",
            "used": {},
            "pending": 2,
            "share": "0.0000",
            "fairShare": "0.1500",
        },
    ]


async def test_the_version_is_that_of_the_installed_program(both: Both) -> None:
    assert (await both.get("/v1/version")).json == {"version": version("fairgate")}


async def test_the_page_is_also_below_the_path_that_the_api_server_passes_on(both: Both) -> None:
    for path, inner in (("/", "/v1/page"), ("/static/app.js", "/v1/page/static/app.js")):
        direct, passed = [await call(both.app, "GET", each) for each in (path, inner)]
        assert direct.status == passed.status == 200
        assert direct.body == passed.body
        assert passed.headers["content-security-policy"]


async def test_a_queue_shows_each_user_in_their_own_order(both: Both) -> None:
    await both.see(
        pod("a1", created_at=NOW - 9000),
        pod("a2", created_at=NOW - 8000, gpus=3),
        pod("urgent", created_at=NOW - 1000, priority=7),
        pod("b1", user="bob"),
        pod("aside", user="bob", gates=("fairgate.io/queue", "other"), created_at=NOW - 99_000),
        pod("e1", "team-b", user="eve"),
    )

    reply = (await both.get("/v1/tenants/team-a/queue")).json

    assert (reply["tenant"], reply["pending"], reply["continue"]) == ("team-a", 5, None)
    shown = [(w["user"], w["position"], w["length"], w["name"]) for w in reply["items"]]
    assert shown == [
        ("alice", 1, 3, "urgent"),
        ("alice", 2, 3, "a1"),
        ("alice", 3, 3, "a2"),
        ("bob", 1, 1, "b1"),
        ("bob", 0, 0, "aside"),
    ]
    assert reply["items"][2]["request"] == {"nvidia.com/gpu": "3"}
    assert reply["items"][4]["rule"] == "another gate"
    assert [w["name"] for w in await items(both, "/v1/tenants/team-a/queue?user=bob")] == [
        "b1",
        "aside",
    ]
    assert (await both.get("/v1/tenants/team-a/queue?user=bob")).json["pending"] == 2


async def test_gang_is_one_entry_of_the_queue(both: Both) -> None:
    gang = [pod(f"g{n}", gang="g", gang_size=3, created_at=NOW - n) for n in range(3)]
    await both.see(*gang[:2])
    (waits,) = await items(both, "/v1/tenants/team-a/queue")
    assert waits["estimateWithheld"] == "There is no estimate yet."
    assert (waits["gang"], waits["pods"], waits["position"]) == ("g", 2, 0)
    assert "2 of 3 pods are there" in waits["reason"]

    await both.see(gang[2])
    (waits,) = await items(both, "/v1/tenants/team-a/queue")
    assert (waits["pods"], waits["position"], waits["request"][GPU]) == (3, 1, "3")


@pytest.mark.parametrize("path", ["/v1/tenants/team-a/queue", "/v1/tenants/team-a/users"])
async def test_a_list_in_parts_is_the_whole_list(both: Both, path: str) -> None:
    names = [f"u{n}" for n in range(4)]
    pods = [
        pod(f"p{n}-{m}", user=u, created_at=NOW + m) for n, u in enumerate(names) for m in range(3)
    ]
    gate = ("fairgate.io/queue", "other")
    pods += [pod(f"q{n}", user=u, gates=gate) for n, u in enumerate(names)]
    await both.see(*pods)
    whole = await items(both, path)
    parts: list[Any] = []
    more = ""
    while True:
        reply = (await both.get(f"{path}?limit=2{more}")).json
        assert len(reply["items"]) <= 2
        parts += reply["items"]
        if reply["continue"] is None:
            break
        more = f"&continue={reply['continue']}"
    assert parts == whole


async def test_paging_continues_if_the_last_shown_workload_is_gone(both: Both) -> None:
    pods = [pod(f"p{n}", created_at=NOW + n) for n in range(4)]
    await both.see(*pods)
    first = (await both.get("/v1/tenants/team-a/queue?limit=2")).json
    await both.hear(ev.PodGone(NOW, pods[1].uid), ev.PodGone(NOW, pods[0].uid))

    rest = await both.get(f"/v1/tenants/team-a/queue?limit=2&continue={first['continue']}")

    assert [(w["name"], w["position"]) for w in rest.json["items"]] == [("p2", 1), ("p3", 2)]
    assert rest.json["continue"] is None


@pytest.mark.parametrize("more", ["x", "%20", "W10", "WyJhIl0x", "bnVsbA"])
@pytest.mark.parametrize("path", ["tenants", "tenants/team-a/queue", "quotas", "pools"])
async def test_a_token_that_is_none_is_a_problem(both: Both, path: str, more: str) -> None:
    reply = await both.get(f"/v1/{path}?continue={more}")
    assert reply.status == 400
    assert "continue" in problem(reply)


def test_the_longest_user_name_has_a_valid_token() -> None:
    assert len(page_token("\U0001f600" * 512, "x" * 63)) <= LONGEST_TOKEN


async def test_a_query_that_is_given_twice_is_a_problem(both: Both) -> None:
    reply = await both.get("/v1/tenants?limit=1&limit=2")
    assert reply.status == 400
    assert "limit: this query is given several times" in problem(reply)


@pytest.mark.parametrize("key", [["alice", True, 1, 2, "\ud800"], ["\ud800", True, 1, 2, "uid"]])
async def test_a_token_that_cannot_be_sent_to_redis_is_a_problem(
    both: Both, key: list[str | int]
) -> None:
    reply = await both.get(f"/v1/tenants/team-a/queue?continue={page_token(*key)}")
    assert reply.status == 400
    assert "not a token of this list" in problem(reply)


async def test_pool_shows_its_nodes_and_free_capacity(both: Both) -> None:
    (listed,) = await items(both, "/v1/pools")
    reply = await both.get("/v1/pools/h100")

    assert listed["nodeSelector"] == H100
    assert (listed["capacity"], listed["used"], listed["free"], listed["nodes"]) == (
        {"nvidia.com/gpu": "16"},
        {"nvidia.com/gpu": "14"},
        {"nvidia.com/gpu": "2"},
        2,
    )
    assert reply.headers["etag"] == '"u-h100-1"'
    assert {**listed, "members": reply.json["members"]} == reply.json
    assert [(each["name"], each["used"]) for each in reply.json["members"]] == [
        ("n0", {"nvidia.com/gpu": "14"}),
        ("n1", {"nvidia.com/gpu": "0"}),
    ]
    assert "h200" in problem(await both.get("/v1/pools/h200"))


async def test_quotas_show_each_tenant_in_each_pool(both: Both) -> None:
    reply = (await both.get("/v1/quotas")).json

    assert [(row["tenant"], row["pool"]) for row in reply["items"]] == [
        ("team-a", "h100"),
        ("team-b", "h100"),
    ]
    assert reply["items"][0] == {
        "tenant": "team-a",
        "parent": None,
        "weight": "2",
        "pool": "h100",
        "guarantee": {"nvidia.com/gpu": "4"},
        "limit": {"nvidia.com/gpu": "6"},
        "used": {"nvidia.com/gpu": "5"},
        "borrowed": {"nvidia.com/gpu": "1"},
        "pending": 0,
        "weightedShare": "0.1562",
    }


class Past:
    async def quotas_at(self, at: Millis) -> list[QuotaThen] | None:
        if at < NOW - 60_000:
            return None
        return [QuotaThen("team-a", None, "9", "h100", {"nvidia.com/gpu": "1"}, {})]


async def test_quotas_at_a_past_time_come_from_the_stored_history(both: Both) -> None:
    both.context = replace(both.context, past_quotas=Past())

    then = await both.get("/v1/quotas?at=2023-11-14T22:13:00Z")
    assert then.json["at"] == "2023-11-14T22:13:00Z"
    (row,) = then.json["items"]
    assert (row["weight"], row["used"], row["weightedShare"]) == ("9", None, None)
    assert (await both.get("/v1/quotas?at=2020-01-01T00:00:00Z")).status == 404
    assert (await both.get("/v1/quotas?at=2030-01-01T00:00:00Z")).status == 400
    assert (await both.get("/v1/quotas?at=yesterday")).status == 400


async def test_every_read_reports_the_age_of_its_data(both: Both) -> None:
    for path in ("tenants", "tenants/team-a", "tenants/team-a/queue", "pools", "quotas"):
        assert (await both.get(f"/v1/{path}")).headers["fairgate-age"] == "0.412"
    assert "fairgate-age" not in (await both.get("/v1/tenants/nobody")).headers


async def test_why_needs_the_right_to_get_the_pod_or_the_queue(both: Both) -> None:
    await both.see(pod("p", gpus=2, user="bob"))
    both.rights.everything = False
    for name in ("p", "nothing"):
        reply = await both.get(f"/v1/workloads/team-a/{name}")
        assert reply.status == 403
        assert f"alice may not get pods {name}" in problem(reply)
    both.rights.granted = {("get", "pods/team-a/p"), ("get", "pods/team-a/nothing")}
    assert (await both.get("/v1/workloads/team-a/p")).status == 200
    assert (await both.get("/v1/workloads/team-b/p")).status == 403
    absent = problem(await both.get("/v1/workloads/team-a/nothing"))
    assert absent.startswith("No pod nothing of namespace team-a waits or runs under Fairgate: ")
    assert absent.endswith("the namespace (kubectl fairgate why POD -n NAMESPACE).")
    both.rights.granted = {("get", "tenants/queue/team-a")}
    assert (await both.get("/v1/workloads/team-a/p")).status == 200


async def test_reviews_of_rights_do_not_show_whether_a_pod_of_others_exists(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.rights.everything = False
    reviews: list[Any] = []
    allows = both.rights.allows

    async def recorded(*args: Any, **more: Any) -> bool:
        reviews.append((args, more))
        return await allows(*args, **more)

    monkeypatch.setattr(both.rights, "allows", recorded)
    assert (await both.get("/v1/workloads/team-a/p")).status == 403
    without = reviews.copy()
    reviews.clear()
    await both.see(pod("p", gpus=2, user="bob"))
    assert (await both.get("/v1/workloads/team-a/p")).status == 403
    assert reviews == without
    assert ("get", "tenants", "queue", "team-a") in [args[1:] for args, _ in reviews]


async def test_right_on_the_queue_is_not_enough_for_an_unknown_pod(both: Both) -> None:
    both.rights.everything, both.rights.granted = False, {("get", "tenants/queue/team-a")}
    assert (await both.get("/v1/workloads/team-a/nothing")).status == 403


async def test_a_submitter_may_read_why_the_own_pod_waits(both: Both) -> None:
    await both.see(pod("p", gpus=2, user="alice"), pod("q", gpus=2, user="bob"))
    both.rights.everything, both.rights.granted = False, set()
    assert (await both.get("/v1/workloads/team-a/p")).status == 200
    assert (await both.get("/v1/workloads/team-a/q")).status == 403


async def test_a_replica_that_is_not_synced_denies_no_submitter_the_own_pod(both: Both) -> None:
    await both.see(pod("p", gpus=2, user="alice"))
    both.rights.everything, both.rights.granted = False, set()
    both.context = replace(both.context, is_synced=lambda: False)
    reply = await both.get("/v1/workloads/team-a/p")
    assert reply.status == 503
    assert reply.headers["retry-after"]


async def test_why_names_the_limit_and_the_remedies(both: Both) -> None:
    await both.see(pod("p", gpus=2))

    why = (await both.get("/v1/workloads/team-a/p")).json

    assert (why["tenant"], why["state"], why["rule"]) == ("team-a", "held", "limit")
    assert why["numbers"]["nvidia.com/gpu limit"] == "6"
    assert why["remedies"] == [
        "the end of pods of tenant team-a that use 1 nvidia.com/gpu in pool h100",
        "a cluster admin raising the limit of tenant team-a in pool h100 to 7 nvidia.com/gpu",
    ]
    assert (why["estimate"], why["estimateWithheld"]) == (None, "There is no estimate yet.")


class Foresees:
    def estimate(self, uid: Uid) -> Estimate | None:
        return Estimate(60, 600, NOW)

    def missing_estimate_reason(self, uid: Uid) -> str:
        return ""


async def test_estimate_comes_from_the_forecast(both: Both) -> None:
    both.context = replace(both.context, forecasts=Foresees())
    await both.see(pod("p"))

    why = (await both.get("/v1/workloads/team-a/p")).json
    assert why["estimate"] == {"p50": 60, "p90": 600, "at": "2023-11-14T22:13:20Z"}
    assert why["estimateWithheld"] is None


async def test_running_pod_reports_its_node_and_release_time(both: Both) -> None:
    why = (await both.get("/v1/workloads/team-a/r1")).json

    assert (why["state"], why["rule"], why["position"]) == ("released", "released", 0)
    assert why["reason"] == "released to pool h100, on node n0 since 2023-11-14T22:13:19Z"


async def test_adopted_pod_is_not_reported_as_released_in_fair_order(both: Both) -> None:
    await both.see(
        replace(pod("old"), gates=(), release_annotation=RELEASE_ADOPTED, node=NodeName("n0"))
    )
    why = (await both.get("/v1/workloads/team-a/old")).json
    assert why["reason"].startswith("not by its turn: ")
    assert "before Fairgate, or was released by hand" in why["reason"]


async def test_follower_reports_the_reservation_of_the_leader(both: Both) -> None:
    await both.see(pod("small", "team-b", user="eve"))
    room = {NodeName("n1"): {GPU: 8}}
    kept = PublishedReservation(PoolName("h100"), Uid("large"), TenantName("team-a"), room)
    before = (await both.get("/v1/workloads/team-b/small")).json
    both.engine.apply_leader_state(LeaderStateMessage(NOW, 7, 0.5, (kept,)))
    both.engine.handle(ev.Pass(NOW))

    why = (await both.get("/v1/workloads/team-b/small")).json

    assert (before["rule"], why["rule"]) == ("fair order", "reservation")
    assert why["numbers"]["held for tenant"] == "team-a"
