"""The REST API while no controller leads: complete queues, and a warning in each answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.explain import queue_listing
from app.core.explain.leader_state import OLD_MS, recent_message
from app.core.explain.queue_listing import QueueRow
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis
from app.web.api.queue_sources import EngineQueues, LeaderQueues
from app.web.api.route_context import RouteContext
from tests.fakes.fake_api_cluster import EVERYTHING, NOW, ApiCluster, held, pool, tenant
from tests.fakes.fake_queues import FakeQueues
from tests.support.asgi import Reply, call
from tests.support.rest_app import context as empty_context

PAUSED = "No controller leads. Releases are paused, and held pods keep their order. This began at"


class Town(ApiCluster):
    """A replica whose copy of the queues was written before any pod came."""

    def context(self) -> RouteContext:
        copy = FakeQueues(empty_context(self.rights).engine)
        return replace(
            super().context(),
            queues=LeaderQueues(
                copy,
                EngineQueues(self.engine.queries),
                lambda: recent_message(self.leader_message, self.now) is not None,
                lambda: self.view.is_ready,
            ),
        )

    async def get(self, path: str) -> Reply:
        return await call(self.app(), "GET", path, headers={"authorization": "Bearer alices"})


@pytest.fixture
async def town() -> Town:
    town = Town()
    town.rights.granted |= {*EVERYTHING, ("get", "tenants")}
    await town.deliver(tenant("lab"))
    await town.open()
    await town.deliver(*(held(f"p{n}", "lab", "bob@example.com") for n in range(3)))
    return town


async def test_pods_that_came_without_a_leader_are_listed(town: Town) -> None:
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    town.now = Millis(NOW + OLD_MS + 1)
    found = (await town.get("/v1/tenants/lab/queue?limit=2")).json
    assert found["pending"] == 3
    assert [each["name"] for each in found["items"]] == ["p0", "p1"]
    rest = (await town.get(f"/v1/tenants/lab/queue?limit=2&continue={found['continue']}")).json
    assert [each["name"] for each in rest["items"]] == ["p2"]
    [user] = (await town.get("/v1/tenants/lab/users")).json["items"]
    assert (user["name"], user["pending"]) == ("bob@example.com", 3)


async def test_late_page_builds_only_its_own_rows(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[QueueRow] = []
    town.now = Millis(NOW + OLD_MS + 1)
    more = (held(f"q{n}", "lab", "bob@example.com") for n in range(50))
    await town.deliver(*pool("h100", 1), *more)
    early = (await town.get("/v1/tenants/lab/queue?limit=48")).json

    def build(*fields: Any) -> QueueRow:
        built.append(QueueRow(*fields))
        return built[-1]

    monkeypatch.setattr(queue_listing, "QueueRow", build)
    late = (await town.get(f"/v1/tenants/lab/queue?limit=2&continue={early['continue']}")).json
    assert [each["position"] for each in late["items"]] == [49, 50]
    assert len(built) == 3  # also the first one of the next page


async def test_with_a_leader_its_copy_is_listed(town: Town) -> None:
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    assert (await town.get("/v1/tenants/lab/queue")).json["pending"] == 0


async def test_a_replica_that_never_read_a_leader_state_warns_after_its_first_read(
    town: Town,
) -> None:
    town.leader_state_read = False
    assert "warning" not in (await town.get("/v1/tenants")).headers
    town.leader_state_read = True
    assert (
        (await town.get("/v1/tenants")).headers["warning"].startswith('299 - "No controller leads.')
    )


async def test_each_answer_warns_that_no_pod_is_released(town: Town) -> None:
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    assert "warning" not in (await town.get("/v1/tenants")).headers
    town.now = Millis(NOW + OLD_MS + 1)
    for path in ("/v1/tenants", "/v1/tenants/lab/queue", "/v1/workloads/lab/p0", "/v1/me"):
        warning = (await town.get(path)).headers["warning"]
        assert warning.startswith(f'299 - "{PAUSED} 20')
    town.reachable = False
    told = '299 - "Redis is unreachable. Releases are paused, and nothing is lost."'
    assert (await town.get("/v1/tenants")).headers["warning"] == told
