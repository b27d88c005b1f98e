"""Reads the releases of the last week from the audit chain, and remembers them.

Each read continues after the last entry, so a request costs the new entries only. Entries are not
verified: the figures inform people, and no release depends on them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from app.core.audit.codec import parse_line
from app.core.audit_entry import Entry, EntryType
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.core.usage.release_sums import ReleasedPod, released_pod
from app.ports.audit import AuditReader, iterate_lines
from app.web.api.audit_reader import SKEW, entry_time, entry_type_of, find_start_number

WEEK = Millis(7 * 24 * 3_600_000)

DAY = 24 * 3_600_000
"""No clock is this far ahead. Entries with later times are left out."""

MOST_RELEASES = 200_000
"""Most releases in memory; about 40 MB. The oldest ones are dropped."""

_READ = (EntryType.RELEASED.value, EntryType.GAP.value)


class ReleaseReader:
    """The releases of the last week. `complete_since`: the time from which they are complete.

    `complete_since` is None as long as the chain is empty.
    """

    def __init__(
        self,
        chain: AuditReader,
        managed: ManagedResources,
        now: Callable[[], Millis],
        max_releases: int = MOST_RELEASES,
    ) -> None:
        self.complete_since: Millis | None = None
        self._chain = chain
        self._managed = managed
        self._now = now
        self._max_releases = max_releases
        self._releases: deque[ReleasedPod] = deque()
        self._last_number = 0
        self._lock = asyncio.Lock()

    async def read_new_entries(self) -> None:
        """Read the entries since the last call. Raises StoreError."""
        async with self._lock:
            last = (await self._chain.read_tail()).last_head.number
            week = Millis(max(0, self._now() - WEEK))
            if last < self._last_number or self.complete_since is None:
                await self._restart(week, last)
            async for number, text in iterate_lines(self._chain, self._last_number, last):
                self._add_entry(text)
                self._last_number = number
            self._drop_old_releases(week)

    def releases_between(self, begin: Millis, end: Millis) -> Iterator[ReleasedPod]:
        """Yield the releases at or after `begin` and before `end`, the newest first."""
        for each in reversed(self._releases):
            if each.at < begin - SKEW:
                return
            if begin <= each.at < end:
                yield each

    async def _restart(self, week: Millis, last: int) -> None:
        """Forget everything, because the chain is new or was replaced."""
        self._releases.clear()
        self._last_number = 0 if not last else await find_start_number(self._chain, week, last)
        first = await self._chain.read_lines(0, 1)
        begins = entry_time(first[0][1]) if first else None
        self.complete_since = None if begins is None else max(begins, week)

    def _add_entry(self, text: str) -> None:
        if entry_type_of(text) not in _READ:
            return
        try:
            entry = parse_line(text)
        except InvalidInput:  # any client of Redis can write there
            return
        if not isinstance(entry, Entry) or entry.record.at > self._now() + DAY:
            return
        if entry.record.entry_type is EntryType.GAP:
            self.complete_since = max(self.complete_since or entry.record.at, entry.record.at)
        elif (found := released_pod(entry.record, self._managed)) is not None:
            self._releases.append(found)

    def _drop_old_releases(self, week: Millis) -> None:
        """Drop the releases that are older than a week, or too many."""
        releases = self._releases
        while releases and (releases[0].at < week or len(releases) > self._max_releases):
            at = releases.popleft().at
            if at >= week:
                self.complete_since = max(self.complete_since or at, at)
