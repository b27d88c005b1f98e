"""The stream: who is told what, when, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from app.core import events as ev
from app.core.model import PoolName, TenantName, UserName
from app.web.api.rules import QUEUED, Rules
from app.web.api.shown import State
from app.web.api.state import Facts, Sight, facts, state
from app.web.api.stream import MOST_OF_ONE, Board, Rhythm, Room
from app.web.problems import Refused
from tests.fakes.asgi import call
from tests.fakes.rights import Rights
from tests.fakes.town import GPU, Town, busy, held, pool, tenant

SECONDS = 30
QUICK = Rhythm(beat=0.01, quiet=0.02, trust=3600, patience=3600)
UNTRUSTING = Rhythm(beat=0.01, quiet=3600, trust=0.01, patience=3600)
EVERY = Sight(True, True, frozenset(), True)

Event = tuple[str, Any]


@dataclass
class Reader:
    """One listener, who takes in an answer part by part. While `taking` is clear, nothing."""

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
        """Return the next part as it came; None: that was all."""
        async with asyncio.timeout(SECONDS):
            message = await self.parts.get()
        body: bytes = message.get("body", b"")
        return body if body or message.get("more_body") else None

    async def event(self) -> Event:
        """Return the next event, signs of life left out."""
        while (part := await self.part()) is not None:
            if not part.startswith(b":"):
                name, data = part.decode().rstrip("\n").split("\n")
                return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        raise EOFError


@asynccontextmanager
async def listening(town: Town, rhythm: Rhythm = QUICK) -> AsyncIterator[Reader]:
    """Listen until the end of the block."""
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
async def town() -> Town:
    town = Town()
    await town.open()
    await town.tell(*busy())
    return town


async def told(town: Town) -> tuple[Any, Any]:
    """Return what a listener hears first: hello, and a state."""
    async with listening(town) as reader:
        assert await reader.status() == 200
        (one, hello), (other, state) = await reader.event(), await reader.event()
    assert (one, other) == ("hello", "state")
    return hello, state


async def test_who_listens_is_told_at_once_who_they_are_and_how_things_stand(town: Town) -> None:
    hello, state = await told(town)

    assert hello["caller"] == "alice@example.com"
    by_name = {each["name"]: each for each in state["tenants"]}
    assert by_name["robotics"]["used"] == {"h100": {GPU: "20"}}
    assert by_name["robotics"]["pending"] == 7
    assert [user["name"] for user in state["users"]["robotics"]] == [
        "dave@example.com",
        "erin@example.com",
    ]
    assert {
        "tenant": "robotics",
        "user": "erin@example.com",
        "pending": 7,
        "rules": {"limit": 7},
    } in (state["queues"])
    h100 = state["pools"][0]
    assert (h100["name"], len(h100["members"]), h100["used"]) == ("h100", 8, {GPU: "54"})
    assert state["leftOut"] == {"users": 0, "queues": 0, "nodes": 0}


async def test_what_is_owed_is_told_with_guarantee_and_limit(town: Town) -> None:
    _, state = await told(town)

    # 272 units in all, an H100 counting 4. Pledged are 16 and 8 of them, 96; 176 are divided by
    # weight among 6: research 3, and robotics, teaching and default 1 each.
    robotics = state["owed"]["robotics"]
    assert robotics["guarantee"] == pytest.approx(32 / 272, abs=1e-4)
    assert robotics["owed"] == pytest.approx((32 + 176 / 6) / 272, abs=1e-4)
    assert robotics["limit"] == pytest.approx((24 * 4 + 16) / 272, abs=1e-4)
    vision = state["owed"]["vision"]
    research = (64 + 176 / 2) / 272
    assert vision["owed"] == pytest.approx(research * 2 / 3, abs=1e-4)
    assert vision["users"]["alice@example.com"]["owed"] == pytest.approx(research / 2, abs=1e-4)


async def test_a_state_that_did_not_change_is_not_told_again(town: Town) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        assert await reader.part() == b": nothing changed\n\n"
        assert await reader.part() == b": nothing changed\n\n"


async def test_a_change_is_told(town: Town) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        await town.tell(held("new", "teaching", "ivan@example.com"))
        name, state = await reader.event()
    assert name == "state"
    assert "ivan@example.com" in [user["name"] for user in state["users"]["teaching"]]


async def test_a_slow_reader_gets_the_newest_and_nothing_else(town: Town) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        reader.taking.clear()
        for number in range(5):
            await town.tell(held(f"new-{number}", "teaching", "ivan@example.com"))
            assert await _passes(reader)
        reader.taking.set()
        pending = 0
        states = 0
        while pending < 5:
            _, state = await reader.event()
            states += 1
            users = {each["name"]: each for each in state["users"]["teaching"]}
            pending = users["ivan@example.com"]["pending"]
    # The one that it held back, and the newest.
    assert states <= 2


async def _passes(reader: Reader) -> bool:
    """Let some beats go by; nothing can be taken in meanwhile."""
    await asyncio.sleep(5 * QUICK.beat)
    return reader.parts.empty()


async def test_without_the_right_nothing_is_told(town: Town) -> None:
    town.rights.granted -= {("get", "stream")}
    async with listening(town) as reader:
        assert await reader.status() == 403
    for headers in ({}, {"authorization": "Bearer mallorys"}):
        assert (await call(town.app(), "GET", "/v1/stream", headers=headers)).status == 401


async def test_another_tenants_data_is_never_told(town: Town) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/robotics")}

    hello, state = await told(town)

    assert (hello["everyTenant"], hello["queues"], hello["pools"]) == (False, ["robotics"], False)
    assert [each["name"] for each in state["tenants"]] == ["robotics"]
    assert state["pools"] == []
    said = json.dumps(state)
    for other in ("research", "vision", "teaching", "alice", "bob", "frank", "h100-00", "wait-"):
        assert other not in said, other
    assert "erin@example.com" in said


async def test_who_may_list_tenants_sees_no_users_of_theirs(town: Town) -> None:
    town.rights.granted = {("get", "stream"), ("list", "tenants")}

    _, state = await told(town)

    assert {"research", "robotics"} <= {each["name"] for each in state["tenants"]}
    assert (state["users"], state["queues"], state["pools"]) == ({}, [], [])
    assert "@example.com" not in json.dumps({**state, "tenants": []})


async def test_users_that_a_tenant_weighs_are_told_to_who_may_see_its_queue_only(
    town: Town,
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
async def test_it_ends_when_the_caller_may_listen_no_more(
    town: Town, happens: Callable[[Rights], None], status: int
) -> None:
    async with listening(town, UNTRUSTING) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        happens(town.rights)
        await town.tell(held("new", "teaching", "ivan@example.com"))
        name, problem = await reader.event()
        while name != "end":  # what changed before rights were asked again
            name, problem = await reader.event()
        assert problem["status"] == status
        assert problem["detail"]
        assert await reader.part() is None


async def test_rights_that_change_change_what_is_told(town: Town) -> None:
    async with listening(town, UNTRUSTING) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        town.rights.granted -= {("list", "pools")}
        name, hello = await reader.event()
        assert (name, hello["pools"]) == ("hello", False)
        name, state = await reader.event()
        assert (name, state["pools"]) == ("state", [])


async def test_it_ends_when_the_process_is_told_to_stop(town: Town) -> None:
    async with listening(town) as reader:
        await reader.status()
        await reader.event(), await reader.event()
        town.stays = False
        with pytest.raises(EOFError):
            await reader.event()


async def test_nobody_listens_too_often(town: Town) -> None:
    app = town.app(QUICK)
    readers = [Reader(app) for _ in range(MOST_OF_ONE)]
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
    room = Room(most=2)
    room.enter("a")
    room.enter("b")
    with pytest.raises(Refused) as refused:
        room.enter("c")
    assert refused.value.status == 503
    room.leave("a")
    room.enter("c")


async def test_a_reader_who_takes_nothing_in_loses_the_place(town: Town) -> None:
    reader = Reader(town.app(Rhythm(beat=0.01, quiet=0.01, trust=3600, patience=0.05)))
    async with asyncio.timeout(SECONDS):
        await reader.run()


# --- the board ---


@dataclass
class Made:
    """Counts what a board makes and cuts; `took` and `cutting`: how long on its clock."""

    town: Town
    made: int = 0
    cut: int = 0
    now: float = 0.0
    took: float = 0.0
    cutting: float = 0.0

    def board(self) -> Board:
        return Board(self.make, self.show, lambda: self.now, 1.0)

    def make(self) -> Facts:
        self.made += 1
        self.now += self.took
        return facts(self.town.ground(), Rules(lambda: self.now))

    def show(self, known: Facts, sight: Sight) -> State:
        self.cut += 1
        self.now += self.cutting
        return state(known, self.town.ground(), sight)


async def test_all_with_the_same_sight_share_one_state_of_a_second(town: Town) -> None:
    made = Made(town)
    board = made.board()
    mine = Sight(False, False, frozenset({TenantName("robotics")}), False)

    texts = [board.newest(sight).text for sight in (EVERY, mine, EVERY, mine)]

    assert (made.made, made.cut) == (1, 2)
    assert texts[0] == texts[2] != texts[1] == texts[3]
    made.now = 0.9
    board.newest(EVERY)
    assert made.made == 1
    made.now = 1.1
    board.newest(EVERY)
    assert made.made == 2


async def test_a_cluster_that_takes_long_to_tell_of_is_told_of_less_often(town: Town) -> None:
    made = Made(town, took=0.5)
    board = made.board()
    board.newest(EVERY)
    made.now = 9.0
    board.newest(EVERY)
    assert made.made == 1
    made.now = 11.0
    board.newest(EVERY)
    assert made.made == 2


async def test_many_sights_that_take_long_to_cut_are_told_less_often(town: Town) -> None:
    made = Made(town, cutting=0.5)
    board = made.board()
    board.newest(EVERY)
    made.now = 9.0
    board.newest(EVERY)
    assert made.made == 1
    made.now = 11.0
    board.newest(EVERY)
    assert made.made == 2


async def test_a_pool_that_has_just_gone_ends_nobodys_stream(town: Town) -> None:
    board = Made(town).board()
    pools = board.newest(EVERY).state.pools
    await town.tell(*(ev.PoolGone(town.now, PoolName(each.name)) for each in pools))
    newcomer = Sight(True, False, frozenset(), True)
    assert board.newest(newcomer).state.pools == pools


async def test_time_alone_is_no_change(town: Town) -> None:
    made = Made(town)
    board = made.board()
    first = board.newest(EVERY)
    town.now = type(town.now)(town.now + 5000)
    made.now = 5.0
    assert board.newest(EVERY).number == first.number
    await town.tell(tenant("newcomer"))
    made.now = 10.0
    assert board.newest(EVERY).number > first.number


async def test_what_is_left_out_is_counted(town: Town) -> None:
    await town.tell(*pool("many", 503, devices=1))
    hello, state = await told(town)
    assert hello["pools"]
    assert state["leftOut"]["nodes"] == 3


# --- rules ---


async def test_a_rule_that_nobody_has_thought_of_yet_is_not_guessed(town: Town) -> None:
    outlook = town.engine.outlook
    hasty = Rules(iter(range(100)).__next__, thinking=1)  # a second passes with every look at it
    queues = len(hasty.sums(outlook))

    def unknown() -> int:
        return sum(QUEUED in rules for rules in hasty.sums(outlook).values())

    left = [unknown() for _ in range(queues)]
    assert left == sorted(left, reverse=True)
    assert (left[0] > 0, left[-1]) == (True, 0)
    assert hasty.sums(outlook) == Rules(lambda: 0.0).sums(outlook)


async def test_what_was_thought_over_longest_ago_is_thought_over_first(town: Town) -> None:
    outlook = town.engine.outlook
    hasty = Rules(iter(range(1000)).__next__, thinking=1)
    for _ in range(10):
        hasty.sums(outlook)
    # The limit of robotics is lifted: its queue waits for something else from now on.
    await town.tell(tenant("robotics"))
    before = Rules(lambda: 0.0).sums(outlook)
    for _ in range(10):
        hasty.sums(outlook)
    assert hasty.sums(outlook) == before
    assert "limit" not in before[TenantName("robotics"), UserName("erin@example.com")]
