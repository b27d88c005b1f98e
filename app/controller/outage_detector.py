"""Reports that no pod is released: no replica leads, or the leader cannot write to Redis.

Every controller replica runs it, because a missing leader cannot report its own absence.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from app.core.effects import PodRef
from app.core.engine import Engine
from app.core.errors import ClusterError, StoreError
from app.core.model import Millis

CHECK_SECONDS = 5.0
LIMIT_MS = 30_000
"""A change of leader takes half of this."""

MOST_PODS = 20
"""Held pods that get an event: each is a write to etcd."""

NO_REDIS = "RedisUnreachable"
NO_WRITES = "RedisNotWritable"
NO_LEADER = "NoLeader"
RELEASING = "LeaderActive"

log = logging.getLogger("fairgate.control")


class OutageNotices(Protocol):
    """Shows a standstill in the cluster. May raise ClusterError."""

    async def write_events(
        self, pods: list[PodRef], reason: str, message: str, now: Millis
    ) -> None:
        """Write one event for each pod, and one for operators; every replica writes the same."""

    async def write_condition(
        self, releasing: bool, reason: str, message: str, now: Millis
    ) -> None:
        """Write the condition `Releasing` of the Policy, if there is one."""


class OutageDetector:
    """`detect_outages` checks every few seconds. `fault` is empty while pods are released."""

    def __init__(
        self,
        engine: Engine,
        notices: OutageNotices,
        *,
        epoch: Callable[[], int | None],
        is_led: Callable[[], bool],
        ask_redis: Callable[[], Awaitable[object]],
        write_failure: Callable[[], str],
        clock: Callable[[], Millis],
    ) -> None:
        """`epoch`: that of this replica's term, None if it does not lead.

        `is_led`: another replica holds the Lease. `ask_redis` reads, and raises StoreError.
        `write_failure`: why this leader cannot write to Redis, such as missing memory; empty if
        it can.
        """
        self._engine = engine
        self._notices = notices
        self._epoch = epoch
        self._is_led = is_led
        self._ask_redis = ask_redis
        self._write_failure = write_failure
        self._clock = clock
        self._since: Millis | None = None
        self._written_condition: tuple[str, str | None, int | None] | None = None
        """The reported reason, the Policy that has it, and the epoch. A later Policy gets it, too.

        In each term the leader writes again: another replica may have written in between.
        """
        self.fault = ""
        """Why no pod is released, after 30 s of it."""

    async def detect_outages(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Check once, and report changes."""
        now = self._clock()
        reason, why = await self._outage_reason()
        if not reason:
            self._since, self.fault = None, ""
            if self._epoch() is not None:
                await self._write_condition(
                    True, RELEASING, "A controller leads and releases pods.", now
                )
            else:
                self._written_condition = None
            return
        self._since = now if self._since is None else self._since
        silent = now - self._since
        if silent < LIMIT_MS:
            return
        self.fault = f"no pod is released for {silent // 1000} s: {why}"
        message = f"No pod is released: {why}"
        first = heapq.nsmallest(MOST_PODS, self._engine.held_pods(), key=lambda pod: pod.uid)
        pods = [PodRef(pod.uid, pod.namespace, pod.name) for pod in first]
        try:
            await self._notices.write_events(pods, reason, message, now)
        except ClusterError as error:
            log.debug("events not written", extra={"why": str(error)})
        await self._write_condition(False, reason, message, now)

    async def _outage_reason(self) -> tuple[str, str]:
        """Return why no pod is released, as a word and a sentence; empty: pods are released."""
        leads = self._epoch() is not None
        if not leads and self._is_led():
            return "", ""  # the leader reports for itself
        try:
            await self._ask_redis()
        except StoreError as error:
            return NO_REDIS, str(error)
        if not leads:
            return NO_LEADER, "no controller of Fairgate leads."
        failure = self._write_failure()
        return (NO_WRITES, failure) if failure else ("", "")

    async def _write_condition(
        self, releasing: bool, reason: str, message: str, now: Millis
    ) -> None:
        shown = reason, self._engine.policy_uid, self._epoch()
        if self._written_condition == shown:
            return
        try:
            await self._notices.write_condition(releasing, reason, message, now)
        except ClusterError as error:
            log.debug("condition not written", extra={"why": str(error)})
            return
        self._written_condition = shown
        if not releasing:
            log.error("no pod is released", extra={"why": message})
