"""Queues and users are answered from the copy in Redis, with or without the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import StoreEmptied, StoreError, StoreForeign, StoreUnavailable
from app.core.model import Millis, Pod, UserName
from app.sim.cluster.virtual_cluster import held_pod
from app.web.api.auth import Access
from app.web.api.schemas import QueueModel, WorkloadModel
from tests.fakes.fake_authorizer import Rights
from tests.support.rest_app import NOW, Both, node, pool, problem, tenant

PATHS = ("/v1/tenants/team-a/queue", "/v1/tenants/team-a/users")
LOSSES: list[tuple[StoreError, str, str]] = [
    (StoreEmptied("no state"), "2", "no complete copy"),
    (StoreForeign("layout 9"), "30", "finish the upgrade"),
    (StoreUnavailable("down"), "5", "does not answer"),
]


def pod(name: str, devices: int = 8, **more: Any) -> Pod:
    made = held_pod(name, "team-a", devices, user="alice", since=NOW - 5000)
    return replace(made, **more)


@pytest.fixture
async def both() -> Both:
    """A team with three waiting pods behind a pool that is too small."""
    both = Both()
    both.rights.everything = True
    await both.hear(pool("h100"), node("n0", 4), tenant("team-a"))
    await both.see(*(pod(f"p{number}", created_at=Millis(NOW - 9 + number)) for number in range(3)))
    await both.open()
    return both


@pytest.mark.parametrize(("error", "seconds", "detail"), LOSSES)
@pytest.mark.parametrize("path", PATHS)
async def test_a_lost_copy_is_a_problem_and_not_an_empty_queue(
    both: Both, path: str, error: StoreError, seconds: str, detail: str
) -> None:
    both.queues.error = error
    reply = await both.get(path)
    assert reply.status == 503
    assert detail in problem(reply)
    assert reply.headers["retry-after"] == seconds


async def test_page_is_read_once_while_nothing_changes(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    counts = both.queues.read_pending_counts

    async def counted(*args: Any) -> Any:
        reads.append(args)
        return await counts(*args)

    monkeypatch.setattr(both.queues, "read_pending_counts", counted)
    first = await both.get(PATHS[0])
    assert (await both.get(PATHS[0])).body == first.body
    assert len(reads) == 1
    await both.get(PATHS[0] + "?limit=2")
    assert len(reads) == 2
    await both.see(pod("p3", created_at=Millis(NOW)))
    assert len((await both.get(PATHS[0])).json["items"]) == 4
    assert len(reads) == 3
    monkeypatch.setattr("app.web.api.queues.FRESH_SECONDS", 0.0)
    await both.get(PATHS[0])
    assert len(reads) == 4


async def test_a_lost_copy_does_not_hide_why_a_pod_waits(both: Both) -> None:
    both.queues.error = StoreEmptied("no state")
    reply = await both.get("/v1/workloads/team-a/p1")
    assert (reply.status, reply.json["position"], reply.json["length"]) == (200, 2, 3)


async def test_a_replica_without_an_engine_answers_from_the_copy(both: Both) -> None:
    both.context = replace(both.context, is_synced=lambda: False)
    reply = await both.get(PATHS[0])
    assert reply.status == 200
    rows = [(row["name"], row["position"], row["length"]) for row in reply.json["items"]]
    assert rows == [("p0", 1, 3), ("p1", 2, 3), ("p2", 3, 3)]
    assert reply.json["pending"] == 3
    assert {row[key] for row in reply.json["items"] for key in ("rule", "reason", "pools")} == {
        None
    }
    [user] = (await both.get(PATHS[1])).json["items"]
    assert (user["name"], user["pending"]) == ("alice", 3)
    assert (await both.get("/v1/workloads/team-a/p0")).status == 503


async def test_a_pod_that_the_engine_has_not_seen_is_listed(both: Both) -> None:
    leader = Both()
    await leader.hear(pool("h100"), node("n0", 4), tenant("team-a"))
    await leader.see(pod("p0"), pod("newer", created_at=Millis(NOW)))
    await leader.open()
    both.queues.engine = leader.engine
    rows = (await both.get(PATHS[0])).json["items"]
    assert [(row["name"], row["rule"] is None) for row in rows] == [("p0", False), ("newer", True)]
    assert rows[0]["reason"].startswith("queued: 1 of 2 in team-a/alice; ")


async def test_priority_and_age_are_restored_from_the_copy(both: Both) -> None:
    await both.see(pod("urgent", priority=1000, created_at=Millis(NOW - 1)))
    await both.see(pod("low", priority=-5, created_at=Millis(NOW - 2_000)))
    rows = (await both.get(PATHS[0])).json["items"]
    assert (rows[0]["name"], rows[0]["priority"]) == ("urgent", 1000)
    assert (rows[-1]["name"], rows[-1]["priority"]) == ("low", -5)
    assert rows[-1]["since"] == "2023-11-14T22:13:18Z"


async def test_pages_of_users_continue_with_the_next_user(both: Both) -> None:
    await both.see(*(pod(f"{u}0", uid=f"{u}0", user=UserName(u)) for u in ("bob", "alfred")))
    seen, more = [], ""
    while True:
        page = (await both.get(f"{PATHS[0]}?limit=1{more}")).json
        seen += [row["name"] for row in page["items"]]
        if page["continue"] is None:
            break
        more = f"&continue={page['continue']}"
    assert seen == ["alfred0", "p0", "p1", "p2", "bob0"]


async def test_encoded_answers_have_the_form_of_their_models(both: Both) -> None:
    page = (await both.get(PATHS[0])).json
    page["more"] = page.pop("continue")
    again = QueueModel.model_validate(page).model_dump(mode="json", by_alias=True)
    page["continue"] = page.pop("more")
    assert again == page
    why = (await both.get("/v1/workloads/team-a/p0")).json
    assert WorkloadModel.model_validate(why).model_dump(mode="json", by_alias=True) == why


async def test_reads_check_the_right_to_all_objects_before_a_named_one(both: Both) -> None:
    asked: list[tuple[str, str]] = []
    granted = {("pods", "")}

    class Recorder(Rights):
        async def allows(self, *args: Any, name: str = "", **more: Any) -> bool:
            asked.append((args[2], args[4] if len(args) > 4 else name))
            return asked[-1] in granted

    both.context = replace(both.context, access=Access(Recorder(name="carol")))
    assert (await both.get("/v1/workloads/team-a/p0")).status == 200
    assert asked == [("tenants", "team-a"), ("pods", "")]
    asked.clear()
    granted.add(("tenants", "team-a"))
    assert (await both.get(PATHS[0])).status == 200
    assert asked == [("tenants", ""), ("tenants", "team-a")]
