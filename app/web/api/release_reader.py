"""Reads the releases of the last week from the audit chain, and remembers them.

Each read continues after the last entry, so a request costs the new entries only. Entries are not
verified: the figures inform people, and no release depends on them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from app.core.audit.codec import read
from app.core.audit_entry import Entry, EntryType
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.core.usage.release_sums import ReleasedPod, released_pod
from app.ports.audit import AuditReader
from app.web.api.audit_reader import SKEW, beginning, deed_of, time_of, walk

WEEK = Millis(7 * 24 * 3_600_000)

MOST = 200_000
"""Most releases in memory; about 40 MB. The oldest ones are dropped."""

_READ = (EntryType.RELEASED.value, EntryType.GAP.value)


class ReleaseReader:
    """The releases of the last week. `since`: the time from which they are complete.

    `since` is None as long as the chain is empty.
    """

    def __init__(
        self,
        chain: AuditReader,
        managed: ManagedResources,
        now: Callable[[], Millis],
        most: int = MOST,
    ) -> None:
        self.since: Millis | None = None
        self._chain = chain
        self._managed = managed
        self._now = now
        self._most = most
        self._releases: deque[ReleasedPod] = deque()
        self._last = 0
        self._turn = asyncio.Lock()

    async def read_new(self) -> None:
        """Read the entries since the last call. Raises StoreError."""
        async with self._turn:
            last = (await self._chain.ending()).last.number
            week = Millis(max(0, self._now() - WEEK))
            if last < self._last or self.since is None:
                await self._restart(week, last)
            async for number, text in walk(self._chain, self._last, last):
                self._add(text)
                self._last = number
            self._drop(week)

    def between(self, begin: Millis, end: Millis) -> Iterator[ReleasedPod]:
        """Yield the releases at or after `begin` and before `end`, the newest first."""
        for each in reversed(self._releases):
            if each.at < begin - SKEW:
                return
            if begin <= each.at < end:
                yield each

    async def _restart(self, week: Millis, last: int) -> None:
        """Forget everything, because the chain is new or was replaced."""
        self._releases.clear()
        self._last = 0 if not last else await beginning(self._chain, week, last)
        first = await self._chain.lines(0, 1)
        begins = time_of(first[0][1]) if first else None
        self.since = None if begins is None else max(begins, week)

    def _add(self, text: str) -> None:
        if deed_of(text) not in _READ:
            return
        try:
            entry = read(text)
        except InvalidInput:  # any client of Redis can write there
            return
        if not isinstance(entry, Entry):
            return
        if entry.record.entry_type is EntryType.GAP:
            self.since = max(self.since or entry.record.at, entry.record.at)
        elif (found := released_pod(entry.record, self._managed)) is not None:
            self._releases.append(found)

    def _drop(self, week: Millis) -> None:
        """Drop the releases that are older than a week, or too many."""
        releases = self._releases
        while releases and (releases[0].at < week or len(releases) > self._most):
            at = releases.popleft().at
            if at >= week:
                self.since = max(self.since or at, at)
