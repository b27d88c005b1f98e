"""The observer's own verification accepts chains sealed by the product and rejects broken ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.model import Millis
from tests.faults.observer.chain import Chain, agree, verify
from tests.faults.observer.judge import Release
from tests.faults.observer.objects import Managed

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def entries(*records: tuple[EntryType, dict[str, Any]], after: Head | None = None) -> list[Any]:
    """Records as the product seals them, and as JSON shows them."""
    head, lines = after or Head(), []
    for at, (entry_type, facts) in enumerate(records):
        entry: Entry = seal(head, 1, AuditRecord(Millis(at), entry_type, facts))
        head = entry.head
        line = {"number": entry.number, "epoch": 1, "at": at, "deed": entry_type.value}
        lines.append({**line, "facts": facts, "before": entry.previous_hash, "hash": entry.hash})
    return lines


def signed(line: Any) -> Any:
    body = {"cluster": "default", "number": line["number"], "hash": line["hash"]}
    body |= {"epoch": line["epoch"], "at": 9}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    der = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    words = {"signature": KEY.sign(text), "publicKey": der}
    return body | {name: base64.b64encode(data).decode() for name, data in words.items()}


def released(uid: str, stamp: str = "1.1") -> tuple[EntryType, dict[str, Any]]:
    return EntryType.RELEASED, {"uid": uid, "stamp": stamp, "user": "ü"}


def three() -> Chain:
    lines = entries((EntryType.LEADING, {}), released("u1", "1.1"), released("u2", "1.2"))
    return Chain(lines, signed(lines[-1]), signed(lines[1]))


def release(uid: str, stamp: str, exact: bool = True) -> Release:
    meta = {"uid": uid, "name": uid, "namespace": "a", "creationTimestamp": "2030-01-01T00:00:00Z"}
    meta["annotations"] = {"fairgate.io/release": stamp}  # type: ignore[assignment]
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    pod = Managed(["nvidia.com/gpu"]).pod({"metadata": meta, "spec": spec})
    assert pod is not None
    return Release(pod, 1, 0.0, exact)


def test_a_chain_as_the_product_seals_it_holds() -> None:
    assert verify(three()) == []


def _spoil_facts(chain: Chain) -> None:
    chain.entries[1] |= {"facts": {"uid": "u9"}}  # type: ignore[operator]


def _cut_out(chain: Chain) -> None:
    del chain.entries[1]


def _cut_front(chain: Chain) -> None:
    del chain.entries[0]


def _cut_end(chain: Chain) -> None:
    del chain.entries[2]


def _forge_signature(chain: Chain) -> None:
    assert chain.anchor is not None
    chain.anchor = {**chain.anchor, "epoch": 2}


def _forge_everything(chain: Chain) -> None:
    chain.entries = entries((EntryType.LEADING, {}), released("u8"), released("u2", "1.2"))
    chain.signed = signed(chain.entries[-1])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_spoil_facts, "entry 2: its hash"),
        (_cut_out, "entry 3 does not follow entry 1"),
        (_cut_front, "entry 2: what came before it is missing"),
        (_cut_end, "the head in Redis names entry 3"),
        (_forge_signature, "the anchor has no good signature"),
        (_forge_everything, "the anchor names entry 2"),
    ],
)
def test_a_chain_that_was_tampered_with_is_found(spoil: Callable[[Chain], None], said: str) -> None:
    chain = three()
    spoil(chain)
    assert any(said in line for line in verify(chain)), verify(chain)


def test_missing_entries_are_accepted_only_if_a_gap_entry_names_them() -> None:
    before = entries((EntryType.LEADING, {}), released("u1"), released("u2"))
    ends = [{"number": line["number"], "hash": line["hash"]} for line in (before[0], before[2])]
    lost = Head(before[2]["number"], before[2]["hash"])
    (named,) = entries((EntryType.GAP, {"after": ends[0], "upTo": ends[1]}), after=lost)
    whole = Chain([before[0], named], signed(named), signed(before[2]))
    assert verify(whole) == []
    (other,) = entries((EntryType.GAP, {"after": ends[1], "upTo": ends[1]}), after=lost)
    assert verify(Chain([before[0], other], signed(other), None)) != []


def test_old_entries_may_be_missing_if_an_entry_records_the_pruning() -> None:
    lines = entries(released("u1"), released("u2"))
    last = {"number": 1, "hash": lines[0]["hash"]}
    head = Head(2, lines[1]["hash"])
    (told,) = entries((EntryType.PRUNED, {"last": last}), after=head)
    assert verify(Chain([lines[1], told], signed(told), None)) == []


def test_releases_and_entries_must_agree() -> None:
    seen = [release("u1", "1.1"), release("u2", "1.2")]
    assert agree(three(), seen) == []
    assert any("no entry tells" in line for line in agree(three(), [release("u3", "1.3")]))
    assert any("another" in line for line in agree(three(), [release("u1", "1.7")]))
    twice = Chain(entries(released("u1"), released("u1")))
    assert any("told 2 times" in line for line in agree(twice, [release("u1", "1.1")]))
    assert agree(three(), [release("u3", "1.3", exact=False)]) == []
