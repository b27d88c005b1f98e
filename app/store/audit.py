"""The audit chain in Redis: a stream of its own, next to what the leader copies.

What the entries say, and whether they hold, is not judged here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from app.audit_ports import Batch, Ending
from app.core.audit import Entry, Head
from app.core.chain.audit_lines import SignedHead, line, read, read_head
from app.core.errors import InvalidInput
from app.store.connection import Server
from app.store.scripts import Scripts


class AuditReader:
    """What every replica may read of the chain. All raise StoreForeign, StoreUnavailable."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def ending(self) -> Ending:
        """How the stream ends; a signed head that is not legible counts as none."""
        number, digest, top, head, size = await self._scripts.run("trail")
        signed: SignedHead | None = None
        with contextlib.suppress(ValueError, InvalidInput, RecursionError):
            signed = read_head(json.loads(head)) if head else None
        return Ending(Head(int(number), digest.decode()), int(top), signed, int(size))

    async def lines(self, after: int, limit: int) -> tuple[tuple[int, str], ...]:
        """At most `limit` entries above number `after`, each with its number, unread."""
        flat = await self._scripts.run("entries", after, limit)
        return tuple(
            (int(at.partition(b"-")[0]), text.decode(errors="replace"))
            for at, text in zip(flat[::2], flat[1::2], strict=True)
        )

    async def entries(self, after: int, limit: int) -> tuple[Entry, ...]:
        """At most `limit` entries above number `after`. Raises InvalidInput for what is none."""
        found = [read(text) for _, text in await self.lines(after, limit)]
        return tuple(each for each in found if isinstance(each, Entry))


class RedisTrail(AuditReader):
    """`audit_ports.Trail` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        super().__init__(server, cluster)
        self._server = server

    async def room(self) -> int:
        """Return how many bytes the server may hold; 0: no bound is known."""
        return await self._server.room()

    async def append(self, batch: Batch) -> bool:
        """Append a batch, or tell that the stream ends elsewhere. Raises EpochStale, StoreFull."""
        head = batch.signed.head
        notes = [text for each in batch.entries for note in each.record.notes for text in note]
        flat = [text for each in batch.entries for text in (each.number, line(each))]
        written, *_ = await self._scripts.run(
            "seal",
            batch.epoch,
            batch.after.number,
            batch.after.hash,
            head.number,
            head.hash,
            json.dumps(batch.signed.fields()),
            batch.keep,
            int(batch.aside),
            len(notes) // 2,
            *notes,
            *flat,
        )
        return bool(written == b"1")

    async def forget(self, epoch: int, keys: Sequence[str]) -> None:
        """Keep no notes under these keys. Raises EpochStale."""
        await self._scripts.run("forget", epoch, *keys)
