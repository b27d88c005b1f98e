"""Reflector: lists and then watches one kind of object, and converts every change to an event.

It ends only when cancelled. If its source becomes stale (no connection, a gap in the history), it
lists again: only a complete list makes a source fresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic

import msgspec

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.events import WatchedSource
from app.core.model import Millis
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.kube.informer.freshness import Freshness
from app.kube.informer.watched_kind import NORMAL, T, Timing, WatchedKind
from app.kube.list_paging import WHOLE_BYTES, Paging
from app.ports.cluster import EventSink
from app.ports.liveness import EVENT_LOOP, Steps, TaskSlice

log = logging.getLogger("fairgate.kube")

_raw_page = Decoder(objects.ListPage[msgspec.Raw])
_raw_change = Decoder(objects.WatchEvent[msgspec.Raw])
_bare = Decoder(objects.MetadataOnly)
_status = Decoder(objects.StatusObject)

CHANGES_MISSING = "listed, because changes may be missing"


class _GapError(Exception):
    """The server cannot send every change since the last known version."""


class Reflector(Generic[T]):
    """Delivers the state of one kind to the sink, by `run`."""

    def __init__(
        self,
        client: Client,
        kind: WatchedKind[T],
        sink: EventSink,
        clock: Callable[[], Millis],
        timing: Timing = NORMAL,
        on_interruption: Callable[[WatchedSource], None] = lambda _: None,
        steps: Steps | None = None,
    ) -> None:
        """`on_interruption` is called for each watch that ends early."""
        self.kind = kind
        self.list_count = 0
        """Number of completely read lists."""
        self._client = client
        self._sink = sink
        self._clock = clock
        self._timing = timing
        self._on_interruption = on_interruption
        self._steps = steps
        self._freshness = Freshness(
            kind.source, sink, clock, silence=timing.silence, outage=timing.outage
        )
        self._known_keys: set[str] = set()
        self._paging = Paging(timing.page)
        self._version = ""
        self._paths = (kind.path, *kind.other_paths)
        self._path = kind.path
        self._missing_paths = 0
        self._catch_ups: list[asyncio.Future[None]] = []
        self._catch_up_requested = asyncio.Event()
        self._streaming: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def is_fresh(self) -> bool:
        """Return whether the list is complete and the watch works."""
        return self._freshness.is_fresh

    def seconds_since_data(self) -> float:
        """Return the seconds since the server last sent data."""
        return self._freshness.seconds_since_data()

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._freshness.enforce_deadline())
            group.create_task(self._list_and_watch())

    async def catch_up(self) -> None:
        """Return after the sink received every change that happened before this call.

        The proof is a quorum read that starts afterwards, independent of the state of the watch.
        """
        asked = asyncio.get_running_loop().create_future()
        self._catch_ups.append(asked)
        self._catch_up_requested.set()
        if self._streaming is not None:
            self._streaming.cancel()  # a dead connection would delay the proof
        await asked

    def _complete_catch_ups(self, asked: list[asyncio.Future[None]]) -> None:
        """Complete these `catch_up` calls."""
        for each in asked:
            self._catch_ups.remove(each)
            if not each.done():
                each.set_result(None)

    async def _list_and_watch(self) -> None:
        while True:
            try:
                await self._list()
                await self._watch()
            except _GapError as error:
                await self._freshness.mark_stale(str(error))
            except ClusterError as error:
                absent = isinstance(error, ClusterRefused) and error.status == 404
                if self.kind.optional and absent:
                    if self._has_tried_all_paths():
                        await self._treat_as_empty()
                else:
                    await self._pause(error)
            except Exception as error:  # a dead watch would freeze the state of the core
                log.exception("watch failed", extra={"source": self.kind.source.value})
                await self._freshness.mark_stale("the watch failed")
                await self._pause(error)

    def _has_tried_all_paths(self) -> bool:
        """Change to the next path. Return whether the server lacked each one since the last list.

        The first path follows the last one.
        """
        self._missing_paths += 1
        self._path = self._paths[(self._paths.index(self._path) + 1) % len(self._paths)]
        if self._missing_paths < len(self._paths):
            return False
        self._path, self._missing_paths = self._paths[0], 0
        return True

    async def _treat_as_empty(self) -> None:
        """Treat the kind as empty while the server does not have it."""
        for key in sorted(self._known_keys):
            await self._emit_deletion(key)
        self._failures = 0
        await self._freshness.mark_fresh()
        self._complete_catch_ups(list(self._catch_ups))
        self._catch_up_requested.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.absent_pause):
                await self._catch_up_requested.wait()

    async def _list(self, first: bytes = b"") -> None:
        """Deliver all objects, then deletions since the last list. `first` is its first page."""
        asked = [] if first else list(self._catch_ups)
        seen: set[str] = set()
        answer = first or await self._page()
        while True:
            about, items = self._decode_page(answer, seen)
            token = about.continue_
            # The server reads the next page while this one is processed.
            coming = asyncio.create_task(self._page(token)) if token else None
            try:
                await asyncio.sleep(0)  # sends the request
                queue_key = TaskSlice()
                for item in items:
                    seen.add(self.kind.key(item.metadata))
                    await self._emit_observation(item)
                    if queue_key.is_over():
                        await asyncio.sleep(0)  # yields to other tasks of the event loop
                        queue_key = TaskSlice()
                self._failures = 0
                if coming is None:
                    break
                answer = await coming
            finally:
                if coming is not None:
                    coming.cancel()
        for key in sorted(self._known_keys - seen):
            await self._emit_deletion(key)
        self._version = about.resource_version
        self._missing_paths = 0
        self.list_count += 1
        self._paging.record_list(seen)
        await self._freshness.mark_fresh()
        self._complete_catch_ups(asked)

    async def _page(self, token: str = "", limit: int = 0) -> bytes:
        query = [("limit", str(limit or self._paging.limit))]
        query += [("continue", token)] if token else []
        return await self._client.request(
            "GET", self._path, query=query, timeout=self._timing.page_timeout
        )

    async def _prove_caught_up(self) -> None:
        """Prove to `catch_up` callers, at the least cost, that the sink is up to date.

        A list that fits on one page is read again. A longer list needs one object to learn the
        current resourceVersion. The watch continues until an event or a bookmark reaches it. If
        there is no bookmark, as with old servers, the whole list is read. The order of changes is
        unknown during a list, so the source is stale until the list is complete.
        """
        asked = list(self._catch_ups)
        is_long = len(self._known_keys) > self._paging.limit
        first = await self._page(limit=1 if is_long else 0)
        try:
            about = _raw_page.decode(first).metadata
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self._path}: garbled ({error}).") from error
        if not about.continue_:
            await self._freshness.mark_stale(CHANGES_MISSING)
            await self._list(first)
            self._complete_catch_ups(asked)
            return
        goal, deadline = int(about.resource_version), time.monotonic() + self._timing.catch_up
        while int(self._version) < goal:
            left = deadline - time.monotonic()
            if left <= 0:
                await self._freshness.mark_stale(CHANGES_MISSING)
                await self._list()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stream(self._timing.bookmark_watch, goal)
        self._complete_catch_ups(asked)

    def _decode_page(self, answer: bytes, seen: set[str]) -> tuple[objects.ListMeta, Iterable[T]]:
        """Return metadata and objects of a page. Adds keys of undecodable objects to `seen`."""
        if len(answer) > WHOLE_BYTES:
            return self._decode_one_by_one(answer, seen)
        began = time.perf_counter()
        try:
            page = self.kind.page.decode(answer)
        except msgspec.DecodeError:
            return self._decode_one_by_one(answer, seen)
        finally:
            self._finish_step("page of", began)
        return page.metadata, page.items or []

    def _decode_one_by_one(
        self, answer: bytes, seen: set[str]
    ) -> tuple[objects.ListMeta, Iterable[T]]:
        """Decode a page object by object, because it is large or contains an undecodable object."""
        try:
            page = _raw_page.decode(answer)
            metas = [(raw, _bare.decode(raw).metadata) for raw in page.items or ()]
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self._path}: garbled ({error}).") from error

        def items() -> Iterator[T]:
            for raw, meta in metas:
                began, key = time.perf_counter(), self.kind.key(meta)
                self._paging.record_size(key, len(memoryview(raw)))
                try:
                    item = self.kind.item.decode(raw)
                except msgspec.DecodeError as error:
                    seen.add(key)
                    self._log_unreadable(meta, error)
                    continue
                finally:
                    self._finish_step("decode", began, meta.namespace, meta.name)
                yield item

        return page.metadata, items()

    async def _watch(self) -> None:
        """Watch while the source is fresh, over any number of connections.

        A server with little CPU closes watches regardless of the reader's speed: it can buffer only
        few events for each. So a watch that delivered events is resumed without a pause.
        """
        while self._freshness.is_fresh:
            seconds = _between(*self._timing.follow)
            begun, version = time.monotonic(), self._version
            try:
                if self._catch_ups:
                    await self._prove_caught_up()
                    continue
                if not await self._interruptible(self._stream(seconds)):
                    continue
            except ClusterError as error:
                status = error.status if isinstance(error, ClusterRefused) else None
                if status == 410 or (status == 404 and self.kind.optional):
                    raise _GapError(str(error)) from error
                self._on_interruption(self.kind.source)
                self._freshness.record_disconnect()
                await self._pause(error)
            else:
                self._freshness.record_disconnect()
                lasted = time.monotonic() - begun
                if (
                    self._freshness.is_fresh and lasted < seconds - 2
                ):  # whole seconds were requested
                    self._on_interruption(self.kind.source)
                if lasted < 1.0 and self._version == version:
                    await self._pause(None)

    async def _interruptible(self, stream: Coroutine[Any, Any, None]) -> bool:
        """Run a watch. Return False if `catch_up` cancelled it. Lost events will be repeated."""
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
        """Watch for at most `seconds`, or until the version reaches `goal`."""
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(max(1, int(seconds)))),
        ]
        # One second more, so that the guard of the freshness expires first.
        read_timeout = self._timing.silence + 1.0
        async with self._client.stream(self._path, query, read_timeout=read_timeout) as lines:
            self._freshness.record_data()
            async for line in lines:
                await self._handle_line(line)
                self._freshness.record_data()
                self._failures = 0
                if not self._freshness.is_fresh or (
                    goal is not None and int(self._version) >= goal
                ):
                    return

    async def _handle_line(self, line: bytes) -> None:
        try:
            change = self.kind.change.decode(line)
        except msgspec.DecodeError:
            await self._handle_odd_line(line)
            return
        match change.type:
            case "ADDED" | "MODIFIED":
                self._paging.record_size(self.kind.key(change.object.metadata), len(line))
                await self._emit_observation(change.object)
            case "DELETED":
                key = self.kind.key(change.object.metadata)
                self._paging.remove(key)
                await self._emit_deletion(key)
            case "ERROR":
                await self._handle_odd_line(line)
        self._version = change.object.metadata.resource_version or self._version

    async def _handle_odd_line(self, line: bytes) -> None:
        """Process a line with an error, or with an object that cannot be decoded."""
        try:
            change = _raw_change.decode(line)
            if change.type == "ERROR":
                status = _status.decode(change.object)
                raise _GapError(f"the watch ended: {status.code} {status.message}")
            meta = _bare.decode(change.object).metadata
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {self._path}: garbled ({error}).") from error
        if change.type == "DELETED":
            await self._emit_deletion(self.kind.key(meta))
        elif change.type != "BOOKMARK":
            self._log_unreadable(meta, None)
        self._version = meta.resource_version or self._version

    async def _emit_observation(self, item: T) -> None:
        key = self.kind.key(item.metadata)
        began = time.perf_counter()
        try:
            event = self.kind.read(item, self._clock())
        except InvalidInput as error:
            self._log_unreadable(item.metadata, error)
            return
        except Exception as error:  # a list that ends at one object would never be complete
            self._log_unreadable(item.metadata, error)
            return
        finally:
            self._finish_step("read", began, item.metadata.namespace, item.metadata.name)
        if event is None:
            await self._emit_deletion(key)
            return
        self._known_keys.add(key)
        await self._sink.put(event)

    def _finish_step(self, what: str, began: float, namespace: str = "", name: str = "") -> None:
        if self._steps is None:
            return
        kind, seconds = f"{what} {self.kind.source.value}", time.perf_counter() - began
        self._steps.finish_step(EVENT_LOOP, kind, seconds, namespace, name)

    async def _emit_deletion(self, key: str) -> None:
        if key in self._known_keys:
            await self._sink.put(self.kind.deletion_event(key, self._clock()))
            self._known_keys.discard(key)  # last: if cancelled, the event is sent again

    def _log_unreadable(self, meta: objects.Metadata, error: Exception | None) -> None:
        facts = {
            "source": self.kind.source.value,
            "namespace": meta.namespace,
            "object": meta.name,
            "why": str(error or "its fields are not of the expected types"),
        }
        log.error("object skipped: it cannot be read", extra=facts)

    async def _pause(self, error: Exception | None) -> None:
        """Wait before the next attempt, longer each time and with jitter between replicas."""
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
