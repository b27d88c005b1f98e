"""The event stream: its events per caller, their timing, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from starlette.types import ASGIApp, Message

from app.core import events as ev
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis, PoolName, TenantName, UserName
from app.core.policy import Mode, Policy
from app.ports.api import EnforcementResult
from app.web.api import dashboard_state
from app.web.api.dashboard_state import DashboardFacts, collect_facts, state_for_rights
from app.web.api.refused import Refused
from app.web.api.stream import MOST_PER_CALLER, ConnectionLimit, StateCache, StreamTiming
from app.web.api.stream_schemas import DashboardState
from app.web.api.visible_state import VisibleState
from app.web.api.wait_reason_cache import QUEUED, WaitReasonCache
from tests.fakes.fake_api_cluster import GPU, NOW, ApiCluster, busy, held, tenant
from tests.fakes.fake_authorizer import Rights
from tests.support.asgi import call

SECONDS = 30
QUICK = StreamTiming(state_interval=0.01, keep_alive_interval=0.02, rights_interval=3600)
UNTRUSTING = StreamTiming(state_interval=0.01, keep_alive_interval=3600, rights_interval=0.01)
EVERY = VisibleState(True, True, frozenset(), True, True)

Event = tuple[str, Any]


@dataclass
class Reader:
    """One client that receives an answer in parts. It reads data only while `taking` is set."""

    app: ASGIApp
    token: str = "alices"
    parts: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": "/v1/stream",
            "raw_path": b"/v1/stream",
            "root_path": "",
            "query_string": b"",
            "scheme": "https",
            "server": ("127.0.0.1", 443),
            "client": ("127.0.0.1", 1),
            "headers": [(b"authorization", f"Bearer {self.token}".encode())],
            "state": {},
        }
        asked = False

        async def receive() -> Message:
            nonlocal asked
            if asked:
                await self.left.wait()
                return {"type": "http.disconnect"}
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            await self.taking.wait()
            self.parts.put_nowait(message)

        await self.app(scope, receive, send)

    async def status(self) -> int:
        async with asyncio.timeout(SECONDS):
            message = await self.parts.get()
        assert message["type"] == "http.response.start"
        status: int = message["status"]
        return status

    async def part(self) -> bytes | None:
        """Return the next part as sent; None at the end."""
        async with asyncio.timeout(SECONDS):
            message = await self.parts.get()
        body: bytes = message.get("body", b"")
        return body if body or message.get("more_body") else None

    async def event(self) -> Event:
        """Return the next event, without keep-alive comments."""
        while (part := await self.part()) is not None:
            if not part.startswith(b":"):
                name, data = part.decode().rstrip("\n").split("\n")
                return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        raise EOFError


@asynccontextmanager
async def listening(town: ApiCluster, rhythm: StreamTiming = QUICK) -> AsyncIterator[Reader]:
    """Read the stream until the end of the block."""
    reader = Reader(town.app(rhythm))
    reader.taking.set()
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        reader.left.set()
        reader.taking.set()
        async with asyncio.timeout(SECONDS):
            await task


@pytest.fixture
async def town() -> ApiCluster:
    town = ApiCluster()
    await town.open()
    await town.deliver(*busy())
    return town


async def told(town: ApiCluster) -> tuple[Any, Any]:
    """Return the first two events: hello and state."""
    async with listening(town) as reader:
        assert await reader.status() == 200
        (one, hello), (other, state) = await reader.event(), await reader.event()
    assert (one, other) == ("hello", "state")
    return hello, state


async def test_stream_starts_with_the_caller_and_the_current_state(
    town: ApiCluster,
) -> None:
    hello, state = await told(town)

    assert hello["caller"] == "alice@example.com"
    by_name = {each["name"]: each for each in state["tenants"]}
    assert by_name["robotics"]["used"] == {"h100": {GPU: "20"}}
    assert by_name["robotics"]["pending"] == 7
    assert [user["name"] for user in state["users"]["robotics"]] == [
        "dave@example.com",
        "erin@example.com",
    ]
    since = "2026-09-21T14:13:20Z"
    assert {
        "tenant": "robotics",
        "user": "erin@example.com",
        "pending": 7,
        "rules": {"limit": 7},
        "request": {GPU: "56"},
        "since": since,
    } in (state["queues"])
    assert state["waiting"]["robotics"] == {"request": {GPU: "56"}, "since": since}
    # Five pods of bob replaced those of alice with the same names.
    assert state["waiting"]["research"]["request"] == {GPU: str(7 * 4 + 5 * 8 + 31 * 8)}
    h100 = state["pools"][0]
    assert (h100["name"], len(h100["members"]), h100["used"]) == ("h100", 8, {GPU: "54"})
    assert state["leftOut"] == {"users": 0, "queues": 0, "nodes": 0}


async def test_stream_has_fair_share_guarantee_and_limit_of_each_tenant(town: ApiCluster) -> None:
    _, state = await told(town)

    # The cluster has 272 units in total; an H100 counts 4. Guarantees take 16 and 8 H100s, that is
    # 96 units. The other 176 are divided by weight, in total 6: research 3, and 1 each for
    # robotics, teaching and default.
    robotics = state["owed"]["robotics"]
    assert robotics["guarantee"] == pytest.approx(32 / 272, abs=1e-4)
    assert robotics["owed"] == pytest.approx((32 + 176 / 6) / 272, abs=1e-4)
    assert robotics["limit"] == pytest.approx((24 * 4 + 16) / 272, abs=1e-4)
    vision = state["owed"]["vision"]
    research = (64 + 176 / 2) / 272
    assert vision["owed"] == pytest.approx(research * 2 / 3, abs=1e-4)
    assert vision["users"]["alice@example.com"]["owed"] == pytest.approx(research / 2, abs=1e-4)


async def test_unchanged_state_is_not_sent_again(town: ApiCluster) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        assert await reader.part() == b": nothing changed\n\n"
        assert await reader.part() == b": nothing changed\n\n"


async def test_changed_state_is_sent(town: ApiCluster) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        await town.deliver(held("new", "teaching", "ivan@example.com"))
        name, state = await reader.event()
    assert name == "state"
    assert "ivan@example.com" in [user["name"] for user in state["users"]["teaching"]]


async def test_slow_reader_receives_only_the_newest_state(town: ApiCluster) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        reader.taking.clear()
        for number in range(5):
            await town.deliver(held(f"new-{number}", "teaching", "ivan@example.com"))
            assert await _passes(reader)
        reader.taking.set()
        pending = 0
        states = 0
        while pending < 5:
            _, state = await reader.event()
            states += 1
            users = {each["name"]: each for each in state["users"]["teaching"]}
            pending = users["ivan@example.com"]["pending"]
    # The part that was held back, and the newest part.
    assert states <= 2


async def _passes(reader: Reader) -> bool:
    """Let some intervals pass without reading; return whether no part arrived."""
    await asyncio.sleep(5 * QUICK.state_interval)
    return reader.parts.empty()


async def test_stream_without_the_right_or_a_valid_token_is_refused(town: ApiCluster) -> None:
    town.rights.granted -= {("get", "stream")}
    async with listening(town) as reader:
        assert await reader.status() == 403
    for headers in ({}, {"authorization": "Bearer mallorys"}):
        assert (await call(town.app(), "GET", "/v1/stream", headers=headers)).status == 401


async def test_stream_omits_data_of_tenants_that_the_caller_may_not_see(town: ApiCluster) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/robotics")}

    hello, state = await told(town)

    assert (hello["everyTenant"], hello["queues"], hello["pools"]) == (False, ["robotics"], False)
    assert [each["name"] for each in state["tenants"]] == ["robotics"]
    assert state["pools"] == []
    said = json.dumps(state)
    for other in ("research", "vision", "teaching", "alice", "bob", "frank", "h100-00", "wait-"):
        assert other not in said, other
    assert "erin@example.com" in said


async def test_right_to_list_tenants_does_not_show_their_users(town: ApiCluster) -> None:
    town.rights.granted = {("get", "stream"), ("list", "tenants")}

    _, state = await told(town)

    assert {"research", "robotics"} <= {each["name"] for each in state["tenants"]}
    assert (state["users"], state["queues"], state["pools"]) == ({}, [], [])
    assert "@example.com" not in json.dumps({**state, "tenants": []})


async def test_users_with_a_weight_are_hidden_without_the_right_to_the_queue(
    town: ApiCluster,
) -> None:
    town.rights.granted = {("get", "stream"), ("list", "tenants")}

    _, state = await told(town)

    assert "alice" not in json.dumps(state)


def token_expires(rights: Rights) -> None:
    rights.token = "another"


def right_goes(rights: Rights) -> None:
    rights.granted = set()


def api_server_goes(rights: Rights) -> None:
    rights.fails = True


@pytest.mark.parametrize(
    ("happens", "status"), [(token_expires, 401), (right_goes, 403), (api_server_goes, 503)]
)
async def test_stream_ends_if_the_right_of_the_caller_cannot_be_confirmed(
    town: ApiCluster, happens: Callable[[Rights], None], status: int
) -> None:
    async with listening(town, UNTRUSTING) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        happens(town.rights)
        await town.deliver(held("new", "teaching", "ivan@example.com"))
        name, problem = await reader.event()
        while name != "end":  # changed before the rights were checked again
            name, problem = await reader.event()
        assert problem["status"] == status
        assert problem["detail"]
        assert await reader.part() is None


async def test_each_event_is_in_the_description(town: ApiCluster) -> None:
    document = town.app().openapi()
    content = document["paths"]["/v1/stream"]["get"]["responses"]["200"]["content"]
    events = content["text/event-stream"]["schema"]["items"]["oneOf"]
    parts = {each["properties"]["event"]["const"]: each["properties"]["data"] for each in events}
    seen = set()
    async with listening(town, UNTRUSTING) as reader:
        await reader.status()
        while True:
            name, data = await reader.event()
            reference = parts[name]["contentSchema"]["$ref"]
            found = document["components"]["schemas"][reference.rpartition("/")[2]]
            assert data.keys() == found["properties"].keys()
            Draft202012Validator(
                {"$ref": reference, "components": document["components"]}
            ).validate(data)
            seen.add(name)
            if name == "end":
                break
            if name == "state":
                town.rights.granted -= {("get", "stream")}
    assert seen == parts.keys() == {"hello", "state", "end"}


async def test_changed_rights_change_the_visible_state(town: ApiCluster) -> None:
    async with listening(town, UNTRUSTING) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        town.rights.granted -= {("list", "pools")}
        name, hello = await reader.event()
        assert (name, hello["pools"]) == ("hello", False)
        name, state = await reader.event()
        assert (name, state["pools"]) == ("state", [])


async def test_stream_ends_if_the_process_stops(town: ApiCluster) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        town.stays = False
        with pytest.raises(EOFError):
            await reader.event()


async def test_number_of_streams_of_one_caller_is_limited(town: ApiCluster) -> None:
    app = town.app(QUICK)
    readers = [Reader(app) for _ in range(MOST_PER_CALLER)]
    tasks = []
    for reader in readers:
        reader.taking.set()
        tasks.append(asyncio.create_task(reader.run()))
        assert await reader.status() == 200
    one_more = Reader(app)
    one_more.taking.set()
    await one_more.run()
    assert await one_more.status() == 429

    readers[0].left.set()
    await tasks[0]
    another = Reader(app)
    another.taking.set()
    tasks.append(asyncio.create_task(another.run()))
    assert await another.status() == 200
    for reader in (*readers, another):
        reader.left.set()
    await asyncio.gather(*tasks)


def test_beyond_the_most_that_may_listen_it_is_503() -> None:
    room = ConnectionLimit(max_streams=2)
    room.add_stream("a")
    room.add_stream("b")
    with pytest.raises(Refused) as refused:
        room.add_stream("c")
    assert refused.value.status == 503
    room.remove_stream("a")
    room.add_stream("c")


# --- the cache of states ---


@dataclass
class Made:
    """Counts the states that a `StateCache` computes and filters.

    `took` and `cutting` are durations.
    """

    town: ApiCluster
    made: int = 0
    cut: int = 0
    now: float = 0.0
    took: float = 0.0
    cutting: float = 0.0

    def board(self) -> StateCache:
        return StateCache(self.make, self.show, lambda: self.now, 1.0)

    def make(self) -> DashboardFacts:
        self.made += 1
        self.now += self.took
        return collect_facts(self.town.context(), WaitReasonCache(lambda: self.now))

    def show(self, known: DashboardFacts, sight: VisibleState) -> DashboardState:
        self.cut += 1
        self.now += self.cutting
        return state_for_rights(known, self.town.context(), sight)


async def test_callers_with_equal_rights_share_one_state_per_second(town: ApiCluster) -> None:
    made = Made(town)
    board = made.board()
    mine = VisibleState(False, False, frozenset({TenantName("robotics")}), False, False)

    texts = [board.newest_state(sight).text for sight in (EVERY, mine, EVERY, mine)]

    assert (made.made, made.cut) == (1, 2)
    assert texts[0] == texts[2] != texts[1] == texts[3]
    made.now = 0.9
    board.newest_state(EVERY)
    assert made.made == 1
    made.now = 1.1
    board.newest_state(EVERY)
    assert made.made == 2


async def test_states_that_no_stream_asks_for_are_dropped(town: ApiCluster) -> None:
    """Only a dropped state gets a new version, because nothing changes."""
    made = Made(town)
    board = made.board()
    others = [VisibleState(False, False, frozenset({TenantName(n)}), False, False) for n in "ab"]
    for made.now, asked in enumerate([(EVERY, *others), (EVERY,), (EVERY, others[0]), (EVERY,)]):
        for rights in asked:
            board.newest_state(rights)
    assert [board.newest_state(each).version for each in (EVERY, *others)] == [1, 1, 4]


async def test_state_that_is_slow_to_compute_is_computed_less_often(town: ApiCluster) -> None:
    made = Made(town, took=0.5)
    board = made.board()
    board.newest_state(EVERY)
    made.now = 9.0
    board.newest_state(EVERY)
    assert made.made == 1
    made.now = 11.0
    board.newest_state(EVERY)
    assert made.made == 2


async def test_state_that_is_slow_to_filter_is_computed_less_often(town: ApiCluster) -> None:
    made = Made(town, cutting=0.5)
    board = made.board()
    board.newest_state(EVERY)
    made.now = 9.0
    board.newest_state(EVERY)
    assert made.made == 1
    made.now = 11.0
    board.newest_state(EVERY)
    assert made.made == 2


async def test_a_pool_that_has_just_gone_ends_nobodys_stream(town: ApiCluster) -> None:
    board = Made(town).board()
    pools = board.newest_state(EVERY).state.pools
    await town.deliver(*(ev.PoolGone(town.now, PoolName(each.name)) for each in pools))
    newcomer = VisibleState(True, False, frozenset(), True, True)
    assert board.newest_state(newcomer).state.pools == pools


async def test_time_alone_is_no_change(town: ApiCluster) -> None:
    made = Made(town)
    board = made.board()
    first = board.newest_state(EVERY)
    town.now = type(town.now)(town.now + 5000)
    made.now = 5.0
    assert board.newest_state(EVERY).version == first.version
    await town.deliver(tenant("newcomer"))
    made.now = 10.0
    assert board.newest_state(EVERY).version > first.version


async def test_omitted_users_queues_and_nodes_are_counted(town: ApiCluster) -> None:
    more = [held(f"of-{n}", "vision", f"user-{n}") for n in range(dashboard_state.MOST_USERS)]
    await town.deliver(*more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard_state, "MOST_NODES", 6)
        patch.setattr(dashboard_state, "MOST_QUEUES", 100)
        hello, state = await told(town)
    assert hello["pools"]
    assert (len(state["pools"][0]["members"]), len(state["queues"])) == (6, 100)
    assert state["leftOut"] == {"users": 2, "queues": 5, "nodes": 2}


# --- faults ---


async def test_a_missing_leader_is_a_problem_with_the_time_of_its_last_state(
    town: ApiCluster,
) -> None:
    _, state = await told(town)
    [problem] = state["problems"]
    assert (problem["code"], problem["since"]) == ("NoLeader", None)
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    _, state = await told(town)
    assert (state["problems"], state["epoch"], state["mode"]) == ([], 3, "Enforce")
    town.now = Millis(NOW + 30_001)
    _, state = await told(town)
    [problem] = state["problems"]
    assert (problem["code"], problem["since"]) == ("NoLeader", "2026-09-21T14:13:20Z")


async def test_redis_and_old_data_are_problems(town: ApiCluster) -> None:
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    lost = replace(town.context(), store_reachable=lambda: False, data_age=lambda: 60_001)
    rules = WaitReasonCache(lambda: 0.0)
    shown = state_for_rights(collect_facts(lost, rules), lost, EVERY)
    assert [problem.code for problem in shown.problems] == ["RedisUnreachable", "StaleData"]


async def test_holes_in_enforcement_and_a_silent_webhook_are_problems(town: ApiCluster) -> None:
    async def codes(result: EnforcementResult | None, mode: Mode = Mode.ENFORCE) -> list[str]:
        town.leader_message, town.enforcement = LeaderStateMessage(NOW, 3, 0.5), result
        await town.deliver(ev.PolicyObserved(NOW, Policy(mode=mode)))
        _, state = await told(town)
        return [problem["code"] for problem in state["problems"]]

    late = Millis(NOW - 60_001)
    holes = {"hold": "a pod is not held.", "create": "a pod can be made."}
    assert await codes(None) == []
    assert await codes(EnforcementResult(NOW, 10)) == []
    assert await codes(EnforcementResult(NOW, 10, holes)) == ["EnforcementFails"] * 2
    assert await codes(EnforcementResult(late, 10)) == ["WebhookSilent"]
    assert await codes(EnforcementResult(late, 0)) == []  # the probes are off
    assert await codes(EnforcementResult(late, 10, holes), Mode.OBSERVE) == []


@pytest.mark.parametrize(
    ("probed", "renewed", "seconds", "silent"),
    [
        (3_000_000, 14_000, 3600, False),  # a replica works, and its next round is due later
        (3_000_000, 16_000, 3600, True),
        (50_000, 14_000, 30, False),  # the only replica has restarted
        (44_000, None, 30, False),  # a webhook of an older version stores results alone
        (46_000, None, 30, True),
    ],
)
async def test_a_webhook_is_silent_15_s_after_its_last_report(
    town: ApiCluster, probed: int, renewed: int | None, seconds: float, silent: bool
) -> None:
    at = Millis(0 if renewed is None else NOW - renewed)
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    town.enforcement = EnforcementResult(Millis(NOW - probed), seconds, last_heartbeat=at)
    await town.deliver(ev.PolicyObserved(NOW, Policy(mode=Mode.ENFORCE)))
    _, state = await told(town)
    assert [problem["code"] for problem in state["problems"]] == ["WebhookSilent"] * silent


async def test_a_node_shows_only_tenants_that_the_caller_may_see(town: ApiCluster) -> None:
    def tenants(shown: dict[str, Any]) -> dict[str, Any]:
        nodes = {node["name"]: node for pool in shown["pools"] for node in pool["members"]}
        return {name: nodes[name]["tenants"] for name in ("h100-00", "h100-06")}

    _, all_of_it = await told(town)
    assert tenants(all_of_it) == {
        "h100-00": {"vision": {GPU: "8"}},
        "h100-06": {"robotics": {GPU: "8"}},
    }
    town.rights.granted = {("get", "stream"), ("list", "pools"), ("get", "tenants/queue/robotics")}
    _, some = await told(town)
    assert tenants(some) == {"h100-00": {}, "h100-06": {"robotics": {GPU: "8"}}}


# --- wait reasons ---


async def test_rule_that_is_not_computed_yet_is_shown_as_queued(town: ApiCluster) -> None:
    queries = town.engine.queries
    hasty = WaitReasonCache(
        iter(range(100)).__next__, time_limit=1
    )  # each reading advances the clock by 1 s
    queues = len(hasty.backlogs(queries))

    def unknown() -> int:
        return sum(QUEUED in each.rules for each in hasty.backlogs(queries).values())

    left = [unknown() for _ in range(queues)]
    assert left == sorted(left, reverse=True)
    assert (left[0] > 0, left[-1]) == (True, 0)
    assert hasty.backlogs(queries) == WaitReasonCache(lambda: 0.0).backlogs(queries)


async def test_oldest_wait_reasons_are_computed_first(town: ApiCluster) -> None:
    queries = town.engine.queries
    hasty = WaitReasonCache(iter(range(1000)).__next__, time_limit=1)
    for _ in range(10):
        hasty.backlogs(queries)
    # The limit of robotics is removed: its queue now waits for another reason.
    await town.deliver(tenant("robotics"))
    before = WaitReasonCache(lambda: 0.0).backlogs(queries)
    for _ in range(10):
        hasty.backlogs(queries)
    assert hasty.backlogs(queries) == before
    assert "limit" not in before[TenantName("robotics"), UserName("erin@example.com")].rules
