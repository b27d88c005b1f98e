"""Kubernetes events: bounded in number and in rate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.core.effects import EmitEvent, EventReason, PodRef
from app.core.errors import ClusterRefused
from app.core.model import Uid
from app.kube.event_recorder import LONGEST_MESSAGE, PodAnnouncer, event_body


class Board:
    """A client that stores the messages posted to it, without the command for details."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.refuse = False

    async def request(self, method: str, path: str, *, body: Any, timeout: float) -> bytes:
        await asyncio.sleep(0)
        if self.refuse:
            raise ClusterRefused("namespace is being terminated", 403)
        self.messages.append(body["message"].partition("; more: ")[0])
        return b"{}"


def nothing(_: Uid) -> None:
    """The wait reason of a pod that does not wait."""


def tell(name: str, message: str = "", notice: EventReason = EventReason.WAITING) -> EmitEvent:
    return EmitEvent(PodRef(Uid(name), "default", name), notice, message or name)


def hold(name: str, notice: EventReason = EventReason.HELD) -> EmitEvent:
    """An event that reports the wait reason."""
    return EmitEvent(PodRef(Uid(name), "default", name), notice)


async def run_for(announcer: PodAnnouncer, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(announcer.send_events(), seconds)


async def test_burst_passes_and_then_the_rate_holds() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing, rate=20.0, burst=5)  # type: ignore[arg-type]
    for n in range(100):
        announcer.emit(tell(str(n)))
    await run_for(announcer, 0.5)
    assert 10 <= len(board.messages) <= 16
    assert board.messages == [str(n) for n in range(len(board.messages))]


async def test_newer_notice_replaces_the_older() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing)  # type: ignore[arg-type]
    announcer.emit(tell("a", "4th"))
    announcer.emit(tell("a", "released", EventReason.RELEASED))
    announcer.emit(tell("a", "3rd"))
    await run_for(announcer, 0.05)
    assert board.messages == ["3rd", "released"]


async def test_a_pod_that_is_released_at_once_gets_no_event() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing, held_seconds=0.05)  # type: ignore[arg-type]
    for name in "ab":
        announcer.emit(tell(name, f"{name} held", EventReason.HELD))
    announcer.emit(tell("a", "a released", EventReason.RELEASED))
    await run_for(announcer, 0.2)
    announcer.emit(tell("b", "b released", EventReason.RELEASED))
    await run_for(announcer, 0.1)
    assert board.messages == ["b held", "b released"]
    assert announcer.dropped == 2


async def test_an_event_without_a_message_reports_the_reason_of_the_moment_it_is_sent() -> None:
    board, reasons = Board(), {Uid("a"): "2 of 4 pods are there", Uid("b"): "gone before"}
    announcer = PodAnnouncer(board, reasons.get, held_seconds=0.05)  # type: ignore[arg-type]
    for name in "ab":
        announcer.emit(hold(name))
        announcer.emit(hold(name, EventReason.WAITING))
    reasons[Uid("a")] = "queued: 3 of 3"
    del reasons[Uid("b")]
    await run_for(announcer, 0.2)
    assert board.messages == ["queued: 3 of 3"]
    assert announcer.dropped == 3
    announcer.emit(hold("a", EventReason.WAITING))
    await run_for(announcer, 0.05)
    assert board.messages == ["queued: 3 of 3"] * 2


async def test_message_on_another_subject_is_sent_in_addition_to_the_held_event() -> None:
    board, reasons = Board(), {Uid("a"): "queued: 3 of 3"}
    announcer = PodAnnouncer(board, reasons.get, held_seconds=0.05)  # type: ignore[arg-type]
    announcer.emit(hold("a"))
    announcer.emit(tell("a", "its reclaim was put off"))
    await run_for(announcer, 0.2)
    assert board.messages == ["its reclaim was put off", "queued: 3 of 3"]


async def test_pod_with_a_queued_event_gets_no_second_event() -> None:
    board, reasons = Board(), {Uid(name): name for name in "ab"}
    announcer = PodAnnouncer(
        board,  # type: ignore[arg-type]
        reasons.get,
        rate=5.0,
        burst=1,
        held_seconds=0,
    )
    for name in "ab":
        announcer.emit(hold(name))
    await run_for(announcer, 0.05)
    announcer.emit(hold("b", EventReason.WAITING))
    await run_for(announcer, 0.6)
    assert board.messages == ["a", "b"]


async def test_a_release_that_explains_a_wait_replaces_the_event_held() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing, held_seconds=0.05)  # type: ignore[arg-type]
    announcer.emit(tell("a", "a held", EventReason.HELD))
    release = replace(tell("a", "a released", EventReason.RELEASED), explains_wait=True)
    announcer.emit(release)
    await run_for(announcer, 0.2)
    assert board.messages == ["a released"]
    assert announcer.dropped == 1


async def test_a_release_replaces_the_event_held_that_waits_for_its_turn() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing, rate=5.0, burst=1, held_seconds=0)  # type: ignore[arg-type]
    for name in "ab":
        announcer.emit(tell(name, f"{name} held", EventReason.HELD))
    await run_for(announcer, 0.05)
    announcer.emit(tell("b", "b released", EventReason.RELEASED))
    await run_for(announcer, 0.4)
    assert board.messages == ["a held", "b released"]


async def test_events_beyond_the_capacity_are_dropped_and_counted() -> None:
    announcer = PodAnnouncer(Board(), nothing, capacity=2)  # type: ignore[arg-type]
    for name in "abcd":
        announcer.emit(tell(name))
    assert announcer.dropped == 2


async def test_refusal_is_counted_and_does_not_end_it() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing)  # type: ignore[arg-type]
    board.refuse = True
    announcer.emit(tell("a"))
    await run_for(announcer, 0.05)
    board.refuse = False
    announcer.emit(tell("b"))
    await run_for(announcer, 0.05)
    assert (board.messages, announcer.dropped) == (["b"], 1)


def test_events_about_problems_are_warnings() -> None:
    warnings = {
        each for each in EventReason if event_body(tell("a", notice=each))["type"] == "Warning"
    }
    assert warnings == {EventReason.REFUSED, EventReason.USELESS, EventReason.NODE_REFUSED}


async def test_waiting_pods_beyond_the_capacity_share_one_event_per_namespace() -> None:
    board = Board()
    announcer = PodAnnouncer(board, nothing, capacity=2)  # type: ignore[arg-type]
    for name in "abcde":
        announcer.emit(tell(name))
    announcer.emit(EmitEvent(PodRef(Uid("f"), "other", "f"), EventReason.WAITING, "f"))
    announcer.emit(tell("g", "g released", EventReason.RELEASED))
    await run_for(announcer, 0.1)
    assert board.messages == ["a", "b", "e; other pods of this namespace wait too", "f"]
    assert announcer.dropped == 5
    await run_for(announcer, 0.05)
    assert len(board.messages) == 4


async def test_the_shared_event_is_about_the_newest_pod_that_still_waits() -> None:
    board, reasons = Board(), {Uid(name): f"{name} waits" for name in "abcd"}
    announcer = PodAnnouncer(board, reasons.get, capacity=1)  # type: ignore[arg-type]
    for name in "abcd":
        announcer.emit(hold(name, EventReason.WAITING))
    del reasons[Uid("d")]
    await run_for(announcer, 0.05)
    assert board.messages == ["a waits", "c waits; other pods of this namespace wait too"]


async def test_the_shared_event_mentions_only_pods_that_still_wait() -> None:
    board, reasons = Board(), {Uid(name): f"{name} waits" for name in "ab"}
    announcer = PodAnnouncer(board, reasons.get, capacity=1)  # type: ignore[arg-type]
    for name in "abbc":
        announcer.emit(hold(name, EventReason.WAITING))
    await run_for(announcer, 0.05)
    assert board.messages == ["a waits", "b waits"]


def test_event_about_a_wait_names_the_command_for_details() -> None:
    command = "; more: kubectl fairgate why p -n default"
    assert event_body(tell("p", "it waits"))["message"] == f"it waits{command}"
    long = event_body(tell("p", "x" * 2_000, EventReason.HELD))["message"]
    assert len(long) == LONGEST_MESSAGE
    assert long.endswith(command)
    assert event_body(tell("p", "over", EventReason.RELEASED))["message"] == "over"
