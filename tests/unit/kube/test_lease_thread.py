"""A Lease that is renewed while the event loop of the process is blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app.kube.client import Client
from app.kube.lease import LeaseLeadership
from app.kube.lease_thread import LeaseThread
from tests.fakes.fake_leases import Leases

DURATION = 1.0
RENEWALS = 8
"""More than fit in one term of the Lease."""


class Counted(Leases):
    """Leases in memory that count renewals. Their client may be closed only once."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = threading.Semaphore(0)
        self.closed = False
        self.threads: set[str] = set()

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        answer = await super().request(method, path, **options)
        self.threads.add(threading.current_thread().name)
        if method == "PATCH":
            self.patched.release()
        return answer

    async def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self) -> None:
        self.leases = Counted()
        self.progresses = True
        self.lead = LeaseThread(self._connect, self._leadership)

    async def _connect(self) -> Client:
        return cast("Client", self.leases)

    def _leadership(self, client: Client) -> LeaseLeadership:
        return LeaseLeadership(
            client, "default", "first", makes_progress=lambda: self.progresses, duration=DURATION
        )


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.lead.close()


async def test_lease_is_renewed_while_the_event_loop_is_blocked(rig: Rig) -> None:
    await rig.lead.acquire()
    for _ in range(RENEWALS):
        assert rig.leases.patched.acquire(timeout=30)  # blocks this event loop
    assert rig.lead.seconds_left() > 0
    assert rig.leases.threads == {"lease"}
    await rig.lead.release_lease()


async def test_process_without_progress_loses_the_lease(rig: Rig) -> None:
    await rig.lead.acquire()
    rig.progresses = False
    await rig.lead.wait_until_lost()
    assert rig.lead.seconds_left() <= 0


async def test_lease_is_invalid_as_soon_as_its_release_begins(rig: Rig) -> None:
    await rig.lead.acquire()
    giving = asyncio.create_task(rig.lead.release_lease())
    await asyncio.sleep(0)
    assert rig.lead.seconds_left() <= 0
    await giving
    await rig.lead.wait_until_lost()


async def test_fitness_is_judged_in_the_event_loop_of_the_caller(rig: Rig) -> None:
    asked: list[threading.Thread] = []

    async def fit() -> bool:
        asked.append(threading.current_thread())
        return len(asked) > 1

    assert await rig.lead.acquire(fit) == 0
    assert asked == [threading.current_thread()] * 2
    await rig.lead.release_lease()


async def test_candidate_that_stops_waiting_can_ask_again(rig: Rig) -> None:
    async def unfit() -> bool:
        return False

    waiting = asyncio.create_task(rig.lead.acquire(unfit))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), DURATION / 5)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert await rig.lead.acquire() == 0
    await rig.lead.release_lease()


async def test_closing_ends_thread_and_connections(rig: Rig) -> None:
    await rig.lead.acquire()
    await rig.lead.release_lease()
    await rig.lead.close()
    assert rig.leases.closed
    assert "lease" not in {thread.name for thread in threading.enumerate()}
