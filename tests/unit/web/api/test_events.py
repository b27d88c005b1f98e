"""The route of a pod's events: bounded reads, and errors that name what failed."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from app.core.errors import ClusterUnavailable
from app.core.model import Millis
from app.kube.event_reader import MOST_EVENTS
from app.ports.api import PodEvent
from tests.fakes.fake_api_cluster import NOW, ApiCluster
from tests.fakes.fake_authorizer import People
from tests.support.asgi import Reply, call

PATH = "/v1/workloads/lab/p/events"


def cluster() -> ApiCluster:
    made = ApiCluster()
    made.rights.granted.add(("list", "events/lab"))
    for number in range(3):
        at = Millis(NOW + 1000 * number)
        made.events.add("lab", "p", PodEvent(at, "Held", f"event {number}", "fairgate", False, 1))
    return made


async def get(app: ASGIApp, path: str, token: str = "alices") -> Reply:
    return await call(app, "GET", path, headers={"authorization": f"Bearer {token}"})


async def test_newest_events_are_first_and_older_ones_are_announced() -> None:
    found = (await get(cluster().app(), f"{PATH}?limit=2")).json
    assert [each["message"] for each in found["items"]] == ["event 2", "event 1"]
    assert found["more"]


async def test_limit_above_the_maximum_number_of_events_is_refused() -> None:
    app = cluster().app()
    assert (await get(app, f"{PATH}?limit={MOST_EVENTS}")).status == 200
    assert (await get(app, f"{PATH}?limit={MOST_EVENTS + 1}")).status == 400


async def test_events_that_cannot_be_read_are_reported_as_503() -> None:
    town = cluster()
    town.events.error = ClusterUnavailable("no answer")
    reply = await get(town.app(), PATH)
    assert (reply.status, reply.json["detail"]) == (
        503,
        "The events cannot be read now; try again.",
    )


async def test_a_second_read_of_a_caller_waits_and_a_third_is_refused() -> None:
    town = cluster()
    town.events.waits = asyncio.Event()
    app = town.app()
    replies = asyncio.as_completed([get(app, PATH) for _ in range(3)], timeout=5)
    refused = await next(replies)
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert "wait for them" in refused.json["detail"]
    assert town.events.reads == 1
    town.events.waits.set()
    assert [(await next(replies)).status for _ in range(2)] == [200, 200]
    assert (await get(app, PATH)).status == 200


async def test_service_accounts_of_a_namespace_share_one_limit_of_event_reads() -> None:
    bots = [f"system:serviceaccount:team-a:bot-{number}" for number in range(3)]
    right = ("list", "lab:events", "")
    town = ApiCluster(rights=People({name: {right} for name in (*bots, "bob")}))
    town.events.waits = asyncio.Event()
    app = town.app()
    replies = asyncio.as_completed([get(app, PATH, bot) for bot in bots], timeout=5)
    assert (await next(replies)).status == 429
    ends, town.events.waits = town.events.waits, None
    assert (await get(app, PATH, "bob")).status == 200
    ends.set()
    assert [(await next(replies)).status for _ in range(2)] == [200, 200]
