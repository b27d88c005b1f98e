"""GET /v1/usage: exact usage, for callers that may see it."""

from __future__ import annotations

import asyncio
import csv
import io
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import quote

import pytest
from starlette.types import ASGIApp

from app.core import events as ev
from app.core.fairshare.checkpoint import FairnessState, TenantCheckpoint
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid, UserName
from app.core.safe_text import escape_hidden
from tests.fakes.fake_authorizer import Rights
from tests.fakes.fake_usage_records import FakeRuns
from tests.support.asgi import Reply, call
from tests.support.rest_app import GPU, NOW, Both, node, pool, tenant

HOUR = 3_600_000
T0 = "2023-11-14T21:13:20Z"
"""An hour before NOW."""

EVERYTHING = ("get", "tenants/usage")


def run(
    name: str, begin: int, end: int | None = None, *, tenant: str = "a", user: str = "alice"
) -> UsageRecord:
    """Return a usage record that begins and ends these seconds before NOW."""
    at = [None if each is None else Millis(NOW + 1000 * each) for each in (begin, end)]
    assert at[0] is not None
    return UsageRecord(
        Uid(name), tenant, name, "train", TenantName(tenant), UserName(user), PoolName("h100"),
        {GPU: 2}, at[0], NodeName("n1"), at[0], at[1],
    )  # fmt: skip


@pytest.fixture
def both() -> Both:
    both = Both()
    both.rights.granted = {EVERYTHING}
    return both


@pytest.fixture
def rights(both: Both) -> Rights:
    return both.rights


@pytest.fixture
def runs(both: Both) -> FakeRuns:
    return both.runs


@pytest.fixture
def app(both: Both) -> ASGIApp:
    return both.app


async def get(app: ASGIApp, query: str, accept: str = "*/*") -> Reply:
    headers = {"authorization": "Bearer alices", "accept": accept}
    return await call(app, "GET", f"/v1/usage?{query}", b"", headers)


def keep(runs: FakeRuns, *some: UsageRecord) -> None:
    for each in some:
        if each.end is None:
            runs.runs.open[each.uid] = each
        else:
            runs.runs.ended[each.id] = each


async def test_the_last_hour_of_every_tenant_is_the_default(app: ASGIApp, runs: FakeRuns) -> None:
    keep(runs, run("x", -2 * 3600, -1800), run("y", -60), run("z", -10, tenant="b"))
    runs.runs.since = Millis(NOW - HOUR)
    assert (await get(app, "")).json == {
        "items": [
            {"tenant": "a", "resourceSeconds": {"nvidia.com/gpu": "3720"}},
            {"tenant": "b", "resourceSeconds": {"nvidia.com/gpu": "20"}},
        ],
        "from": T0,
        "to": "2023-11-14T22:13:20Z",
        "completeSince": T0,
        "continue": None,
    }


async def test_a_run_that_ended_meanwhile_counts_once(app: ASGIApp, runs: FakeRuns) -> None:
    keep(runs, run("x", -100), run("x", -100, -50))
    (row,) = (await get(app, "")).json["items"]
    assert row["resourceSeconds"] == {"nvidia.com/gpu": "100"}


async def test_complete_since_is_null_before_a_leader_reports(app: ASGIApp) -> None:
    assert (await get(app, "")).json["completeSince"] is None


async def test_rows_have_the_requested_columns(app: ASGIApp, runs: FakeRuns) -> None:
    keep(runs, run("x", -100, -50))
    (row,) = (await get(app, "by=workload,node,user,pool")).json["items"]
    assert row == {
        "workload": "a/train", "node": "n1", "user": "alice", "pool": "h100",
        "resourceSeconds": {"nvidia.com/gpu": "100"},
    }  # fmt: skip


async def test_steps_give_a_series(app: ASGIApp, runs: FakeRuns) -> None:
    keep(runs, run("x", -3600, -3000))
    rows = (await get(app, "step=5m")).json["items"]
    assert [(row["at"], row["resourceSeconds"]["nvidia.com/gpu"]) for row in rows] == [
        (T0, "600"),
        ("2023-11-14T21:18:20Z", "600"),
    ]


async def test_page_has_a_continue_token_and_all_pages_end_at_the_same_time(
    app: ASGIApp, runs: FakeRuns
) -> None:
    keep(runs, *(run(f"{i}", -100, user=f"u{i}") for i in range(5)))
    first = (await get(app, "by=user&limit=2")).json
    second = (await get(app, f"by=user&limit=2&continue={first['continue']}")).json
    third = (await get(app, f"by=user&limit=2&continue={second['continue']}")).json
    rows = [row["user"] for page in (first, second, third) for row in page["items"]]
    assert rows == ["u0", "u1", "u2", "u3", "u4"]
    assert third["continue"] is None
    assert {page["to"] for page in (first, second, third)} == {"2023-11-14T22:13:20Z"}


async def test_right_on_one_tenant_shows_only_its_usage(
    app: ASGIApp, runs: FakeRuns, rights: Rights
) -> None:
    rights.granted = {("get", "tenants/usage/a")}
    keep(runs, run("x", -100), run("y", -100, tenant="canary"), run("z", -9, -1, tenant="canary"))
    assert (await get(app, "by=node,workload")).status == 403
    assert (await get(app, "by=node&tenant=canary")).status == 403
    assert (await get(app, "by=node&tenant=a&tenant=canary")).status == 403
    for form in ("json", "csv"):
        reply = await get(app, f"by=tenant,node,workload&tenant=a&format={form}")
        assert reply.status == 200
        assert b"canary" not in reply.body
        assert b"200" in reply.body


async def test_csv_is_the_same_sums(app: ASGIApp, runs: FakeRuns) -> None:
    more = replace(run("y", -100), amounts={Resource("cpu"): 1500})
    keep(runs, run("x", -100, -50, tenant="b"), more)
    for reply in (await get(app, "by=tenant,user&format=csv"), await get(app, "", "text/csv")):
        assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(
        csv.reader(io.StringIO((await get(app, "by=tenant,user&format=csv")).body.decode()))
    )
    assert rows == [
        ["tenant", "user", "cpu", "nvidia.com/gpu"],
        ["a", "alice", "150", "0"],
        ["b", "alice", "0", "100"],
    ]


async def test_csv_without_rows_names_the_managed_resources(app: ASGIApp) -> None:
    assert (await get(app, "by=user&format=csv")).body == b"user,nvidia.com/gpu\r\n"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\r=1"])
async def test_csv_holds_no_formula(app: ASGIApp, runs: FakeRuns, name: str) -> None:
    keep(runs, run("x", -100, user=name))
    text = (await get(app, "by=user&format=csv")).body.decode()
    (_, (cell, _)) = csv.reader(io.StringIO(text, newline=""))
    assert cell == "'" + escape_hidden(name)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=colour", "by: 'colour'"),
        ("by=", "by: ''"),
        ("from=yesterday", "from: 'yesterday'"),
        ("to=99999999999999999999", "to: "),
        ("from=2023-11-14T22:13:20Z", "before to"),
        ("from=2023-11-14T21:00:00Z&to=2023-11-14T20:00:00Z", "before to"),
        ("step=soon", "step: "),
        ("step=0", "at least a second"),
        ("step=1s&from=2022-11-14T07:00:00Z", "10000 steps"),
        ("continue=x", "continue: "),
        ("continue=WzEsMiwtM10", "continue: "),
    ],
)
async def test_invalid_query_is_400_with_the_parameter(
    app: ASGIApp, query: str, words: str
) -> None:
    reply = await get(app, query)
    assert reply.status == 400
    assert words in reply.json["detail"]


async def test_request_without_redis_is_503(app: ASGIApp, runs: FakeRuns) -> None:
    runs.fails = True
    assert (await get(app, "")).status == 503


async def test_others_are_answered_while_long_runs_are_counted_in_short_steps(
    app: ASGIApp, runs: FakeRuns
) -> None:
    keep(runs, *(run(f"r{number}", -9_000) for number in range(20)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    begins = (datetime.fromisoformat(T0) - timedelta(minutes=90)).isoformat()
    reply = await get(app, f"step=1&from={quote(begins)}")
    beside.cancel()

    assert reply.status == 200
    assert turns >= 20


async def test_totals_count_since_the_installation_by_tenant_user_and_pool() -> None:
    both = Both()
    both.rights.everything = True
    await both.hear(pool("h100"), node("n0", 8), tenant("team-a"))
    spent = {PoolName("h100"): {GPU: 7_200_000}}
    checkpoint = TenantCheckpoint(
        NOW, 1, FairnessState(), {UserName("ann"): FairnessState(totals=spent)}
    )
    await both.hear(ev.CheckpointsRead(NOW, {TenantName("team-a"): checkpoint}))
    await both.open()
    page = (await both.get("/v1/usage?total=true&by=tenant,user,pool")).json
    assert page["items"] == [
        {"tenant": "team-a", "user": "ann", "pool": "h100", "resourceSeconds": {GPU: "7200"}}
    ]
    assert (page["from"], page["completeSince"], page["continue"]) == (None, None, None)
    table = await both.get("/v1/usage?total=true&by=user&format=csv")
    assert table.body.decode().splitlines() == ["user,nvidia.com/gpu", "ann,7200"]
    for query in ("by=node", "by=tenant&from=2026-01-01T00:00:00Z", "by=tenant&step=5m"):
        assert (await both.get(f"/v1/usage?total=true&{query}")).status == 400
