"""Audit chain entries: plain values, each bound by its hash to all earlier entries.

Storage, signing and output live elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from app.core.model import Millis

AuditMarkerList = tuple[tuple[str, str], ...]
"""Audit markers: key (uid of a pod, or KIND/NAME of a resource) and last recorded state."""

Fact = str | int | bool | None | Mapping[str, "Fact"] | tuple["Fact", ...]

UNKNOWN = "unknown"
"""Name of the user if it is not known."""


class EntryType(Enum):
    """Entry types. The JSON key is `deed`."""

    HELD = "held"
    """A pod starts to wait."""
    RELEASED = "released"
    ADOPTED = "adopted"
    REFUSED = "refused"
    """A request was refused at admission."""
    RECLAIMED = "reclaimed"
    """A pod was evicted, for another pod or for its own sake."""
    CHANGED = "changed"
    """A Tenant, Pool or the Policy was created, changed or deleted."""
    LEADING = "leading"
    """A term began or ended."""
    RESTORED = "restored"
    """A webhook configuration or policy was changed by another client and restored."""
    DELETED = "deleted"
    """A Tenant or Pool was deleted over REST. Names the user, because the deleted object cannot."""
    BYPASSED = "bypassed"
    """A pod runs without a gate and was never released, or was released for other claims."""
    CLAIM_DELETED = "claim-deleted"
    """A resource claim of a released pod without a node is being deleted: the pod cannot start."""
    GAP = "gap"
    """Entries were lost. The facts name the lost numbers."""
    PRUNED = "pruned"
    """Old entries were removed by retention. The facts name the last removed one."""
    KEY = "key"
    """Another key signs the heads from now on."""


REPORTED = frozenset((EntryType.REFUSED, EntryType.RESTORED, EntryType.DELETED))
"""Entry types that non-leaders may report. Only the leader records all others."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event to record. The engine emits records, other processes report them.

    `facts` has the names of the REST API, with amounts as text. `audit_markers` are audit markers.
    They are not part of the entry; they are stored beside the chain in the same step. A marker has
    the last recorded state of an existing object by key, "" removes it. The next leader reads the
    markers, so that each event is recorded exactly once.
    """

    at: Millis
    entry_type: EntryType
    facts: Mapping[str, Fact] = field(default_factory=dict)
    audit_markers: AuditMarkerList = field(default=(), compare=False)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode

GENESIS = "0" * 64
"""The hash before the first entry."""


@dataclass(frozen=True, slots=True)
class Head:
    """End of a chain: number of entries, and hash of the last one."""

    number: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Entry:
    """A sealed record. Numbers start at 1 and are consecutive, except for recorded gaps."""

    number: int
    epoch: int
    record: AuditRecord
    previous_hash: str
    hash: str

    @property
    def head(self) -> Head:
        """Return the head of the chain that ends with this entry."""
        return Head(self.number, self.hash)


def seal(head: Head, epoch: int, record: AuditRecord) -> Entry:
    """Return the record as the entry that follows `head`."""
    number = head.number + 1
    return Entry(number, epoch, record, head.hash, _digest(number, epoch, record, head.hash))


def is_intact(entry: Entry) -> bool:
    """Return whether the hash of the entry matches its contents."""
    return entry.hash == _digest(entry.number, entry.epoch, entry.record, entry.previous_hash)


def _digest(number: int, epoch: int, record: AuditRecord, before: str) -> str:
    body = {
        "number": number,
        "epoch": epoch,
        "at": record.at,
        "deed": record.entry_type.value,
        "facts": record.facts,
        "before": before,
    }
    return sha256(_canonical(body).encode()).hexdigest()
