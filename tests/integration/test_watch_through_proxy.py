"""A watch on a real API server through a proxy that can break connections."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from app.core.events import (
    ClusterEvent,
    PodGone,
    PodObserved,
    SourceFresh,
    SourceStale,
    WatchedSource,
)
from app.core.model import Millis
from app.core.well_known import GATE
from app.kube.client import Client
from app.kube.informer import sources
from app.kube.informer.reflector import Reflector
from app.kube.informer.watched_kind import Timing
from tests.fakes.fake_event_sink import Heard
from tests.faults.tcp_proxy import Cable

PODS = "/api/v1/namespaces/default/pods"
QUICK = Timing(page=2, page_timeout=2.0, outage=0.5, backoff=(0.02, 0.1))
PATIENT = replace(QUICK, page_timeout=30.0, outage=30.0, catch_up=30.0)
"""Long time-outs, so that a slow machine does not look like an outage."""


class Bench:
    """One watch of pods through a proxy, and a direct client for changes."""

    def __init__(self, direct: Client, over_cable: Client, cable: Cable) -> None:
        self.direct = direct
        self.cable = cable
        self.heard = Heard()
        self.resource = f"example.com/{uuid.uuid4().hex[:8]}"
        self._client = over_cable

    @asynccontextmanager
    async def watching(self, timing: Timing = QUICK) -> AsyncIterator[Reflector[Any]]:
        [watch] = sources.new_reflectors(
            self._client,
            self.heard,
            lambda: Millis(0),
            sources=[WatchedSource.PODS],
            managed=[self.resource],
            timing=timing,
        )
        running = asyncio.create_task(watch.run())
        try:
            await self.heard.until(fresh)
            yield watch
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def make(self, name: str, namespace: str = PODS) -> None:
        container = {"name": "c", "image": "none", "resources": {"limits": {self.resource: "1"}}}
        labels = {"made-by": self.resource.rpartition("/")[2]}
        body = {
            "metadata": {"name": f"{labels['made-by']}-{name}", "labels": labels},
            "spec": {"schedulingGates": [{"name": GATE}], "containers": [container]},
        }
        await self.direct.request("POST", namespace, body=body)

    async def make_other(self) -> None:
        """Create an object other than a pod. The watch receives no event for it."""
        body = {"metadata": {"generateName": "watched-"}}
        await self.direct.request("POST", "/api/v1/namespaces/default/configmaps", body=body)

    async def delete(self, name: str = "") -> None:
        made_by = self.resource.rpartition("/")[2]
        query = [("gracePeriodSeconds", "0")]
        query += [] if name else [("labelSelector", f"made-by={made_by}")]
        path = f"{PODS}/{made_by}-{name}" if name else PODS
        await self.direct.request("DELETE", path, query=query)


def fresh(event: ClusterEvent) -> bool:
    return isinstance(event, SourceFresh)


def stale(event: ClusterEvent) -> bool:
    return isinstance(event, SourceStale)


def pod(name: str) -> Callable[[ClusterEvent], bool]:
    return lambda event: isinstance(event, PodObserved) and event.pod.name.endswith(f"-{name}")


def gone(event: ClusterEvent) -> bool:
    return isinstance(event, PodGone)


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    kubeconfig = Path(request.getfixturevalue("cluster").kubeconfig)
    config = yaml.safe_load(kubeconfig.read_text())
    entry = config["clusters"][0]["cluster"]
    server = urlsplit(entry["server"])
    async with Cable(server.hostname or "", server.port or 443) as cable:
        entry["server"] = f"https://{server.hostname}:{cable.port}"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        direct = await Client.connect(kubeconfig)
        over_cable = await Client.connect(tmp_path / "kubeconfig")
        bench = Bench(direct, over_cable, cable)
        yield bench
        await bench.delete()
        await over_cable.close()
        await direct.close()


async def test_list_in_pages_is_delivered_before_it_is_fresh(bench: Bench) -> None:
    names = [f"p{n}" for n in range(5)]
    for name in names:
        await bench.make(name)
    async with bench.watching():
        at = await bench.heard.until(fresh)
        seen = {e.pod.name for e in bench.heard.events[:at] if isinstance(e, PodObserved)}
        assert {name.rpartition("-")[2] for name in seen} == set(names)


async def test_changes_arrive(bench: Bench) -> None:
    async with bench.watching():
        await bench.make("a")
        at = await bench.heard.until(pod("a"))
        await bench.delete("a")
        await bench.heard.until(gone, at)


async def test_short_break_costs_no_list_and_no_event(bench: Bench) -> None:
    async with bench.watching(PATIENT) as watch:
        bench.cable.cut()
        await bench.make("a")
        bench.cable.mend()
        await bench.heard.until(pod("a"))
        assert watch.list_count == 1
        assert not any(map(stale, bench.heard.events))


async def test_pod_deleted_during_a_broken_connection_is_reported_gone(bench: Bench) -> None:
    async with bench.watching() as watch:
        await bench.make("a")
        await bench.make("b")
        at = await bench.heard.until(pod("b"))
        bench.cable.cut()
        at = await bench.heard.until(stale, at)
        await bench.delete("a")
        assert not watch.is_fresh
        bench.cable.mend()
        at = await bench.heard.until(gone, at)
        await bench.heard.until(fresh, at)
        assert sum(map(gone, bench.heard.events)) == 1


async def test_dead_connection_is_noticed_and_left(bench: Bench) -> None:
    async with bench.watching(replace(QUICK, silence=1.0)):
        bench.cable.freeze()
        at = await bench.heard.until(stale)
        await bench.make("a")
        bench.cable.thaw()
        await bench.heard.until(pod("a"), at)
        await bench.heard.until(fresh, at)


async def test_watch_continues_after_the_server_ends_it(bench: Bench) -> None:
    async with bench.watching(replace(PATIENT, follow=(1.0, 1.0))) as watch:
        for name in "abc":
            at = len(bench.heard.events)
            await bench.make(name)
            await bench.heard.until(pod(name), at)
            await asyncio.sleep(1.0)  # the server's own time limit
        assert watch.list_count == 1
        assert not any(map(stale, bench.heard.events))


async def test_catch_up_delivers_events_delayed_by_a_frozen_connection(bench: Bench) -> None:
    async with bench.watching(PATIENT) as watch:
        bench.cable.freeze()
        await bench.make("a")
        asked = asyncio.create_task(watch.catch_up())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), 1.0)
        assert not any(map(pod("a"), bench.heard.events))
        assert watch.is_fresh  # by its own knowledge
        bench.cable.thaw()
        await asked
        shown = next(n for n, event in enumerate(bench.heard.events) if pod("a")(event))
        assert stale(bench.heard.events[shown - 1])  # a list does not prove the earlier changes
        assert watch.is_fresh


async def test_catch_up_reports_deleted_pods(bench: Bench) -> None:
    async with bench.watching(PATIENT) as watch:
        await bench.make("a")
        await bench.heard.until(pod("a"))
        bench.cable.freeze()
        await bench.delete("a")
        bench.cable.drop()
        bench.cable.thaw()
        await watch.catch_up()
        assert sum(map(gone, bench.heard.events)) == 1


async def test_a_long_list_is_not_read_whole_to_catch_up(bench: Bench) -> None:
    for n in range(5):
        await bench.make(f"p{n}")
    async with bench.watching(PATIENT) as watch:
        await bench.make("late")
        await watch.catch_up()
        assert any(map(pod("late"), bench.heard.events))
        await bench.make_other()
        await watch.catch_up()  # pods did not change since, so only a bookmark can confirm it
        assert watch.list_count == 1
        assert not any(map(stale, bench.heard.events))


async def test_a_watch_that_gets_nowhere_lists_to_catch_up(bench: Bench) -> None:
    for n in range(5):
        await bench.make(f"p{n}")
    async with bench.watching(replace(QUICK, catch_up=0.0)) as watch:
        await bench.make("late")
        await watch.catch_up()
        assert any(map(pod("late"), bench.heard.events))
        assert watch.list_count <= 2
