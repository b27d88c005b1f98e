"""Named points of a release at which a test build of Fairgate kills or stops itself.

A name may end in `:N`, which means the N-th time the point is reached.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.core.effects import Charge, Intend, StoreWrite
from app.core.model import Uid
from app.core.well_known import GATE
from app.kube.client import JSON_PATCH, Client
from app.store.connection import Server
from app.store.leader_store import RedisStore

POINTS = ("after_intent", "before_patch", "after_patch", "before_confirm")
LAYOUT = "FAIRGATE_TEST_LAYOUT"
"""The Redis layout version that this build uses in place of its own."""
SIGNALS = {"FAIRGATE_CRASH_AT": signal.SIGKILL, "FAIRGATE_STOP_AT": signal.SIGSTOP}


class Points:
    """The points at which this process kills or stops itself. Call `reached` at every point."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._plan: dict[str, tuple[int, signal.Signals]] = {}
        self._passed = dict.fromkeys(POINTS, 0)
        for variable, sign in SIGNALS.items():
            if written := environment.get(variable):
                name, _, count = written.partition(":")
                assert name in POINTS, f"{variable}: there is no point {name}"
                self._plan[name] = (int(count or 1), sign)

    def reached(self, point: str) -> None:
        """Kill or stop this process if the plan names this point."""
        self._passed[point] += 1
        count, sign = self._plan.get(point, (0, signal.SIGKILL))
        if self._passed[point] == count:
            os.kill(os.getpid(), sign)


class BreakingStore(RedisStore):
    """The real store, with points after an intent is stored and before a release is confirmed."""

    def __init__(self, server: Server, cluster: str, points: Points) -> None:
        super().__init__(server, cluster)
        self._points = points
        self._intended: set[Uid] = set()

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        self._intended.clear()
        await super().rebuild(epoch, writes)

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        for each in writes:
            if isinstance(each, Charge) and each.uid in self._intended:
                self._intended.discard(each.uid)
                self._points.reached("before_confirm")
        await super().write(epoch, writes)
        for each in writes:
            if isinstance(each, Intend):
                self._intended.add(each.ref.uid)
                self._points.reached("after_intent")


class BreakingClient(Client):
    """The real client, with points around release patches, after the last check of the lease."""

    def __init__(self, real: Client, points: Points) -> None:
        self._real = real
        self._sent: set[asyncio.Task[bytes]] = set()
        self._points = points

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        releases = options.get("content_type") == JSON_PATCH and _opens_the_gate(options["body"])
        if not releases:
            return await self._real.request(method, path, **options)
        self._points.reached("before_patch")
        # A sent patch takes effect even if the sender is cancelled.
        sent = asyncio.create_task(self._real.request(method, path, **options))
        self._sent.add(sent)
        sent.add_done_callback(self._settled)
        answer = await asyncio.shield(sent)
        self._points.reached("after_patch")
        return answer

    def _settled(self, sent: asyncio.Task[bytes]) -> None:
        self._sent.discard(sent)
        if not sent.cancelled():
            sent.exception()  # marks the exception as retrieved


def _opens_the_gate(patch: list[dict[str, Any]]) -> bool:
    tests = any(step["op"] == "test" and GATE in str(step.get("value")) for step in patch)
    return tests and any(
        step["op"] == "remove" and step["path"].startswith("/spec/schedulingGates")
        for step in patch
    )
