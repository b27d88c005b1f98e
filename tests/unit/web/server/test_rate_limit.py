"""The rate limit of one caller, and the answer beyond it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from fastapi import Depends, FastAPI

from app.core.admission.submitters import LONGEST_LIMIT_NAME, limit_name
from app.ports.auth import Identity
from app.web.api import problems
from app.web.api.auth import Access
from app.web.api.middleware import BodyLimit
from app.web.server import rate_limit
from app.web.server.rate_limit import RateLimit
from tests.fakes.fake_authorizer import People
from tests.support.asgi import Reply, call


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_burst_of_two_seconds_of_requests_is_allowed_after_silence() -> None:
    clock = Clock()
    paced = RateLimit(5, clock)
    assert [paced.count_request("a") for _ in range(10)] == [0] * 10
    assert paced.count_request("a") == pytest.approx(0.2)
    clock.now = 0.2
    assert (paced.count_request("a"), paced.count_request("a") > 0) == (0, True)
    clock.now = 1000.0
    assert sum(paced.count_request("a") == 0 for _ in range(100)) == 10


def test_rate_limit_of_one_caller_does_not_affect_another() -> None:
    paced = RateLimit(1, Clock())
    assert [paced.count_request("a") == 0 for _ in range(4)] == [True, True, False, False]
    assert paced.count_request("b") == 0


def test_waiting_is_not_counted() -> None:
    paced = RateLimit(1, Clock())
    assert [paced.seconds_to_wait("a") for _ in range(10)] == [0] * 10


def test_no_rate_is_no_limit() -> None:
    paced = RateLimit(0, Clock())
    assert [paced.count_request("a") for _ in range(1000)] == [0] * 1000


def test_memory_of_callers_is_bounded() -> None:
    paced = RateLimit(1, Clock())
    for number in range(rate_limit.MOST_CALLERS + 50):
        paced.count_request(f"caller-{number}")
    assert len(paced._buckets) == rate_limit.MOST_CALLERS


def test_limits_store_no_more_than_the_beginning_of_a_long_name() -> None:
    long = "\U0001f600" + "a" * 60_000
    account = f"system:serviceaccount:{long}:one"
    assert [len(limit_name(each)) for each in (long, account)] == [LONGEST_LIMIT_NAME] * 2
    assert limit_name("a" * LONGEST_LIMIT_NAME) == "a" * LONGEST_LIMIT_NAME


def app_of(access: Access) -> FastAPI:
    app = FastAPI()
    app.state.caller = access.authenticate_request
    problems.install_error_handlers(app, lambda _: ("GET",))

    @app.get("/")
    async def who(identity: Identity = Depends(access.authenticate_request)) -> str:  # noqa: B008
        return identity.name

    return app


async def ask(app: FastAPI, token: str) -> Reply:
    return await call(app, "GET", "/", b"", {"authorization": f"Bearer {token}"})


async def test_caller_over_the_rate_limit_gets_429_with_retry_after() -> None:
    clock, people = Clock(), People({"alice": set(), "bob": set()})
    app = app_of(Access(people, RateLimit(1, clock)))
    assert [(await ask(app, "alice")).status for _ in range(3)] == [200, 200, 429]
    reply = await ask(app, "alice")
    assert reply.headers["retry-after"] == "1"
    assert "alice" in reply.json["detail"]
    assert (await ask(app, "bob")).status == 200
    clock.now = 1.0
    assert (await ask(app, "alice")).status == 200


async def test_a_large_body_counts_as_several_requests() -> None:
    """A trial of 1 MiB costs the replica as much as dozens of small requests."""
    clock = Clock()
    app = app_of(Access(People({"alice": set(), "bob": set()}), RateLimit(10, clock)))
    app.add_middleware(BodyLimit)

    @app.post("/")
    async def receive(identity: Identity = Depends(app.state.caller)) -> str:  # noqa: B008
        return identity.name

    body = b'"' + b"x" * 1_000_000 + b'"'
    sender = {"authorization": "Bearer alice"}
    assert (await call(app, "POST", "/", body, sender)).status == 200
    clock.now = 3.0
    assert (await call(app, "POST", "/", body, sender)).status == 429
    assert (await ask(app, "bob")).status == 200
    clock.now = 5.0
    assert (await ask(app, "alice")).status == 200


async def test_service_accounts_of_a_namespace_share_one_limit() -> None:
    names = [f"system:serviceaccount:{each}" for each in ("a:one", "a:two", "b:one")]
    app = app_of(Access(People({name: set() for name in names}), RateLimit(1, Clock())))
    assert [(await ask(app, names[0])).status for _ in range(2)] == [200, 200]
    assert [(await ask(app, name)).status for name in names] == [429, 429, 200]


async def test_checks_of_bad_tokens_are_limited_per_address() -> None:
    people = People({"alice": set()})
    app = app_of(Access(people, address_limit=RateLimit(2, Clock())))
    statuses = [(await ask(app, f"guess-{number}")).status for number in range(10)]
    assert statuses == [401] * 4 + [429] * 6
    assert people.asked == 4


async def test_checks_of_concurrent_bad_tokens_are_limited_per_address() -> None:
    people = People({"alice": set()})
    app = app_of(Access(people, address_limit=RateLimit(2, Clock())))
    replies = await asyncio.gather(*(ask(app, f"guess-{number}") for number in range(10)))
    assert sorted(each.status for each in replies) == [401] * 4 + [429] * 6
    assert people.asked == 4


async def test_good_tokens_do_not_count_as_bad_ones() -> None:
    people = People({"alice": set()})
    app = app_of(Access(people, address_limit=RateLimit(1, Clock())))
    assert [(await ask(app, "alice")).status for _ in range(10)] == [200] * 10


async def test_requests_without_a_token_block_no_caller_of_their_address() -> None:
    """A load balancer may check the health without a token."""
    people = People({"alice": set()})
    app = app_of(Access(people, address_limit=RateLimit(1, Clock())))
    assert [(await call(app, "GET", "/")).status for _ in range(10)] == [401] * 10
    assert (await ask(app, "alice")).status == 200


async def test_known_caller_is_not_blocked_by_bad_tokens_from_its_address() -> None:
    people = People({"alice": set()})
    app = app_of(Access(people, address_limit=RateLimit(1, Clock())))
    assert (await ask(app, "alice")).status == 200
    assert [(await ask(app, f"guess-{number}")).status for number in range(3)] == [401, 401, 429]
    assert (await ask(app, "alice")).status == 200
