"""Text and JSON of the result of `fairgate audit verify` for an intact chain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.core.audit.verifier import ChainVerdict
from app.core.audit_entry import Entry
from app.core.model import Millis


def facts(verdict: ChainVerdict, skipped: int) -> dict[str, Any]:
    """Return the fields of `--output json`. `skipped`: other or unreadable lines of copies."""
    return {
        "holds": True,
        "entries": verdict.entries,
        "first": _brief(verdict.first),
        "last": _brief(verdict.last),
        "head": verdict.newest_signed_head.json_fields() if verdict.newest_signed_head else None,
        "unsigned": verdict.unsigned_entries,
        "gaps": verdict.gaps,
        "absent": verdict.missing_head.number,
        "skipped": skipped,
    }


def _brief(entry: Entry | None) -> dict[str, Any] | None:
    return {"number": entry.number, "at": _stamp(entry.record.at)} if entry else None


def sentence(verdict: ChainVerdict, skipped: int, *, is_pinned: bool) -> str:
    """Return the text output. `is_pinned`: the user gave `--public-key`."""
    first, last, signed = verdict.first, verdict.last, verdict.newest_signed_head
    if first is None or last is None:
        return "There are no entries yet."
    said = [
        f"{verdict.entries} entries hold, from {_stamp(first.record.at)} (number {first.number}) "
        f"to {_stamp(last.record.at)} (number {last.number})"
    ]
    if signed is not None:
        said.append(f"head signed at {_stamp(signed.at)}")
        if not is_pinned:
            said.append(
                f"by the key {signed.public_key}, which --public-key compares with your copy"
            )
        if verdict.unsigned_entries:
            said.append(f"{verdict.unsigned_entries} came after it and are not signed")
    if verdict.gaps:
        said.append(f"{verdict.gaps} entries record a gap")
    if verdict.missing_head.number:
        said.append(f"those up to number {verdict.missing_head.number} are not here")
    if skipped:
        said.append(f"{skipped} lines are not readable lines of the chain and were skipped")
    return "; ".join(said) + "."


def _stamp(at: Millis) -> str:
    try:
        moment = datetime.fromtimestamp(at / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"  # beyond the calendar; only the holder of a key can write this
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
