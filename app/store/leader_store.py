"""The leader's writes to Redis: takes Redis over for an epoch and copies the engine's state.

A rebuild fills a new generation of keys next to the valid one and makes it valid in its last step.
Readers see either the old or the new state. An interrupted rebuild leaves the old state readable,
but it accepts no writes.

The operation id of a write is its epoch, generation and number. A repeated write, even a late one,
is recognised by its number and ignored. A missing number means that Redis lost data: it was
emptied, or restored from an older copy.

An open intent counts as used. A pod counts once, by its latest Intend or Charge, until its Refund.
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
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Uid
from app.store import schema
from app.store.connection import Server
from app.store.reader import RedisReader
from app.store.usage_records import INVALID_RECORD_ERRORS, read_open_records

CHUNK = 500
"""Writes per step of a rebuild. A step blocks Redis for a few milliseconds."""

PAGE = 2000
"""Approximate number of audit markers per read. A read blocks Redis."""

NO_GENERATION = "-"

T = TypeVar("T")


class RedisStore(RedisReader):
    """`ports.store.Store` on Redis, with the reads of `RedisReader`. One caller at a time."""

    def __init__(self, server: Server, cluster: str) -> None:
        super().__init__(server, cluster)
        self._server = server
        self._generation = NO_GENERATION
        self._sequence = 0

    async def read_epoch_floor(self, known: int = 0) -> int:
        """Return the highest epoch that ever wrote, 0 for an empty store.

        An epoch that is implausibly far above `known` is ignored: no leader wrote it.
        """
        epoch, _ = await self._scripts.run_script("epoch_floor", known)
        return int(epoch)

    async def read_open_intents(self) -> tuple[Intend, ...]:
        """Return the open intents by uid, empty if the store is empty.

        They are those of the last complete state; later writes do not exist. Amounts of 0 are left
        out. Invalid records are left out: they count as lost.
        """
        try:
            entries = await self._read_hash("intents", None)
        except StoreEmptied:
            return ()
        found = []
        for uid, record in sorted(entries):
            with contextlib.suppress(*INVALID_RECORD_ERRORS):
                found.append(schema.decode_intent(uid, record))
        return tuple(found)

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        """Return the open usage records, by pod. Invalid records are left out."""
        return await read_open_records(self._scripts)

    async def claim_epoch(self, epoch: int) -> None:
        """Raise the floor to `epoch`, so older epochs cannot write. Their data stays readable.

        Raises EpochStale if a newer leader has written, StoreForeign as `rebuild` does.
        """
        self._generation = NO_GENERATION
        _, begun = await self._scripts.run_script("epoch_floor", epoch)
        await self._scripts.run_script(
            "begin_generation", epoch, f"{epoch}.{secrets.token_hex(4)}", begun
        )

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        """Take over the store for `epoch` and replace all of its contents.

        Raises EpochStale if a newer leader has written. Raises StoreForeign for another layout
        version, or a server that evicts keys. Raises StoreEmptied if the contents were lost
        meanwhile. Needs memory for both states. After an error the old state or no state is valid:
        call it again.
        """
        self._generation = NO_GENERATION
        await self._server.check()
        generation = f"{epoch}.{secrets.token_hex(4)}"
        _, begun = await self._scripts.run_script("epoch_floor", epoch)
        await self._scripts.run_script("begin_generation", epoch, generation, begun)
        waiting, others = _split_queue_entries(writes)
        sequence = 0
        for chunk in _chunks(others):
            sequence += 1
            await self._apply_writes("building", epoch, generation, sequence, chunk)
        for flat in schema.queue_arguments(waiting, CHUNK):
            sequence += 1
            await self._scripts.run_script("fill_queues", epoch, generation, sequence, *flat)
        await self._scripts.run_script("finish_generation", epoch, generation, sequence)
        self._generation, self._sequence = generation, sequence

    async def audit_markers(self) -> Mapping[str, str] | None:
        """Return the audit markers, None if they were lost. Skips markers that are not UTF-8."""
        markers: dict[str, str] = {}
        cursor = b"0"
        while True:
            whole, cursor, flat = await self._scripts.run_script("marker_list", cursor, PAGE)
            if not int(whole):
                return None
            for key, text in zip(flat[::2], flat[1::2], strict=True):
                with contextlib.suppress(UnicodeDecodeError):
                    markers[key.decode()] = sys.intern(text.decode())
            if cursor == b"0":
                return markers

    async def restore_audit_markers(
        self, epoch: int, markers: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """Store these markers if the stored ones were lost. Newer markers are retained."""
        (whole,) = await self._scripts.run_script("marker_restore", epoch, "0")
        if int(whole):
            return
        for chunk in _chunks(markers()):
            await self._scripts.run_script(
                "marker_restore", epoch, "0", *chain.from_iterable(chunk)
            )
        await self._scripts.run_script("marker_restore", epoch, "1")

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        """Apply all writes in order, or no write. An empty sequence checks that Redis has the
        state.

        Raises EpochStale. Raises StoreEmptied if this object did not rebuild Redis for `epoch`, or
        if its writes were lost. Raises StoreUnavailable if the result is unknown. Call `rebuild`
        after any error. The call blocks Redis, so pass some hundred writes at most.
        """
        # Count before sending: the result may stay unknown, and no other write may reuse the
        # number.
        self._sequence += 1
        await self._apply_writes("generation", epoch, self._generation, self._sequence, writes)

    async def _apply_writes(
        self, slot: str, epoch: int, generation: str, sequence: int, writes: Iterable[StoreWrite]
    ) -> None:
        flat = chain.from_iterable(map(schema.write_arguments, writes))
        await self._scripts.run_script("apply_writes", epoch, generation, sequence, slot, *flat)


def _split_queue_entries(writes: Iterable[StoreWrite]) -> tuple[list[Enqueue], list[StoreWrite]]:
    """Return the final queue entry of each waiting pod, and all other writes in order."""
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
