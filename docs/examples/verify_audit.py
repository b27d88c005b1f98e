"""Verifies a whole audit chain, written from docs/audit.md alone.

`python verify_audit.py CHAIN AUDIT.PUB`: CHAIN is the answer of GET /v1/audit or of `fairgate audit
export`, AUDIT.PUB the pinned public key in base64. Needs the package cryptography.
"""

import base64
import hashlib
import json
import pathlib
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_der_public_key

HASHED = ("number", "epoch", "at", "deed", "facts", "before")
SIGNED = ("cluster", "number", "hash", "epoch", "at")


def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a name occurs twice")
    return dict(pairs)


def need(true, why):
    if not true:
        raise SystemExit(f"broken: {why}")


def pair(head):
    return head["number"], head["hash"]


def canonical(body, names):
    chosen = {name: body[name] for name in names}
    return json.dumps(chosen, sort_keys=True, separators=(",", ":")).encode()


def verify(lines, pinned):
    """Return the number of entries and of gaps. Leave with the first fault."""
    last = key = newest = first = None
    known, removed, gaps, epoch_before = {}, [], [], 0
    for text in lines:
        line = json.loads(text, object_pairs_hook=once)
        need(line.pop("audit", None) is True, "a line does not belong to the chain")
        if head := line.get("head"):
            at = pair(head)
            if first and at[0] < first[0]:
                continue  # its entry was removed by retention
            need(at in known, f"head {at[0]} names an entry that is not there")
            epoch, named = known[at]
            need(head["epoch"] == epoch, f"head {at[0]} has another epoch than its entry")
            need(named in (None, head["publicKey"]), f"head {at[0]} is signed by another key")
            public = load_der_public_key(base64.b64decode(head["publicKey"]))
            try:
                public.verify(base64.b64decode(head["signature"]), canonical(head, SIGNED))
            except InvalidSignature:
                need(False, f"the signature of head {at[0]} is wrong")
            newest = head if newest is None or at[0] >= newest["number"] else newest
        elif "missed" not in line:
            number, facts = line["number"], line["facts"]
            need(set(line) == {*HASHED, "hash"}, f"entry {number} has other fields")
            digest = hashlib.sha256(canonical(line, HASHED)).hexdigest()
            need(digest == line["hash"], f"entry {number} does not fit its hash")
            before = (number - 1, line["before"])
            if line["deed"] == "gap" and "upTo" in facts:
                need(before == pair(facts["upTo"]), f"gap {number} follows another entry")
                before = pair(facts["after"])
                gaps.append(number)
            first = first or (number, before)
            need(before == (last or first[1]), f"an entry before {number} is missing or changed")
            need(line["epoch"] >= epoch_before, f"entry {number} has a lower epoch")
            last, epoch_before = (number, line["hash"]), line["epoch"]
            removed += [(number, pair(facts["last"]))] if line["deed"] == "pruned" else []
            key = facts["publicKey"] if line["deed"] == "key" else key
            known[last] = (line["epoch"], key)
    need(newest is not None, "no head signs the chain")
    need(last == pair(newest), "the newest entries are not signed")
    need(newest["publicKey"] == pinned, "the newest head is not signed by the pinned key")
    begins = first[1] == (0, "0" * 64)
    need(begins or first[1] in [each for _, each in removed], "the first entries are missing")
    return len(known), len(gaps)


if __name__ == "__main__":
    chain, public_key = (pathlib.Path(name).read_text() for name in sys.argv[1:3])
    print("{} entries hold, with {} gaps".format(*verify(chain.splitlines(), public_key.strip())))
