"""Contract of reading the events of pods, for the fake and for a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

from app.core.errors import ClusterUnavailable
from app.core.model import Millis
from app.kube.client import Client
from app.kube.event_reader import PAGE, PodEventReader
from app.ports.api import PodEvent, PodEvents
from app.web.api.formatting import to_datetime
from tests.fakes.fake_pod_events import FakePodEvents

FIRST = Millis(1_767_323_045_000)


class Place(Protocol):
    """Events that can be created and read."""

    reader: PodEvents

    async def create(self, name: str, event: PodEvent) -> None: ...


class Fake:
    def __init__(self) -> None:
        self.reader = FakePodEvents()

    async def create(self, name: str, event: PodEvent) -> None:
        self.reader.add("default", name, event)


class Real:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.reader = PodEventReader(client)

    async def create(self, name: str, event: PodEvent) -> None:
        at = datetime.fromtimestamp(event.at / 1000, UTC)
        await self.post(
            name,
            reason=event.reason,
            message=event.message,
            type="Warning" if event.warning else "Normal",
            source={"component": event.source},
            reportingComponent=event.source,
            firstTimestamp=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            lastTimestamp=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            count=event.count,
        )

    async def post(self, name: str, **fields: Any) -> None:
        body = {
            "metadata": {"generateName": f"{name}."},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": name},
            **fields,
        }
        await self.client.request("POST", "/api/v1/namespaces/default/events", body=body)


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    client = await Client.connect(Path(request.getfixturevalue("cluster").kubeconfig))
    yield client
    await client.close()


@pytest.fixture(params=["fake", "real"])
def place(request: pytest.FixtureRequest) -> Place:
    return Fake() if request.param == "fake" else Real(request.getfixturevalue("client"))


@pytest.fixture
def name() -> str:
    return f"train-{uuid.uuid4().hex[:8]}"


def event(seconds: int, reason: str, **changes: Any) -> PodEvent:
    fields = {"message": f"{reason}: why", "source": "fairgate", "warning": False, "count": 1}
    return PodEvent(Millis(FIRST + 1000 * seconds), reason, **{**fields, **changes})


async def test_the_events_of_a_pod_are_read_newest_first(place: Place, name: str) -> None:
    scheduled = event(9, "FailedScheduling", source="default-scheduler", warning=True, count=3)
    told = [event(0, "Held"), scheduled, event(5, "Released")]
    for each in told:
        await place.create(name, each)
    await place.create(f"{name}-1", event(3, "Held"))
    assert await place.reader.read_pod_events("default", name, 50) == (
        [told[1], told[2], told[0]],
        False,
    )
    assert await place.reader.read_pod_events("default", name, 2) == ([told[1], told[2]], True)
    assert await place.reader.read_pod_events("other", name, 50) == ([], False)


async def test_an_event_of_a_new_client_has_its_time_and_number(client: Client, name: str) -> None:
    real, now = Real(client), "2026-01-02T03:04:05.000000Z"
    await real.post(
        name,
        eventTime=now,
        series={"count": 7, "lastObservedTime": "2026-01-02T03:04:09.000000Z"},
        reportingComponent="kubelet",
        reportingInstance="node-0",
        action="Pulling",
        reason="Failed",
        type="Warning",
    )
    [found] = (await real.reader.read_pod_events("default", name, 50)).items
    assert (found.at, found.count) == (FIRST + 4000, 7)
    assert (found.reason, found.source, found.warning) == ("Failed", "kubelet", True)


@pytest.mark.parametrize("odd", [",", ",involvedObject.namespace=default", "\n", "A"])
async def test_a_name_that_no_pod_can_have_has_no_events(
    client: Client, name: str, odd: str
) -> None:
    real = Real(client)
    await real.create(name, event(0, "Held"))
    assert await real.reader.read_pod_events("default", f"{name}{odd}", 50) == ([], False)


async def test_event_with_an_invalid_time_has_its_creation_time(client: Client, name: str) -> None:
    real = Real(client)
    for odd in ("0000-01-01T00:00:00Z", "0001-02-03T00:00:00Z", "9999-12-31T23:59:59-23:59"):
        await real.post(name, reason="Odd", message="m", lastTimestamp=odd, firstTimestamp=odd)
    await real.create(name, event(0, "Held"))
    found = (await real.reader.read_pod_events("default", name, 50)).items
    assert [each.reason for each in found] == ["Odd", "Odd", "Odd", "Held"]  # the time of creation
    assert all(to_datetime(each.at).year < 9999 for each in found)


async def test_an_event_of_the_last_moment_of_the_calendar_has_a_time(
    client: Client, name: str
) -> None:
    real, last = Real(client), "9999-12-31T23:59:59.999999Z"
    await real.post(
        name,
        eventTime=last,
        reportingComponent="kubelet",
        reportingInstance="node-0",
        action="Pulling",
        reason="Odd",
        type="Normal",
    )
    [found] = (await real.reader.read_pod_events("default", name, 50)).items
    assert to_datetime(found.at).year == 9999


async def test_many_and_large_events_are_read_in_part(client: Client, name: str) -> None:
    real = Real(client)
    for _ in range(PAGE + 2):
        await real.post(name, reason="Large", message="x" * 250_000)
    found = await real.reader.read_pod_events("default", name, 50)
    assert (len(found.items), found.is_cut) == (PAGE, True)
    assert {len(each.message) for each in found.items} == {1024}


@pytest.mark.parametrize("answer", [b"{", b"{}", b'{"items":[{}],"metadata":{}}'])
async def test_a_garbled_answer_is_an_unavailable_cluster(answer: bytes) -> None:
    class Garbled:
        async def request(self, *_: object, **__: object) -> bytes:
            return answer

    with pytest.raises(ClusterUnavailable, match="garbled"):
        await PodEventReader(Garbled()).read_pod_events("default", "p", 50)  # type: ignore[arg-type]
