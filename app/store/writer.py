"""The leader's hand: takes Redis over for an epoch, then keeps it a copy of the engine.

A rebuild fills a new generation of keys next to the valid one and makes it the valid one in its
last step, so readers see the old state or the new one, and a rebuild that was cut short leaves
the old one, to which nobody can write any more.

A write names its epoch, its generation and its number in it, which together are its operation id.
A repeat, however late, is known by its number and changes nothing; a number that skips one tells
that Redis lost something: it was emptied, or came back from an older copy of itself.

An open intent counts as used: a pod is counted once, under its latest Intend or Charge, until
its Refund.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

from app.core.effects import Dequeue, Enqueue, Intend, StoreWrite
from app.core.errors import StoreEmptied
from app.core.fair.runs import Run
from app.core.model import Uid
from app.store import layout
from app.store.connection import Server
from app.store.reader import RedisReader
from app.store.runs import ILLEGIBLE, running

CHUNK = 500
"""Writes a step of a rebuild: Redis serves nobody else during one, for a few milliseconds."""

PAGE = 2000
"""Notes read at once, about: Redis serves nobody else meanwhile."""

NO_GENERATION = "-"

T = TypeVar("T")


class RedisStore(RedisReader):
    """`ports.Store` on Redis, and all that `RedisReader` reads. One caller at a time."""

    def __init__(self, server: Server, cluster: str) -> None:
        super().__init__(server, cluster)
        self._server = server
        self._generation = NO_GENERATION
        self._sequence = 0

    async def floor(self, known: int = 0) -> int:
        """The highest epoch that ever wrote; 0 for an empty store.

        An epoch too far beyond what is `known` from elsewhere is none: no leader wrote it.
        """
        epoch, _ = await self._scripts.run("floor", known)
        return int(epoch)

    async def intents(self) -> tuple[Intend, ...]:
        """The releases that were begun and not settled, by uid; none if the store is empty.

        Of the last complete state: no write came after it. Amounts of 0 are left out. So is what
        nobody of ours can have written: it counts as lost.
        """
        try:
            entries = await self._table("intents")
        except StoreEmptied:
            return ()
        found = []
        for uid, record in sorted(entries):
            with contextlib.suppress(*ILLEGIBLE):
                found.append(layout.intent(uid, record))
        return tuple(found)

    async def running(self) -> tuple[Run, ...]:
        """The runs that were begun and have not ended, by pod; what is not legible is left out."""
        return await running(self._scripts)

    async def claim(self, epoch: int) -> None:
        """Raise the floor: no older epoch writes from now on. What it wrote stays readable.

        Raises EpochStale if a newer leader has written; StoreForeign as `rebuild` does.
        """
        self._generation = NO_GENERATION
        _, begun = await self._scripts.run("floor", epoch)
        await self._scripts.run("begin", epoch, f"{epoch}.{secrets.token_hex(4)}", begun)

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        """Take the store over for `epoch` and replace all of its contents.

        Raises EpochStale if a newer leader has written; StoreForeign for another layout version,
        or a server that throws keys away; StoreEmptied if the contents were lost meanwhile.
        Needs memory for both states. After an error the old state is valid or none is: begin anew.
        """
        self._generation = NO_GENERATION
        await self._server.check()
        generation = f"{epoch}.{secrets.token_hex(4)}"
        _, begun = await self._scripts.run("floor", epoch)
        await self._scripts.run("begin", epoch, generation, begun)
        waiting, others = _parted(writes)
        sequence = 0
        for chunk in _chunks(others):
            sequence += 1
            await self._apply("building", epoch, generation, sequence, chunk)
        for flat in layout.filling(waiting, CHUNK):
            sequence += 1
            await self._scripts.run("fill", epoch, generation, sequence, *flat)
        await self._scripts.run("finish", epoch, generation, sequence)
        self._generation, self._sequence = generation, sequence

    async def noted(self) -> Mapping[str, str] | None:
        """Return what was noted with the audit chain; None: it was lost. What is no text is not."""
        notes: dict[str, str] = {}
        cursor = b"0"
        while True:
            whole, cursor, flat = await self._scripts.run("noted", cursor, PAGE)
            if not int(whole):
                return None
            for key, text in zip(flat[::2], flat[1::2], strict=True):
                with contextlib.suppress(UnicodeDecodeError):
                    notes[key.decode()] = sys.intern(text.decode())
            if cursor == b"0":
                return notes

    async def remember(self, epoch: int, notes: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """If the notes were lost, keep these; what was noted since then stands."""
        (whole,) = await self._scripts.run("remember", epoch, "0")
        if int(whole):
            return
        for chunk in _chunks(notes()):
            await self._scripts.run("remember", epoch, "0", *chain.from_iterable(chunk))
        await self._scripts.run("remember", epoch, "1")

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        """Apply all writes or none, in order; no writes at all: tell whether Redis still stands.

        Raises EpochStale; StoreEmptied if this object did not rebuild Redis for `epoch`, or what
        it wrote is lost; StoreUnavailable: it may have been applied. After an error only
        `rebuild` helps. Redis serves nobody else meanwhile: some hundreds at a time.
        """
        # Counted before it is sent: what became of it may never be known, and its number may
        # not be given to another write.
        self._sequence += 1
        await self._apply("generation", epoch, self._generation, self._sequence, writes)

    async def _apply(
        self, slot: str, epoch: int, generation: str, sequence: int, writes: Iterable[StoreWrite]
    ) -> None:
        flat = chain.from_iterable(map(layout.arguments, writes))
        await self._scripts.run("apply", epoch, generation, sequence, slot, *flat)


def _parted(writes: Iterable[StoreWrite]) -> tuple[list[Enqueue], list[StoreWrite]]:
    """Return who waits in the end, each pod once, and all other writes in their order."""
    waiting: dict[Uid, Enqueue] = {}
    others: list[StoreWrite] = []
    for write in writes:
        match write:
            case Enqueue(ref):
                waiting[ref.uid] = write
            case Dequeue(uid):
                waiting.pop(uid, None)
            case _:
                others.append(write)
    return list(waiting.values()), others


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
