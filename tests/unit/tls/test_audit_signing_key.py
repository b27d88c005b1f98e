"""The key of the audit chain: created once, stored in a Secret, and its signatures."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.core.audit.codec import SignedHead
from app.core.audit_entry import Head
from app.core.errors import ClusterError, InvalidInput
from app.core.model import Millis
from app.tls.audit_signing_key import KEY, SECRET, KeptKey, is_signature_valid, parse_public_key
from tests.fakes.fake_secrets import FakeSecrets

UNKNOWN = b64encode(bytes.fromhex("302a300506032b657f032100") + bytes(32)).decode()
"""A public key of an unsupported type."""

HEAD = SignedHead("c", Head(4, "ab" * 32), 7, Millis(5))


async def test_signing_key_is_created_once() -> None:
    secrets = FakeSecrets()
    first = await KeptKey(secrets, "ns").load()
    second = await KeptKey(secrets, "ns").load()
    assert first.public_key == second.public_key
    del secrets.stored["ns", SECRET]
    assert (await KeptKey(secrets, "ns").load()).public_key != first.public_key


async def test_secret_without_a_key_retains_its_other_entries() -> None:
    secrets = FakeSecrets()
    secrets.put("ns", SECRET, {"note": b"x"}, ours=False)
    await KeptKey(secrets, "ns").load()
    assert set(secrets.stored["ns", SECRET].data) == {"note", KEY}


@pytest.mark.parametrize("kind", ["garbage", "another kind"])
async def test_invalid_key_from_another_author_is_never_replaced(kind: str) -> None:
    other = generate_private_key(SECP256R1())
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    secrets = FakeSecrets()
    secrets.put("ns", SECRET, {KEY: b"garbage" if kind == "garbage" else pem}, ours=False)
    before = secrets.stored["ns", SECRET]
    with pytest.raises(ClusterError, match="ns/fairgate-audit holds no Ed25519 key"):
        await KeptKey(secrets, "ns").load()
    assert secrets.stored["ns", SECRET] == before


async def test_a_signature_covers_everything_in_a_head() -> None:
    signed = (await KeptKey(FakeSecrets(), "ns").load()).sign(HEAD)
    assert is_signature_valid(signed)
    for other in (
        replace(signed, cluster="d"),
        replace(signed, head=replace(signed.head, number=5)),
        replace(signed, head=replace(signed.head, hash="cd" * 32)),
        replace(signed, epoch=8),
        replace(signed, at=Millis(6)),
        replace(signed, signature=""),
        replace(signed, signature="!"),
        replace(signed, public_key=""),
        replace(signed, public_key=UNKNOWN),
        replace(signed, public_key=(await KeptKey(FakeSecrets(), "ns").load()).public_key),
    ):
        assert not is_signature_valid(other)


async def test_a_public_key_is_read_with_armour_and_without() -> None:
    key = (await KeptKey(FakeSecrets(), "ns").load()).public_key
    pem = f"-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n"
    assert parse_public_key(pem) == parse_public_key(key + "\n") == key
    for other in ("", "x", UNKNOWN, pem[:60]):
        with pytest.raises(InvalidInput):
            parse_public_key(other)
