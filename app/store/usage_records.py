"""Usage records in Redis. The script `apply_writes` writes them; this module reads and trims them.

Invalid records are skipped, because any client of Redis can write there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis
from app.store import schema
from app.store.connection import Server
from app.store.lua_scripts import Scripts

PAGE = 250
"""Records per read. Other clients of Redis are served between two reads."""
STEP = 500
"""Records per removal. It blocks Redis for some milliseconds."""

INVALID_RECORD_ERRORS = (msgspec.DecodeError, ValueError, TypeError, RecursionError)
"""Errors while parsing a record that no Fairgate process wrote."""


async def read_open_records(scripts: Scripts) -> tuple[UsageRecord, ...]:
    """Return the open usage records, by pod."""
    (flat,) = await scripts.run_script("usage_open")
    found = []
    for uid, record in sorted(zip(flat[::2], flat[1::2], strict=True)):
        with contextlib.suppress(*INVALID_RECORD_ERRORS):
            found.append(schema.decode_open_record(uid, record))
    return tuple(found)


class RedisRuns:
    """`ports.store.UsageRecordReader` and `ports.store.UsageRetentionStore` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records."""
        return await read_open_records(self._scripts)

    async def read_ended_usage(self, after: Millis) -> AsyncIterator[UsageRecord]:
        """Yield the usage records that ended after `after`, by end. Some may be yielded twice."""
        last = b""
        while True:
            flat = await self._scripts.run_script("usage_ended", after, last, PAGE)
            for name, record in zip(flat[::2], flat[1::2], strict=True):
                with contextlib.suppress(*INVALID_RECORD_ERRORS):
                    yield schema.decode_ended_record(name, record)
            if len(flat) < 2 * PAGE:
                return
            last = flat[-2]

    async def complete_since(self) -> Millis | None:
        """Return the time from which usage records are complete, or None if it is not known yet."""
        (since,) = await self._scripts.run_script("usage_complete_since")
        return Millis(int(since)) if since.isdigit() else None

    async def trim(self, epoch: int, now: Millis, before: Millis, most: int) -> bool:
        """Remove records that ended before `before` or exceed `most`. True: there may be more."""
        (removed,) = await self._scripts.run_script("usage_trim", epoch, now, before, most, STEP)
        return int(removed) >= STEP
