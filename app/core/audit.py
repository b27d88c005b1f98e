"""The audit chain: what happened, each entry bound by its hash to all before it.

Entries are plain values; who keeps, signs and shows them is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from app.core.model import Millis

Notes = tuple[tuple[str, str], ...]
"""Keys and texts: the uid of a pod, or KIND/NAME of a resource, and what was last told of it."""

Fact = str | int | bool | None | Mapping[str, "Fact"] | tuple["Fact", ...]

UNKNOWN = "unknown"
"""Who did it, where nobody can tell."""


class Deed(Enum):
    """What happened."""

    HELD = "held"
    """A pod waits from now on."""
    RELEASED = "released"
    ADOPTED = "adopted"
    REFUSED = "refused"
    """A request was refused at admission."""
    RECLAIMED = "reclaimed"
    """A pod was evicted, for another or for its own sake."""
    CHANGED = "changed"
    """A Tenant, Pool or the Policy was made, changed or deleted."""
    LEADING = "leading"
    """A term began or ended."""
    RESTORED = "restored"
    """A webhook configuration or policy was touched, and put back."""
    DELETED = "deleted"
    """A Tenant or Pool was deleted over REST, and by whom: what is gone carries no name."""
    BYPASSED = "bypassed"
    """A pod was found past the gate that was never released."""
    GAP = "gap"
    """Entries were lost; the facts name which."""
    PRUNED = "pruned"
    """Old entries were removed as retention says; the facts name the last of them."""
    KEY = "key"
    """Heads are signed by another key from now on."""


REPORTED = frozenset((Deed.REFUSED, Deed.RESTORED, Deed.DELETED))
"""What is seen by processes that do not lead. All else only the leader itself may tell."""


@dataclass(frozen=True, slots=True)
class Record:
    """Something to be written down: the engine emits it, and others report it.

    `facts` hold what an auditor asks for, under the names of the REST API; amounts as text.
    `notes` are no part of the entry, but kept beside the chain in the same step: what it last said
    of something that is still there, by key; "" forgets the key. By them the next leader knows
    what was written down, so that nothing is twice or never.
    """

    at: Millis
    deed: Deed
    facts: Mapping[str, Fact] = field(default_factory=dict)
    notes: Notes = field(default=(), compare=False)


GENESIS = "0" * 64
"""The hash before the first entry."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: how many entries it has, and the hash of the last."""

    number: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Entry:
    """A sealed record. `number` counts from 1 without holes, but for what a gap names."""

    number: int
    epoch: int
    record: Record
    before: str
    hash: str

    @property
    def head(self) -> Head:
        """Return the chain's end if this is the last."""
        return Head(self.number, self.hash)


def seal(head: Head, epoch: int, record: Record) -> Entry:
    """Return a record as the entry that follows `head`."""
    number = head.number + 1
    return Entry(number, epoch, record, head.hash, _digest(number, epoch, record, head.hash))


def is_intact(entry: Entry) -> bool:
    """Tell whether an entry's hash is that of its own contents."""
    return entry.hash == _digest(entry.number, entry.epoch, entry.record, entry.before)


def _digest(number: int, epoch: int, record: Record, before: str) -> str:
    body = {
        "number": number,
        "epoch": epoch,
        "at": record.at,
        "deed": record.deed.value,
        "facts": record.facts,
        "before": before,
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()
