"""The Protocols of the audit: who tells, who keeps the chain, who signs and shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.audit import Deed, Entry, Fact, Head, Record
from app.core.chain.audit_lines import SignedHead


class Recorder(Protocol):
    """Where what an auditor must know is written down. Never blocks, never raises."""

    def record(self, record: Record, /) -> None:
        """Write this down, after all before it, and keep its notes in the same step."""

    def forget(self, key: str, /) -> None:
        """Keep no note under this key any more, once all before it is written down."""


class Reporter(Protocol):
    """Where a process that does not lead says what an auditor must know. Never blocks or raises."""

    def report(self, deed: Deed, facts: Mapping[str, Fact], example: str = "") -> None:
        """Report this; of what has the same facts within a second, one with a count is told."""


@dataclass(frozen=True, slots=True)
class Report:
    """A record on its way to the leader; its id makes it one, however often it is delivered."""

    id: str
    record: Record


class Reports(Protocol):
    """Reports that wait for the leader. All raise StoreError."""

    async def push(self, reports: Sequence[Report]) -> Mapping[Deed, int]:
        """Keep these, each once; return of which deeds there was no room for how many."""

    async def waiting(self, limit: int) -> Sequence[Report]:
        """Return some that were not told yet, by id.

        Sealing a record with the note `report/ID` removes its report; so does `Trail.forget`.
        """


@dataclass(frozen=True, slots=True)
class Ending:
    """How the audit stream ends: its last entry, the highest number it ever had, its memory."""

    last: Head
    top: int
    signed: SignedHead | None
    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries to be appended to a stream that ends with `after`; then `signed` is its head.

    The notes of their records are kept in the same step.
    Entries below number `keep` are removed. `aside`: what stands in the stream cannot be
    continued, and is set aside.
    """

    epoch: int
    after: Head
    entries: tuple[Entry, ...]
    signed: SignedHead
    keep: int = 0
    aside: bool = False


class Trail(Protocol):
    """The stream of the audit chain. All raise StoreError."""

    async def ending(self) -> Ending:
        """How the stream ends."""

    async def lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        """At most `limit` entries above number `after`, each with its number, unread."""

    async def append(self, batch: Batch) -> bool:
        """Append a batch; once, however often it is sent. False: the stream ends elsewhere.

        Raises EpochStale if a newer leader has written. StoreFull: no memory is left, so nothing
        was; a batch that removes entries needs none.
        """

    async def room(self) -> int:
        """How many bytes the server may hold; 0: no bound is known."""

    async def forget(self, epoch: int, keys: Sequence[str]) -> None:
        """Keep no notes under these keys. Raises EpochStale."""


class Lines(Protocol):
    """Where the chain can be read. All raise StoreError."""

    async def ending(self) -> Ending:
        """How it ends."""

    async def lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        """At most `limit` entries above number `after`, each with its number, unread."""


class Anchor(Protocol):
    """Where the newest signed head is kept outside Redis. May raise ClusterError."""

    async def anchored(self) -> SignedHead | None:
        """The newest head that was anchored; None if there is none, or it is not legible."""

    async def anchor(self, epoch: int, signed: SignedHead) -> None:
        """Keep this head, as leader of `epoch`. Raises EpochStale if a newer one has claimed."""


class Signing(Protocol):
    """A key that signs heads."""

    @property
    def public_key(self) -> str: ...
    def sign(self, head: SignedHead, /) -> SignedHead:
        """Return the head with key and signature."""


class Outlet(Protocol):
    """Where copies of the chain's lines go. Never in anybody's way, never raises."""

    def put(self, line: str, number: int, epoch: int) -> None:
        """Write a line about entry `number`, in its turn; `epoch` is the leader's."""

    async def copied(self) -> int | None:
        """The last entry that is there, or on its way, from whatever process; None: who knows.

        0: none is. Returns soon.
        """
