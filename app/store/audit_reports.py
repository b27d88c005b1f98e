"""Audit reports of other processes, stored in Redis until the leader has recorded them.

The step that seals an entry removes its report, so each report is recorded once. Any client of
Redis can write here, so only reports in the valid format are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import chain

from app.core.audit.codec import normalize_facts
from app.core.audit_entry import REPORTED, AuditRecord, EntryType
from app.core.model import Millis
from app.ports.audit import Report
from app.store.connection import Server
from app.store.lua_scripts import Scripts

MOST_REPORTS = 10_000
"""Maximum number of waiting reports. Later ones are dropped and counted."""

SPARE = 1_000
"""Additional capacity for reports other than refusals: many refusals must not displace them."""

MOST_BYTES = 16 * 1024
"""Maximum size of a report in bytes."""
LONGEST_FACT = 1024
LONGEST_NAME = 64
MOST_FACTS = 16

log = logging.getLogger("fairgate.audit")


class RedisReports:
    """`ports.audit.Reports` on Redis."""

    def __init__(self, server: Server, cluster: str, *, most: int = MOST_REPORTS) -> None:
        self._scripts = Scripts(server, cluster)
        self._limits = {
            entry_type: most + SPARE * (entry_type is not EntryType.REFUSED)
            for entry_type in REPORTED
        }

    async def add_reports(self, reports: Sequence[Report]) -> Mapping[EntryType, int]:
        """Store each report once. Return how many of each type did not fit."""
        dropped = {}
        for entry_type, most in self._limits.items():
            some = [each for each in reports if each.record.entry_type is entry_type]
            flat = chain.from_iterable((each.id, _encode_record(each.record)) for each in some)
            count = (
                int((await self._scripts.run_script("report_push", most, *flat))[0]) if some else 0
            )
            if count:
                dropped[entry_type] = count
        return dropped

    async def read_waiting_reports(self, limit: int) -> Sequence[Report]:
        """Return some unrecorded reports, by id. Invalid reports are removed."""
        flat = await self._scripts.run_script("report_list", limit)
        found, odd = [], []
        for name, text in zip(flat[::2], flat[1::2], strict=True):
            report = _decode_report(name, text)
            if report is None:
                odd.append(name)
            else:
                found.append(report)
        if odd:
            await self._scripts.run_script("report_drop", *odd)
            facts = {"dropped": len(odd)}
            log.error("Redis held reports that Fairgate cannot have written: dropped", extra=facts)
        return sorted(found, key=lambda each: each.id)


def _encode_record(record: AuditRecord) -> str:
    fields = {
        "at": record.at,
        "deed": record.entry_type.value,
        "facts": normalize_facts(record.facts),
    }
    return json.dumps(fields, separators=(",", ":"))


def _decode_report(name: bytes, text: bytes) -> Report | None:
    """Return the parsed report, or None if it is invalid."""
    if len(name) > LONGEST_NAME or len(text) > MOST_BYTES:
        return None
    try:
        fields = json.loads(text)
        at, entry_type, facts = fields["at"], EntryType(fields["deed"]), fields["facts"]
        report = Report(name.decode(), AuditRecord(Millis(at), entry_type, facts))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return report if entry_type in REPORTED and _is_whole(at) and _is_flat(facts) else None


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
