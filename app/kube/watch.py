"""One kind of object, listed and then followed; every change becomes an event of the core.

Decides nothing, and never ends but by cancellation. Once its source is doubted (no connection, a
gap in the history) it lists again: only a whole list makes a source fresh.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.events import ClusterEvent, Source
from app.core.model import Millis
from app.kube.client import Client
from app.kube.freshness import Freshness
from app.ports import EventSink

log = logging.getLogger("fairgate.kube")


class Named(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> wire.Metadata: ...


T = TypeVar("T", bound=Named)

_raw_page = msgspec.json.Decoder(wire.Page[msgspec.Raw])
_raw_change = msgspec.json.Decoder(wire.Change[msgspec.Raw])
_bare = msgspec.json.Decoder(wire.Bare)
_status = msgspec.json.Decoder(wire.Status)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What there is to know of one kind of object.

    `key` tells its objects apart as the core does. `read` returns None for an object that does
    not concern us, and raises InvalidInput for one it cannot understand.
    """

    source: Source
    path: str
    page: msgspec.json.Decoder[wire.Page[T]]
    change: msgspec.json.Decoder[wire.Change[T]]
    item: msgspec.json.Decoder[T]
    key: Callable[[wire.Metadata], str]
    read: Callable[[T, Millis], ClusterEvent | None]
    gone: Callable[[str, Millis], ClusterEvent]
    optional: bool = False
    """A server may lack this kind: there is none of it then."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, but for `page`: the number of objects in one page of a list."""

    page: int = 500
    page_timeout: float = 15.0
    follow: tuple[float, float] = (240.0, 300.0)
    """How long a watch is asked to last; at random in between."""
    silence: float = 150.0
    """Without a word on a watch. The API server says something once a minute."""
    outage: float = 10.0
    """Without a connection."""
    backoff: tuple[float, float] = (0.1, 3.0)
    absent: float = 60.0
    """Before a kind that the server lacks is looked for again. Shorter than `silence`."""
    longest_wait: float = 30.0
    """The most that a Retry-After of the server is honoured."""


NORMAL = Timing()


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
        self._failures = 0

    @property
    def fresh(self) -> bool:
        """Whether the list is complete and the watch alive."""
        return self._freshness.fresh

    async def run(self) -> None:
        """List and follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._freshness.guard())
            group.create_task(self._work())

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
        await asyncio.sleep(self._timing.absent)

    async def _list(self) -> None:
        """Deliver all there is, then what is gone since the last list."""
        seen: set[str] = set()
        token = ""
        while True:
            query = [("limit", str(self._timing.page))]
            query += [("continue", token)] if token else []
            answer = await self._client.request(
                "GET", self.kind.path, query=query, timeout=self._timing.page_timeout
            )
            about = await self._take_page(answer, seen)
            self._failures = 0
            token = about.continue_
            if not token:
                break
        for key in sorted(self._known - seen):
            await self._gone(key)
        self._version = about.resource_version
        self.lists += 1
        await self._freshness.complete()

    async def _take_page(self, answer: bytes, seen: set[str]) -> wire.ListMeta:
        try:
            page = self.kind.page.decode(answer)
        except msgspec.DecodeError:
            return await self._take_odd_page(answer, seen)
        for item in page.items or ():
            seen.add(self.kind.key(item.metadata))
            await self._observe(item)
        return page.metadata

    async def _take_odd_page(self, answer: bytes, seen: set[str]) -> wire.ListMeta:
        """Read a page one object at a time, because there is one we cannot decode."""
        try:
            page = _raw_page.decode(answer)
            metas = [(raw, _bare.decode(raw).metadata) for raw in page.items or ()]
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self.kind.path}: garbled ({error}).") from error
        for raw, meta in metas:
            seen.add(self.kind.key(meta))
            try:
                item = self.kind.item.decode(raw)
            except msgspec.DecodeError as error:
                self._unreadable(meta, error)
            else:
                await self._observe(item)
        return page.metadata

    async def _follow(self) -> None:
        """Follow for as long as the source is fresh, over any number of connections."""
        while self._freshness.fresh:
            begun = time.monotonic()
            try:
                await self._stream()
            except ClusterError as error:
                if isinstance(error, ClusterRefused) and error.status == 410:
                    raise _GapError(str(error)) from error
                self._freshness.cut()
                await self._pause(error)
            else:
                self._freshness.cut()
                if time.monotonic() - begun < 1.0:  # a server that hangs up on us at once
                    await self._pause(None)

    async def _stream(self) -> None:
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(int(_between(*self._timing.follow)))),
        ]
        # One second more, so that it is the guard of the freshness that notices first.
        patience = self._timing.silence + 1.0
        async with self._client.stream(self.kind.path, query, read_timeout=patience) as lines:
            self._freshness.heard()
            async for line in lines:
                await self._take_line(line)
                self._freshness.heard()
                self._failures = 0
                if not self._freshness.fresh:
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
            self._known.discard(key)
            await self._sink.put(self.kind.gone(key, self._clock()))

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
