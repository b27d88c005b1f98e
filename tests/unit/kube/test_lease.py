"""Leadership by lease when the API server or another client misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.kube.lease import LeaseLeadership
from tests.fakes.fake_leases import Leases

DURATION = 1.0
PATH = "/apis/coordination.k8s.io/v1/namespaces/fairgate-system/leases/fairgate-controller"


class Clock:
    """Real time plus an offset of the test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


def candidate(leases: Leases, name: str, clock: Clock | None = None) -> LeaseLeadership:
    return LeaseLeadership(
        leases,
        "fairgate-system",
        name,
        makes_progress=lambda: True,
        duration=DURATION,
        clock=clock or Clock(),
    )


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
async def leader(leases: Leases) -> AsyncIterator[LeaseLeadership]:
    leadership = candidate(leases, "first")
    await leadership.acquire()
    yield leadership
    leases.silent = leases.deaf = False
    await leadership.release_lease()


async def test_errors_are_survived_until_validity_ends(
    leases: Leases, leader: LeaseLeadership
) -> None:
    begun = asyncio.get_running_loop().time()
    leases.silent = True
    assert leader.seconds_left() > 0
    await leader.wait_until_lost()
    assert leader.seconds_left() <= 0
    assert asyncio.get_running_loop().time() - begun > DURATION / 2


async def test_leadership_survives_a_short_outage(leases: Leases, leader: LeaseLeadership) -> None:
    before = leases.stored[PATH]["metadata"]["resourceVersion"]
    leases.silent = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leader.wait_until_lost(), DURATION / 3)
    leases.silent = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leader.wait_until_lost(), DURATION * 1.5)
    assert leader.seconds_left() > 0
    assert leases.stored[PATH]["metadata"]["resourceVersion"] != before


async def test_lost_replies_are_not_taken_for_another_leader(
    leases: Leases, leader: LeaseLeadership
) -> None:
    leases.deaf = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leader.wait_until_lost(), DURATION / 2)
    leases.deaf = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leader.wait_until_lost(), DURATION * 1.5)
    assert leader.seconds_left() > 0


@pytest.mark.parametrize("how", ["edited", "deleted"])
async def test_leadership_ends_if_the_lease_is_edited_or_deleted(
    leases: Leases, leader: LeaseLeadership, how: str
) -> None:
    if how == "edited":
        leases.edit(PATH, holderIdentity="somebody")
    else:
        del leases.stored[PATH]
    await asyncio.wait_for(leader.wait_until_lost(), DURATION)
    assert leader.seconds_left() <= 0


async def test_validity_ends_while_a_renewal_hangs(leases: Leases) -> None:
    class Hanging(Leases):
        hang = False

        async def request(self, *args: object, **kwargs: object) -> bytes:
            if self.hang:
                await asyncio.Event().wait()
            return await super().request(*args, **kwargs)  # type: ignore[arg-type]

    hanging = Hanging()
    leadership = candidate(hanging, "first")
    await leadership.acquire()
    hanging.hang = True
    await asyncio.wait_for(leadership.wait_until_lost(), DURATION * 1.5)
    assert leadership.seconds_left() <= 0
    hanging.hang = False
    await leadership.release_lease()


async def test_process_that_slept_is_no_longer_valid(leases: Leases) -> None:
    clock = Clock()
    leadership = candidate(leases, "first", clock)
    await leadership.acquire()
    clock.ahead += DURATION  # this process was suspended meanwhile
    assert leadership.seconds_left() <= 0
    await asyncio.wait_for(leadership.wait_until_lost(), DURATION)
    assert await leadership.acquire() == 1
    await leadership.release_lease()


async def test_shortened_record_does_not_hurry_a_candidate(
    leases: Leases, leader: LeaseLeadership
) -> None:
    watching = candidate(leases, "second")
    leases.edit(PATH, holderIdentity="gone", leaseDurationSeconds=0, renewTime="1999")
    begun = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(watching.acquire(), DURATION * 3) == 1
    assert asyncio.get_running_loop().time() - begun >= 0.9 * DURATION
    await watching.release_lease()


async def test_clock_of_the_record_plays_no_part(leases: Leases, leader: LeaseLeadership) -> None:
    leases.edit(PATH, renewTime="1999-01-01T00:00:00.000000Z")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(candidate(leases, "second").acquire(), DURATION * 2)
    assert leader.seconds_left() > 0


async def test_deleted_lease_is_not_taken_before_its_holder_has_stopped(
    leases: Leases, leader: LeaseLeadership
) -> None:
    second = candidate(leases, "second")
    waiting = asyncio.create_task(second.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), DURATION / 2)
    del leases.stored[PATH]
    await asyncio.wait_for(waiting, DURATION * 3)
    assert leader.seconds_left() <= 0
    await second.release_lease()
