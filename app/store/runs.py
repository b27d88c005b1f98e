"""The runs in Redis, next to what the leader copies: its `apply` writes them, here they are read.

What is not legible is left out: whoever can write Redis can write there, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from app.core.fair.runs import Run
from app.core.model import Millis
from app.store import layout
from app.store.connection import Server
from app.store.scripts import Scripts

PAGE = 250
"""Runs read at once: who reads many lets others have their turn in between."""
STEP = 500
"""Runs removed at once: Redis serves nobody else meanwhile, for some milliseconds."""

ILLEGIBLE = (msgspec.DecodeError, ValueError, TypeError, RecursionError)
"""What reading a record raises that nobody of ours can have written."""


async def running(scripts: Scripts) -> tuple[Run, ...]:
    """Return the runs that go on, by pod."""
    (flat,) = await scripts.run("running")
    found = []
    for uid, record in sorted(zip(flat[::2], flat[1::2], strict=True)):
        with contextlib.suppress(*ILLEGIBLE):
            found.append(layout.running(uid, record))
    return tuple(found)


class RedisRuns:
    """`ports.RunReader` and `ports.RunKeeper` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def running(self) -> tuple[Run, ...]:
        """The runs that go on."""
        return await running(self._scripts)

    async def ran(self, after: Millis) -> AsyncIterator[Run]:
        """The runs that ended after this time, by their end; some may come twice."""
        last = b""
        while True:
            flat = await self._scripts.run("ran", after, last, PAGE)
            for name, record in zip(flat[::2], flat[1::2], strict=True):
                with contextlib.suppress(*ILLEGIBLE):
                    yield layout.ran(name, record)
            if len(flat) < 2 * PAGE:
                return
            last = flat[-2]

    async def complete_since(self) -> Millis | None:
        """From when on no run is missing; None: nobody can tell yet."""
        (since,) = await self._scripts.run("since")
        return Millis(int(since)) if since.isdigit() else None

    async def trim(self, epoch: int, now: Millis, before: Millis, most: int) -> bool:
        """Remove some of the runs that ended before, or are too many; True: there may be more."""
        (removed,) = await self._scripts.run("trim", epoch, now, before, most, STEP)
        return int(removed) >= STEP
