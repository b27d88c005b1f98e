"""The audit stream, its anchor, key and sinks in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.core.audit.codec import SignedHead, entry_line, parse_line
from app.core.audit_entry import Entry, Head
from app.core.errors import EpochStale, InvalidInput, StoreFull, StoreUnavailable
from app.ports.audit import Batch, StreamTail
from app.tls.audit_signing_key import Signer
from tests.fakes.fake_watch_sync import FakeEpochs


@dataclass(slots=True)
class Stream:
    """The server. `down`: it does not answer. `deaf`: commands take effect but get no reply.

    `most` is the limit for bytes of entries; 0 means no limit.
    """

    rows: list[tuple[int, str]] = field(default_factory=list)
    signed: SignedHead | None = None
    epoch: int = 0
    top: int = 0
    most: int = 0
    down: bool = False
    deaf: bool = False
    aside: list[tuple[int, str]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def flush(self) -> None:
        """Lose everything."""
        self.rows, self.signed, self.epoch, self.top = [], None, 0, 0
        self.notes = {}

    def note(self, key: str, text: str) -> None:
        """Store an audit marker; an empty text removes it."""
        if text:
            self.notes[key] = text
        else:
            self.notes.pop(key, None)

    def copy(self) -> Stream:
        """Return a snapshot."""
        return Stream(list(self.rows), self.signed, self.epoch, self.top)

    def restore(self, old: Stream) -> None:
        """Return to the state of a snapshot."""
        self.rows, self.signed = list(old.rows), old.signed
        self.epoch, self.top = old.epoch, old.top

    @property
    def size(self) -> int:
        return sum(len(text) for _, text in self.rows)

    def entries(self) -> list[Entry]:
        found = [parse_line(text) for _, text in self.rows]
        return [each for each in found if isinstance(each, Entry)]

    def forge(self, number: int, text: str) -> None:
        """Append a row as another client of Redis; `number` may be that of the last row."""
        self.rows.append((number, text))
        self.top = max(self.top, number)

    def last(self) -> Head:
        if not self.rows:
            return Head()
        number, text = self.rows[-1]
        found: object = None
        with contextlib.suppress(InvalidInput):
            found = parse_line(text)
        is_own = isinstance(found, Entry) and [number] != [at for at, _ in self.rows[-2:-1]]
        return Head(number, found.hash if isinstance(found, Entry) and is_own else "")


class FakeTrail:
    """`ports.audit.AuditStream` in memory. Trails with the same `Stream` share one server."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream or Stream()

    async def read_tail(self) -> StreamTail:
        stream = self._answering()
        return StreamTail(stream.last(), stream.top, stream.signed, stream.size)

    async def read_memory_limit(self) -> int:
        return self._answering().most

    async def read_lines(self, after: int, limit: int) -> tuple[tuple[int, str], ...]:
        rows = self._answering().rows
        first = next((at for at, row in enumerate(rows) if row[0] >= after), len(rows))
        if rows[first : first + 1] and rows[first][0] == after:
            first += 1  # forged rows with the same number follow
        return tuple(rows[first : first + limit])

    async def append(self, batch: Batch) -> bool:
        stream = self._answering()
        if stream.epoch > batch.epoch:
            raise EpochStale(f"a leader with epoch {stream.epoch} has written")
        last = stream.last()
        if last == batch.signed_head.head:
            stream.signed, stream.epoch = batch.signed_head, batch.epoch
            return True
        if last != batch.after:
            return False
        if stream.most and not batch.first_kept_number and stream.size >= stream.most:
            raise StoreFull("the store is out of memory")
        if batch.moves_stream_away:
            stream.aside, stream.rows = stream.rows, []
        elif batch.entries and batch.entries[0].number <= stream.top:
            return False
        stream.rows += [(each.number, entry_line(each)) for each in batch.entries]
        stream.rows = [row for row in stream.rows if row[0] >= batch.first_kept_number]
        for key, text in (note for each in batch.entries for note in each.record.audit_markers):
            stream.note(key, text)
        stream.signed, stream.epoch = batch.signed_head, batch.epoch
        stream.top = batch.signed_head.head.number
        if stream.deaf:
            raise StoreUnavailable("the answer got lost")
        return True

    async def remove_markers(self, epoch: int, keys: Sequence[str]) -> None:
        stream = self._answering()
        if stream.epoch > epoch:
            raise EpochStale(f"a leader with epoch {stream.epoch} has written")
        for key in keys:
            stream.note(key, "")

    def _answering(self) -> Stream:
        if self.stream.down:
            raise StoreUnavailable("the store does not answer")
        return self.stream


class FakeAnchor(FakeEpochs):
    """`ports.audit.Anchor` and `ports.leadership.EpochFloor` in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.head: SignedHead | None = None

    async def read_anchored_head(self) -> SignedHead | None:
        self._answer()
        return self.head

    async def anchor_head(self, epoch: int, signed: SignedHead) -> None:
        self._answer()
        if self.kept > epoch:
            raise EpochStale(f"epoch {self.kept} has been claimed")
        self.kept, self.head = epoch, signed


@dataclass
class FakeKey:
    """Returns the same signer each time. A second instance acts like a recreated Secret."""

    signer: Signer = field(default_factory=lambda: Signer(Ed25519PrivateKey.generate()))

    async def load(self) -> Signer:
        return self.signer


@dataclass
class Copies:
    """An `ports.audit.AuditSink` that stores its entries. `knows`: it can report its last entry.

    `slow`: lines wait until `flush`, and a killed process loses them.
    """

    lines: list[str] = field(default_factory=list)
    knows: bool = False
    slow: bool = False
    waiting: list[str] = field(default_factory=list)

    async def read_last_copied(self) -> int | None:
        if not self.knows:
            return None
        return max((each.number for each in self.entries()), default=0)

    def write_line(self, line: str, number: int, epoch: int) -> None:
        (self.waiting if self.slow else self.lines).append(line)

    async def flush(self, seconds: float) -> None:
        self.lines += self.waiting
        self.waiting.clear()

    def entries(self) -> list[Entry]:
        found = [parse_line(text) for text in self.lines]
        return [each for each in found if isinstance(each, Entry)]
