"""Verifies a chain of entries one by one, and refuses the first entry that does not fit.

A hole is accepted only if an entry under a signed head names exactly this hole: a gap, or the front
that retention removed. The caller verifies the signature of a head before it passes the head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from app.core.audit.codec import SignedHead
from app.core.audit_entry import GENESIS, AuditRecord, Entry, EntryType, Fact, Head, is_intact
from app.core.errors import InvalidInput
from app.core.model import Millis

MAX_REMEMBERED = 100_000
"""Number of entries to remember: copies may repeat them, or branch off from one."""


class BrokenChain(InvalidInput):
    """The chain is invalid: the number of the first entry that does not fit, and the reason."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"entry {number}: {why}")
        self.number = number
        self.why = why


class HeadTooNew(BrokenChain):
    """A given head signs an entry after `last`, the last one of the chain."""

    def __init__(self, number: int, last: int) -> None:
        super().__init__(number, f"the signed head names it, and the last is entry {last}")
        self.last = last


@dataclass(frozen=True, slots=True)
class Gap:
    """Facts of a gap: the stream ended `after`, and at least the entries up to `up_to` are lost."""

    after: Head
    up_to: Head


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """A valid chain. `newest_signed_head` is its newest signed head, `unsigned_entries` counts the
    later entries.
    """

    entries: int
    first: Entry | None
    last: Entry | None
    newest_signed_head: SignedHead | None
    unsigned_entries: int
    gaps: int
    missing_head: Head
    """Head of the missing entry before the first one; number 0 if no entry is missing."""


def gap_of(record: AuditRecord) -> Gap | None:
    """Return the facts of a gap; None for other records, and for records lost unsealed."""
    if record.entry_type is not EntryType.GAP:
        return None
    after, up_to = _head(record.facts.get("after")), _head(record.facts.get("upTo"))
    return Gap(after, up_to) if after and up_to else None


def gap_record(at: Millis, named: Gap, *, exact: bool, why: str) -> AuditRecord:
    """Return the record of a gap. `exact`: no entry after `up_to` can be lost too."""
    facts: dict[str, Fact] = {
        "after": _facts(named.after),
        "upTo": _facts(named.up_to),
        "exact": exact,
        "why": why,
    }
    return AuditRecord(at, EntryType.GAP, facts)


def pruning_record(at: Millis, last: Head, count: int, why: str) -> AuditRecord:
    """Return the record of a removal of old entries, with `last` as the last removed one."""
    return AuditRecord(at, EntryType.PRUNED, {"last": _facts(last), "entries": count, "why": why})


def preceding_head(entry: Entry) -> Head:
    """Return the head that must come right before an entry in the stream."""
    named = gap_of(entry.record)
    return named.after if named else Head(entry.number - 1, entry.previous_hash)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Facts of an entry that a later head may sign. `position`: its count in the chain."""

    epoch: int
    key: str | None
    position: int


class ChainVerifier:
    """Verifies one chain. It must contain all `heads`, and a head must sign the last entry.

    `copies`: the newest entries may be unsigned, entries may repeat, a branch may replace entries
    that were not anchored, and the front may be in other files.
    """

    def __init__(self, heads: Iterable[SignedHead] = (), *, copies: bool = False) -> None:
        self._expected_heads: dict[Head, list[SignedHead]] = {}
        for each in heads:
            self._expected_heads.setdefault(each.head, []).append(each)
        self._expected_numbers = {each.number for each in self._expected_heads}
        self._found_numbers: set[int] = set()
        self._copies = copies
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._count = 0
        self._signed: SignedHead | None = None
        self._signed_count = 0
        self._heads_before_first: list[SignedHead] = []
        self._gaps = 0
        self._open_gaps: list[Entry] = []
        self._declared_gaps: list[Gap] = []
        self._prunings: list[tuple[int, Head]] = []
        self._key: str | None = None
        self._cluster = ""
        self._known: OrderedDict[Head, _Seen] = OrderedDict()

    def add_entry(self, entry: Entry) -> None:
        """Verify the next entry. Raises BrokenChain."""
        if not is_intact(entry):
            raise BrokenChain(entry.number, "its contents do not fit its hash")
        if self._copies and entry.head in self._known:
            return
        self._check_link(entry)
        self._first = self._first or entry
        self._last = entry
        self._count += 1
        self._record_special_entry(entry)
        self._remember(entry)
        if entry.number in self._expected_numbers:
            self._found_numbers.add(entry.number)
        for signed in self._expected_heads.pop(entry.head, ()):
            self._accept_head(signed)

    def check_head(self, signed: SignedHead) -> None:
        """Process a signed head from among the entries, after its entry. Raises BrokenChain."""
        number = signed.head.number
        self._check_cluster(signed)
        if self._first is None or number < self._first.number:
            self._heads_before_first.append(signed)
        elif signed.head not in self._known:
            raise BrokenChain(number, self._why_absent(number))
        else:
            self._accept_head(signed)

    def verdict(self) -> ChainVerdict:
        """Return the result. Raises BrokenChain."""
        if self._open_gaps:
            number = self._open_gaps[0].number
            raise BrokenChain(number, "it names a gap, and no signed head covers it")
        lost = [
            head
            for head in self._expected_heads
            if not any(_declares_lost(each, head) for each in self._declared_gaps)
        ]
        if lost:
            head = min(lost, key=lambda each: each.number)
            if self._last and head.number > self._last.number:
                raise HeadTooNew(head.number, self._last.number)
            raise BrokenChain(head.number, self._why_not_found(head))
        absent = preceding_head(self._first) if self._first else Head()
        if not self._copies:
            self._check_whole(absent)
        return ChainVerdict(
            self._count,
            self._first,
            self._last,
            self._signed,
            self._count - self._signed_count,
            self._gaps,
            absent,
        )

    def _check_whole(self, absent: Head) -> None:
        """Require a signed end, and a beginning that is there or was removed by retention."""
        unsigned = self._count - self._signed_count
        if self._last is None or self._first is None:
            return
        if self._signed is None:
            raise BrokenChain(self._last.number, "no signed head covers it, or any entry before it")
        if unsigned:
            raise BrokenChain(
                self._last.number,
                f"it is not signed: the newest signed head is of entry {self._signed.head.number}, "
                f"and {unsigned} entries came after it",
            )
        if absent != Head() and absent not in self._removals():
            raise BrokenChain(
                self._first.number,
                f"entry {absent.number} before it is missing, and its removal is not recorded",
            )
        for signed in self._heads_before_first:
            if signed.head.number > absent.number:
                raise BrokenChain(
                    signed.head.number, "a signed head names it, and it does not come before it"
                )

    def _check_link(self, entry: Entry) -> None:
        last = self._last
        if last is None:
            self._check_start(entry)
            return
        if entry.epoch < last.epoch:
            raise BrokenChain(
                entry.number, f"its epoch {entry.epoch} is below {last.epoch}, of the one before"
            )
        named = gap_of(entry.record)
        if named is None:
            if entry.number == last.number + 1 and entry.previous_hash == last.hash:
                return
        elif _follows(entry, named):
            if last.head in (named.after, named.up_to) and entry.number > last.number:
                return  # after `up_to`, if the lost entries are there again, from copies
            if self._copies and named.up_to in self._known and entry.epoch > last.epoch:
                return
        if entry.number > last.number + 1:
            raise BrokenChain(
                entry.number,
                f"{_missing_entries_text(last.number + 1, entry.number - 1)} before it",
            )
        if entry.number == last.number + 1:
            raise BrokenChain(
                entry.number,
                f"it does not follow entry {last.number}: one of the two is not the original",
            )
        raise BrokenChain(entry.number, f"it stands after entry {last.number}, out of order")

    @staticmethod
    def _check_start(entry: Entry) -> None:
        if entry.number < 1 or (entry.number == 1 and entry.previous_hash != GENESIS):
            raise BrokenChain(entry.number, "it is not how a chain begins")
        named = gap_of(entry.record)
        if named is not None and not _follows(entry, named):
            raise BrokenChain(entry.number, "it does not follow the entry that it names")

    def _record_special_entry(self, entry: Entry) -> None:
        match entry.record.entry_type:
            case EntryType.GAP:
                self._gaps += 1
                self._open_gaps.append(entry)
                if named := gap_of(entry.record):
                    self._declared_gaps.append(named)
            case EntryType.PRUNED:
                if last := _head(entry.record.facts.get("last")):
                    self._prunings.append((entry.number, last))
            case EntryType.KEY:
                key = entry.record.facts.get("publicKey")
                self._key = key if isinstance(key, str) else None

    def _remember(self, entry: Entry) -> None:
        self._known[entry.head] = _Seen(entry.epoch, self._key, self._count)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def _accept_head(self, signed: SignedHead) -> None:
        """Accept a head of a known entry. The newest head has the highest number."""
        number, seen, newest = signed.head.number, self._known[signed.head], self._signed
        if signed.epoch != seen.epoch:
            raise BrokenChain(
                number, f"a signed head gives it epoch {signed.epoch}, it says {seen.epoch}"
            )
        if seen.key is not None and signed.public_key != seen.key:
            raise BrokenChain(
                number, "its signed head is not signed by the key that the chain names"
            )
        self._check_cluster(signed)
        if newest is None or number >= newest.head.number:
            self._signed, self._signed_count = signed, seen.position
        self._open_gaps = [each for each in self._open_gaps if each.number > number]

    def _check_cluster(self, signed: SignedHead) -> None:
        """Require that all heads name one cluster, also heads with removed entries."""
        if signed.cluster != (self._cluster or signed.cluster):
            raise BrokenChain(
                signed.head.number,
                f"its signed head is of cluster {signed.cluster}, another one of {self._cluster}",
            )
        self._cluster = signed.cluster

    def _removals(self) -> set[Head]:
        covered = self._signed.head.number if self._signed else 0
        return {last for number, last in self._prunings if number <= covered}

    def _why_not_found(self, head: Head) -> str:
        number, first = head.number, self._first
        if first is None:
            return "the signed head names it, and there are no entries at all"
        if number < first.number:
            return f"the signed head names it, and the first is entry {first.number}"
        if number in self._found_numbers:
            return "the signed head names another hash for it"
        return "the signed head names it, and it is missing"

    def _why_absent(self, number: int) -> str:
        """Return why a head among the entries finds no entry before it."""
        assert self._last is not None
        if number > self._last.number:
            return f"a signed head names it, and the last before that head is {self._last.number}"
        if any(each.number == number for each in self._known):
            return "a signed head names another hash for it"
        return f"a signed head names it, and it is not among the {MAX_REMEMBERED} entries before"


def _follows(entry: Entry, named: Gap) -> bool:
    """Return whether a gap entry follows the last lost entry that it names."""
    return entry.previous_hash == named.up_to.hash and entry.number > named.up_to.number


def _declares_lost(named: Gap, head: Head) -> bool:
    """Return whether a gap declares this entry as lost."""
    return head == named.up_to or named.after.number < head.number <= named.up_to.number


def _missing_entries_text(first: int, last: int) -> str:
    if first == last:
        return f"entry {first} is missing"
    return f"entries {first} to {last} are missing"


def _facts(head: Head) -> dict[str, Fact]:
    return {"number": head.number, "hash": head.hash}


def _head(fact: object) -> Head | None:
    match fact:
        case {"number": int(number), "hash": str(digest)} if not isinstance(number, bool):
            return Head(number, digest)
        case _:
            return None
