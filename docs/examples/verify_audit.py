"""Verifies a whole audit chain by docs/audit.md: `python verify_audit.py CHAIN AUDIT.PUB`."""

import hashlib
import json
import re
import sys
from base64 import b64decode
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_der_public_key

HASHED = ("number", "epoch", "at", "deed", "facts", "before")
SIGNED = ("cluster", "number", "hash", "epoch", "at")


def need(true, why):
    if not true:
        raise ValueError(why)


def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a name occurs twice")
    return dict(pairs)


def parse(raw):
    """Return an entry or a head. `int` refuses fractions and NaN."""
    hooks = {"object_pairs_hook": once, "parse_float": int, "parse_constant": int}
    line = json.loads(raw.decode(), **hooks)
    need(line.pop("audit") is True, "not a line of the chain")
    body = line["head"] if set(line) == {"head"} else line
    names = {*HASHED, "hash"} if body is line else {*SIGNED, "signature", "publicKey"}
    need(set(body) == names, "other names than those of an entry or a head")
    need(all(type(body[n]) is int and body[n] >= 0 for n in ("number", "epoch", "at")), "numbers")
    hashes = [body[name] for name in ("hash", "before") if name in body]
    need(all(re.fullmatch("[0-9a-f]{64}", text) for text in hashes), "a hash is malformed")
    return body


def pair(body):
    return body["number"], body["hash"]


def canonical(body, names):
    chosen = {name: body[name] for name in names}
    return json.dumps(chosen, sort_keys=True, separators=(",", ":")).encode()


def check_signature(head):
    public = load_der_public_key(b64decode(head["publicKey"], validate=True))
    public.verify(b64decode(head["signature"], validate=True), canonical(head, SIGNED))


def entry_before(entry, last):
    """Return number and hash of the entry that must precede this one in the file."""
    if entry["deed"] != "gap" or "upTo" not in entry["facts"]:
        return entry["number"] - 1, entry["before"]
    after, up_to = pair(entry["facts"]["after"]), pair(entry["facts"]["upTo"])
    need(entry["before"] == up_to[1] and entry["number"] > up_to[0], "a gap follows another entry")
    return last if last == up_to else after


def verify(chain, pinned):
    """Return the number of entries and of gaps. Leave with the first fault. `chain`: bytes."""
    last = start = key = newest = None
    epoch, gaps, known, unknown, clusters, removed = 0, 0, {}, [0], set(), [(0, "0" * 64)]
    place = 0
    try:
        for raw in chain.removesuffix(b"\n").split(b"\n"):
            place += 1
            body = parse(raw)
            if "signature" in body:
                check_signature(body)
                clusters.add(body["cluster"])
                if pair(body) not in known:
                    unknown.append(body["number"])
                    continue
                signed = known[pair(body)]
                need(body["epoch"] == signed[0], "the head has another epoch than its entry")
                need(signed[1] in (None, body["publicKey"]), "the head is of another key")
                newest = max(body, newest or body, key=lambda head: head["number"])
                continue
            deed, facts, before = body["deed"], body["facts"], entry_before(body, last)
            digest = hashlib.sha256(canonical(body, HASHED)).hexdigest()
            need(digest == body["hash"], "the entry does not fit its hash")
            need(before == (last or before), "an entry before it is missing or changed")
            need(body["epoch"] >= epoch, "the epoch decreases")
            gaps += deed == "gap" and "upTo" in facts
            removed += [pair(facts["last"])] if deed == "pruned" else []
            key = facts["publicKey"] if deed == "key" else key
            start, last, epoch = start or before, pair(body), body["epoch"]
            known[last] = epoch, key
        need(newest and last == pair(newest), "no head signs the last entry")
        need(newest["publicKey"] == pinned, "the newest head is not signed by the pinned key")
        need(len(clusters) == 1, "the heads are of several clusters")
        need(start in removed, "the first entries are missing")
        need(max(unknown) <= start[0], "no entry before a head has its number and hash")
    except Exception as fault:  # whatever is wrong with a line, the chain does not hold
        raise SystemExit(f"broken: line {place}: {type(fault).__name__} {fault}") from None
    return len(known), gaps


if __name__ == "__main__":
    chain, key = map(Path, sys.argv[1:])
    entries, gaps = verify(chain.read_bytes(), key.read_text().strip())
    print(f"{entries} entries hold, with {gaps} gaps")
