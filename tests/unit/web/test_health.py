"""Health endpoints need no authentication. Metrics do, because they contain tenant names."""

from __future__ import annotations

import pytest

from app.ports.liveness import Liveness
from app.web.api.auth import Access
from app.web.health import ops_app
from app.web.server.rate_limit import RateLimit
from tests.fakes.fake_authorizer import Rights
from tests.support.asgi import call

METRIC = b"fairgate_admission_requests_total"
ALICE = {"authorization": "Bearer alices"}
READS = ("get", "/metrics")


@pytest.mark.parametrize(
    ("granted", "head", "status"),
    [
        (set(), {}, 401),
        ({READS}, {}, 401),
        ({READS}, {"authorization": "Bearer bobs"}, 401),
        ({READS}, {"authorization": "Basic alices"}, 401),
        (set(), ALICE, 403),
        ({("get", "/livez")}, ALICE, 403),
        ({READS}, ALICE, 200),
    ],
)
async def test_metrics_need_a_token_and_the_right_to_read_them(
    granted: set[tuple[str, str]], head: dict[str, str], status: int
) -> None:
    app = ops_app({}, Liveness(), Access(Rights(granted)))
    reply = await call(app, "GET", "/metrics", headers=head)
    assert reply.status == status
    assert (METRIC in reply.body) == (status == 200)


async def test_refused_requests_for_metrics_are_rate_limited() -> None:
    rights = Rights()
    strangers = RateLimit(2, lambda: 0.0)
    app = ops_app({}, Liveness(), Access(rights, address_limit=strangers))
    replies = [await call(app, "GET", "/metrics", headers=ALICE) for _ in range(10)]
    statuses = [each.status for each in replies]
    assert set(statuses) == {403, 429}
    assert statuses[-5:] == [429] * 5


async def test_metrics_are_public_if_no_access_check_is_configured() -> None:
    assert METRIC in (await call(ops_app({}, Liveness(), None), "GET", "/metrics")).body


async def test_health_endpoints_need_no_token_and_check_no_rights() -> None:
    rights = Rights()
    app = ops_app({}, Liveness(), Access(rights))
    assert (await call(app, "GET", "/livez")).status == 200
    assert (await call(app, "GET", "/readyz")).status == 200
    assert rights.asked == 0


async def test_metrics_are_503_if_the_caller_cannot_be_checked() -> None:
    reply = await call(
        ops_app({}, Liveness(), Access(Rights({READS}, fails=True))),
        "GET",
        "/metrics",
        headers=ALICE,
    )
    assert reply.status == 503
    assert METRIC not in reply.body
