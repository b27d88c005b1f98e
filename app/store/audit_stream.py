"""The audit chain in Redis: a stream that does not belong to a generation of the leader's state.

Entries are not verified here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from app.core.audit.codec import SignedHead, parse_line, parse_stored_head
from app.core.audit_entry import Entry, Head
from app.core.errors import InvalidInput
from app.ports.audit import Batch, StreamTail
from app.store.connection import Server
from app.store.lua_scripts import Scripts


class RedisAuditReader:
    """Read access to the chain. All methods raise StoreForeign, StoreUnavailable."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._scripts = Scripts(server, cluster)

    async def read_tail(self) -> StreamTail:
        """Return the tail of the stream. An invalid signed head counts as missing."""
        number, digest, top, head, size = await self._scripts.run_script("audit_tail")
        signed: SignedHead | None = None
        with contextlib.suppress(ValueError, InvalidInput, RecursionError):
            signed = parse_stored_head(json.loads(head)) if head else None
        return StreamTail(Head(int(number), digest.decode()), int(top), signed, int(size))

    async def read_lines(self, after: int, limit: int) -> tuple[tuple[int, str], ...]:
        """Return at most `limit` entries above number `after`, each with its number, not parsed."""
        flat = await self._scripts.run_script("audit_read", after, limit)
        return tuple(
            (int(at.partition(b"-")[0]), text.decode(errors="replace"))
            for at, text in zip(flat[::2], flat[1::2], strict=True)
        )

    async def read_entries(self, after: int, limit: int) -> tuple[Entry, ...]:
        """Return at most `limit` entries above number `after`. Raises InvalidInput."""
        found = [parse_line(text) for _, text in await self.read_lines(after, limit)]
        return tuple(each for each in found if isinstance(each, Entry))


class RedisTrail(RedisAuditReader):
    """`ports.audit.AuditStream` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        super().__init__(server, cluster)
        self._server = server

    async def read_memory_limit(self) -> int:
        """Return the memory limit of the server in bytes, 0 if there is no known limit."""
        return await self._server.memory_limit()

    async def append(self, batch: Batch) -> bool:
        """Append a batch. False: the stream ends elsewhere. Raises EpochStale, StoreFull."""
        head = batch.signed_head.head
        notes = [
            text for each in batch.entries for note in each.record.audit_markers for text in note
        ]
        lines = zip(batch.entries, batch.lines, strict=True)
        flat = [text for entry, text_of in lines for text in (entry.number, text_of)]
        written, *_ = await self._scripts.run_script(
            "audit_append",
            batch.epoch,
            batch.after.number,
            batch.after.hash,
            head.number,
            head.hash,
            json.dumps(batch.signed_head.json_fields()),
            batch.first_kept_number,
            int(batch.moves_stream_away),
            len(notes) // 2,
            *notes,
            *flat,
        )
        return bool(written == b"1")

    async def remove_markers(self, epoch: int, keys: Sequence[str]) -> None:
        """Remove the audit markers with these keys. Raises EpochStale."""
        await self._scripts.run_script("marker_drop", epoch, *keys)
