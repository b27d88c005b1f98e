"""A scripted API server for tests of the reflector."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.core.events import (
    WatchedSource,
)
from app.core.model import Millis
from app.kube.informer import sources
from app.kube.informer.reflector import Reflector
from app.kube.informer.watched_kind import Timing
from tests.fakes.fake_event_sink import Heard

QUICK = Timing(backoff=(0.001, 0.01), outage=5.0, absent_pause=0.01)
FOREVER = "forever"


def tenant(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": spec}


def page(*items: dict[str, Any], version: int = 1, more: str = "") -> bytes:
    meta = {"resourceVersion": str(version), "continue": more}
    return json.dumps({"metadata": meta, "items": items or None}).encode()


class Script:
    """A client that answers lists and watches in the given order, then with a silent watch."""

    def __init__(self, lists: list[Any], streams: list[Any]) -> None:
        self.lists = lists
        self.streams = streams
        self.versions: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.paths: list[str] = []

    async def request(self, method: str, path: str, *, query: Any, timeout: float) -> bytes:
        self.queries.append(dict(query))
        self.paths.append(path)
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    @asynccontextmanager
    async def stream(self, path: str, query: Any, *, read_timeout: float) -> AsyncIterator[Any]:
        self.versions.append(dict(query)["resourceVersion"])
        script = self.streams.pop(0) if self.streams else [FOREVER]
        if isinstance(script, Exception):
            raise script
        yield self._lines(script)

    async def _lines(self, script: list[Any]) -> AsyncIterator[bytes]:
        for each in script:
            if each == FOREVER:
                await asyncio.Event().wait()
            if isinstance(each, Exception):
                raise each
            yield each


@asynccontextmanager
async def heard(
    script: Script, timing: Timing = QUICK, source: WatchedSource = WatchedSource.TENANTS
) -> AsyncIterator[Heard]:
    async with following(script, timing, source) as (_, sink):
        yield sink


@asynccontextmanager
async def following(
    script: Script,
    timing: Timing = QUICK,
    source: WatchedSource = WatchedSource.TENANTS,
    sink: Heard | None = None,
    interrupted: Callable[[WatchedSource], None] = lambda _: None,
) -> AsyncIterator[tuple[Reflector[Any], Heard]]:
    sink = sink or Heard()
    [watch] = sources.new_reflectors(
        script,  # type: ignore[arg-type]
        sink,
        lambda: Millis(0),
        sources=[source],
        timing=timing,
        interrupted=interrupted,
    )
    running = asyncio.create_task(watch.run())
    try:
        yield watch, sink
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
