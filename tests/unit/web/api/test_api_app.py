"""The REST API: authentication, authorization and problem responses."""

from __future__ import annotations

import pytest
from fastapi.responses import JSONResponse

from app.ports.liveness import Liveness
from app.web.api import examples, problems
from app.web.api.app import api_app
from app.web.api.schemas import (
    EventsModel,
    PageModel,
    PoolShown,
    PoolWhole,
    QueueModel,
    Quotas,
    ResponseModel,
    TenantShown,
    UserShown,
    WorkloadModel,
)
from app.web.api.stream import StreamTiming
from app.web.health import NOT_DRAINING
from tests.support.asgi import call
from tests.support.rest_app import Both, described_app, node, pool, problem, tenant
from tests.support.two_teams import Neighbours


@pytest.fixture
async def both() -> Both:
    both = Both()
    await both.hear(tenant("team-a"), pool("h100"), node("n", 8))
    await both.open()
    return both


async def test_the_document_depends_on_no_argument(both: Both) -> None:
    app = api_app(Neighbours().context(), {NOT_DRAINING: lambda: True}, Liveness(), StreamTiming())

    assert app.openapi() == described_app(both.context, {}).openapi()


async def test_the_document_is_encoded_once(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its route needs no token, and to encode it takes longer than most requests."""
    encoded: list[object] = []
    real = JSONResponse.render

    def counted(self: JSONResponse, content: object) -> bytes:
        encoded.append(content)
        return real(self, content)

    monkeypatch.setattr(JSONResponse, "render", counted)
    app = described_app(both.context, {})
    first, second = [await call(app, "GET", "/openapi.json") for _ in range(2)]
    assert first.body == second.body
    assert first.headers["content-type"] == "application/json"
    assert first.json == app.openapi()
    assert len(encoded) == 1


PATHS = [
    "/v1/tenants",
    "/v1/tenants/team-a",
    "/v1/tenants/team-a/users",
    "/v1/tenants/team-a/queue",
    "/v1/pools",
    "/v1/pools/h100",
    "/v1/quotas",
    "/v1/workloads/team-a/p",
]


async def test_the_body_of_an_unknown_caller_is_not_parsed(both: Both) -> None:
    reply = await call(both.app, "PUT", "/v1/tenants/team-a/weight", b"{")
    assert reply.status == 401


async def test_right_on_one_tenant_does_not_open_another(both: Both) -> None:
    both.rights.granted = {("get", "tenants/queue/team-a")}

    reply = await both.get("/v1/tenants/team-b/queue")

    assert reply.status == 403
    assert problem(reply).startswith("alice may not get tenants/queue.fairgate.io team-b")


async def test_missing_tenant_is_403_for_a_caller_without_rights(both: Both) -> None:
    there, nowhere = [await both.get(f"/v1/tenants/{name}/queue") for name in ("team-a", "nobody")]

    assert there.status == nowhere.status == 403


@pytest.mark.parametrize("path", PATHS)
async def test_request_without_a_valid_token_is_401(both: Both, path: str) -> None:
    for reply in (await call(both.app, "GET", path), await both.get(path, "mallorys")):
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "fairgate" in problem(reply)
    assert (await both.get(path)).status == 403


async def test_an_api_server_that_does_not_answer_opens_no_door(both: Both) -> None:
    both.rights.fails = True

    reply = await both.get("/v1/tenants")

    assert reply.status == 503
    assert "10.0.0.1" not in problem(reply)


@pytest.mark.parametrize("path", [*PATHS, "/v1/me", "/v1/search?q=a"])
async def test_a_view_that_is_not_whole_is_503(path: str) -> None:
    both = Both()
    both.rights.everything = True

    reply = await both.get(path)

    assert reply.status == 503
    assert problem(reply)


async def test_invalid_request_is_answered_with_a_problem_document(both: Both) -> None:
    both.rights.granted = {("get", "tenants/queue/team-a")}

    assert (await both.get("/v1/tenants/team-a/queue?limit=0")).status == 400
    nowhere = await both.get("/v2")
    assert nowhere.status == 404
    assert "/openapi.json" in problem(nowhere)
    assert (await call(both.app, "POST", "/v1/tenants")).status == 405


LONGEST = {"tenant": 253, "pool": 253, "node": 253, "namespace": 63, "pod": 253, "user": 512}


async def test_every_name_in_a_path_or_query_has_a_limit(both: Both) -> None:
    described = (await call(both.app, "GET", "/openapi.json")).json
    limits: dict[str, set[object]] = {}
    for methods in described["paths"].values():
        for each in [p for operation in methods.values() for p in operation.get("parameters", ())]:
            if each["in"] == "path" or each["name"] in LONGEST:
                schemas = each["schema"].get("anyOf", [each["schema"]])
                limit = schemas[0].get("items", schemas[0]).get("maxLength")
                limits.setdefault(each["name"], set()).add(limit)

    assert limits == {name: {limit} for name, limit in LONGEST.items()}


TOO_LONG = [
    ("GET", "/v1/tenants/{}", "tenant"),
    ("GET", "/v1/tenants/{}/users", "tenant"),
    ("GET", "/v1/tenants/{}/queue", "tenant"),
    ("GET", "/v1/tenants/a/queue?user={}", "user"),
    ("PUT", "/v1/tenants/{}", "tenant"),
    ("PUT", "/v1/tenants/{}/weight", "tenant"),
    ("PUT", "/v1/tenants/a/users/{}/weight", "user"),
    ("DELETE", "/v1/tenants/{}", "tenant"),
    ("GET", "/v1/pools/{}", "pool"),
    ("PUT", "/v1/pools/{}", "pool"),
    ("DELETE", "/v1/pools/{}", "pool"),
    ("GET", "/v1/nodes/{}/pods", "node"),
    ("GET", "/v1/workloads/{}/p", "namespace"),
    ("GET", "/v1/workloads/a/{}", "pod"),
    ("GET", "/v1/workloads/{}/p/events", "namespace"),
    ("GET", "/v1/workloads/a/{}/events", "pod"),
    ("GET", "/v1/audit?tenant={}", "tenant"),
    ("GET", "/v1/usage?tenant=a&tenant={}", "tenant.1"),
    ("GET", "/v1/releases?tenant={}", "tenant.0"),
    ("GET", "/v1/releases?pool={}", "pool.0"),
]


@pytest.mark.parametrize(("method", "path", "where"), TOO_LONG)
async def test_a_name_that_is_too_long_is_refused_before_any_review(
    both: Both, method: str, path: str, where: str
) -> None:
    """A caller without rights could otherwise fill the memory with names that do not exist."""
    limit = LONGEST[where.partition(".")[0]]
    body = b'{"weight": "1"}' if path.endswith("weight") else b"{}" if method == "PUT" else b""
    headers = {"authorization": "Bearer alices"}
    reviews: list[object] = []
    real = both.rights.allows

    async def counted(*args: object, **more: object) -> bool:
        reviews.append(args)
        return await real(*args, **more)  # type: ignore[arg-type]

    both.rights.allows = counted  # type: ignore[assignment, method-assign]
    reply = await call(both.app, method, path.format("a" * (limit + 1)), body, headers)
    assert (reply.status, problem(reply), reviews) == (
        400,
        f"{where}: String should have at most {limit} characters.",
        [],
    )
    reply = await call(both.app, method, path.format("a" * limit), body, headers)
    assert reply.status in (200, 403)


async def test_the_description_names_routes_and_how_to_log_in(both: Both) -> None:
    described = (await call(both.app, "GET", "/openapi.json")).json

    assert {"/v1/tenants", "/v1/pools", "/v1/tenants/{tenant}/queue"} <= described["paths"].keys()
    assert described["components"]["securitySchemes"]


async def test_openapi_document_has_ids_and_models_for_client_generators(both: Both) -> None:
    described = (await call(both.app, "GET", "/openapi.json")).json
    routes = [each for path, each in described["paths"].items() if path.startswith("/v1/")]
    operations = [each for route in routes for each in route.values()]

    ids = [each["operationId"] for each in operations]
    assert {"get_tenant_queue", "put_tenant_user_weight", "post_trials", "get_pools"} <= {*ids}
    assert len({*ids}) == len(ids)
    # One model for all errors, and no list in a header.
    problem = {"$ref": "#/components/schemas/Problem"}
    refused = [each["responses"]["401"] for each in operations]
    assert all(each["content"]["application/problem+json"]["schema"] == problem for each in refused)
    headers = [p for each in operations for p in each.get("parameters", ()) if p["in"] == "header"]
    assert {each["schema"]["type"] for each in headers} == {"string"}


@pytest.mark.parametrize("granted", [True, False])
async def test_every_header_of_an_answer_is_in_the_description(both: Both, granted: bool) -> None:
    both.rights.everything = granted
    described = (await call(both.app, "GET", "/openapi.json")).json["paths"]

    for path in ("tenants", "tenants/{tenant}", "pools", "pools/{pool}", "quotas"):
        real = path.replace("{tenant}", "team-a").replace("{pool}", "h100")
        for reply in (await both.get(f"/v1/{real}"), await call(both.app, "GET", f"/v1/{real}")):
            answers = described[f"/v1/{path}"]["get"]["responses"]
            documented = {each.lower() for each in answers[str(reply.status)].get("headers", {})}
            sent = set(reply.headers) - {"content-type", "content-length"}
            assert sent | ({"warning"} if reply.status == 200 else set()) == documented


async def test_the_description_names_when_to_try_again_and_the_etag_of_writes(both: Both) -> None:
    described = (await call(both.app, "GET", "/openapi.json")).json["paths"]

    written = described["/v1/tenants/{tenant}"]["put"]["responses"]
    assert [list(written[each]["headers"]) for each in ("200", "201")] == [["ETag"], ["ETag"]]
    for status in ("429", "503"):
        assert list(described["/v1/simulations"]["post"]["responses"][status]["headers"]) == [
            "Retry-After"
        ]


async def test_readiness_lists_failed_checks(both: Both) -> None:
    both.checks = {"redis": lambda: False, "view": lambda: both.view.is_ready}

    assert (await call(both.app, "GET", "/livez")).status == 200
    reply = await call(both.app, "GET", "/readyz")
    assert (reply.status, reply.body) == (503, b"not ready: redis\n")
    both.rights.granted.add(("get", "/metrics"))
    assert b"fairgate_admission_requests_total" in (await both.get("/metrics")).body
    assert (await call(both.app, "GET", "/metrics")).status == 401


@pytest.mark.parametrize(
    ("path", "told", "kind"),
    [
        ("tenants", examples.TENANTS, PageModel[TenantShown]),
        ("tenants/{tenant}", examples.TENANT, TenantShown),
        ("tenants/{tenant}/users", examples.USERS, PageModel[UserShown]),
        ("tenants/{tenant}/queue", examples.QUEUE, QueueModel),
        ("pools", examples.POOLS, PageModel[PoolShown]),
        ("pools/{pool}", examples.POOL, PoolWhole),
        ("quotas", examples.QUOTAS, Quotas),
        ("workloads/{namespace}/{pod}", examples.WORKLOAD, WorkloadModel),
        ("workloads/{namespace}/{pod}/events", examples.EVENTS, EventsModel),
    ],
)
async def test_each_example_is_an_answer_that_could_be(
    both: Both, path: str, told: examples.Responses, kind: type[ResponseModel]
) -> None:
    example = told[200]["content"]["application/json"]["example"]
    assert kind.model_validate(example).model_dump(mode="json", by_alias=True) == example

    described = (await call(both.app, "GET", "/openapi.json")).json
    answer = described["paths"][f"/v1/{path}"]["get"]["responses"]["200"]
    assert answer["content"]["application/json"]["example"]


def test_each_documented_status_has_its_own_code_and_type() -> None:
    made = [problems.problem(status, "No.") for status in problems.CODES]
    assert len({each.code for each in made}) == len(made)
    assert problems.problem(404, "No.").code == "NotFound"
    assert problems.problem(404, "No.").type == "tag:fairgate.io,2026:problems/NotFound"


async def test_each_error_in_openapi_has_a_code(both: Both) -> None:
    reply = await both.get("/openapi.json")
    found = set()
    for path, operations in reply.json["paths"].items():
        for operation in operations.values():
            for status in operation["responses"]:
                if int(status) < 400:
                    continue
                found.add(int(status))
                assert int(status) in problems.CODES, f"{path} answers {status} without a code"
    assert 404 in found
    codes = reply.json["components"]["schemas"]["ProblemCode"]["enum"]
    assert "NotFound" in codes
