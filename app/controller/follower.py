"""Feeds the read-only engine of a replica that serves the API."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from app.controller.event_queue import EventQueue
from app.controller.event_subject import subject
from app.core.engine import Engine
from app.core.events import Event, NewsEvent, Pass, PodGone, PodObserved
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis, Uid
from app.ports.liveness import ENGINE, SLICE_SECONDS, Steps, TaskSlice

TICK_SECONDS = 1.0

GATHER_SECONDS = 0.2
"""Least time between two passes, so that one pass serves many events. An idle engine acts at once.
"""


class Follower:
    """Feeds an engine that never leads.

    `has_synced`: the engine has received every source completely once. `leader_message`: the last
    leader state, None if there was no such state yet.
    """

    def __init__(
        self,
        engine: Engine,
        event_queue: EventQueue,
        steps: Steps,
        clock: Callable[[], Millis],
        seconds_stale: Callable[[], float],
    ) -> None:
        """`seconds_stale` returns the seconds since the last data of stale watches, else 0."""
        self.has_synced = False
        self.leader_message: LeaderStateMessage | None = None
        self._engine = engine
        self._event_queue = event_queue
        self._steps = steps
        self._clock = clock
        self._seconds_stale = seconds_stale
        self._pass_seconds = 0.0
        self._last_pass_at = clock()

    def age_milliseconds(self) -> int:
        """Return the milliseconds since the last pass, or since the last data of stale watches.

        A pass runs also while the API server is unreachable.
        """
        return max(0, self._clock() - self._last_pass_at, int(1000 * self._seconds_stale()))

    def receive_leader_state(self, leader_message: LeaderStateMessage) -> None:
        """Use this leader state from the next pass on."""
        self.leader_message = leader_message

    async def follow_events(self) -> None:
        """Pass events on until cancelled."""
        while True:
            not_before = time.monotonic() + GATHER_SECONDS
            events = newest_pods(await self._event_queue.take_batch(TICK_SECONDS, not_before))
            events.reverse()
            while True:
                self._run_slice(events)
                await asyncio.sleep(0)
                if not events:
                    break
            if self._engine.is_ready and not self.has_synced:
                gc.freeze()  # most objects of the first lists stay: exclude them from collection
                self.has_synced = True

    def _run_slice(self, events: list[NewsEvent]) -> None:
        """Handle events from the end of the list, then a pass. Leave the rest if time is up."""
        turn = TaskSlice(max(SLICE_SECONDS, self._pass_seconds))
        while events and not turn.is_over():
            self._handle(events.pop())
        began = time.perf_counter()
        self._last_pass_at = self._clock()
        if self.leader_message is not None:
            self._engine.apply_leader_state(self.leader_message)
        self._handle(Pass(self._last_pass_at))
        self._pass_seconds = time.perf_counter() - began

    def _handle(self, event: Event) -> None:
        began = time.perf_counter()
        self._engine.handle(event)
        seconds = time.perf_counter() - began
        self._steps.finish_step(ENGINE, type(event).__name__, seconds, *subject(event))


def newest_pods(events: list[NewsEvent]) -> list[NewsEvent]:
    """Return the events without observations of pods that a later event replaces.

    A list of the API server omits such states too, so the engine does not depend on them.
    """
    seen: set[Uid] = set()
    newest: list[NewsEvent] = []
    for event in reversed(events):
        match event:
            case PodObserved(pod=pod) if pod.uid in seen:
                continue
            case PodObserved(pod=pod):
                seen.add(pod.uid)
            case PodGone(uid=uid):
                seen.add(uid)
            case _:
                pass
        newest.append(event)
    newest.reverse()
    return newest
