"""What other processes report for the audit chain, kept in Redis until the leader has told it.

The step that seals an entry removes its report, so that each is told once. Whoever can write Redis
can write here, so what is read is nothing but what one of ours could have reported.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import chain

from app.audit_ports import Report
from app.core.audit import REPORTED, Deed, Record
from app.core.chain.audit_lines import plain
from app.core.model import Millis
from app.store.connection import Server
from app.store.scripts import Scripts

MOST = 10_000
"""Reports that may wait for a leader; later ones are dropped, and counted."""

SPARE = 1_000
"""Room beyond that for what is no refusal: a flood of those must not hide it."""

LONGEST = 16 * 1024
"""Bytes of a report."""
LONGEST_FACT = 1024
LONGEST_NAME = 64
MOST_FACTS = 16

log = logging.getLogger("fairgate.audit")


class RedisReports:
    """`audit_ports.Reports` on Redis."""

    def __init__(self, server: Server, cluster: str, *, most: int = MOST) -> None:
        self._scripts = Scripts(server, cluster)
        self._most = {deed: most + SPARE * (deed is not Deed.REFUSED) for deed in REPORTED}

    async def push(self, reports: Sequence[Report]) -> Mapping[Deed, int]:
        """Keep these, each once; return of which deeds there was no room for how many."""
        dropped = {}
        for deed, most in self._most.items():
            some = [each for each in reports if each.record.deed is deed]
            flat = chain.from_iterable((each.id, _text(each.record)) for each in some)
            count = int((await self._scripts.run("report", most, *flat))[0]) if some else 0
            if count:
                dropped[deed] = count
        return dropped

    async def waiting(self, limit: int) -> Sequence[Report]:
        """Return some that were not told yet, by id; what is none of ours is removed."""
        flat = await self._scripts.run("reports", limit)
        found, odd = [], []
        for name, text in zip(flat[::2], flat[1::2], strict=True):
            report = _report(name, text)
            if report is None:
                odd.append(name)
            else:
                found.append(report)
        if odd:
            await self._scripts.run("drop", *odd)
            facts = {"dropped": len(odd)}
            log.error("Redis held reports that Fairgate cannot have written: dropped", extra=facts)
        return sorted(found, key=lambda each: each.id)


def _text(record: Record) -> str:
    fields = {"at": record.at, "deed": record.deed.value, "facts": plain(record.facts)}
    return json.dumps(fields, separators=(",", ":"))


def _report(name: bytes, text: bytes) -> Report | None:
    """Return what stands there, if one of ours can have reported it."""
    if len(name) > LONGEST_NAME or len(text) > LONGEST:
        return None
    try:
        fields = json.loads(text)
        at, deed, facts = fields["at"], Deed(fields["deed"]), fields["facts"]
        report = Report(name.decode(), Record(Millis(at), deed, facts))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return report if deed in REPORTED and _is_whole(at) and _is_flat(facts) else None


def _is_flat(facts: object) -> bool:
    if not isinstance(facts, dict) or len(facts) > MOST_FACTS:
        return False
    short = all(len(each) <= LONGEST_NAME for each in facts)
    return short and all(
        _is_whole(each) or (isinstance(each, str) and len(each) <= LONGEST_FACT)
        for each in facts.values()
    )


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53
