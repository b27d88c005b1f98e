"""Watches the pods of one namespace and records when each is first seen without a gate.

Independent of Fairgate: its logs and metrics are not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from app.core.errors import ClusterUnavailable
from app.k8s_types import objects
from app.kube.client import Client
from loadtest.load import BenchFailed, pods_path, together

SILENCE_SECONDS = 120.0

_page = msgspec.json.Decoder(objects.ListPage[objects.MetadataOnly])
_change = msgspec.json.Decoder(objects.WatchEvent[objects.PodObject])


def _ignore(name: str) -> None:
    """Ignore a held pod."""


class GateWatch:
    """`opened` is the monotonic time at which each pod was first seen without a gate, by pod name.

    `version` is the last resource version received, from which an interrupted watch continues.
    """

    def __init__(self, version: str = "") -> None:
        self.version = version
        self.opened: dict[str, float] = {}
        self._wanted = 0
        self._enough = asyncio.Event()

    def hear(self, line: bytes, on_held: Callable[[str], object] = _ignore) -> None:
        """Process one line of the watch. Raises ClusterUnavailable for an error event."""
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
        """Wait until `count` pods have no gate; return the time of the last one.

        Raises BenchFailed after `limit` seconds.
        """
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
    client: Client, namespace: str, on_held: Callable[[str], object] = _ignore, selector: str = ""
) -> AsyncIterator[GateWatch]:
    """Watch from now on, with `selector` only the pods of this field selector.

    An error of the watch is raised in the block.
    """
    path = pods_path(namespace)
    page = _page.decode(await client.request("GET", path, query=[("limit", "1")]))
    watch = GateWatch(page.metadata.resource_version)
    live = asyncio.Event()

    async def follow() -> None:
        while True:  # the API server ends a watch if its reader falls behind on a busy machine
            query = [("watch", "true"), ("resourceVersion", watch.version)]
            query += [("fieldSelector", selector)] if selector else []
            async with client.stream(path, query, read_timeout=SILENCE_SECONDS) as lines:
                live.set()
                async for line in lines:
                    watch.hear(line, on_held)

    async with together() as group:
        following = group.create_task(follow())
        await live.wait()
        yield watch
        following.cancel()
