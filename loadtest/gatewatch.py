"""A watch from outside on the pods of one namespace: when was each first seen without a gate.

What it sees is what anybody sees who watches pods; Fairgate's own logs and metrics are not asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from app import wire
from app.core.errors import ClusterUnavailable
from app.kube.client import Client
from loadtest.load import BenchFailed, pods_path, together

SILENCE_SECONDS = 120.0

_page = msgspec.json.Decoder(wire.Page[wire.Bare])
_change = msgspec.json.Decoder(wire.Change[wire.Pod])


def _ignore(name: str) -> None:
    """Do nothing about a pod that is held."""


class GateWatch:
    """The moments, on the monotonic clock, at which gates were seen gone, by pod name.

    `version` is how far it has heard: where to go on if the watch is interrupted.
    """

    def __init__(self, version: str = "") -> None:
        self.version = version
        self.opened: dict[str, float] = {}
        self._wanted = 0
        self._enough = asyncio.Event()

    def hear(self, line: bytes, on_held: Callable[[str], object] = _ignore) -> None:
        """Take one line of the watch in."""
        change = _change.decode(line)
        if change.type == "ERROR":
            raise ClusterUnavailable("the watch of the measure was ended by the API server.")
        self.version = change.object.metadata.resource_version
        name = change.object.metadata.name
        if change.type == "DELETED" or name in self.opened:
            return
        if change.object.spec.scheduling_gates:
            if change.type == "ADDED":
                on_held(name)
            return
        self.opened[name] = time.monotonic()
        if len(self.opened) == self._wanted:
            self._enough.set()

    async def wait(self, count: int, limit: float) -> float:
        """Wait until so many gates are gone; return when the last of them was seen gone."""
        self._wanted = count
        if len(self.opened) < count:
            try:
                async with asyncio.timeout(limit):
                    await self._enough.wait()
            except TimeoutError as error:
                raise BenchFailed(
                    f"After {limit:.0f} s only {len(self.opened)} of {count} pods were released; "
                    "the measure was given up."
                ) from error
        return max(self.opened.values())


@asynccontextmanager
async def gates(
    client: Client, namespace: str, on_held: Callable[[str], object] = _ignore
) -> AsyncIterator[GateWatch]:
    """Watch from now on. What breaks the watch is raised where it is used."""
    path = pods_path(namespace)
    page = _page.decode(await client.request("GET", path, query=[("limit", "1")]))
    watch = GateWatch(page.metadata.resource_version)
    live = asyncio.Event()

    async def follow() -> None:
        while True:  # the API server ends a watch whose reader falls behind on a busy box
            query = [("watch", "true"), ("resourceVersion", watch.version)]
            async with client.stream(path, query, read_timeout=SILENCE_SECONDS) as lines:
                live.set()
                async for line in lines:
                    watch.hear(line, on_held)

    async with together() as group:
        following = group.create_task(follow())
        await live.wait()
        yield watch
        following.cancel()
