"""The stream of the audit chain, its anchor, key and sinks in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.core.audit import Entry, Head
from app.core.audit_lines import SignedHead, line, read
from app.core.errors import ClusterUnavailable, EpochStale, StoreUnavailable
from app.ports import Batch, Ending
from app.tls.signing import Signer


@dataclass(slots=True)
class Stream:
    """The server. `down`: it does not answer; `deaf`: it does what it is told, in silence."""

    rows: list[tuple[int, str]] = field(default_factory=list)
    signed: SignedHead | None = None
    epoch: int = 0
    top: int = 0
    down: bool = False
    deaf: bool = False
    aside: list[tuple[int, str]] = field(default_factory=list)

    def flush(self) -> None:
        """Lose everything."""
        self.rows, self.signed, self.epoch, self.top = [], None, 0, 0

    def copy(self) -> Stream:
        """Return a snapshot."""
        return Stream(list(self.rows), self.signed, self.epoch, self.top)

    def restore(self, old: Stream) -> None:
        """Come back as of a snapshot."""
        self.rows, self.signed = list(old.rows), old.signed
        self.epoch, self.top = old.epoch, old.top

    def entries(self) -> list[Entry]:
        found = [read(text) for _, text in self.rows]
        return [each for each in found if isinstance(each, Entry)]

    def last(self) -> Head:
        entries = self.entries()
        return entries[-1].head if entries else Head()


class FakeTrail:
    """`ports.Trail` in memory. Those that share a Stream share a server."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream or Stream()

    async def ending(self) -> Ending:
        stream = self._answering()
        size = sum(len(text) for _, text in stream.rows)
        return Ending(stream.last(), stream.top, stream.signed, size)

    async def lines(self, after: int, limit: int) -> tuple[tuple[int, str], ...]:
        return tuple(row for row in self._answering().rows if row[0] > after)[:limit]

    async def append(self, batch: Batch) -> bool:
        stream = self._answering()
        if stream.epoch > batch.epoch:
            raise EpochStale(f"a leader with epoch {stream.epoch} has written")
        last = stream.last()
        if last == batch.signed.head:
            stream.signed, stream.epoch = batch.signed, batch.epoch
            return True
        if last != batch.after:
            return False
        if batch.aside:
            stream.aside, stream.rows = stream.rows, []
        elif batch.entries and batch.entries[0].number <= stream.top:
            return False
        stream.rows += [(each.number, line(each)) for each in batch.entries]
        stream.rows = [row for row in stream.rows if row[0] >= batch.keep]
        stream.signed, stream.epoch = batch.signed, batch.epoch
        stream.top = batch.signed.head.number
        if stream.deaf:
            raise StoreUnavailable("the answer got lost")
        return True

    def _answering(self) -> Stream:
        if self.stream.down:
            raise StoreUnavailable("the store does not answer")
        return self.stream


class FakeAnchor:
    """`ports.Anchor` and `ports.Epochs` in memory."""

    def __init__(self) -> None:
        self.kept: SignedHead | None = None
        self.highest = 0
        self.silent = False
        """No request gets through."""
        self.writes = 0

    async def floor(self) -> int:
        self._answer()
        return self.highest

    async def claim(self, epoch: int) -> None:
        self._answer()
        if self.highest >= epoch:
            raise EpochStale(f"epoch {self.highest} has been claimed")
        self.highest = epoch

    async def anchored(self) -> SignedHead | None:
        self._answer()
        return self.kept

    async def anchor(self, epoch: int, signed: SignedHead) -> None:
        self._answer()
        if self.highest > epoch:
            raise EpochStale(f"epoch {self.highest} has been claimed")
        self.highest, self.kept = epoch, signed
        self.writes += 1

    def _answer(self) -> None:
        if self.silent:
            raise ClusterUnavailable("no answer")


@dataclass
class FakeKey:
    """Hands out one signer; another one stands for a Secret that was deleted."""

    signer: Signer = field(default_factory=lambda: Signer(Ed25519PrivateKey.generate()))

    async def load(self) -> Signer:
        return self.signer


@dataclass
class Copies:
    """`ports.Outlet` that remembers."""

    lines: list[str] = field(default_factory=list)

    def put(self, line: str, number: int, epoch: int) -> None:
        self.lines.append(line)

    def entries(self) -> list[Entry]:
        found = [read(text) for text in self.lines]
        return [each for each in found if isinstance(each, Entry)]


@dataclass
class Terms:
    """`ports.Terms` that remembers."""

    begun: list[int] = field(default_factory=list)
    ended: int = 0

    def begin(self, epoch: int) -> None:
        self.begun.append(epoch)

    async def end(self) -> None:
        self.ended += 1
