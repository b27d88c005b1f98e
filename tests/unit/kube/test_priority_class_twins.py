"""The watchdog of twins with a client that acts like an API server and like other replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.core.admission.priority_class_twins import NO_CLASS_TWIN, PriorityClass
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.events import PriorityGone, PriorityObserved, SourceFresh, WatchedSource
from app.core.model import Millis
from app.k8s_types import objects
from app.kube.priority_class_twins import PATH, Twins, read_priority
from tests.fakes.fake_event_sink import Heard

NOW = Millis(0)
HIGH = PriorityClass("high", 1000, uid="u-high")
TWIN = PriorityClass("fairgate-high", 1000, never_preempts=True, is_ours=True, uid="u-twin")


class Server:
    """PriorityClasses by name. Writes come back as events, as from a watch."""

    def __init__(self, *classes: PriorityClass) -> None:
        self.classes = {each.name: each for each in classes}
        self.written: list[str] = []
        self.answers: list[Exception] = []
        self.twins: Twins | None = None

    async def request(self, method: str, path: str, *, body: Any) -> bytes:
        assert self.twins is not None
        if self.answers:
            raise self.answers.pop(0)
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.classes:
                raise ClusterRefused("there is one", 409)
            made = read_priority(wire_of(body), NOW).priority
            self.classes[name] = made
            await self.twins.put(PriorityObserved(NOW, made))
        else:
            name = path.removeprefix(PATH + "/")
            assert body["preconditions"]["uid"] == self.classes[name].uid
            del self.classes[name]
            await self.twins.put(PriorityGone(NOW, name))
        self.written.append(f"{method} {name}")
        return b"{}"


def wire_of(body: dict[str, Any]) -> objects.PriorityClassObject:
    meta = objects.Metadata(name=body["metadata"]["name"], labels=body["metadata"].get("labels"))
    return objects.PriorityClassObject(
        meta, body["value"], body.get("globalDefault", False), body.get("preemptionPolicy")
    )


@asynccontextmanager
async def keeping(server: Server, heard: Heard | None = None) -> AsyncIterator[Twins]:
    """Maintain the twins of a server with a complete list until the block ends."""
    twins = server.twins = Twins(server, heard or Heard())  # type: ignore[arg-type]
    running = asyncio.create_task(twins.maintain_twins())
    for each in list(server.classes.values()):
        await twins.put(PriorityObserved(NOW, each))
    await twins.put(SourceFresh(NOW, WatchedSource.PRIORITIES))
    try:
        yield twins
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def complete(twins: Twins) -> None:
    async with asyncio.timeout(10):
        while not twins.is_complete:
            await asyncio.sleep(0)


async def test_all_twins_are_created_before_completion_is_reported() -> None:
    server = Server(HIGH)
    async with keeping(server) as twins:
        assert not twins.is_complete
        await complete(twins)
    assert server.written == ["POST fairgate-high", f"POST {NO_CLASS_TWIN}"]
    assert server.classes["fairgate-high"].never_preempts
    assert server.classes["fairgate-high"].value == 1000


async def test_nothing_is_written_before_the_list_is_complete() -> None:
    server = Server()
    twins = server.twins = Twins(server, Heard())  # type: ignore[arg-type]
    running = asyncio.create_task(twins.maintain_twins())
    await twins.put(PriorityObserved(NOW, TWIN))  # its class is on the next page
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    assert server.written == []
    assert not twins.is_complete


async def test_received_events_are_forwarded() -> None:
    heard = Heard()
    async with keeping(Server(HIGH), heard) as twins:
        await complete(twins)
    assert heard.events[:2] == [
        PriorityObserved(NOW, HIGH),
        SourceFresh(NOW, WatchedSource.PRIORITIES),
    ]


async def test_twin_created_by_another_replica_is_no_error() -> None:
    server = Server(HIGH)
    server.answers = [ClusterRefused("there is one", 409), ClusterRefused("there is one", 409)]
    async with keeping(server) as twins:
        for name, value in (("fairgate-high", 1000), (NO_CLASS_TWIN, 0)):
            made = PriorityClass(name, value, never_preempts=True, is_ours=True)
            await twins.put(PriorityObserved(NOW, made))
        await complete(twins)
    assert server.written == []


async def test_class_recreated_with_another_value_gets_a_new_twin() -> None:
    server = Server(HIGH, TWIN)
    async with keeping(server) as twins:
        await complete(twins)
        server.classes["high"] = PriorityClass("high", 2000, uid="u-new")
        await twins.put(PriorityObserved(NOW, server.classes["high"]))
        async with asyncio.timeout(10):
            while server.classes.get("fairgate-high", TWIN).value != 2000:
                await asyncio.sleep(0)
    assert server.written[-2:] == ["DELETE fairgate-high", "POST fairgate-high"]


async def test_an_outage_is_waited_out() -> None:
    server = Server(HIGH)
    server.answers = [ClusterUnavailable("no answer")]
    async with keeping(server) as twins:
        await complete(twins)
    assert set(server.classes) == {"high", "fairgate-high", NO_CLASS_TWIN}


def test_class_is_parsed_with_value_owner_and_preemption_policy() -> None:
    labels = {"app.kubernetes.io/managed-by": "fairgate"}
    meta = objects.Metadata(name="fairgate-high", uid="u-twin", labels=labels)
    item = objects.PriorityClassObject(meta, 1000, preemption_policy="Never")
    assert read_priority(item, NOW) == PriorityObserved(NOW, TWIN)
