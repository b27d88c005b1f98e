"""Contract of leader election, for the fake and for a Lease on a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from app.core.errors import ClusterUnavailable
from app.kube.client import Client
from app.kube.lease import LeaseLeadership
from app.ports.leadership import Leadership
from tests.fakes.fake_leases import Election, FakeLeadership

DURATION = 1.0


class World(Protocol):
    """The candidates of one election."""

    def candidate(self, name: str) -> Leadership: ...

    async def silence(self, leadership: Any) -> None:
        """Cut this candidate off from now on."""


class FakeWorld:
    def __init__(self) -> None:
        self.election = Election()

    def candidate(self, name: str) -> Leadership:
        return FakeLeadership(self.election)

    async def silence(self, leadership: Any) -> None:
        await self.election.lapse()


class Mute:
    """A client that can be cut off from the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.silent = False

    async def request(self, *args: Any, **kwargs: Any) -> bytes:
        if self.silent:
            raise ClusterUnavailable("no answer")
        return await self._client.request(*args, **kwargs)


class RealWorld:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = f"election-{uuid.uuid4().hex[:8]}"
        self._apis: dict[int, Mute] = {}

    def candidate(self, name: str) -> Leadership:
        api = Mute(self._client)
        leadership = LeaseLeadership(
            api,
            "default",
            name,
            makes_progress=lambda: True,
            name=self._name,
            duration=DURATION,
        )
        self._apis[id(leadership)] = api
        return leadership

    async def silence(self, leadership: Any) -> None:
        self._apis[id(leadership)].silent = True


@pytest.fixture(params=["fake", "real"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    yield RealWorld(client)
    await client.close()


async def test_first_candidate_acquires_the_lease(world: World) -> None:
    first = world.candidate("first")
    assert first.seconds_left() <= 0
    assert await first.acquire() == 0
    assert first.seconds_left() > 0
    await first.release_lease()


async def test_second_waits_for_the_first(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), DURATION * 2)
    assert first.seconds_left() > 0
    assert second.seconds_left() <= 0
    await first.release_lease()
    # Not exactly 1: if the answer to a write is lost, the candidate takes the Lease once more.
    assert await asyncio.wait_for(waiting, DURATION) >= 1
    assert second.seconds_left() > 0
    await second.release_lease()


async def test_giving_up_ends_leadership_at_once(world: World) -> None:
    first = world.candidate("first")
    await first.acquire()
    lost = asyncio.create_task(first.wait_until_lost())
    await first.release_lease()
    assert first.seconds_left() <= 0
    await asyncio.wait_for(lost, 30)


async def test_each_term_has_a_higher_number(world: World) -> None:
    first = world.candidate("first")
    terms = []
    for _ in range(3):
        terms.append(await first.acquire())
        await first.release_lease()
    assert terms == sorted(set(terms))


async def test_silent_leader_has_ended_before_the_next_begins(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await world.silence(first)
    assert await asyncio.wait_for(waiting, DURATION * 4) >= 1
    assert first.seconds_left() <= 0
    await asyncio.wait_for(first.wait_until_lost(), 1)
    await second.release_lease()


async def test_candidate_may_stop_waiting(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first.acquire()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(), DURATION / 4)
    await second.release_lease()
    assert first.seconds_left() > 0
    assert second.seconds_left() <= 0
    await first.release_lease()
