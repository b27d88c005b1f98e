"""Writes over REST: authorization, the stored object and its author, and errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from app.core.audit_entry import EntryType
from app.core.errors import ClusterUnavailable
from tests.fakes.fake_authorizer import People, Right
from tests.fakes.fake_reports import FakeReporter
from tests.fakes.fake_tenants_and_pools import FakeResources
from tests.support.asgi import Reply, call
from tests.support.rest_app import context, described_app, problem

CHART = Path(__file__).parents[4] / "charts" / "fairgate"

USERS: set[Right] = {("update", "tenants/users", "team-a")}
PEOPLE: dict[str, set[Right]] = {
    "operator": {("*", "tenants", ""), ("*", "tenants/users", ""), ("*", "pools", "")},
    "governor": {
        ("update", "tenants", "research"),
        ("create", "tenants", ""),
        ("delete", "tenants", "team-a"),
    },
    "steward": {("update", "tenants", "research")},
    "admin": USERS | {("get", "tenants", "team-a")},
    "kubectl-admin": USERS | {("update", "tenants", "team-a")},
    "viewer": {("get", "tenants", ""), ("list", "tenants", ""), ("get", "pools", "")},
    "nobody": set(),
}
RESEARCH = {"weight": "2"}
TEAM_A = {
    "parent": "research",
    "weight": "2",
    "namespaces": ["team-a"],
    "users": [{"name": "alice", "weight": "3"}],
    "quotas": [{"pool": "h100", "guarantee": {"nvidia.com/gpu": 8}}],
}
CHILD = {"parent": "team-a"}
WEIGHT = {"weight": "4"}


@dataclass(frozen=True)
class Fakes:
    """An app and its fakes. The app is built once, because that takes longer than most tests."""

    resources: FakeResources
    people: People
    reporter: FakeReporter
    app: ASGIApp


@pytest.fixture(scope="module")
def fakes() -> Fakes:
    resources, people, reporter = FakeResources(), People(), FakeReporter()
    found = replace(context(people), resources=resources, reporter=reporter)
    return Fakes(resources, people, reporter, described_app(found, {}))


def reset(fake: object, like: object) -> None:
    """Give a fake the state of another, without the methods that a test replaced."""
    vars(fake).clear()
    vars(fake).update(vars(like))


@pytest.fixture
def resources(fakes: Fakes) -> FakeResources:
    found = fakes.resources
    reset(found, FakeResources())
    for name, spec in {"research": RESEARCH, "team-a": TEAM_A, "child": CHILD, "top": {}}.items():
        found.put("tenants", name, spec)
    found.put("pools", "h100", {"nodeSelector": {"gpu": "h100"}})
    return found


@pytest.fixture
def people(fakes: Fakes) -> People:
    reset(fakes.people, People({name: set(each) for name, each in PEOPLE.items()}))
    return fakes.people


@pytest.fixture
def reporter(fakes: Fakes) -> FakeReporter:
    reset(fakes.reporter, FakeReporter())
    return fakes.reporter


@pytest.fixture
def app(fakes: Fakes, resources: FakeResources, people: People, reporter: FakeReporter) -> ASGIApp:
    return fakes.app


async def ask(
    app: ASGIApp, who: str, method: str, path: str, body: object = None, **headers: str
) -> Reply:
    head = {"authorization": f"Bearer {who}", "content-type": "application/json"}
    head |= {key.replace("_", "-"): value for key, value in headers.items()}
    return await call(app, method, path, b"" if body is None else json.dumps(body).encode(), head)


Done = dict[str, tuple[str, str, object]]
"""By name: method, path, body."""

ROUTES: Done = {
    "weigh": ("PUT", "/v1/tenants/{}/weight", WEIGHT),
    "weigh a user": ("PUT", "/v1/tenants/{}/users/alice/weight", WEIGHT),
    "replace": ("PUT", "/v1/tenants/{}", {**TEAM_A, "weight": "9"}),
    "delete": ("DELETE", "/v1/tenants/{}", None),
}
# Allowed requests of callers: route and tenant, and the resulting status. Others get 403.
TENANTS = ("team-a", "research", "child", "nowhere", "ns.some")
FREE: dict[str, dict[tuple[str, str], int]] = {
    "operator": {
        (route, tenant): 404 if tenant in ("nowhere", "ns.some") else 200
        for route in ROUTES
        for tenant in TENANTS
    }
    | {("delete", name): 204 for name in ("team-a", "research", "child")}
    | {("replace", "nowhere"): 201, ("replace", "ns.some"): 201},
    "governor": {("weigh", "team-a"): 200, ("replace", "nowhere"): 201, ("delete", "team-a"): 204,
                 ("replace", "ns.some"): 201, ("replace", "team-a"): 200},
    # An admin of a parent tenant may change its child tenants, but neither create nor delete these.
    "steward": {("weigh", "team-a"): 200, ("replace", "team-a"): 200},
    "admin": {("weigh a user", "team-a"): 200},
    "kubectl-admin": {("weigh a user", "team-a"): 200, ("weigh", "child"): 200},
    "viewer": {},
    "nobody": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("who", "route", "tenant"), list(itertools.product(PEOPLE, ROUTES, TENANTS))
)
async def test_rights_decide_about_every_route_and_tenant(
    app: ASGIApp, resources: FakeResources, who: str, route: str, tenant: str
) -> None:
    method, path, body = ROUTES[route]
    kept = {key: dict(item["spec"]) for key, item in resources.objects.items()}
    reply = await ask(app, who, method, path.format(tenant), body)
    assert reply.status == FREE[who].get((route, tenant), 403), reply.body
    if reply.status >= 400:
        assert problem(reply)
        assert {key: item["spec"] for key, item in resources.objects.items()} == kept


POOLS = [
    ("operator", "PUT", "h100", 200),
    ("operator", "PUT", "t4", 201),
    ("operator", "DELETE", "h100", 204),
    ("operator", "DELETE", "t4", 404),
    *((who, method, pool, 403) for who in ("governor", "admin", "viewer", "nobody")
      for method in ("PUT", "DELETE") for pool in ("h100", "t4")),
]  # fmt: skip


@pytest.mark.parametrize(("who", "method", "pool", "status"), POOLS)
async def test_rights_decide_about_pools(
    app: ASGIApp, who: str, method: str, pool: str, status: int
) -> None:
    body = {"placement": "spread"} if method == "PUT" else None
    assert (await ask(app, who, method, f"/v1/pools/{pool}", body)).status == status


@pytest.mark.parametrize(
    ("verb", "pool", "status"),
    [
        ("create", "h100", 403),
        ("create", "t4", 201),
        ("update", "h100", 200),
        ("update", "t4", 403),
    ],
)
async def test_making_a_pool_and_changing_it_are_two_rights(
    app: ASGIApp, people: People, verb: str, pool: str, status: int
) -> None:
    people.rights["some"] = {(verb, "pools", pool)}
    assert (await ask(app, "some", "PUT", f"/v1/pools/{pool}", {"paused": True})).status == status


async def test_write_without_a_valid_token_is_401(app: ASGIApp) -> None:
    for method, path, body in ROUTES.values():
        for who in ("stranger", ""):
            assert (await ask(app, who, method, path.format("team-a"), body)).status == 401


async def test_a_write_is_its_callers_deed(app: ASGIApp, resources: FakeResources) -> None:
    reply = await ask(app, "admin", "PUT", "/v1/tenants/team-a/users/bob/weight", {"weight": 2})
    assert reply.json["users"] == [
        {"name": "alice", "weight": "3"},
        {"name": "bob", "weight": "2"},
    ]
    assert resources.by("tenants", "team-a") == "admin"
    spec = resources.spec("tenants", "team-a")
    assert spec is not None
    assert spec["quotas"] == TEAM_A["quotas"]


async def test_deletion_is_recorded_with_the_name_of_its_caller(
    app: ASGIApp, reporter: FakeReporter
) -> None:
    for who, path in [
        ("admin", "/v1/tenants/team-a"),  # may not
        ("operator", "/v1/tenants/team-a?dryRun=true"),
        ("operator", "/v1/tenants/nowhere"),
    ]:
        await ask(app, who, "DELETE", path)
    assert reporter.told == []
    await ask(app, "governor", "DELETE", "/v1/tenants/team-a")
    await ask(app, "operator", "DELETE", "/v1/pools/h100")
    assert reporter.told == [
        (EntryType.DELETED, {"kind": "Tenant", "name": "team-a", "by": "governor"}),
        (EntryType.DELETED, {"kind": "Pool", "name": "h100", "by": "operator"}),
    ]


async def test_names_of_users_may_hold_anything(app: ASGIApp, resources: FakeResources) -> None:
    path = "/v1/tenants/team-a/users/https://issuer.example/a b#ü/weight"
    reply = await ask(app, "admin", "PUT", path, WEIGHT)
    assert reply.json["users"][-1]["name"] == "https://issuer.example/a b#ü"


@pytest.mark.parametrize("name", [".", ".."])
async def test_user_that_no_path_can_name_gets_no_weight(
    app: ASGIApp, resources: FakeResources, name: str
) -> None:
    """Clients turn `/users/../weight` into the path of the tenant's own weight."""
    sentence = "must be a name other than . and .., because no path can name such a user."
    reply = await ask(app, "admin", "PUT", f"/v1/tenants/team-a/users/{name}/weight", WEIGHT)
    assert (reply.status, problem(reply)) == (400, f"user: {sentence}")
    users = [{"name": "alice"}, {"name": name}]
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a", {**TEAM_A, "users": users})
    assert (reply.status, problem(reply)) == (422, f"users.1.name: {sentence}")
    spec = resources.spec("tenants", "team-a")
    assert spec is not None
    assert spec["users"] == TEAM_A["users"]


async def test_tenant_with_a_stored_user_that_no_path_can_name_can_be_updated(
    app: ASGIApp, resources: FakeResources
) -> None:
    users = [{"name": "..", "weight": "3"}]
    resources.put("tenants", "team-a", {**TEAM_A, "users": users})
    for path in ("weight", "users/.hidden/weight", "users/..bob/weight"):
        reply = await ask(app, "operator", "PUT", f"/v1/tenants/team-a/{path}", WEIGHT)
        assert reply.status == 200, reply.body
        assert reply.json["users"][0] == users[0]
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a", TEAM_A)
    assert reply.json["users"] == TEAM_A["users"]


async def test_moving_a_tenant_requires_the_right_on_both_parents(
    app: ASGIApp, people: People
) -> None:
    people.rights["other"] = {("update", "tenants", "top")}
    moved = {**TEAM_A, "parent": "top"}
    for who in ("governor", "other"):
        assert (await ask(app, who, "PUT", "/v1/tenants/team-a", moved)).status == 403
    people.rights["both"] = people.rights["governor"] | people.rights["other"]
    assert (await ask(app, "both", "PUT", "/v1/tenants/team-a", moved)).status == 200


async def test_adding_a_namespace_requires_the_right_on_all_tenants(app: ASGIApp) -> None:
    """It may be the namespace of another tenant, whose object may be younger."""
    for names in (["team-a", "other"], ["other"]):
        body = {**TEAM_A, "namespaces": names}
        assert (await ask(app, "steward", "PUT", "/v1/tenants/team-a", body)).status == 403
        assert (await ask(app, "operator", "PUT", "/v1/tenants/team-a", body)).status == 200
        assert (await ask(app, "operator", "PUT", "/v1/tenants/team-a", TEAM_A)).status == 200
    body = {**TEAM_A, "namespaces": []}
    assert (await ask(app, "steward", "PUT", "/v1/tenants/team-a", body)).status == 200


async def test_right_to_weigh_users_allows_a_put_that_changes_only_user_weights(
    app: ASGIApp, resources: FakeResources
) -> None:
    written_otherwise = {
        **TEAM_A,
        "weight": "2.0",
        "users": [{"name": "alice", "weight": "5"}],
        "quotas": [{"pool": "h100", "guarantee": {"nvidia.com/gpu": "8"}, "limit": {}}],
        "pools": [],
    }
    for _ in range(2):  # the second request has no effect
        reply = await ask(app, "admin", "PUT", "/v1/tenants/team-a", written_otherwise)
        assert reply.status == 200
    more = {**written_otherwise, "paused": True}
    assert (await ask(app, "admin", "PUT", "/v1/tenants/team-a", more)).status == 403


async def test_governing_a_tenant_is_not_weighing_its_users(app: ASGIApp) -> None:
    body = {**TEAM_A, "users": []}
    reply = await ask(app, "governor", "PUT", "/v1/tenants/team-a", body)
    assert reply.status == 403
    assert "tenants/users.fairgate.io team-a" in problem(reply)


async def test_write_without_a_change_is_not_stored(app: ASGIApp, resources: FakeResources) -> None:
    before = resources.version
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a/weight", {"weight": "2.0"})
    assert (reply.status, resources.version) == (200, before)


async def test_etag_changes_with_the_spec_and_not_with_the_status(
    app: ASGIApp, resources: FakeResources
) -> None:
    path = "/v1/tenants/team-a/weight"
    first = (await ask(app, "operator", "PUT", path, WEIGHT)).headers["etag"]
    resources.touch("tenants", "team-a")
    again = await ask(app, "operator", "PUT", path, {"weight": "5"}, if_match=first)
    assert again.status == 200
    stale = await ask(app, "operator", "PUT", path, {"weight": "6"}, if_match=first)
    assert stale.status == 412
    assert "read it again" in problem(stale)
    spec = resources.spec("tenants", "team-a")
    assert spec is not None
    assert spec["weight"] == "5"


@pytest.mark.parametrize(
    ("header", "tag", "name", "status"),
    [
        ("if_match", "*", "team-a", 200),
        ("if_match", "*", "new", 412),
        ("if_match", '"other"', "team-a", 412),
        ("if_match", '"other"', "new", 412),
        ("if_match", '"other", W/"weak"', "team-a", 412),
        ("if_none_match", "*", "team-a", 412),
        ("if_none_match", "*", "new", 201),
    ],
)  # fmt: skip
async def test_conditions_of_the_caller_are_heeded(
    app: ASGIApp, header: str, tag: str, name: str, status: int
) -> None:
    reply = await ask(app, "operator", "PUT", f"/v1/tenants/{name}", WEIGHT, **{header: tag})
    assert reply.status == status
    if status == 412:
        assert problem(reply)


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
@pytest.mark.parametrize("tag", ["u-a-3", "", 'u-a-3"', "*, *"])
async def test_a_condition_without_a_tag_in_quotes_is_refused(
    app: ASGIApp, resources: FakeResources, header: str, tag: str
) -> None:
    before = resources.version
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a/weight", WEIGHT, **{header: tag})
    assert (reply.status, resources.version) == (400, before)
    assert problem(reply).startswith(f"{header}: this is no ETag; write the ETag with its quotes")


async def test_weak_etag_does_not_match(app: ASGIApp) -> None:
    path = "/v1/tenants/team-a/weight"
    tag = (await ask(app, "operator", "PUT", path, WEIGHT)).headers["etag"]
    reply = await ask(app, "operator", "PUT", path, {"weight": "8"}, if_match=f"W/{tag}")
    assert reply.status == 412


async def test_write_conflict_is_retried_and_finally_reported_as_409(
    app: ASGIApp, resources: FakeResources
) -> None:
    path, races = "/v1/tenants/team-a/weight", [3]

    def race(name: str) -> None:
        if races[0]:
            races[0] -= 1
            resources.touch("tenants", name)

    resources.before_write = race
    assert (await ask(app, "operator", "PUT", path, WEIGHT)).status == 200
    races[0] = 100
    reply = await ask(app, "operator", "PUT", path, {"weight": "8"})
    assert reply.status == 409
    assert problem(reply)


async def test_a_race_that_is_lost_to_another_edit_is_no_match(
    app: ASGIApp, resources: FakeResources
) -> None:
    path = "/v1/tenants/team-a/weight"
    tag = (await ask(app, "operator", "PUT", path, WEIGHT)).headers["etag"]

    def race(name: str) -> None:
        resources.before_write = lambda _: None
        resources.put("tenants", name, {**TEAM_A, "weight": "7"})

    resources.before_write = race
    reply = await ask(app, "operator", "PUT", path, {"weight": "8"}, if_match=tag)
    assert reply.status == 412


async def test_rights_are_checked_again_if_a_race_moves_the_tenant(
    app: ASGIApp, resources: FakeResources
) -> None:
    def race(name: str) -> None:
        resources.before_write = lambda _: None
        resources.put("tenants", name, {**TEAM_A, "parent": "top"})

    resources.before_write = race
    reply = await ask(app, "governor", "PUT", "/v1/tenants/team-a/weight", WEIGHT)
    assert reply.status == 403


async def test_dry_run_writes_nothing_and_shows_the_change(
    app: ASGIApp, resources: FakeResources
) -> None:
    path = "/v1/tenants/team-a"
    weighed = (await ask(app, "operator", "PUT", f"{path}/weight?dryRun=true", WEIGHT)).json
    assert (weighed["before"]["weight"], weighed["after"]["weight"]) == ("2", "4")
    gone = await ask(app, "operator", "DELETE", f"{path}?dryRun=true")
    assert (gone.status, gone.json["after"]) == (200, None)
    new = (await ask(app, "operator", "PUT", "/v1/tenants/new?dryRun=true", WEIGHT)).json
    assert (new["before"], new["after"]["name"]) == (None, "new")
    pool = (await ask(app, "operator", "PUT", "/v1/pools/t4?dryRun=true", {})).json
    assert (pool["before"], pool["after"]["placement"]) == (None, "pack")
    assert resources.spec("tenants", "team-a") == {"paused": False, **TEAM_A}
    assert ("tenants", "new") not in resources.objects


async def test_a_dry_run_needs_the_same_rights(app: ASGIApp) -> None:
    reply = await ask(app, "admin", "PUT", "/v1/tenants/team-a/weight?dryRun=true", WEIGHT)
    assert reply.status == 403


BAD: list[tuple[str, Any, int, str]] = [
    ("/v1/tenants/team-a", {"wieght": "2"}, 422, "wieght: there is no such field"),
    ("/v1/tenants/team-a/weight", {"weight": "-1"}, 422, "weight: must be a decimal"),
    ("/v1/tenants/team-a/weight", {"weight": "1e9"}, 422, "weight"),
    ("/v1/tenants/team-a/weight", {"weight": True}, 422, "weight"),
    ("/v1/tenants/team-a/weight", {"weight": "0007"}, 422, "decimal number"),
    ("/v1/tenants/team-a/weight", {}, 422, "weight"),
    ("/v1/tenants/team-a/weight", {"wieght": "2"}, 422, "wieght: there is no such field"),
    ("/v1/tenants/team-a/weight", [], 422, "The body: must be a JSON object."),
    ("/v1/pools/h100", {"placement": "random"}, 422, "placement: must be pack or spread."),
    ("/v1/pools/h100", {"tolerations": [{"operator": "In"}]}, 422, "must be Exists or Equal."),
    ("/v1/tenants/team-a", {"users": [{"name": "\ud800"}]}, 422, "users: the text is not valid"),
    ("/v1/tenants/team-a", {"parent": "\ud800"}, 422, "parent: the text is not valid Unicode"),
    ("/v1/tenants/team-a", {"quotas": [{"pool": "p", "limit": {"\udfff": "1"}}]}, 422, "quotas"),
    ("/v1/tenants/team-a", {"\ud800": "1"}, 422, "the text is not valid Unicode"),
    ("/v1/tenants/team-a", ["\ud800"], 422, "the text is not valid Unicode"),
    ("/v1/pools/h100", {"nodeSelector": {"a": "\ud800"}}, 422, "nodeSelector"),
    ("/v1/pools/h100", {"weights": {"\ud800": "1"}}, 422, "weights"),
    ("/v1/tenants/UPPER", {}, 422, "UPPER"),
    ("/v1/tenants/..", {}, 422, "'..'"),
    ("/v1/pools/h100", {"tolerations": [{"key": "a", "oops": 1}]}, 422, "oops"),
    ("/v1/tenants/team-a", {"parent": "a" * 254}, 422, "parent: String should have at most 253"),
    ("/v1/tenants/team-a", {"namespaces": ["a" * 64]}, 422, "namespaces.0: String should have"),
    ("/v1/tenants/team-a", {"pools": ["a" * 254]}, 422, "pools.0: String should have at most 253"),
]


@pytest.mark.parametrize(("path", "body", "status", "named"), BAD)
async def test_body_that_cannot_be_stored_is_refused_with_its_field(
    app: ASGIApp, path: str, body: Any, status: int, named: str
) -> None:
    reply = await ask(app, "operator", "PUT", path, body)
    assert reply.status == status, reply.body
    assert named.lower() in problem(reply).lower()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"weight": "2"', "The body is not valid JSON; correct it (character 14)."),
        (b'{"weight": ' + b"9" * 5000 + b"}", "The body is not valid JSON; correct it."),
    ],
)
async def test_body_that_is_no_json_is_refused(app: ASGIApp, body: bytes, sentence: str) -> None:
    head = {"authorization": "Bearer operator", "content-type": "application/json"}
    reply = await call(app, "PUT", "/v1/tenants/team-a/weight", body, head)
    assert (reply.status, problem(reply)) == (400, sentence)


MOST: list[tuple[str, str, Callable[[int], Any], int]] = [
    ("tenant", "namespaces", lambda number: f"n-{number}", 500),
    ("tenant", "users", lambda number: {"name": f"u-{number}"}, 1000),
    ("tenant", "quotas", lambda number: {"pool": f"p-{number}"}, 32),
    ("tenant", "pools", lambda number: f"p-{number}", 64),
    ("pool", "tolerations", lambda number: {"key": f"k-{number}"}, 32),
    ("pool", "topology", lambda number: f"l-{number}", 8),
]
"""Lists of a tenant and a pool, their items, and the longest list that the API server accepts."""


@pytest.mark.parametrize(("kind", "field", "item", "most"), MOST)
async def test_lists_have_the_limits_of_the_definition(
    app: ASGIApp, kind: str, field: str, item: Callable[[int], Any], most: int
) -> None:
    definition = (CHART / "templates" / f"crd-{kind}.yaml").read_text()
    *_, limit = definition.partition(f" {field}:\n")[2].partition("maxItems: ")
    assert limit.startswith(f"{most}\n")
    items = [item(number) for number in range(most + 1)]
    path = f"/v1/{kind}s/new?dryRun=true"
    assert (await ask(app, "operator", "PUT", path, {field: items[:most]})).status == 200
    reply = await ask(app, "operator", "PUT", path, {field: items})
    assert reply.status == 422
    assert problem(reply) == f"{field}: at most {most} entries are possible; send fewer."


@pytest.mark.parametrize("field", ["nodeSelector", "weights", "overcommit", "maxCapacity"])
async def test_maps_of_a_pool_have_the_limit_of_the_definition(app: ASGIApp, field: str) -> None:
    amounts = {f"r-{number}": "1" for number in range(17)}
    reply = await ask(app, "operator", "PUT", "/v1/pools/new?dryRun=true", {field: amounts})
    assert reply.status == 422
    assert problem(reply) == f"{field}: at most 16 entries are possible; send fewer."
    del amounts["r-0"]
    reply = await ask(app, "operator", "PUT", "/v1/pools/new?dryRun=true", {field: amounts})
    assert reply.status == 200


@pytest.mark.parametrize("pair", [b'"\\ud800"', b'"\xed\xa0\x80"'], ids=["escaped", "raw"])
async def test_invalid_unicode_is_refused_before_rights_are_checked(
    app: ASGIApp, pair: bytes
) -> None:
    head = {"authorization": "Bearer nobody", "content-type": "application/json"}
    for path in ("tenants/x", "pools/x"):
        reply = await call(app, "PUT", f"/v1/{path}", b'{"parent": ' + pair + b"}", head)
        assert reply.status == 422
        assert "not valid Unicode" in problem(reply)


async def test_a_body_that_is_nested_too_deeply_is_refused(app: ASGIApp) -> None:
    head = {"authorization": "Bearer operator", "content-type": "application/json"}
    for depth in range(850, 1000):  # it includes the most that can be read but not written
        body = b'{"parent": ' + b"[" * depth + b"]" * depth + b"}"
        reply = await call(app, "PUT", "/v1/tenants/team-a", body, head)
        assert reply.status in (400, 422)


async def test_invalid_json_is_400(app: ASGIApp) -> None:
    head = {"authorization": "Bearer operator", "content-type": "application/json"}
    for body in (b"{", b"[" * 100_000):
        reply = await call(app, "PUT", "/v1/tenants/team-a/weight", body, head)
        assert reply.status == 400
        assert problem(reply)


async def test_only_json_or_no_content_type_is_accepted(app: ASGIApp) -> None:
    path, body = "/v1/tenants/team-a/weight", b'{"weight": "4"}'
    kinds = {
        "": 200, "application/json; charset=utf-8": 200,
        "application/x-www-form-urlencoded": 415, "application/merge-patch+json": 415,
    }  # fmt: skip
    for kind, status in kinds.items():
        head = {"authorization": "Bearer operator"} | ({"content-type": kind} if kind else {})
        reply = await call(app, "PUT", path, body, head)
        assert reply.status == status
        if status == 415:
            assert "send JSON" in problem(reply)


async def test_a_body_is_bounded(app: ASGIApp) -> None:
    body = b'{"weight": "' + b"1" * (1024 * 1024) + b'"}'
    head = {"authorization": "Bearer operator", "content-type": "application/json"}
    reply = await call(app, "PUT", "/v1/tenants/team-a/weight", [body, body], head)
    assert reply.status == 413
    assert problem(reply)


async def test_write_without_a_response_is_503_with_an_unknown_result(
    app: ASGIApp, resources: FakeResources
) -> None:
    resources.deaf = True
    for method, path, body in ROUTES.values():
        reply = await ask(app, "operator", method, path.format("child"), body)
        assert reply.status == 503
        assert "not known" in problem(reply)


async def test_write_is_503_if_the_api_server_cannot_check_rights(
    app: ASGIApp, people: People
) -> None:
    people.fails = True
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a/weight", WEIGHT)
    assert reply.status == 503


async def test_a_refused_read_is_no_absence(app: ASGIApp, resources: FakeResources) -> None:
    async def fail(kind: str, name: str) -> None:
        raise ClusterUnavailable("no answer")

    resources.read = fail  # type: ignore[method-assign,assignment]
    reply = await ask(app, "operator", "PUT", "/v1/tenants/team-a/weight", WEIGHT)
    assert reply.status == 503


async def test_front_proxy_headers_are_ignored_at_the_direct_endpoint(
    app: ASGIApp, resources: FakeResources
) -> None:
    forged = {"x-remote-user": "operator", "x-remote-group": "system:masters"}
    path = "/v1/tenants/team-a/weight"
    assert (await ask(app, "nobody", "PUT", path, WEIGHT, **forged)).status == 403
    body, head = b'{"weight": "4"}', {"content-type": "application/json", **forged}
    assert (await call(app, "PUT", path, body, head)).status == 401
    assert resources.spec("tenants", "team-a") == {"paused": False, **TEAM_A}


async def test_a_namespace_without_a_tenant_has_no_weight(app: ASGIApp) -> None:
    answer = await ask(app, "operator", "PUT", "/v1/tenants/ns.some/weight", WEIGHT)
    assert answer.json["detail"] == (
        "ns.some is a namespace without a Tenant; a cluster admin can create one."
    )


async def test_the_aggregated_path_is_none_of_the_direct_door(app: ASGIApp) -> None:
    path = "/apis/api.fairgate.io/v1/tenants/team-a/weight"
    assert (await ask(app, "operator", "PUT", path, WEIGHT)).status == 404


async def test_right_to_weigh_users_does_not_allow_removing_max_pending(
    app: ASGIApp, resources: FakeResources
) -> None:
    resources.put("tenants", "team-a", {**TEAM_A, "maxPending": 0})
    users = [{"name": "alice", "weight": "9"}]

    reply = await ask(app, "admin", "PUT", "/v1/tenants/team-a", {**TEAM_A, "users": users})

    assert reply.status == 403
    assert resources.objects["tenants", "team-a"]["spec"]["maxPending"] == 0


async def test_refusal_does_not_reveal_the_parent_of_a_hidden_tenant(app: ASGIApp) -> None:
    replies = [
        await ask(app, "nobody", "PUT", f"/v1/tenants/{name}/weight", WEIGHT)
        for name in ("team-a", "nowhere")
    ]

    assert replies[0].body == replies[1].body
    assert "research" in problem(
        await ask(app, "admin", "PUT", "/v1/tenants/team-a/weight", WEIGHT)
    )


async def test_caller_without_get_on_a_tenant_receives_only_its_own_fields(app: ASGIApp) -> None:
    path = "/v1/tenants/team-a"
    dry = await ask(app, "steward", "PUT", f"{path}/weight?dryRun=true", WEIGHT)
    assert dry.json == {
        "before": {"name": "team-a"},
        "after": {"name": "team-a", "weight": "4"},
        "shares": [],
    }
    unchanged = await ask(app, "steward", "PUT", f"{path}/weight", {"weight": "2"})
    assert unchanged.json == {"name": "team-a", "weight": "2"}
    assert unchanged.headers["etag"]
    whole = await ask(app, "steward", "PUT", path, {**TEAM_A, "paused": True})
    assert whole.json["namespaces"] == TEAM_A["namespaces"]
    assert whole.json["paused"] is True
    new = await ask(app, "governor", "PUT", "/v1/tenants/new", {"parent": "research"})
    assert (new.status, new.json["name"], new.json["parent"]) == (201, "new", "research")
    gone = await ask(app, "governor", "DELETE", f"{path}?dryRun=true")
    assert (gone.json["before"], gone.json["after"]) == ({"name": "team-a"}, None)


async def test_caller_with_get_on_a_tenant_receives_it_as_stored(
    app: ASGIApp, people: People, resources: FakeResources
) -> None:
    people.rights["steward"].add(("get", "tenants", "team-a"))
    reply = await ask(app, "steward", "PUT", "/v1/tenants/team-a/weight", WEIGHT)
    assert reply.json["users"] == TEAM_A["users"]
    assert reply.json["weight"] == "4"
