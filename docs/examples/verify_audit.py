"""Verifies a whole audit chain by docs/audit.md: `python verify_audit.py CHAIN AUDIT.PUB`."""

import json
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_der_public_key

HASHED = ("number", "epoch", "at", "deed", "facts", "before")
SIGNED = ("cluster", "number", "hash", "epoch", "at")


def need(true, why):
    if not true:
        raise ValueError(why)


def once(pairs):
    return dict(pairs) if len(dict(pairs)) == len(pairs) else need(False, "a name occurs twice")


def parse(raw):  # `int` refuses fractions and NaN
    line = json.loads(raw.decode(), object_pairs_hook=once, parse_float=int, parse_constant=int)
    body = line["head"] if set(line) == {"audit", "head"} else line
    names = {"audit", *HASHED, "hash"} if body is line else {*SIGNED, "signature", "publicKey"}
    need(line["audit"] is True and set(body) == names, "the line is neither an entry nor a head")
    need(all(type(body[n]) is int and body[n] >= 0 for n in ("number", "epoch", "at")), "numbers")
    return body


def pair(body):
    return body["number"], body["hash"]


def canonical(body, names):
    return json.dumps({n: body[n] for n in names}, sort_keys=True, separators=(",", ":")).encode()


def verify(chain, pinned):
    start = last = key = cluster = None  # `start`: the pair before the first entry
    epoch, gaps, known, keys, absent, removed = 0, 0, {}, {}, {0: 0}, [(0, "0" * 64)]
    try:
        for place, raw in enumerate(chain.removesuffix(b"\n").split(b"\n"), 1):
            body = parse(raw)
            if "signature" in body:
                public = load_der_public_key(b64decode(body["publicKey"], validate=True))
                public.verify(b64decode(body["signature"], validate=True), canonical(body, SIGNED))
                fits = [(body["epoch"], None), (body["epoch"], body["publicKey"])]
                need(known.get(pair(body), fits[0]) in fits, "its entry has another epoch or key")
                need(body["cluster"] and cluster in (None, body["cluster"]), "several clusters")
                keys[pair(body)], cluster = body["publicKey"], body["cluster"]
                absent |= {} if pair(body) in known else {place: body["number"]}
                continue
            need(sha256(canonical(body, HASHED)).hexdigest() == body["hash"], "the hash is wrong")
            deed, facts, before = body["deed"], body["facts"], (body["number"] - 1, body["before"])
            if deed == "gap" and "upTo" in facts:
                up_to, gaps = pair(facts["upTo"]), gaps + 1
                need(before[1] == up_to[1] and before[0] >= up_to[0], "a gap follows another entry")
                before = last if last == up_to else pair(facts["after"])
            need(before == (last or before), "an entry before it is missing or changed")
            need(body["epoch"] >= epoch, "the epoch decreases")
            removed += [pair(facts["last"])] if deed == "pruned" else []
            key = facts["publicKey"] if deed == "key" else key
            start, last, epoch = start or before, pair(body), body["epoch"]
            known[last] = epoch, key
        need(start in removed, "the first entries are missing")
        need(max(absent.values()) <= start[0], "a head signs no entry before it")
        need(keys.get(last) == pinned.decode().strip(), "this key does not sign the last entry")
    except Exception as fault:  # whatever is wrong with a line, the chain does not hold
        raise SystemExit(f"broken: line {place}: {type(fault).__name__} {fault}") from None
    return f"{len(known)} entries hold, with {gaps} gaps"


if __name__ == "__main__":
    print(verify(*(Path(name).read_bytes() for name in sys.argv[1:])))
