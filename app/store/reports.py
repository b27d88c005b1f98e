"""What other processes report for the audit chain, kept in Redis until the leader has told it.

The step that seals an entry removes its report, so that each is told once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain

from app.core.audit import Deed, Record
from app.core.audit_lines import plain
from app.core.model import Millis
from app.ports import Report
from app.store.connection import Server
from app.store.scripts import Scripts

MOST = 10_000
"""Reports that may wait for a leader; later ones are dropped, and counted."""


class RedisReports:
    """`ports.Reports` on Redis."""

    def __init__(self, server: Server, cluster: str, *, most: int = MOST) -> None:
        self._scripts = Scripts(server, cluster)
        self._most = most

    async def push(self, reports: Sequence[Report]) -> int:
        """Keep these, each once; return how many there was no room for."""
        flat = chain.from_iterable((each.id, _text(each.record)) for each in reports)
        (dropped,) = await self._scripts.run("report", self._most, *flat)
        return int(dropped)

    async def waiting(self, limit: int) -> Sequence[Report]:
        """Return some that were not told yet, by id; what cannot be read says so."""
        flat = await self._scripts.run("reports", limit)
        found = [
            Report(name.decode(errors="replace"), _record(text))
            for name, text in zip(flat[::2], flat[1::2], strict=True)
        ]
        return sorted(found, key=lambda each: each.id)

    async def drop(self, report: str) -> None:
        """Remove one that was told."""
        await self._scripts.run("drop", report)


def _text(record: Record) -> str:
    fields = {"at": record.at, "deed": record.deed.value, "facts": plain(record.facts)}
    return json.dumps(fields, separators=(",", ":"))


def _record(text: bytes) -> Record:
    try:
        fields = json.loads(text)
        facts = fields["facts"]
        if isinstance(facts, Mapping):
            return Record(Millis(int(fields["at"])), Deed(fields["deed"]), plain(facts))
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return Record(Millis(0), Deed.REFUSED, {"why": "a report that cannot be read"})
