"""The remaining replicas report a missing leader or a missing Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from app.controller.outage_detector import (
    MOST_PODS,
    NO_LEADER,
    NO_REDIS,
    NO_WRITES,
    RELEASING,
    OutageDetector,
)
from app.core.effects import PodRef
from app.core.errors import ClusterRefused, ClusterUnavailable, StoreUnavailable
from app.core.model import Millis, Uid
from app.kube.client import Client
from app.kube.outage_notices import AGAIN_MS, ClusterOutageNotices
from app.web.health import leader_route
from tests.support.asgi import call


class Held:
    """An engine with held pods only."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.policy_uid: str | None = None

    def held_pods(self) -> list[Any]:
        return [
            SimpleNamespace(uid=Uid(f"u{n:05}"), namespace="ns", name=f"p{n}")
            for n in reversed(range(self.count))
        ]


@dataclass
class Rig:
    leads: bool = False
    epoch: int = 1
    is_led: bool = False
    redis: bool = True
    write_failure: str = ""
    seconds: int = 0
    fails: bool = False
    told: list[tuple[list[str], str, str]] = field(default_factory=list)
    conditions: list[tuple[bool, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Held(3 * MOST_PODS)
        self.standstill = OutageDetector(
            cast(Any, self.engine),
            self,
            epoch=lambda: self.epoch if self.leads else None,
            is_led=lambda: self.is_led,
            ask_redis=self.ask,
            write_failure=lambda: self.write_failure,
            clock=lambda: Millis(self.seconds * 1000),
        )

    async def ask(self) -> None:
        if not self.redis:
            raise StoreUnavailable("redis:6379: Name or service not known")

    async def write_events(
        self, pods: list[PodRef], reason: str, message: str, now: Millis
    ) -> None:
        if self.fails:
            raise ClusterUnavailable("no answer")
        self.told.append(([ref.name for ref in pods], reason, message))

    async def write_condition(
        self, releasing: bool, reason: str, message: str, now: Millis
    ) -> None:
        if self.fails:
            raise ClusterUnavailable("no answer")
        self.conditions.append((releasing, reason))

    async def after(self, seconds: int) -> None:
        self.seconds += seconds
        await self.standstill.check()


@pytest.mark.parametrize(
    ("leads", "redis", "reason"),
    [(False, False, NO_REDIS), (False, True, NO_LEADER), (True, False, NO_REDIS)],
)
async def test_a_standstill_of_thirty_seconds_is_reported(
    leads: bool, redis: bool, reason: str
) -> None:
    rig = Rig(leads=leads, redis=redis)
    await rig.after(0)
    await rig.after(29)
    assert (rig.told, rig.conditions, rig.standstill.fault) == ([], [], "")
    await rig.after(1)
    [(pods, told, message)] = rig.told
    assert pods == [f"p{n}" for n in range(MOST_PODS)]
    assert told == reason
    assert "No pod is released" in message
    assert ("Name or service not known" in message) == (not redis)
    assert rig.conditions == [(False, reason)]
    assert rig.standstill.fault.startswith("no pod is released for 30 s")


async def test_a_redis_that_answers_but_refuses_writes_is_reported_by_the_leader() -> None:
    rig = Rig(leads=True, write_failure="Redis at redis:6379 is out of memory.")
    await rig.after(0)
    await rig.after(30)
    [(_, told, message)] = rig.told
    assert (told, message) == (
        NO_WRITES,
        "No pod is released: Redis at redis:6379 is out of memory.",
    )
    assert rig.standstill.fault.endswith("is out of memory.")
    rig.write_failure = ""
    await rig.after(5)
    assert rig.conditions == [(False, NO_WRITES), (True, RELEASING)]
    assert rig.standstill.fault == ""


async def test_standby_reports_no_outage_while_another_replica_leads() -> None:
    rig = Rig(is_led=True, redis=False)
    for _ in range(20):
        await rig.after(30)
    assert (rig.told, rig.conditions, rig.standstill.fault) == ([], [], "")


async def test_a_change_of_leader_is_no_standstill() -> None:
    rig = Rig()
    for _ in range(10):
        await rig.after(20)
        rig.is_led = not rig.is_led
    assert (rig.told, rig.conditions) == ([], [])


async def test_the_end_is_reported_by_the_leader() -> None:
    rig = Rig(redis=False)
    await rig.after(0)
    await rig.after(30)
    rig.redis = rig.leads = True
    for _ in range(3):
        await rig.after(5)
    assert rig.conditions == [(False, NO_REDIS), (True, RELEASING)]
    assert rig.standstill.fault == ""


async def test_leader_corrects_conditions_written_between_two_of_its_terms() -> None:
    """The leader was suspended, and saw neither the end of its term nor the report."""
    rig = Rig(leads=True)
    await rig.after(0)
    rig.epoch += 1
    for _ in range(2):
        await rig.after(50)
    assert rig.conditions == [(True, RELEASING)] * 2


async def test_a_policy_that_is_created_later_gets_the_condition() -> None:
    rig = Rig(leads=True)
    await rig.after(0)
    for uid in ("first", None, "second"):
        rig.conditions.clear()
        rig.engine.policy_uid = uid
        await rig.after(5)
        await rig.after(5)
        assert rig.conditions == [(True, RELEASING)]


async def test_a_condition_that_was_not_written_is_tried_again() -> None:
    rig = Rig(fails=True)
    await rig.after(0)
    await rig.after(30)
    rig.fails = False
    await rig.after(5)
    await rig.after(5)
    assert rig.conditions == [(False, NO_LEADER)]


@dataclass
class Events:
    """An API server that stores events, each name once."""

    stored: dict[str, Any] = field(default_factory=dict)
    asked: int = 0

    async def request(self, method: str, path: str, *, body: Any = None, **_: object) -> bytes:
        self.asked += 1
        name = f"{path}/{body['metadata']['name']}"
        if name in self.stored:
            raise ClusterRefused("409 exists", 409)
        self.stored[name] = body
        return b"{}"


async def test_several_replicas_write_each_event_once() -> None:
    server = Events()
    replicas = [ClusterOutageNotices(cast(Client, server), "fairgate-system") for _ in range(3)]
    pods = [PodRef(Uid(f"uid-{n}-x"), "ns", "p" * 250 + str(n)) for n in range(5)]
    for now in (0, 5_000, 10_000):
        for each in replicas:
            await each.write_events(pods, NO_LEADER, "No pod is released.", Millis(now))
    assert len(server.stored) == 6
    assert server.asked == 18
    assert all(len(body["metadata"]["name"]) <= 253 for body in server.stored.values())
    assert {body["type"] for body in server.stored.values()} == {"Warning"}
    await replicas[0].write_events(pods, NO_LEADER, "No pod is released.", Millis(AGAIN_MS))
    assert len(server.stored) == 12


async def test_the_health_of_the_leader_is_apart_from_readiness() -> None:
    fault = ""
    app = Starlette(routes=[leader_route(lambda: fault)])
    assert (await call(app, "GET", "/healthz/leader")).status == 200
    fault = "no pod is released for 31 s"
    reply = await call(app, "GET", "/healthz/leader")
    assert (reply.status, reply.body) == (503, b"no pod is released for 31 s\n")
