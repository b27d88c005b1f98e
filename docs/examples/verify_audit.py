"""Verifies a whole audit chain, written from docs/audit.md alone.

`python verify_audit.py CHAIN AUDIT.PUB`: CHAIN is the answer of GET /v1/audit or of `fairgate audit
export`, AUDIT.PUB the pinned public key, in base64 or PEM. Needs the package cryptography.
"""

import base64
import hashlib
import json
import pathlib
import re
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_der_public_key

HASHED = ("number", "epoch", "at", "deed", "facts", "before")
SIGNED = ("cluster", "number", "hash", "epoch", "at")


def need(true, why):
    if not true:
        raise SystemExit(f"broken: {why}")


def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a name occurs twice")
    return dict(pairs)


def refuse(text):
    need(False, f"{text[:20]} is not an integer")


def parse(raw):
    hooks = {"object_pairs_hook": once, "parse_float": refuse, "parse_constant": refuse}
    line = json.loads(raw.decode(), **hooks)
    need(isinstance(line, dict) and line.pop("audit", None) is True, "it is not of the chain")
    body = line["head"] if set(line) == {"head"} else line
    names = {*SIGNED, "signature", "publicKey"} if "head" in line else {*HASHED, "hash"}
    need(set(body) == names, "it has other names than an entry or a head")
    need(all(type(body[n]) is int and body[n] >= 0 for n in ("number", "epoch", "at")), "numbers")
    hashes = [body[name] for name in ("hash", "before") if name in body]
    need(all(re.fullmatch("[0-9a-f]{64}", text) for text in hashes), "a hash is malformed")
    return line


def pair(head):
    return head["number"], head["hash"]


def canonical(body, names):
    chosen = {name: body[name] for name in names}
    return json.dumps(chosen, sort_keys=True, separators=(",", ":")).encode()


def check_head(head, epoch, key):
    number = head["number"]
    need(head["epoch"] == epoch, f"head {number} has another epoch than its entry")
    need(key in (None, head["publicKey"]), f"head {number} is signed by another key")
    try:
        public = load_der_public_key(base64.b64decode(head["publicKey"], validate=True))
        public.verify(base64.b64decode(head["signature"], validate=True), canonical(head, SIGNED))
    except (InvalidSignature, ValueError):
        need(False, f"the signature of head {number} is wrong")


def verify(chain, pinned):
    """Return the number of entries and of gaps. Leave with the first fault. `chain`: bytes."""
    last = key = newest = first = None
    known, removed, early, gaps, term, clusters = {}, [], [], 0, 0, set()
    lines = chain.removesuffix(b"\n").split(b"\n")
    for place, raw in enumerate(lines, 1):
        try:
            line = parse(raw)
            if head := line.get("head"):
                clusters.add(head["cluster"])
                if first is None or head["number"] < first[0]:
                    early.append(head["number"])
                    continue
                need(pair(head) in known, f"no entry before head {head['number']} has its hash")
                check_head(head, *known[pair(head)])
                newest = newest if newest and newest["number"] > head["number"] else head
                continue
            number, facts = line["number"], line["facts"]
            digest = hashlib.sha256(canonical(line, HASHED)).hexdigest()
            need(digest == line["hash"], f"entry {number} does not fit its hash")
            before = (number - 1, line["before"])
            if line["deed"] == "gap" and "upTo" in facts:
                lost = pair(facts["upTo"])
                need(lost[1] == before[1] and lost[0] < number, f"gap {number} follows another")
                before, gaps = lost if last == lost else pair(facts["after"]), gaps + 1
            need(before == (last or before), f"an entry before {number} is missing or changed")
            need(line["epoch"] >= term, f"entry {number} has a lower epoch")
            first, last, term = first or (number, before), (number, line["hash"]), line["epoch"]
            removed += [pair(facts["last"])] if line["deed"] == "pruned" else []
            key = facts["publicKey"] if line["deed"] == "key" else key
            known[last] = (term, key)
        except SystemExit as fault:
            raise SystemExit(f"{fault} (line {place})") from None
        except (ValueError, TypeError, KeyError, RecursionError) as fault:
            raise SystemExit(
                f"broken: line {place} is malformed ({type(fault).__name__})"
            ) from None
    need(newest is not None, "no head signs the chain")
    need(last == pair(newest), f"the entries after {newest['number']} are not signed")
    need(newest["publicKey"] == pinned, "the newest head is not signed by the pinned key")
    need(len(clusters) == 1, "the heads are of several clusters")
    need(first[1] in [(0, "0" * 64), *removed], "the first entries are missing")
    need(all(each <= first[1][0] for each in early), "a head stands before its entry")
    return len(known), gaps


if __name__ == "__main__":
    try:
        chain, key = (pathlib.Path(name).read_bytes() for name in sys.argv[1:3])
    except (OSError, ValueError) as fault:
        print(f"usage: verify_audit.py CHAIN AUDIT.PUB ({fault})", file=sys.stderr)
        raise SystemExit(2) from None
    pinned = "".join(
        row for row in key.decode("ascii", "replace").split("\n") if "-----" not in row
    )
    print("{} entries hold, with {} gaps".format(*verify(chain, "".join(pinned.split()))))
