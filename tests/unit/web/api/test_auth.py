"""The rights of each caller: one row per route of the OpenAPI document, so new routes need one.

Answers to an admin of one team never contain data of another team.
"""

from __future__ import annotations

import json
import urllib.request

import pytest
from fastapi import FastAPI

from tests.fakes.fake_api_cluster import served
from tests.fakes.fake_authorizer import Right
from tests.support.asgi import Reply, call
from tests.support.canary_names import Bodies, Values, leak, operations, requests_of, written
from tests.support.two_teams import (
    CANARY,
    OTHERS,
    OURS,
    PARENT,
    THEIR_NAMESPACE,
    THEIR_USERS,
    Neighbours,
)

CALLERS = ("stranger", "nobody", "admin", "viewer", "operator")
WEIGHT = {"weight": "4"}
EIGHT = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
TRIAL = {"namespace": OURS, "pods": [{"pod": EIGHT}]}

# Statuses per caller for: the own team, the other team, and an unknown team.
TABLE: dict[str, tuple[str, object, tuple[str, str, str, str, str]]] = {
    # Each route: queries, body, and one text of statuses per caller, in the order of `CALLERS`.
    "GET /v1/tenants": ("", None, ("401", "403", "403", "200", "200")),
    "GET /v1/tenants/{tenant}": (
        "", None, ("401", "403", "200 403 403", "200 200 404", "200 200 404")),
    "GET /v1/tenants/{tenant}/users": (
        "", None, ("401", "403", "200 403 403", "200 200 404", "200 200 404")),
    "GET /v1/tenants/{tenant}/queue": (
        "", None, ("401", "403", "200 403 403", "200 200 404", "200 200 404")),
    "GET /v1/pools": ("", None, ("401", "403", "403", "200", "200")),
    "GET /v1/pools/{pool}": ("", None, ("401", "403", "403", "200 200 404", "200 200 404")),
    "GET /v1/nodes/{node}/pods": ("", None, ("401", "200", "200", "200", "200")),
    "GET /v1/quotas": ("", None, ("401", "403", "403", "200", "200")),
    "GET /v1/workloads/{namespace}/{pod}": (
        "", None, ("401", "403", "200 403 403", "200 200 403", "200 200 403")),
    "GET /v1/workloads/{namespace}/{pod}/events": (
        "", None, ("401", "403", "200 403 403", "403", "200 200 403")),
    "GET /v1/usage": (
        "?tenant={tenant}", None, ("401", "403", "200 403 403", "200", "200")),
    "GET /v1/releases": (
        "?tenant={tenant}", None, ("401", "403", "200 403 403", "200", "200")),
    "GET /v1/audit": (
        "?tenant={tenant}", None, ("401", "403", "200 403 403", "200", "200")),
    "GET /v1/audit/head": ("", None, ("401", "403", "403", "200", "200")),
    "GET /v1/me": ("", None, ("401", "200", "200", "200", "200")),
    "GET /v1/version": ("", None, ("401", "200", "200", "200", "200")),
    "GET /v1/search": ("?q=wait", None, ("401", "200", "200", "200", "200")),
    "GET /v1/stream": ("", None, ("401", "403", "200", "200", "200")),
    "POST /v1/simulations": ("", {"hours": 0.1}, ("401", "403", "200", "403", "200")),
    "POST /v1/trials": ("", TRIAL, ("401", "403", "200", "403", "200")),
    "PUT /v1/tenants/{tenant}": (
        "", {**WEIGHT, "parent": PARENT}, ("401", "403", "403", "403", "200 200 201")),
    "PUT /v1/tenants/{tenant}/weight": (
        "", WEIGHT, ("401", "403", "403", "403", "200 200 404")),
    "PUT /v1/tenants/{tenant}/users/{user}/weight": (
        "", WEIGHT, ("401", "403", "200 403 403", "403", "200 200 404")),
    "DELETE /v1/tenants/{tenant}": ("", None, ("401", "403", "403", "403", "204 204 404")),
    "PUT /v1/pools/{pool}": (
        "", {"paused": True}, ("401", "403", "403", "403", "200 200 201")),
    "DELETE /v1/pools/{pool}": ("", None, ("401", "403", "403", "403", "204 204 404")),
}  # fmt: skip
ABOUT = (
    {"tenant": OURS, "namespace": OURS, "pod": "wait-0", "user": "alice", "pool": "h100",
     "node": "h100-00"},
    {"tenant": OTHERS, "namespace": THEIR_NAMESPACE, "pod": f"{CANARY}-wait-2",
     "user": THEIR_USERS[0], "pool": "t4", "node": "t4-00"},
    dict.fromkeys(("tenant", "namespace", "pod", "user", "pool", "node"), "nowhere"),
)  # fmt: skip
OPEN = ("GET /livez", "GET /readyz", "GET /metrics")
"""Routes without rights on tenants: see test_ops."""


@pytest.fixture
async def town() -> Neighbours:
    found = Neighbours()
    await found.settle()
    found.stays = False  # a stream ends at once
    return found


@pytest.fixture
def app(town: Neighbours) -> FastAPI:
    return town.app()


async def ask(app: FastAPI, who: str, method: str, path: str, body: object = None) -> Reply:
    head = {"authorization": f"Bearer {who}", "content-type": "application/json"}
    return await call(app, method, path, b"" if body is None else json.dumps(body).encode(), head)


def test_every_route_has_its_rights_written_down(app: FastAPI) -> None:
    assert operations(app.openapi()).keys() == TABLE.keys() | {*OPEN}


@pytest.mark.parametrize("route", TABLE)
async def test_rights_decide_about_every_route(app: FastAPI, route: str) -> None:
    queries, body, wanted = TABLE[route]
    method, _, path = route.partition(" ")
    found = []
    for who in CALLERS:  # callers with write access come last
        asked = [(path + queries).format(**about) for about in ABOUT]
        statuses = [str((await ask(app, who, method, each, body)).status) for each in asked]
        found.append(" ".join(statuses if len({*statuses}) > 1 else statuses[:1]))
    assert tuple(found) == wanted


async def test_misspelled_query_parameter_is_refused_without_a_write(
    town: Neighbours, app: FastAPI
) -> None:
    path = f"/v1/tenants/{OURS}?dryrun=true"
    reply = await ask(app, "operator", "DELETE", path)
    assert (reply.status, "dryRun" in reply.json["detail"]) == (400, True)
    assert town.resources.spec("tenants", OURS) is not None


async def test_a_stranger_learns_no_query(app: FastAPI) -> None:
    reply = await ask(app, "stranger", "GET", "/v1/tenants?token=stranger")
    assert (reply.status, "query" in reply.json["detail"]) == (401, False)


async def test_unknown_method_is_405_with_the_allowed_methods(app: FastAPI) -> None:
    reply = await ask(app, "operator", "PATCH", f"/v1/tenants/{OURS}")
    assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET, PUT")


# --- another tenant's data ---

VALUES: Values = {
    "tenant": (OURS, OTHERS, PARENT, "nowhere"),
    "user": ("alice@example.com", THEIR_USERS[0]),
    "by": ("tenant,user,pool,node,workload",),
    "format": ("json", "csv"),
    "step": ("10m",),
    "limit": ("1", "500"),
    "at": ("2026-09-21T14:13:20Z",),
    "dryRun": ("true",),
    "hours": ("0.1",),
    "pool": ("h100", "nowhere"),
    "node": ("h100-00", "t4-00", "nowhere"),
    "namespace": (OURS, THEIR_NAMESPACE),
    "pod": (
        "wait-0", "large-0", "large-1", "gang-0-0", "gang-1-1", "run-0",
        f"{CANARY}-wait-2", f"{CANARY}-run-2",
    ),
}  # fmt: skip
BODIES: Bodies = {
    "POST /v1/simulations": ({}, {"weights": {OTHERS: "9"}}, {"users": {OTHERS: {"x": "2"}}}),
    "POST /v1/trials": (TRIAL, {"namespace": THEIR_NAMESPACE, "pods": [{"pod": EIGHT}]}, {}),
    "PUT /v1/tenants/{tenant}": ({}, {"users": [{"name": THEIR_USERS[1]}]}, {"parent": OTHERS}),
    "PUT /v1/tenants/{tenant}/weight": (WEIGHT, {}),
    "PUT /v1/tenants/{tenant}/users/{user}/weight": (WEIGHT, {"weight": "x"}),
    "PUT /v1/pools/{pool}": ({}, {"placement": "x"}),
}


def told(reply: Reply) -> str:
    """Return the complete text of an answer."""
    return reply.body.decode() + json.dumps(reply.headers)


@pytest.mark.parametrize("route", [*TABLE, *OPEN])
async def test_tenant_admin_sees_no_data_of_another_tenant(app: FastAPI, route: str) -> None:
    method = route.partition(" ")[0]
    seen = set()
    for path, body in requests_of(route, operations(app.openapi())[route], VALUES, BODIES):
        reply = await ask(app, "admin", method, path, body)
        found = leak(told(reply), CANARY, written(path, body))
        assert not found, f"{method} {path}: {found}"
        seen.add(reply.status)
    assert seen


@pytest.mark.parametrize(("who", "sees"), [("admin", False), ("operator", True)])
def test_stream_shows_another_tenant_only_with_the_right(who: str, sees: bool) -> None:
    place = Neighbours()
    with served(place) as town:
        town.do(place.settle())
        head = {"Authorization": f"Bearer {who}"}
        request = urllib.request.Request(f"{town.url}/v1/stream", headers=head)
        text = ""
        with urllib.request.urlopen(request, timeout=60) as answer:
            while "event: state" not in text or not text.endswith("\n\n"):
                text += answer.readline().decode()
    assert OURS in text
    assert bool(leak(text, CANARY)) is sees


async def test_the_canary_would_be_seen(app: FastAPI) -> None:
    """Control: a caller with access to both teams finds the canary in all these answers."""
    for path in (
        "/v1/tenants", f"/v1/tenants/{OTHERS}/queue", f"/v1/tenants/{OTHERS}/users",
        "/v1/usage?by=user", "/v1/usage?by=workload", "/v1/audit",
        f"/v1/workloads/{THEIR_NAMESPACE}/{CANARY}-wait-2",
    ):  # fmt: skip
        assert CANARY in (await ask(app, "operator", "GET", path)).body.decode(), path


@pytest.mark.parametrize(
    ("right", "shown"),
    [
        (None, {OURS}),
        (("get", "tenants", OTHERS), {OURS, OTHERS}),
        (("list", "tenants", ""), {OURS, OTHERS}),
    ],
)
async def test_preview_shows_only_other_tenants_that_the_caller_may_read(
    town: Neighbours, app: FastAPI, right: Right | None, shown: set[str]
) -> None:
    rights: set[Right] = {("update", "tenants", each) for each in (PARENT, OURS)}
    town.people.rights["governor"] = rights | ({right} if right else set())
    reply = await ask(app, "governor", "PUT", f"/v1/tenants/{OURS}/weight?dryRun=true", WEIGHT)
    assert reply.status == 200
    assert {each["tenant"] for each in reply.json["shares"]} == shown
    assert not leak(told(reply), CANARY)


async def test_right_to_update_a_tenant_does_not_show_its_users(
    town: Neighbours, app: FastAPI
) -> None:
    town.people.rights["governor"] = {("update", "tenants", PARENT), ("delete", "tenants", OTHERS)}
    path = f"/v1/tenants/{OTHERS}"
    for method, route, body in [
        ("PUT", f"{path}/weight?dryRun=true", WEIGHT),
        ("DELETE", f"{path}?dryRun=true", None),
        ("PUT", f"{path}/weight", {"weight": "1"}),  # it changes nothing
        ("PUT", f"{path}/weight", WEIGHT),
    ]:
        reply = await ask(app, "governor", method, route, body)
        assert reply.status == 200
        assert not leak(told(reply), CANARY), f"{method} {route}"


@pytest.mark.parametrize(
    ("rights", "shown"),
    [
        (set(), {None}),
        ({("get", "tenants", OURS)}, {None}),
        ({("get", "tenants/queue", OURS)}, {None, "alice@example.com", "bob@example.com"}),
    ],
)
async def test_preview_shows_shares_of_users_only_with_the_right_to_the_queue(
    town: Neighbours, app: FastAPI, rights: set[Right], shown: set[str | None]
) -> None:
    town.people.rights["governor"] = {("update", "tenants", PARENT), *rights}
    reply = await ask(app, "governor", "PUT", f"/v1/tenants/{OURS}/weight?dryRun=true", WEIGHT)
    assert {each["user"] for each in reply.json["shares"]} == shown


async def test_a_preview_shows_the_share_of_the_user_in_the_request(
    town: Neighbours, app: FastAPI
) -> None:
    town.people.rights["governor"] = {("update", "tenants/users", OURS)}
    path = f"/v1/tenants/{OURS}/users/alice@example.com/weight?dryRun=true"
    reply = (await ask(app, "governor", "PUT", path, {"weight": "9"})).json
    assert [each["user"] for each in reply["shares"]] == ["alice@example.com"]
    users = [{"name": "alice@example.com", "weight": "9"}]
    assert (reply["before"], reply["after"]) == ({"name": OURS}, {"users": users, "name": OURS})


async def test_right_to_get_a_tenant_shows_only_the_users_in_its_spec(
    town: Neighbours, app: FastAPI
) -> None:
    town.people.rights["reader"] = {("get", "tenants", OURS)}
    shown = await ask(app, "reader", "GET", f"/v1/tenants/{OURS}")
    assert shown.json["users"] == [{"name": "alice@example.com", "weight": "3"}]
    assert "bob@example.com" not in shown.body.decode()  # it has pods, but no weight of its own
    assert (await ask(app, "reader", "GET", f"/v1/tenants/{OURS}/users")).status == 403
