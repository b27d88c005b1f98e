"""Token and access reviews of callers, and the caching of their results."""

from __future__ import annotations

import base64
from typing import Any, cast

import msgspec
import pytest

from app.core.errors import ClusterUnavailable
from app.kube.access_review import ACCESS, TOKENS, Reviews
from app.kube.client import Client
from app.ports.auth import Identity

USER = {
    "username": "alice",
    "uid": "1",
    "groups": ["team-a"],
    "extra": {"scopes": ["x", "y"], "pod": ["p"]},
}
ALICE = Identity("alice", "1", ("team-a",), (("pod", ("p",)), ("scopes", ("x", "y"))))


class ApiServer:
    """Answers reviews with preset results, and records the requests."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []

    async def request(self, method: str, path: str, *, body: bytes, timeout: float) -> bytes:
        self.asked.append((path, msgspec.json.decode(body)["spec"]))
        return msgspec.json.encode({"kind": "Review", "status": self.status})


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def reviews(server: ApiServer, clock: list[float]) -> Reviews:
    return Reviews(cast(Client, server), lambda: clock[0])


async def test_token_for_fairgate_identifies_the_caller(
    reviews: Reviews, server: ApiServer
) -> None:
    server.status = {"authenticated": True, "audiences": ["fairgate"], "user": USER}

    assert await reviews.authenticate("t") == ALICE
    assert server.asked == [(TOKENS, {"token": "t", "audiences": ["fairgate"]})]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "user": USER, "audiences": ["fairgate"]},
        {"authenticated": True, "user": USER},
        {"authenticated": True, "user": USER, "audiences": ["https://kubernetes.default.svc"]},
        {"authenticated": True, "audiences": ["fairgate"]},
        {"authenticated": True, "audiences": ["fairgate"], "user": {"username": ""}},
    ],
)
async def test_any_other_token_is_nobodys(
    reviews: Reviews, server: ApiServer, status: dict[str, Any]
) -> None:
    server.status = status

    assert await reviews.authenticate("t") is None


@pytest.mark.parametrize("token", ["", "x" * 20_000])
async def test_invalid_token_causes_no_review(
    reviews: Reviews, server: ApiServer, token: str
) -> None:
    assert await reviews.authenticate(token) is None
    assert server.asked == []


def a_jwt(claims: object) -> str:
    """Return a token with these claims, and no valid signature."""
    body = base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()
    return f"e30.{body}.x"


def a_deep_jwt() -> str:
    """Return a token whose claims are nested too deeply to be decoded."""
    body = base64.urlsafe_b64encode(b'{"aud":"page","a":' + b"[" * 12_000).rstrip(b"=").decode()
    return f"e30.{body}.x"


@pytest.mark.parametrize(
    ("token", "audiences"),
    [
        (a_jwt({"aud": "page"}), [["fairgate"], []]),
        (a_jwt({"aud": ["other", "page"]}), [["fairgate"], []]),
        (a_jwt({"aud": "https://kubernetes.default.svc"}), [["fairgate"]]),
        (a_jwt({"aud": 7}), [["fairgate"]]),
        (a_jwt([]), [["fairgate"]]),
        ("e30.page.x", [["fairgate"]]),
        (a_deep_jwt(), [["fairgate"]]),
        ("e30.\u00e9.x", [["fairgate"]]),
        ("page", [["fairgate"]]),
    ],
)
async def test_only_a_token_that_claims_a_provider_audience_is_reviewed_without_one(
    token: str, audiences: list[list[str]], server: ApiServer
) -> None:
    reviews = Reviews(cast(Client, server), lambda: 0.0, of_providers=("page",))
    server.status = {"authenticated": True, "audiences": ["the API server's"], "user": USER}

    found = await reviews.authenticate(token)

    assert [spec["audiences"] for _, spec in server.asked] == audiences
    assert found == (ALICE if len(audiences) == 2 else None)


async def test_valid_token_is_cached_for_five_seconds(
    reviews: Reviews, server: ApiServer, clock: list[float]
) -> None:
    server.status = {"authenticated": True, "audiences": ["fairgate"], "user": USER}
    await reviews.authenticate("t")
    server.status = {}

    clock[0] += 4.9
    assert await reviews.authenticate("t") == ALICE
    assert await reviews.authenticate("other") is None
    clock[0] += 0.2
    assert await reviews.authenticate("t") is None


async def test_access_review_has_the_attributes_of_rbac(
    reviews: Reviews, server: ApiServer
) -> None:
    server.status = {"allowed": True}

    assert await reviews.allows(ALICE, "get", "tenants", "queue", "team-a")
    [(path, spec)] = server.asked
    assert path == ACCESS
    assert spec == {
        "user": "alice",
        "uid": "1",
        "groups": ["team-a"],
        "extra": {"pod": ["p"], "scopes": ["x", "y"]},
        "resourceAttributes": {
            "group": "fairgate.io",
            "verb": "get",
            "resource": "tenants",
            "subresource": "queue",
            "name": "team-a",
        },
    }


async def test_a_denial_is_cached_shorter_than_a_permission(
    reviews: Reviews, server: ApiServer, clock: list[float]
) -> None:
    assert not await reviews.allows(ALICE, "list", "pools")
    server.status = {"allowed": True}
    assert not await reviews.allows(ALICE, "list", "pools")
    assert len(server.asked) == 1
    clock[0] += 2
    assert await reviews.allows(ALICE, "list", "pools")
    server.status = {"allowed": True, "denied": True}
    clock[0] += 4.9
    assert await reviews.allows(ALICE, "list", "pools")
    clock[0] += 0.2
    assert not await reviews.allows(ALICE, "list", "pools")


async def test_cached_permission_counts_only_for_the_same_user_and_resource(
    reviews: Reviews, server: ApiServer
) -> None:
    server.status = {"allowed": True}
    await reviews.allows(ALICE, "get", "tenants", "queue", "team-a")
    server.status = {"allowed": False}

    assert not await reviews.allows(ALICE, "get", "tenants", "queue", "team-b")
    assert not await reviews.allows(ALICE, "get", "tenants", "queue")
    assert not await reviews.allows(Identity("bob"), "get", "tenants", "queue", "team-a")


async def test_an_answer_that_is_no_review_is_no_yes(reviews: Reviews, server: ApiServer) -> None:
    server.status = cast(Any, ["allowed"])

    with pytest.raises(ClusterUnavailable):
        await reviews.allows(ALICE, "list", "pools")


async def test_access_to_a_pod_is_reviewed_in_its_namespace(
    reviews: Reviews, server: ApiServer
) -> None:
    server.status = {"allowed": True}
    assert await reviews.allows(ALICE, "get", "pods", name="p", group="", namespace="a")
    asked = server.asked[0][1]["resourceAttributes"]
    assert asked == {"group": "", "verb": "get", "resource": "pods", "namespace": "a", "name": "p"}

    server.status = {"allowed": False}
    assert not await reviews.allows(ALICE, "get", "pods", name="p", group="", namespace="b")
    assert not await reviews.allows(ALICE, "get", "pods", name="p", namespace="a")


async def test_token_for_the_api_server_counts_only_if_its_audience_is_accepted(
    server: ApiServer,
) -> None:
    server.status = {"authenticated": True, "audiences": ["https://k8s"], "user": USER}
    client = cast(Client, server)

    assert await Reviews(client, lambda: 0.0).authenticate("t") is None
    assert await Reviews(client, lambda: 0.0, ("fairgate", "")).authenticate("t") == ALICE
    assert server.asked[-1] == (TOKENS, {"token": "t", "audiences": []})


async def test_access_to_a_path_is_reviewed_by_its_name(
    reviews: Reviews, server: ApiServer
) -> None:
    server.status = {"allowed": True}
    assert await reviews.allows_path(ALICE, "get", "/metrics")
    [(path, spec)] = server.asked
    assert path.endswith("/subjectaccessreviews")
    assert spec["nonResourceAttributes"] == {"verb": "get", "path": "/metrics"}

    server.status = {"allowed": True, "denied": True}
    assert not await reviews.allows_path(ALICE, "get", "/other")
