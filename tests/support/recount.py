"""Compares Redis with a count of a list of writes."""

from __future__ import annotations

from collections.abc import Iterable

from app.core.effects import StoreWrite
from app.core.explain.queue_listing import QueueRow
from app.ports.store import QueueReader
from tests.fakes.fake_store import Contents

PAGE = 500


async def compare(reader: QueueReader, writes: Iterable[StoreWrite]) -> list[str]:
    """Return the differences between the reader and `writes`, one sentence each; [] if equal."""
    wanted = Contents.of(writes)
    differences = _compare_rows(
        "waiting", wanted.pending(None), await reader.read_pending_counts(None)
    )
    differences += _compare_rows("used", wanted.used(None), await reader.read_used_amounts(None))
    for row in wanted.pending(None):
        rows: list[QueueRow] = []
        while part := await reader.read_page(
            row.tenant, (row.user,), rows[-1].mark if rows else None, PAGE
        ):
            rows += part
        if rows != wanted.queue(row.tenant, row.user):
            differences.append(f"queue of {row.tenant}/{row.user}: other pods or another order")
    return differences


def _compare_rows(what: str, wanted: tuple[object, ...], found: tuple[object, ...]) -> list[str]:
    missing = [f"{what}: {row} is missing" for row in wanted if row not in set(found)]
    surplus = [f"{what}: {row} is too much" for row in found if row not in set(wanted)]
    return missing + surplus
