"""Progress of a process: stalled parts, slow steps, and `/livez` next to a blocked event loop."""

from __future__ import annotations

import asyncio
import http.client
import logging
import threading

import pytest

from app.config.setting_parsers import HostPort
from app.ports.liveness import LIMIT_SECONDS, SLOW_SECONDS, Liveness, Steps, TaskSlice
from app.web.health import ops_app
from app.web.server.server import Listener, Servers

LOOPBACK = HostPort("127.0.0.1", 0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def liveness(clock: Clock) -> Liveness:
    return Liveness(clock)


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_process_without_parts_progresses(liveness: Liveness, clock: Clock) -> None:
    clock.now += 10 * LIMIT_SECONDS
    assert liveness.makes_progress()


def test_long_step_within_the_limit_is_progress(liveness: Liveness, clock: Clock) -> None:
    liveness.finish_step("engine")
    clock.now += LIMIT_SECONDS
    assert liveness.makes_progress()


def test_part_that_finishes_no_step_has_stalled(liveness: Liveness, clock: Clock) -> None:
    liveness.finish_step("engine")
    liveness.finish_step("event loop")
    clock.now += LIMIT_SECONDS / 2
    liveness.finish_step("event loop")
    clock.now += LIMIT_SECONDS / 2 + 1
    assert liveness.stalled_parts() == {"engine": LIMIT_SECONDS + 1}


def test_stalled_part_that_finishes_a_step_progresses(liveness: Liveness, clock: Clock) -> None:
    liveness.finish_step("engine")
    clock.now += 2 * LIMIT_SECONDS
    liveness.finish_step("engine")
    assert liveness.makes_progress()


async def test_event_loop_that_turns_progresses(liveness: Liveness, clock: Clock) -> None:
    beating = asyncio.create_task(liveness.run_heartbeat())
    await asyncio.sleep(0)
    clock.now += LIMIT_SECONDS + 1
    assert list(liveness.stalled_parts()) == ["event loop"]
    beating.cancel()


def test_slow_step_is_logged_and_counted_once(
    liveness: Liveness, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    steps = Steps(liveness, counted.append)
    with caplog.at_level(logging.WARNING, "fairgate"):
        steps.finish_step("engine", "PodObserved", SLOW_SECONDS * 2, "team-a", "large")
    assert counted == ["PodObserved"]
    [record] = caplog.records
    facts = vars(record)
    assert (record.message, facts["step"], facts["namespace"], facts["object"]) == (
        "slow step", "PodObserved", "team-a", "large",
    )  # fmt: skip
    assert facts["milliseconds"] == 200


def test_quick_step_is_not_logged(liveness: Liveness, caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    Steps(liveness, counted.append).finish_step("engine", "Pass", SLOW_SECONDS / 2)
    assert (counted, caplog.records) == ([], [])


def test_turn_ends_after_its_seconds(clock: Clock) -> None:
    queue_key = TaskSlice(0.05, clock)
    assert not queue_key.is_over()
    clock.now += 0.05
    assert queue_key.is_over()


async def test_livez_answers_while_the_event_loop_is_blocked(
    liveness: Liveness, clock: Clock
) -> None:
    liveness.finish_step("engine")
    servers = Servers([Listener("ops", ops_app({}, liveness, None), LOOPBACK, own_thread=True)])
    stop, asked, told = asyncio.Event(), threading.Event(), list[tuple[int, str]]()
    task = asyncio.create_task(servers.run(stop, 0))
    await servers.started.wait()

    def ask() -> None:
        told.append(get(servers.ports["ops"], "/livez"))
        clock.now += LIMIT_SECONDS + 15
        told.append(get(servers.ports["ops"], "/livez"))
        asked.set()

    threading.Thread(target=ask).start()
    assert asked.wait(30)  # blocks this event loop, as a long step of the engine does
    assert told == [(200, "ok\n"), (503, "not alive: engine finished no step for 75 s\n")]
    stop.set()
    await task


async def test_readyz_and_metrics_run_in_the_event_loop_of_the_process(
    liveness: Liveness,
) -> None:
    threads: list[threading.Thread] = []
    checks = {"seen": lambda: threads.append(threading.current_thread()) is None}
    servers = Servers([Listener("ops", ops_app(checks, liveness, None), LOOPBACK, own_thread=True)])
    stop = asyncio.Event()
    task = asyncio.create_task(servers.run(stop, 0))
    await servers.started.wait()
    port = servers.ports["ops"]
    assert await asyncio.to_thread(get, port, "/readyz") == (200, "ok\n")
    status, text = await asyncio.to_thread(get, port, "/metrics")
    assert (status, "fairgate_slow_steps_total" in text) == (200, True)
    assert threads == [threading.current_thread()]
    stop.set()
    await task
