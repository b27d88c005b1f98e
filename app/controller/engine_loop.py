"""Passes events to the engine, and the engine's effects to their executors."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import assert_never

from app.controller.adopt_evict import AdoptEvictExecutor
from app.controller.event_queue import EventQueue
from app.controller.event_subject import subject
from app.controller.pod_costs import PodCosts
from app.controller.reclaim_executor import Reclaims
from app.controller.release_executor import Releases
from app.controller.store_writer import StoreWriter
from app.core.audit_entry import AuditRecord
from app.core.effects import (
    Adopt,
    Bypassed,
    Charge,
    ClaimDeleted,
    ClearAuditMarker,
    Dequeue,
    Effect,
    EmitEvent,
    Enqueue,
    EvictForReclaim,
    EvictPod,
    GiveReclaimNotice,
    NodeRefused,
    ProtectClaim,
    Rebuild,
    ReclaimOnCooldown,
    Refund,
    Release,
    UnprotectClaim,
    WakeAt,
    WithdrawReclaimNotice,
)
from app.core.engine import Engine
from app.core.events import CostlyPod, Event, NewsEvent, Pass, PodGone, PodObserved
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.model import Millis
from app.ports.audit import Recorder
from app.ports.cluster import EventEmitter
from app.ports.liveness import ENGINE, SLICE_SECONDS, Steps, TaskSlice

TICK_SECONDS = 1.0
"""An idle engine gets a pass at least this often, because some decisions depend on time alone."""

SHORTEST_SECONDS = 0.01
"""Minimum pause, so that a clock that does not advance cannot keep the loop busy."""


GATHER_SECONDS = 0.02
"""Least time between two passes, so that one pass serves many events. An idle engine acts at once.
"""

log = logging.getLogger("fairgate.control")


class EngineLoop:
    """The one task that calls `Engine.handle`. It sets `all_sources_received` when the engine is
    ready.
    """

    def __init__(
        self,
        engine: Engine,
        event_queue: EventQueue,
        store_writer: StoreWriter,
        releases: Releases,
        adopt_evict_executor: AdoptEvictExecutor,
        reclaims: Reclaims,
        event_emitter: EventEmitter,
        recorder: Recorder,
        clock: Callable[[], Millis],
        all_sources_received: asyncio.Event,
        steps: Steps,
        costs: PodCosts,
        record_duration: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`record_duration` receives the seconds that the engine took for some events and the pass
        after.
        """
        self._engine = engine
        self._event_queue = event_queue
        self._store_writer = store_writer
        self._releases = releases
        self._adopt_evict_executor = adopt_evict_executor
        self._reclaims = reclaims
        self._event_emitter = event_emitter
        self._recorder = recorder
        self._clock = clock
        self._all_sources_received = all_sources_received
        self._steps = steps
        self._costs = costs
        self._record_duration = record_duration
        self._next_pass_at: Millis | None = None
        self._pass_seconds = 0.0

    async def run(self) -> None:
        """Pass events and effects on until cancelled."""
        while True:
            not_before = time.monotonic() + GATHER_SECONDS
            events = await self._event_queue.take_batch(self._seconds_to_next_pass(), not_before)
            events.reverse()
            while True:
                self._run_slice(events)
                await asyncio.sleep(0)  # let the executors start before the next batch
                if not events:
                    break
            if self._engine.is_ready and not self._all_sources_received.is_set():
                gc.freeze()  # most objects of the first lists stay: exclude them from collection
                self._all_sources_received.set()

    def _run_slice(self, events: list[NewsEvent]) -> None:
        """Handle events from the end of the list, then a pass. Leave the rest if time is up."""
        began = time.perf_counter()
        turn = TaskSlice(max(SLICE_SECONDS, self._pass_seconds))
        while events and not turn.is_over():
            self._execute_effects(self._handle(events.pop()))
            self._postpone_costly_pods()
        now = self._clock()
        if self._next_pass_at is not None and self._next_pass_at <= now:
            self._next_pass_at = None
        passed = time.perf_counter()
        self._execute_effects(self._handle(Pass(now)))
        self._postpone_costly_pods()
        ended = time.perf_counter()
        self._pass_seconds = ended - passed
        self._record_duration(ended - began)

    def _postpone_costly_pods(self) -> None:
        for uid in self._costs.end_step():
            log.warning("pod postponed", extra={"uid": uid})
            self._execute_effects(self._engine.handle(CostlyPod(self._clock(), uid)))

    def _handle(self, event: Event) -> tuple[Effect, ...]:
        began = time.perf_counter()
        match event:
            case PodObserved(_, pod):
                self._costs.start_pod(pod.uid)
            case PodGone(_, uid):
                self._costs.forget_pod(uid)
        effects = self._engine.handle(event)
        seconds = time.perf_counter() - began
        self._steps.finish_step(ENGINE, type(event).__name__, seconds, *subject(event))
        return effects

    def _seconds_to_next_pass(self) -> float:
        """Return the most seconds until the next pass."""
        if self._next_pass_at is None:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(SHORTEST_SECONDS, (self._next_pass_at - self._clock()) / 1000))

    def _execute_effects(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Enqueue() | Dequeue() | Charge() | Refund() | UsageStarted() | UsageEnded():
                    self._store_writer.queue_write(effect)
                case Rebuild(epoch):
                    self._store_writer.start_writing(epoch)
                case Release():
                    self._releases.start_release(effect)
                case (
                    Adopt()
                    | EvictPod()
                    | GiveReclaimNotice()
                    | WithdrawReclaimNotice()
                    | ProtectClaim()
                    | UnprotectClaim()
                ):
                    self._adopt_evict_executor.start_order(effect)
                case Bypassed() | ClaimDeleted():
                    self._adopt_evict_executor.report_bypass(effect)
                case NodeRefused():
                    self._adopt_evict_executor.report_refusal(effect)
                case EmitEvent():
                    self._event_emitter.emit(effect)
                case AuditRecord():
                    self._recorder.record(effect)
                case ClearAuditMarker(key):
                    self._recorder.clear_marker(key)
                case WakeAt(at):
                    self._next_pass_at = at
                case EvictForReclaim():
                    self._reclaims.add_eviction(effect)
                case ReclaimOnCooldown():
                    self._reclaims.report_cooldown(effect)
                case _:
                    assert_never(effect)
