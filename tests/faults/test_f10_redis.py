"""F10: a fault of Redis causes a pause. Then Redis equals a recount without double counting."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from app.devcluster.fairgate_install import NAMESPACE, ops_url
from app.devcluster.readiness import free_ports
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.waiting_pods import Crowd
from tests.support.cluster_driver import pod
from tests.support.redis import RIGHTS
from tests.support.shares import policy
from tests.support.usage_differences import differences

ROOM = 2
PASSWORD = "s3cret-of-redis"
REDIS_AWAY = "redis cannot be written; releases are paused"
REBUILT = "redis rebuilt"


def test_f10_a_redis_that_is_killed_emptied_or_set_back_is_rebuilt(rig: Rig) -> None:
    leader, crowd = full(rig, "f10-lost")
    server = rig.redis_server

    def killed() -> None:
        server.kill()
        crowd.leave(ROOM)
        pauses(rig, leader, crowd)
        server.start(empty=True)

    def set_back() -> None:
        server.save()
        crowd.leave(ROOM)  # writes after the snapshot
        crowd.until_full()
        server.kill()
        crowd.leave(ROOM)
        pauses(rig, leader, crowd)
        server.start()

    def emptied() -> None:
        server.flush()
        crowd.leave(ROOM)

    def emptied_at_once() -> None:
        crowd.leave(ROOM)
        for _ in range(5):
            server.flush()

    for fault in (killed, set_back, emptied, emptied_at_once):
        rebuilt = len(leader.lines(REBUILT))
        fault()
        rig.until("it is rebuilt", lambda: len(leader.lines(REBUILT)) > rebuilt)  # noqa: B023
        heals(rig, crowd, fault.__name__)


def test_f10_a_redis_that_refuses_writes_pauses_releases(rig: Rig) -> None:
    leader, crowd = full(rig, "f10-refusing")
    for name, refusing, words in (
        ("out of memory", out_of_memory, "out of memory: raise its maxmemory"),
        ("read-only", read_only, "read-only replica: name the primary instead"),
        ("evicting", evicting, "set it to noeviction"),
    ):
        with refusing(rig):
            if name == "evicting":  # checked before any component relies on it
                rig.redis_server.flush()
            crowd.leave(ROOM)
            pauses(rig, leader, crowd, words)
        heals(rig, crowd, name)


def test_f10_releases_continue_after_flushed_scripts_and_lost_replies(rig: Rig) -> None:
    leader, crowd = full(rig, "f10-replies")
    with rig.redis_server.client() as server:
        server.script_flush()
    crowd.leave(ROOM)
    heals(rig, crowd, "scripts flushed")
    for replies in (1, 2, 3, 5):
        lost = leader.redis.lost
        leader.redis.lose(replies)
        crowd.leave(ROOM)
        rig.until("they are swallowed", lambda: leader.redis.lost == lost + replies)  # noqa: B023
        heals(rig, crowd, f"{replies} replies swallowed")


def test_f10_restricted_redis_user_suffices_and_password_is_not_logged(rig: Rig) -> None:
    def allow() -> None:
        with rig.redis_server.client() as server:
            server.execute_command("ACL", "SETUSER", "fairgate", *RIGHTS.split(), f">{PASSWORD}")

    allow()
    url = f"redis://fairgate:{PASSWORD}@{rig.redis_url.rpartition('@')[2]}"
    leader, crowd = full(rig, "f10-rights", redis_url=url, log_level="debug")
    rig.redis_server.restart()  # the restarted server has no such user
    crowd.leave(ROOM)
    pauses(rig, leader, crowd, "does not let us in")
    allow()
    heals(rig, crowd, "user unknown")
    assert PASSWORD not in leader.log.read_text()


def test_f10_missing_redis_is_reported_in_events_policy_and_readiness(rig: Rig) -> None:
    nowhere = f"redis://127.0.0.1:{free_ports(1)[0]}/0"
    with rig.admin() as api:  # events of other tests
        api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/events")
    rig.end_programs()
    rig.start("webhook", redis_url=nowhere)
    replicas = [rig.start("controller", redis_url=nowhere) for _ in range(2)]
    space = rig.stage.namespace("f10-nowhere")
    rig.stage.apply(space, pod("waits"))

    def events(namespace: str, reason: str) -> list[str]:
        found = rig.stage.get("events", "-n", namespace)["items"]
        return [each["message"] for each in found if each["reason"] == reason]

    def told() -> list[str]:
        return [each for each in events(space, "Waiting") if "No pod is released" in each]

    rig.until("its owner is told", lambda: bool(told()), seconds=120)
    [message] = told()
    assert "cannot be reached" in message
    rig.until("operators are told", lambda: len(events(NAMESPACE, "RedisUnreachable")) == 1)

    def condition() -> bool:
        status = rig.stage.get("policy", "default").get("status", {})
        found = [each for each in status.get("conditions", []) if each["type"] == "Releasing"]
        return [(each["status"], each["reason"]) for each in found] == [
            ("False", "RedisUnreachable")
        ]

    policy(rig.stage)
    rig.until("a Policy that is created now says so", condition)
    rig.until(
        "its health says so, and it is ready",
        lambda: [health(each) for each in replicas] == [(200, 503)] * 2,
    )
    rig.end_programs()  # the next have a Redis


def health(program: Program) -> tuple[int, int]:
    """Return the status of `/readyz` and of `/healthz/leader`."""
    return _status(program, "/readyz"), _status(program, "/healthz/leader")


def _status(program: Program, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{ops_url(program.process)}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def full(rig: Rig, team: str, **settings: Any) -> tuple[Program, Crowd]:
    leader = rig.start("controller", **settings)
    crowd = Crowd(rig, team)
    crowd.until_full()
    return leader, crowd


def pauses(rig: Rig, leader: Program, crowd: Crowd, words: str = "") -> None:
    """Wait until the leader reports the reason of a pause. It still leads, but releases no pod.

    A Redis without memory still accepts a script that deletes something first. So a release may
    be recorded, and then sent, until Redis refuses the first write. Later retries release nothing.
    """

    def said() -> int:
        lines = leader.lines(REDIS_AWAY)
        return len(lines) if lines and words in lines[-1]["facts"]["why"] else 0

    def retries(times: int) -> None:
        before = said()
        rig.until("it tries again", lambda: said() >= before + times)

    rig.until("it says what is wrong with Redis", lambda: said() > 0)
    retries(1)
    waiting = crowd.held()
    retries(2)
    assert leader.metric("fairgate_leader") == 1
    assert crowd.held() == waiting


def heals(rig: Rig, crowd: Crowd, fault: str) -> None:
    """Wait until the pool is full again and Redis equals a recount."""
    took = crowd.until_full()
    took += rig.until("Redis equals a recount", lambda: not asyncio.run(recount(rig)))
    rig.took(f"{fault}: whole again after", took)


async def recount(rig: Rig) -> list[str]:
    return await differences(rig.cluster, rig.redis_url)


@contextlib.contextmanager
def out_of_memory(rig: Rig) -> Iterator[None]:
    with configured(rig, "maxmemory", "1", "0"):
        yield


@contextlib.contextmanager
def read_only(rig: Rig) -> Iterator[None]:
    with rig.redis_server.client() as server:
        server.slaveof("127.0.0.1", 1)
        try:
            yield
        finally:
            server.slaveof()


@contextlib.contextmanager
def evicting(rig: Rig) -> Iterator[None]:
    with (
        configured(rig, "maxmemory-policy", "allkeys-lru", "noeviction"),
        configured(rig, "maxmemory", "100mb", "0"),
    ):
        yield


@contextlib.contextmanager
def configured(rig: Rig, name: str, value: str, usual: str) -> Iterator[None]:
    with rig.redis_server.client() as server:
        server.config_set(name, value)
        try:
            yield
        finally:
            server.config_set(name, usual)
