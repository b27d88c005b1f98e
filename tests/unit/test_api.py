"""The REST API: who may ask, what is answered, and how a no is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from starlette.types import ASGIApp

from app.core.effects import PodRef
from app.core.engine import Engine
from app.core.errors import ClusterUnavailable, StoreUnavailable
from app.core.events import PoolObserved, Source, SourceFresh, TenantObserved
from app.core.model import (
    Millis,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.resources import ManagedResources
from app.ports import Identity, Place
from app.web.access import Access
from app.web.api.app import api_app
from app.web.api.ground import Ground
from app.web.view import View
from tests.fakes.asgi import Reply, call
from tests.fakes.runs import FakeRuns
from tests.fakes.trail import FakeTrail

NOW = Millis(0)
GPU = Resource("nvidia.com/gpu")
H100 = PoolName("h100")
ALICE = Identity("alice", groups=("team-a",))
NEEDS = (Source.TENANTS, Source.POOLS)


@dataclass
class Rights:
    """An authority that knows one token and a set of rights."""

    granted: set[tuple[str, str]] = field(default_factory=set)
    fails: bool = False

    async def authenticate(self, token: str) -> Identity | None:
        if self.fails:
            raise ClusterUnavailable("no answer from https://10.0.0.1.")
        return ALICE if token == "alices" else None

    async def allows(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> bool:
        what = "/".join(filter(None, (resource, subresource, name)))
        return identity == ALICE and (verb, what) in self.granted


@dataclass(frozen=True)
class Length:
    tenant: TenantName
    user: UserName
    pods: int


@dataclass
class Queues:
    """Queues in memory."""

    waiting: dict[tuple[str, str], list[PodRef]] = field(default_factory=dict)
    fails: bool = False

    async def place(self, uid: Uid) -> Place | None:
        return None

    async def queue(self, tenant: TenantName, user: UserName, limit: int) -> tuple[PodRef, ...]:
        return tuple(self.waiting[tenant, user][:limit])

    async def counts(self) -> Sequence[Length]:
        if self.fails:
            raise StoreUnavailable("no answer")
        return [
            Length(TenantName(tenant), UserName(user), len(pods))
            for (tenant, user), pods in sorted(self.waiting.items())
        ]


@pytest.fixture
def rights() -> Rights:
    return Rights()


@pytest.fixture
def queues() -> Queues:
    def pods(*names: str) -> list[PodRef]:
        return [PodRef(Uid(f"u-{name}"), "team-a", name) for name in names]

    return Queues(
        {
            ("team-a", "alice"): pods("a1", "a2"),
            ("team-a", "bob"): pods("b1"),
            ("team-b", "eve"): pods("e1"),
        }
    )


@pytest.fixture
async def view() -> View:
    view = View(NEEDS)
    weights = {UserName("alice"): Fraction(3, 2)}
    quotas = {H100: Quota({GPU: 8}, {GPU: 32, Resource("cpu"): 1500})}
    tenant = Tenant(
        TenantName("team-a"),
        NOW,
        Fraction(2),
        user_weights=weights,
        quotas=quotas,
        max_pending=5,
    )
    await view.put(TenantObserved(NOW, tenant, pending=3))
    await view.put(PoolObserved(NOW, Pool(H100, {"gpu": "H100"})))
    for source in NEEDS:
        await view.put(SourceFresh(NOW, source))
    return view


def ground(view: View, rights: Rights, queues: Queues) -> Ground:
    engine = Engine(ManagedResources(("nvidia.com/gpu",)), records=False)
    return Ground(
        Access(rights),
        engine,
        lambda: view.ready,
        lambda: 0,
        lambda: NOW,
        view,
        queues,
        FakeRuns(),
        FakeTrail(),
    )


@pytest.fixture
def app(view: View, rights: Rights, queues: Queues) -> ASGIApp:
    return api_app(ground(view, rights, queues), {"redis": lambda: True})


async def get(app: ASGIApp, path: str, token: str = "alices") -> Reply:
    return await call(app, "GET", path, b"", {"authorization": f"Bearer {token}"})


def problem(reply: Reply) -> str:
    """Return the detail of a problem, after checking its form."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json.keys() == {"type", "title", "status", "detail"}
    assert reply.json["status"] == reply.status
    detail: str = reply.json["detail"]
    return detail


async def test_tenants_are_listed_to_who_may_list_them(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("list", "tenants")}

    assert (await get(app, "/v1/tenants")).json == {
        "items": [
            {
                "name": "team-a",
                "parent": None,
                "weight": "2",
                "namespaces": [],
                "users": [{"name": "alice", "weight": "1.5"}],
                "quotas": [
                    {
                        "pool": "h100",
                        "guarantee": {"nvidia.com/gpu": "8"},
                        "limit": {"cpu": "1500m", "nvidia.com/gpu": "32"},
                    }
                ],
                "pools": [],
                "maxPending": 5,
                "paused": False,
                "pending": 3,
            }
        ]
    }


async def test_pools_are_listed_to_who_may_list_them(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("list", "pools")}

    (pool,) = (await get(app, "/v1/pools")).json["items"]
    assert (pool["nodeSelector"], pool["placement"]) == ({"gpu": "H100"}, "pack")


async def test_a_queue_shows_each_user_in_their_own_order(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("get", "tenants/queue/team-a")}

    queue = (await get(app, "/v1/tenants/team-a/queue")).json
    assert queue["pending"] == 3
    assert [(item["user"], item["position"], item["name"]) for item in queue["items"]] == [
        ("alice", 1, "a1"),
        ("alice", 2, "a2"),
        ("bob", 1, "b1"),
    ]

    short = (await get(app, "/v1/tenants/team-a/queue?limit=1")).json
    assert (short["pending"], len(short["items"])) == (3, 1)
    bobs = (await get(app, "/v1/tenants/team-a/queue?user=bob")).json
    assert [item["uid"] for item in bobs["items"]] == ["u-b1"]


async def test_a_right_on_one_tenant_opens_no_other(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("get", "tenants/queue/team-a")}

    reply = await get(app, "/v1/tenants/team-b/queue")

    assert reply.status == 403
    assert problem(reply).startswith("alice may not get tenants/queue.fairgate.io team-b")


async def test_a_stranger_cannot_tell_what_exists(app: ASGIApp) -> None:
    there, nowhere = [await get(app, f"/v1/tenants/{name}/queue") for name in ("team-a", "nobody")]

    assert there.status == nowhere.status == 403


async def test_an_unknown_tenant_is_404_to_who_may_know(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("get", "tenants/queue/nobody"), ("get", "tenants/queue/ns.some")}

    reply = await get(app, "/v1/tenants/nobody/queue")
    assert reply.status == 404
    assert "nobody" in problem(reply)
    assert (await get(app, "/v1/tenants/ns.some/queue")).json["items"] == []


@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/pools", "/v1/tenants/team-a/queue"])
async def test_without_a_valid_token_nothing_is_answered(app: ASGIApp, path: str) -> None:
    for reply in (await call(app, "GET", path), await get(app, path, "mallorys")):
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "fairgate" in problem(reply)
    for reply in (await get(app, path),):
        assert reply.status == 403


async def test_an_api_server_that_does_not_answer_opens_no_door(
    app: ASGIApp, rights: Rights
) -> None:
    rights.fails = True

    reply = await get(app, "/v1/tenants")

    assert reply.status == 503
    assert "10.0.0.1" not in problem(reply)


async def test_a_store_that_does_not_answer_is_503(
    app: ASGIApp, rights: Rights, queues: Queues
) -> None:
    rights.granted, queues.fails = {("get", "tenants/queue/team-a")}, True

    assert problem(await get(app, "/v1/tenants/team-a/queue"))


async def test_a_view_that_is_not_whole_is_503(rights: Rights, queues: Queues) -> None:
    rights.granted = {("list", "tenants")}

    reply = await get(api_app(ground(View(NEEDS), rights, queues), {}), "/v1/tenants")

    assert reply.status == 503
    assert problem(reply)


async def test_what_cannot_be_meant_is_a_problem(app: ASGIApp, rights: Rights) -> None:
    rights.granted = {("get", "tenants/queue/team-a")}

    assert (await get(app, "/v1/tenants/team-a/queue?limit=0")).status == 400
    nowhere = await get(app, "/v2")
    assert nowhere.status == 404
    assert "/openapi.json" in problem(nowhere)
    assert (await call(app, "DELETE", "/v1/tenants")).status == 405


async def test_the_description_names_routes_and_how_to_log_in(app: ASGIApp) -> None:
    described = (await call(app, "GET", "/openapi.json")).json

    assert {"/v1/tenants", "/v1/pools", "/v1/tenants/{tenant}/queue"} <= described["paths"].keys()
    assert described["components"]["securitySchemes"]


async def test_readiness_lists_what_is_missing(view: View, rights: Rights, queues: Queues) -> None:
    checks = {"redis": lambda: False, "view": lambda: view.ready}
    app = api_app(ground(view, rights, queues), checks)

    assert (await call(app, "GET", "/livez")).status == 200
    reply = await call(app, "GET", "/readyz")
    assert (reply.status, reply.body) == (503, b"not ready: redis\n")
    assert b"fairgate_admission_requests_total" in (await call(app, "GET", "/metrics")).body
