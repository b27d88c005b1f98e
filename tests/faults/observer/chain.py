"""Verifies the audit chain by its documented format (I7) and compares it with observed releases.

Redis stores entries as lines of JSON. The ConfigMap `fairgate-audit` anchors the newest signed
head. A hole is valid only if a gap entry names it or old entries were pruned.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import redis
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tests.faults.observer.judge import Release

ANCHOR = "/api/v1/namespaces/fairgate-system/configmaps/fairgate-audit"
GENESIS = "0" * 64

Line = Mapping[str, Any]


@dataclass(slots=True)
class Chain:
    """The chain in Redis and its anchor. `present`: a chain exists or existed."""

    entries: list[Line] = field(default_factory=list)
    signed: Line | None = None
    anchor: Line | None = None

    @property
    def present(self) -> bool:
        """Return whether a chain exists or existed."""
        return bool(self.entries) or self.anchor is not None


def read(url: str, cluster: str, anchor: Mapping[str, str] | None) -> Chain:
    """Return the chain; `anchor` is the data of the ConfigMap. Raises RedisError, ValueError."""
    prefix = f"fairgate:{{{quote(cluster, safe='')}}}:"
    with redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=5.0) as server:
        rows: Any = server.xrange(prefix + "audit")
        signed: Any = server.hget(prefix + "audit-head", "signed")
    entries = [json.loads(fields[b"entry"]) for _, fields in rows]
    chain = Chain(entries, json.loads(signed) if signed else None)
    if anchor and "signature" in anchor:
        whole = {name: int(anchor[name]) for name in ("number", "epoch", "at")}
        chain.anchor = {**anchor, **whole}
    return chain


def verify(chain: Chain) -> list[str]:
    """Return the violations, one sentence each."""
    found: list[str] = []
    last: Line | None = None
    for entry in chain.entries:
        number = entry["number"]
        if entry["hash"] != digest(entry):
            found.append(f"entry {number}: its hash is not that of its contents")
        if last is not None and not _follows(last, entry):
            found.append(f"entry {number} does not follow entry {last['number']}")
        if last is not None and entry["epoch"] < last["epoch"]:
            found.append(f"entry {number}: epoch {entry['epoch']} after {last['epoch']}")
        last = entry
    if chain.entries and not _begins(chain):
        found.append(f"entry {chain.entries[0]['number']}: what came before it is missing")
    for what, head in (("the head in Redis", chain.signed), ("the anchor", chain.anchor)):
        if head is not None and not is_signed(head):
            found.append(f"{what} has no good signature")
        if head is not None and not _has(chain, head):
            found.append(f"{what} names entry {head['number']}, which is not there")
    if last is not None and (chain.signed is None or chain.signed["hash"] != last["hash"]):
        found.append(f"entry {last['number']} is the last, and no head is signed for it")
    return found


def agree(chain: Chain, releases: Iterable[Release]) -> list[str]:
    """Return the observed releases with a missing, different or duplicated entry."""
    told: dict[str, list[Line]] = defaultdict(list)
    for entry in chain.entries:
        if entry["deed"] == "released":
            told[str(entry["facts"].get("uid"))].append(entry)
    entry_types = {entry["deed"] for entry in chain.entries}
    is_whole = not entry_types & {"gap", "pruned"}
    found = []
    for release in releases:
        entries = told.get(release.pod.uid, [])
        if len(entries) > 1:
            numbers = [entry["number"] for entry in entries]
            found.append(f"{release.pod}: its release is told {len(entries)} times: {numbers}")
        found += [
            f"{release.pod} has stamp {release.pod.stamp}; entry {entry['number']} tells another"
            for entry in entries
            if entry["facts"].get("stamp") != release.pod.stamp
        ]
        if not entries and release.exact and is_whole:
            found.append(f"{release.pod} was released ({release.pod.stamp}); no entry tells of it")
    return found


def digest(entry: Line) -> str:
    """Return the hash that an entry must have."""
    body = {name: entry[name] for name in ("number", "epoch", "at", "deed", "facts", "before")}
    return sha256(_canonical(body)).hexdigest()


def is_signed(head: Line) -> bool:
    """Return whether a head has a valid signature of the key it names."""
    body = {name: head[name] for name in ("cluster", "number", "hash", "epoch", "at")}
    try:
        key = load_der_public_key(base64.b64decode(head["publicKey"], validate=True))
        if not isinstance(key, Ed25519PublicKey):
            return False
        key.verify(base64.b64decode(head["signature"], validate=True), _canonical(body))
    except (InvalidSignature, ValueError):
        return False
    return True


def _canonical(body: Line) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode()


def _gap(entry: Line) -> tuple[Line, Line] | None:
    """Return the two ends of the hole that an entry names."""
    facts = entry["facts"]
    if entry["deed"] != "gap" or not facts.get("after") or not facts.get("upTo"):
        return None
    return facts["after"], facts["upTo"]


def _follows(last: Line, entry: Line) -> bool:
    if entry["number"] == last["number"] + 1 and entry["before"] == last["hash"]:
        return True
    hole = _gap(entry)
    return (
        hole is not None
        and hole[0] == {"number": last["number"], "hash": last["hash"]}
        and entry["before"] == hole[1]["hash"]
        and entry["number"] > last["number"]
    )


def _begins(chain: Chain) -> bool:
    """Return whether all entries before the first are accounted for by a gap or by pruning."""
    first = chain.entries[0]
    if first["number"] == 1:
        return bool(first["before"] == GENESIS)
    hole = _gap(first)
    if hole is not None:
        return bool(hole[0]["number"] == 0 and first["before"] == hole[1]["hash"])
    before = {"number": first["number"] - 1, "hash": first["before"]}
    return any(e["deed"] == "pruned" and e["facts"].get("last") == before for e in chain.entries)


def _has(chain: Chain, head: Line) -> bool:
    """Return whether the entry of a head exists, or a gap or pruning names it as lost."""
    number = head["number"]
    if any(e["number"] == number and e["hash"] == head["hash"] for e in chain.entries):
        return True
    for entry in chain.entries:
        hole = _gap(entry)
        if hole is not None and hole[0]["number"] < number <= hole[1]["number"]:
            return True
        if entry["deed"] == "pruned" and number <= entry["facts"]["last"]["number"]:
            return True
    return False
