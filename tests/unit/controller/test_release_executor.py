"""Releases of pods without managed requests take no slot of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from app.controller.event_queue import EventQueue
from app.controller.release_executor import Releases
from app.core.effects import Intend, PodRef, Release
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    PoolName,
    ReleaseOutcome,
    TenantName,
    Uid,
    UserName,
)
from app.core.scheduling.cycle import NO_POOL
from tests.support.controller_rig import FakeLead, FakeMeters


class OpenStore:
    """The part of a `StoreWriter` that writes intents."""

    async def write_intents(self, intents: Sequence[Intend]) -> bool:
        return True


class SlowReleaser:
    """A `ports.cluster.Releaser` whose requests for pods without a pool never end."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def release(self, order: Release) -> ReleaseOutcome:
        self.begun.append(order.intent.ref.name)
        if order.intent.pool == NO_POOL:
            await asyncio.Event().wait()
        return ReleaseOutcome.RELEASED


def release(name: str, pool: PoolName) -> Release:
    ref = PodRef(Uid(name), "space", name)
    intent = Intend(ref, TenantName("a"), UserName("u"), pool, {}, 7, 1)
    return Release(intent, "0", {}, {}, True, True, True, True, Millis(0))


async def test_slow_releases_of_pods_without_devices_delay_no_other() -> None:
    releaser, answers, parts = SlowReleaser(), EventQueue(), cast(Any, OpenStore())
    releases = Releases(
        cast(Any, releaser),
        parts,
        FakeLead(),
        answers,
        FakeMeters(),
        lambda: Millis(0),
        4,
        lambda: None,
    )
    for number in range(20):
        releases.start_release(release(f"slow-{number}", NO_POOL))
    releases.start_release(release("gpu", DEFAULT_POOL))
    async with asyncio.timeout(20):
        [answer] = await answers.take_batch(20)
    assert getattr(answer, "uid", None) == "gpu"
    assert sorted(releaser.begun) == ["gpu", "slow-0"]
    await releases.stop()
