"""Entries and signed heads as JSON lines, for Redis, files and standard output.

Parsing is strict: an ambiguous line, or one with more data than an entry, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.core.audit_entry import AuditRecord, Entry, EntryType, Fact, Head
from app.core.errors import InvalidInput
from app.core.model import Millis

_compact = json.JSONEncoder(separators=(",", ":")).encode

_ENTRY = {"audit", "number", "epoch", "at", "deed", "facts", "before", "hash"}
_HASH = re.compile("[0-9a-f]{64}").fullmatch
_HEAD = {"cluster", "number", "hash", "epoch", "at", "signature", "publicKey"}


LINE_PREFIX = '{"audit":true,'
"""Prefix of the lines that Fairgate writes."""


class ForeignLine(InvalidInput):
    """A line that does not claim to belong to the audit chain."""


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head with its signature.

    `epoch` is that of the head's entry, `at` the time of the signature. `signature` and
    `public_key` (Ed25519, SubjectPublicKeyInfo) are base64 text.
    """

    cluster: str
    head: Head
    epoch: int
    at: Millis
    signature: str = ""
    public_key: str = ""

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signature covers."""
        body = {
            "cluster": self.cluster,
            "number": self.head.number,
            "hash": self.head.hash,
            "epoch": self.epoch,
            "at": self.at,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def json_fields(self) -> dict[str, Any]:
        """Return the fields of its JSON form."""
        return {
            "cluster": self.cluster,
            "number": self.head.number,
            "hash": self.head.hash,
            "epoch": self.epoch,
            "at": self.at,
            "signature": self.signature,
            "publicKey": self.public_key,
        }


def normalize_facts(facts: Mapping[str, Any]) -> dict[str, Fact]:
    """Return facts in the form that JSON parsing gives, so that their hash stays the same."""
    return {str(name): _plain(value) for name, value in facts.items()}


def entry_line(entry: Entry) -> str:
    """Return an entry as one line. The hash is its last field, where a script finds it."""
    body = {
        "audit": True,
        "number": entry.number,
        "epoch": entry.epoch,
        "at": entry.record.at,
        "deed": entry.record.entry_type.value,
        "facts": entry.record.facts,
        "before": entry.previous_hash,
        "hash": entry.hash,
    }
    return _compact(body)


def head_line(signed: SignedHead) -> str:
    """Return a signed head as one line."""
    return _compact({"audit": True, "head": signed.json_fields()})


def missed_line(count: int, first: int, last: int) -> str:
    """Return the line for entries that a sink could not accept."""
    missed = {"entries": count, "from": first, "to": last}
    return _compact({"audit": True, "missed": missed})


def parse_line(text: str) -> Entry | SignedHead | None:
    """Parse a line. Return None for a line about entries that a sink missed.

    Raises NotOurs for a line of another kind, InvalidInput for an invalid line of the chain.
    """
    try:
        body = json.loads(
            text,
            object_pairs_hook=_reject_duplicate_names,
            parse_float=_reject_number,
            parse_constant=_reject_number,
        )
    except (ValueError, RecursionError) as error:
        kind = InvalidInput if text.startswith(LINE_PREFIX) else ForeignLine
        raise kind(f"it is not a line of JSON ({error})") from error
    if not isinstance(body, dict) or body.get("audit") is not True:
        raise ForeignLine("it is no line of the audit chain")
    if set(body) == {"audit", "missed"}:
        return None
    if set(body) == {"audit", "head"}:
        return _parse_head(body["head"])
    return _parse_entry(body)


def _parse_head(body: object) -> SignedHead:
    """Parse a head in a line: exactly its names, and numbers that are no text."""
    if isinstance(body, dict):
        if odd := sorted(set(body) - _HEAD):
            raise InvalidInput(f"a signed head does not have {', '.join(odd)}")
        if any(type(body.get(name, 0)) is not int for name in ("number", "epoch", "at")):
            raise InvalidInput("number, epoch and at of a signed head are whole numbers")
    return parse_stored_head(body)


def parse_stored_head(body: object) -> SignedHead:
    """Parse a stored head. Numbers may be text, and other fields are ignored, as the ConfigMap has.

    Raises InvalidInput.
    """
    if not isinstance(body, dict) or not set(body) >= _HEAD:
        raise InvalidInput(f"a signed head has {', '.join(sorted(_HEAD))}")
    words = [body[name] for name in ("cluster", "hash", "signature", "publicKey")]
    cluster, digest, signature, key = words
    if not all(isinstance(word, str) for word in words):
        raise InvalidInput("cluster, hash, signature and publicKey of a signed head are text")
    number, epoch, at = (_whole(body[name]) for name in ("number", "epoch", "at"))
    return SignedHead(cluster, Head(number, digest), epoch, Millis(at), signature, key)


def _parse_entry(body: Mapping[str, Any]) -> Entry:
    if set(body) != _ENTRY:
        odd = sorted(set(body) ^ _ENTRY)
        raise InvalidInput(f"an entry does not have, or must have, {', '.join(odd)}")
    for name in ("number", "epoch", "at"):
        if type(body[name]) is not int or body[name] < 0:
            raise InvalidInput(f"its {name} is not a whole number")
    if not all(isinstance(body[name], str) and _HASH(body[name]) for name in ("before", "hash")):
        raise InvalidInput("its hashes are not 64 lower-case hex digits")
    if not isinstance(body["facts"], dict):
        raise InvalidInput("its facts are not an object")
    try:
        entry_type = EntryType(body["deed"])
    except ValueError as error:
        raise InvalidInput(
            f"this version does not support the entry type {body['deed']!r}"
        ) from error
    record = AuditRecord(Millis(body["at"]), entry_type, body["facts"])
    return Entry(body["number"], body["epoch"], record, body["before"], body["hash"])


def _whole(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput(f"{text[:40]!r} in a signed head is not a whole number")
    return int(text)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case Mapping():
            return normalize_facts(value)
        case tuple() | list():
            return [_plain(each) for each in value]
        case _:
            return str(value)


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _reject_number(word: str) -> Any:
    raise ValueError(f"{word[:40]} is not an integer")
