"""One kind of object, listed and then followed; every change becomes an event of the core.

Decides nothing, and never ends but by cancellation. Once its source is doubted (no connection, a
gap in the history) it lists again: only a whole list makes a source fresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.kube.client import Client
from app.kube.freshness import Freshness
from app.kube.kind import NORMAL, Kind, T, Timing
from app.ports import EventSink

log = logging.getLogger("fairgate.kube")

_raw_page = msgspec.json.Decoder(wire.Page[msgspec.Raw])
_raw_change = msgspec.json.Decoder(wire.Change[msgspec.Raw])
_bare = msgspec.json.Decoder(wire.Bare)
_status = msgspec.json.Decoder(wire.Status)

BEHIND = "listed, to be sure that nothing is missing"


class _GapError(Exception):
    """The server cannot give us every change since what we saw last."""


class Watch(Generic[T]):
    """Keeps the sink informed of one kind, by `run`."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        sink: EventSink,
        clock: Callable[[], Millis],
        timing: Timing = NORMAL,
    ) -> None:
        self.kind = kind
        self.lists = 0
        """How often the list was read whole."""
        self._client = client
        self._sink = sink
        self._clock = clock
        self._timing = timing
        self._freshness = Freshness(
            kind.source, sink, clock, silence=timing.silence, outage=timing.outage
        )
        self._known: set[str] = set()
        self._version = ""
        self._asked: list[asyncio.Future[None]] = []
        self._asking = asyncio.Event()
        self._streaming: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def fresh(self) -> bool:
        """Whether the list is complete and the watch alive."""
        return self._freshness.fresh

    def lag(self) -> float:
        """Return for how many seconds nothing was heard of it."""
        return self._freshness.lag()

    async def run(self) -> None:
        """List and follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._freshness.guard())
            group.create_task(self._work())

    async def catch_up(self) -> None:
        """Return once the sink was told of all that was so when this was called.

        Proven against a read of a quorum that begins afterwards, whatever the watch believes.
        """
        asked = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._asking.set()
        if self._streaming is not None:
            self._streaming.cancel()  # a dead connection would keep us waiting
        await asked

    def _told(self, asked: list[asyncio.Future[None]]) -> None:
        """These were told of everything they asked for."""
        for each in asked:
            self._asked.remove(each)
            if not each.done():
                each.set_result(None)

    async def _work(self) -> None:
        while True:
            try:
                await self._list()
                await self._follow()
            except _GapError as error:
                await self._freshness.doubt(str(error))
            except ClusterError as error:
                absent = isinstance(error, ClusterRefused) and error.status == 404
                if self.kind.optional and absent:
                    await self._lack()
                else:
                    await self._pause(error)
            except Exception as error:  # a watch that dies would freeze the core's view
                log.exception("watch failed", extra={"source": self.kind.source.value})
                await self._freshness.doubt("the watch failed")
                await self._pause(error)

    async def _lack(self) -> None:
        """The server does not know this kind: there is none of it, until it does."""
        for key in sorted(self._known):
            await self._gone(key)
        self._failures = 0
        await self._freshness.complete()
        self._told(list(self._asked))
        self._asking.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.absent):
                await self._asking.wait()

    async def _list(self, first: bytes = b"") -> None:
        """Deliver all there is, then what is gone since the last list. `first`: its first page."""
        asked = [] if first else list(self._asked)
        seen: set[str] = set()
        answer = first or await self._page()
        while True:
            about, items = self._opened(answer, seen)
            token = about.continue_
            # The server reads the next page while this one is taken in.
            coming = asyncio.create_task(self._page(token)) if token else None
            try:
                await asyncio.sleep(0)  # sends the request
                for item in items:
                    seen.add(self.kind.key(item.metadata))
                    await self._observe(item)
                self._failures = 0
                if coming is None:
                    break
                answer = await coming
            finally:
                if coming is not None:
                    coming.cancel()
        for key in sorted(self._known - seen):
            await self._gone(key)
        self._version = about.resource_version
        self.lists += 1
        await self._freshness.complete()
        self._told(asked)

    async def _page(self, token: str = "") -> bytes:
        query = [("limit", str(self._timing.page))]
        query += [("continue", token)] if token else []
        return await self._client.request(
            "GET", self.kind.path, query=query, timeout=self._timing.page_timeout
        )

    async def _prove(self) -> None:
        """Show whoever asked that the sink was told of everything, at the least cost.

        What fits on one page is simply listed again. Of more than that, a page tells how far the
        cluster is, and the watch goes on until it is there too; a bookmark says so if nothing
        else does. Where none comes, as from old servers, the list is read whole. A list tells
        nobody what came before what, so the source is not fresh until it is complete.
        """
        asked = list(self._asked)
        first = await self._page()
        try:
            about = _raw_page.decode(first).metadata
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self.kind.path}: garbled ({error}).") from error
        if not about.continue_:
            await self._freshness.doubt(BEHIND)
            await self._list(first)
            self._told(asked)
            return
        goal, deadline = int(about.resource_version), time.monotonic() + self._timing.catch_up
        while int(self._version) < goal:
            left = deadline - time.monotonic()
            if left <= 0:
                await self._freshness.doubt(BEHIND)
                await self._list()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stream(self._timing.glance, goal)
        self._told(asked)

    def _opened(self, answer: bytes, seen: set[str]) -> tuple[wire.ListMeta, list[T]]:
        """Return what a page says of itself, and its objects; `seen` gets those not legible."""
        try:
            page = self.kind.page.decode(answer)
        except msgspec.DecodeError:
            return self._opened_one_by_one(answer, seen)
        return page.metadata, page.items or []

    def _opened_one_by_one(self, answer: bytes, seen: set[str]) -> tuple[wire.ListMeta, list[T]]:
        """Read a page one object at a time, because there is one we cannot decode."""
        items: list[T] = []
        try:
            page = _raw_page.decode(answer)
            metas = [(raw, _bare.decode(raw).metadata) for raw in page.items or ()]
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self.kind.path}: garbled ({error}).") from error
        for raw, meta in metas:
            try:
                items.append(self.kind.item.decode(raw))
            except msgspec.DecodeError as error:
                seen.add(self.kind.key(meta))
                self._unreadable(meta, error)
        return page.metadata, items

    async def _follow(self) -> None:
        """Follow for as long as the source is fresh, over any number of connections."""
        while self._freshness.fresh:
            begun = time.monotonic()
            try:
                if self._asked:
                    await self._prove()
                    continue
                if not await self._interruptible(self._stream(_between(*self._timing.follow))):
                    continue
            except ClusterError as error:
                if isinstance(error, ClusterRefused) and error.status == 410:
                    raise _GapError(str(error)) from error
                self._freshness.cut()
                await self._pause(error)
            else:
                self._freshness.cut()
                if time.monotonic() - begun < 1.0:  # a server that hangs up on us at once
                    await self._pause(None)

    async def _interruptible(self, stream: Coroutine[Any, Any, None]) -> bool:
        """Follow; False if `catch_up` broke it off. What was not delivered comes again."""
        task = self._streaming = asyncio.create_task(stream)
        try:
            await asyncio.wait({task})
        finally:
            self._streaming = None
            task.cancel()
        if task.cancelled():
            return False
        await task
        return True

    async def _stream(self, seconds: float, goal: int | None = None) -> None:
        """Follow for so long at most, or until the version is at least the goal."""
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(max(1, int(seconds)))),
        ]
        # One second more, so that it is the guard of the freshness that notices first.
        patience = self._timing.silence + 1.0
        async with self._client.stream(self.kind.path, query, read_timeout=patience) as lines:
            self._freshness.heard()
            async for line in lines:
                await self._take_line(line)
                self._freshness.heard()
                self._failures = 0
                if not self._freshness.fresh or (goal is not None and int(self._version) >= goal):
                    return

    async def _take_line(self, line: bytes) -> None:
        try:
            change = self.kind.change.decode(line)
        except msgspec.DecodeError:
            await self._take_odd_line(line)
            return
        match change.type:
            case "ADDED" | "MODIFIED":
                await self._observe(change.object)
            case "DELETED":
                await self._gone(self.kind.key(change.object.metadata))
            case "ERROR":
                await self._take_odd_line(line)
        self._version = change.object.metadata.resource_version or self._version

    async def _take_odd_line(self, line: bytes) -> None:
        """Read a line that is an error, or an object we cannot decode."""
        try:
            change = _raw_change.decode(line)
            if change.type == "ERROR":
                status = _status.decode(change.object)
                raise _GapError(f"the watch ended: {status.code} {status.message}")
            meta = _bare.decode(change.object).metadata
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self.kind.path}: garbled ({error}).") from error
        if change.type == "DELETED":
            await self._gone(self.kind.key(meta))
        elif change.type != "BOOKMARK":
            self._unreadable(meta, None)
        self._version = meta.resource_version or self._version

    async def _observe(self, item: T) -> None:
        key = self.kind.key(item.metadata)
        try:
            event = self.kind.read(item, self._clock())
        except InvalidInput as error:
            self._unreadable(item.metadata, error)
            return
        if event is None:
            await self._gone(key)
            return
        self._known.add(key)
        await self._sink.put(event)

    async def _gone(self, key: str) -> None:
        if key in self._known:
            await self._sink.put(self.kind.gone(key, self._clock()))
            self._known.discard(key)  # only now: if it was broken off, it is told again

    def _unreadable(self, meta: wire.Metadata, error: Exception | None) -> None:
        facts = {
            "source": self.kind.source.value,
            "namespace": meta.namespace,
            "object": meta.name,
            "why": str(error or "its fields are not of the expected types"),
        }
        log.error("object skipped: it cannot be read", extra=facts)

    async def _pause(self, error: Exception | None) -> None:
        """Wait before the next try: longer each time, and never in step with other replicas."""
        self._failures += 1
        facts = {"source": self.kind.source.value, "why": str(error), "failures": self._failures}
        log.log(
            logging.WARNING if self._failures % 20 == 1 else logging.DEBUG,
            "watch interrupted",
            extra=facts,
        )
        least, most = self._timing.backoff
        wait = min(most, least * 2 ** min(self._failures, 16))
        if isinstance(error, ClusterRefused) and error.retry_after:
            wait = max(wait, min(error.retry_after, self._timing.longest_wait))
        await asyncio.sleep(_between(wait / 2, wait))


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311  (jitter, not a secret)
