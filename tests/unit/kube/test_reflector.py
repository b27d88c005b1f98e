"""A watch against a server with scripted answers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.events import (
    ClaimGone,
    ClaimObserved,
    ClusterEvent,
    GroupObserved,
    PolicyGone,
    PolicyObserved,
    SourceFresh,
    SourceStale,
    TenantGone,
    TenantObserved,
    WatchedSource,
)
from app.core.model import Millis
from app.core.policy import Policy
from app.kube.informer import sources
from app.kube.informer.watched_kind import Timing
from app.kube.list_paging import WHOLE_BYTES
from tests.fakes.fake_event_sink import Heard
from tests.support.watch_script import FOREVER, QUICK, Script, following, heard, page, tenant


def line(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


GONE_STATUS = {"kind": "Status", "status": "Failure", "code": 410, "message": "too old"}


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "default", "resourceVersion": "1"}, "spec": spec}


def story(sink: Heard) -> list[str]:
    told = []
    for event in sink.events:
        match event:
            case TenantObserved(tenant=seen):
                told.append(f"+{seen.name}")
            case TenantGone(name=name):
                told.append(f"-{name}")
            case SourceFresh():
                told.append("fresh")
            case SourceStale():
                told.append("stale")
    return told


async def tell(script: Script, last: str, timing: Timing = QUICK) -> list[str]:
    """Return the events of the sink up to `last`."""
    async with heard(script, timing) as sink:
        await sink.until(lambda _: story(sink)[-1] == last)
        return story(sink)


async def test_all_pages_of_a_list_are_read_before_the_source_is_fresh() -> None:
    script = Script([page(tenant("a"), more="x"), page(tenant("b"))], [])
    assert await tell(script, "fresh") == ["+a", "+b", "fresh"]
    assert [query.get("continue") for query in script.queries] == [None, "x"]


async def test_empty_list_is_fresh() -> None:
    assert await tell(Script([page()], []), "fresh") == ["fresh"]


async def test_list_that_breaks_off_begins_again() -> None:
    lists = [page(tenant("a"), more="x"), ClusterRefused("expired", 410), page(tenant("b"))]
    assert await tell(Script(lists, []), "fresh") == ["+a", "+b", "-a", "fresh"]


@pytest.mark.parametrize(
    "first",
    [ClusterRefused("too old", 410), [line("ERROR", GONE_STATUS)]],
    ids=["refused", "told on the stream"],
)
async def test_lost_history_starts_a_new_list_and_reports_deleted_objects(first: Any) -> None:
    script = Script([page(tenant("a"), tenant("b")), page(tenant("b"))], [first])
    async with heard(script) as sink:
        await sink.until(lambda _: story(sink)[-2:] == ["-a", "fresh"])
        assert story(sink) == ["+a", "+b", "fresh", "stale", "+b", "-a", "fresh"]


async def test_watch_resumes_where_it_broke_off() -> None:
    streams = [
        [line("ADDED", tenant("a", 5)), ClusterUnavailable("reset")],
        [line("BOOKMARK", tenant("", 9)), ClusterUnavailable("reset")],
        ClusterUnavailable("refused"),
        [line("DELETED", tenant("a", 12)), FOREVER],
    ]
    script = Script([page(version=3)], streams)
    assert await tell(script, "-a") == ["fresh", "+a", "-a"]
    assert script.versions == ["3", "5", "9", "9"]


async def test_unreachable_server_makes_the_source_stale_until_a_new_list() -> None:
    streams = [ClusterUnavailable("refused")] * 1000
    script = Script([page(tenant("a")), ClusterUnavailable("still"), page(tenant("a"))], streams)
    async with heard(script, Timing(backoff=(0.01, 0.02), outage=0.1)) as sink:
        await sink.until(lambda _: story(sink) == ["+a", "fresh", "stale", "+a", "fresh"])


async def test_seconds_since_data_grow_while_a_watch_is_silent() -> None:
    script = Script([page(tenant("a"))], [[FOREVER]])
    async with following(script) as (watch, sink):
        await sink.until(lambda _: story(sink)[-1] == "fresh")
        watched = sources.RunningWatches([watch])
        silent = watched.seconds_since_data()
        async with asyncio.timeout(30):
            while watched.seconds_since_data() <= silent:
                await asyncio.sleep(0)
    assert sources.RunningWatches([]).seconds_since_data() == 0


async def test_seconds_stale_are_positive_only_while_a_watch_is_stale() -> None:
    refused = [ClusterUnavailable("refused")] * 1000
    script = Script([page(tenant("a")), *refused], list(refused))
    async with following(script, Timing(backoff=(0.01, 0.02), outage=0.1)) as (watch, sink):
        watched = sources.RunningWatches([watch])
        await sink.until(lambda _: story(sink)[-1] == "fresh")
        assert watched.seconds_stale() == 0
        await sink.until(lambda _: story(sink)[-1] == "stale")
        assert watched.seconds_stale() > 0
        script.lists[:], script.streams[:] = [page(tenant("a"))], []
        await sink.until(lambda _: story(sink)[-1] == "fresh")
        assert watched.seconds_stale() == 0


async def test_silent_stream_makes_the_source_stale() -> None:
    script = Script([page(tenant("a"))], [[FOREVER]])
    timing = Timing(silence=0.1, outage=5.0)
    assert await tell(script, "stale", timing) == ["+a", "fresh", "stale"]


async def test_object_that_cannot_be_read_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    odd = tenant("odd") | {"spec": {"weight": 7}}
    bad = tenant("bad", weight="many")
    stream = [line("ADDED", odd), line("MODIFIED", bad), line("ADDED", tenant("b", 8)), FOREVER]
    script = Script([page(tenant("a"), odd, bad)], [stream])
    assert await tell(script, "+b") == ["+a", "fresh", "+b"]
    named = [record.__dict__["object"] for record in caplog.records if hasattr(record, "object")]
    assert named == ["odd", "bad", "odd", "bad"]


@pytest.mark.parametrize("size", [0, WHOLE_BYTES])
async def test_object_of_any_depth_is_read(size: int) -> None:
    deep, later = tenant("deep"), tenant("later", 7)
    deep["metadata"] |= {"managedFields": "DEEP", "annotations": {"a": "x" * size}}
    later["metadata"] |= {"managedFields": "DEEP"}
    listed, added = page(tenant("a"), deep, tenant("b")), line("ADDED", later)
    script = Script([_deepened(listed)], [[_deepened(added), FOREVER]])
    assert await tell(script, "+later") == ["+a", "+deep", "+b", "fresh", "+later"]


def _deepened(document: bytes) -> bytes:
    """Return JSON with as many levels as the API server accepts from users."""
    return document.replace(b'"DEEP"', b'[{"f:":' * 4_900 + b"{}" + b"}]" * 4_900)


async def test_object_that_became_invalid_keeps_its_last_valid_state() -> None:
    script = Script(
        [page(tenant("a")), page(tenant("a", weight="many"), tenant("b"))],
        [[line("ERROR", GONE_STATUS)]],
    )
    async with heard(script) as sink:
        await sink.until(lambda _: story(sink).count("fresh") == 2)
        assert "-a" not in story(sink)


async def test_object_that_fails_to_parse_is_skipped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script([page(tenant("a"), tenant("bad"), tenant("c"))], [[FOREVER]])
    async with following(script) as (watch, sink):
        read = watch.kind.read

        def fail(item: Any, at: Millis) -> Any:
            if item.metadata.name == "bad":
                raise OverflowError("cannot convert float infinity to integer")
            return read(item, at)

        watch.kind = replace(watch.kind, read=fail)
        await sink.until(lambda _: story(sink)[-1] == "fresh")
        assert story(sink) == ["+a", "+c", "fresh"]
    assert [record.__dict__["object"] for record in caplog.records] == ["bad"]


async def test_the_policy_holds_until_it_changes_legibly_or_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = [
        line("ADDED", policy(backfill=False)),
        line("MODIFIED", policy(backfill=True, halfLife="long")),
        line("MODIFIED", policy(backfill="no")),
        line("DELETED", policy(backfill=True, halfLife="long")),
        FOREVER,
    ]
    async with heard(Script([page()], [stream]), source=WatchedSource.POLICIES) as sink:
        await sink.until(lambda event: isinstance(event, PolicyGone))
        assert sink.events == [
            SourceFresh(Millis(0), WatchedSource.POLICIES),
            PolicyObserved(Millis(0), Policy(backfill=False), has_mode=False),
            PolicyGone(Millis(0)),
        ]
    whys = [record.__dict__["why"] for record in caplog.records if hasattr(record, "object")]
    assert len(whys) == 2
    assert whys[0] == "halfLife: 'long' is not a duration such as 90s, 5m or 1h30m."


ABSENT = ClusterRefused("the server could not find the requested resource", 404)


async def test_a_kind_that_servers_may_lack_is_empty_and_looked_for_again() -> None:
    claim = {"metadata": {"name": "c", "namespace": "a", "resourceVersion": "1"}}
    lists = [ABSENT, ABSENT, page(claim), *[ABSENT] * 1000]
    async with heard(Script(lists, [ClusterRefused("", 410)]), source=WatchedSource.CLAIMS) as sink:
        await sink.until(lambda _: len(sink.events) == 5)
        told = [type(event) for event in sink.events]
    assert told == [SourceFresh, ClaimObserved, SourceStale, ClaimGone, SourceFresh]


async def test_pod_groups_are_read_in_the_version_that_the_server_has() -> None:
    native = page({"metadata": {"name": "g", "namespace": "a", "resourceVersion": "1"}})
    lists = [ABSENT, ABSENT, native, ABSENT, native]
    script = Script(lists, [ClusterRefused("", 410)])
    async with heard(script, source=WatchedSource.NATIVE_GROUPS) as sink:
        await sink.until(lambda _: len(sink.events) == 5)
        told = [type(event) for event in sink.events]
    assert told == [GroupObserved, SourceFresh, SourceStale, GroupObserved, SourceFresh]
    tried = [path.split("/")[3] for path in script.paths]
    assert tried == ["v1beta1", "v1alpha3", "v1alpha2", "v1alpha2", "v1beta1"]


async def test_a_version_that_vanishes_during_a_watch_is_replaced_at_once() -> None:
    """The group is the same object in both versions, so it is not reported as gone."""
    native = page({"metadata": {"name": "g", "namespace": "a", "resourceVersion": "1"}})
    script = Script([native, ABSENT, native], [ABSENT])
    async with heard(script, source=WatchedSource.NATIVE_GROUPS) as sink:
        await sink.until(lambda _: len(sink.events) == 5)
        told = [type(event) for event in sink.events]
    assert told == [GroupObserved, SourceFresh, SourceStale, GroupObserved, SourceFresh]
    tried = [path.split("/")[3] for path in script.paths]
    assert tried == ["v1beta1", "v1beta1", "v1alpha3"]


async def test_pod_groups_count_as_none_after_every_version_was_tried() -> None:
    script = Script([ABSENT] * 1000, [])
    async with heard(script, source=WatchedSource.NATIVE_GROUPS) as sink:
        await sink.until(lambda _: bool(sink.events))
        assert len(script.paths) == 3


async def test_a_kind_that_no_server_may_lack_is_never_taken_for_empty() -> None:
    script = Script([ABSENT] * 3 + [page(tenant("a"))], [])
    assert await tell(script, "fresh") == ["+a", "fresh"]


@pytest.mark.parametrize("garbage", [b"{", b"[]", b"\xff", b'{"type": 3}', b"null"])
async def test_garbage_on_the_stream_does_not_end_the_watch(garbage: bytes) -> None:
    streams = [[garbage], [line("ADDED", tenant("a", 5)), FOREVER]]
    assert (await tell(Script([page()], streams), "+a"))[-1] == "+a"


async def test_defect_in_the_sink_does_not_end_the_watch() -> None:
    class Failing(Heard):
        failed = False

        async def put(self, event: Any, /) -> None:
            if isinstance(event, TenantObserved) and not self.failed:
                self.failed = True
                raise RuntimeError("defect")
            await super().put(event)

    sink = Failing()
    script = Script([page(tenant("a")), page(tenant("a"))], [])
    [watch] = sources.new_reflectors(
        script,  # type: ignore[arg-type]
        sink,
        lambda: Millis(0),
        sources=[WatchedSource.TENANTS],
        timing=QUICK,
    )
    running = asyncio.create_task(watch.run())
    await sink.until(lambda event: isinstance(event, SourceFresh))
    assert story(sink) == ["+a", "fresh"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("more", ["", "x"])
async def test_list_read_during_catch_up_makes_the_source_stale_first(
    more: str,
) -> None:
    """A pod created and released meanwhile is first seen without a gate."""
    late = [page(tenant("a"), tenant("b"), version=2, more=more)]
    script = Script([page(tenant("a")), *late], [])
    if more:  # the watch makes no progress, so the list is read completely
        script.lists.append(page(tenant("a"), tenant("b"), version=2))
    timing = replace(QUICK, catch_up=0.0)
    async with following(script, timing) as (watch, sink):
        await sink.until(lambda _: story(sink)[-1:] == ["fresh"])
        await watch.catch_up()
        assert story(sink) == ["+a", "fresh", "stale", "+a", "+b", "fresh"]


class Counting(Heard):
    """Records, at each event, the number of requests so far."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.asked: list[int] = []
        self._script = script

    async def put(self, event: ClusterEvent, /) -> None:
        self.asked.append(len(self._script.queries))
        await super().put(event)


async def test_next_page_is_requested_while_the_current_page_is_processed() -> None:
    script = Script([page(tenant("a"), tenant("b"), more="x"), page(tenant("c"))], [])
    async with following(script, sink=Counting(script)) as (_, sink):
        await sink.until(lambda event: isinstance(event, SourceFresh))
        assert isinstance(sink, Counting)
        assert sink.asked == [2, 2, 2, 2]
        assert story(sink) == ["+a", "+b", "+c", "fresh"]


async def test_watch_without_events_pauses_before_the_next_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script([page()], [[]] * 5)
    with caplog.at_level(logging.DEBUG, "fairgate.kube"):
        async with heard(script):
            await until(lambda: len(script.versions) == 6)
    pauses = [record for record in caplog.records if record.message == "watch interrupted"]
    assert len(pauses) == 5


async def test_watch_closed_after_an_event_is_resumed_without_a_pause() -> None:
    streams = [[line("ADDED", tenant(name, version))] for version, name in enumerate("abc", 5)]
    script = Script([page()], streams)
    interrupted: list[WatchedSource] = []
    pausing_for_ever = Timing(backoff=(3600.0, 3600.0))
    async with following(script, pausing_for_ever, interrupted=interrupted.append) as (_, sink):
        await sink.until(lambda _: story(sink)[-1] == "+c")
        await until(lambda: len(script.versions) == 4)
    assert story(sink) == ["fresh", "+a", "+b", "+c"]
    assert script.versions == ["1", "5", "6", "7"]
    assert interrupted == [WatchedSource.TENANTS] * 3


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
