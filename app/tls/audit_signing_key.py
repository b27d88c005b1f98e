"""The Ed25519 key that signs the heads of the audit chain, stored in a Secret.

A holder of the key can forge a chain, so only the controller reads it.
"""

from __future__ import annotations

import base64
from dataclasses import replace

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from app.core.audit.codec import SignedHead
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.ports.cluster import Secrets

SECRET = "fairgate-audit"  # noqa: S105 (a name)
KEY = "audit.key"
ARMOUR = ("-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----")

_INVALID_KEY_ERRORS = (ValueError, TypeError, UnsupportedAlgorithm)
"""Exceptions for input that is no key or no base64."""


class Signer:
    """Signs heads with one key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.public_key = base64.b64encode(public).decode()
        """The verification key: SubjectPublicKeyInfo in base64."""

    def sign(self, head: SignedHead) -> SignedHead:
        """Return the head with this key and its signature."""
        signature = base64.b64encode(self._key.sign(head.signed_bytes)).decode()
        return replace(head, signature=signature, public_key=self.public_key)


class KeptKey:
    """The key in the Secret `fairgate-audit`, created there on first use."""

    def __init__(self, secrets: Secrets, namespace: str) -> None:
        self._secrets = secrets
        self._namespace = namespace

    async def load(self) -> Signer:
        """Return the signer. Create the key if it does not exist. Raises ClusterError."""
        for _ in range(3):
            kept = await self._secrets.read_secret(self._namespace, SECRET)
            if kept is not None and KEY in kept.data:
                return Signer(self._parse_key(kept.data[KEY]))
            key = Ed25519PrivateKey.generate()
            data = {KEY: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())}
            if kept is None:
                written = await self._secrets.create_secret(self._namespace, SECRET, data)
            else:
                data = {**kept.data, **data}
                written = await self._secrets.replace_secret(
                    self._namespace, SECRET, data, kept.version
                )
            if written:
                return Signer(key)
        raise ClusterUnavailable(f"Secret {SECRET} changes all the time; its key cannot be read.")

    def _parse_key(self, pem: bytes) -> Ed25519PrivateKey:
        why = "it is of another kind"
        try:
            key = load_pem_private_key(pem, password=None)
        except _INVALID_KEY_ERRORS as error:
            why = str(error)
        else:
            if isinstance(key, Ed25519PrivateKey):
                return key
        raise ClusterRefused(
            f"Secret {self._namespace}/{SECRET} holds no Ed25519 key under {KEY} ({why}): put one "
            "there as PEM, or delete the Secret and let Fairgate make one.",
            422,
        )


def is_signature_valid(signed: SignedHead) -> bool:
    """Return whether the signature of a head is valid for the key that it names."""
    try:
        key = load_der_public_key(base64.b64decode(signed.public_key, validate=True))
        if not isinstance(key, Ed25519PublicKey):
            return False
        key.verify(base64.b64decode(signed.signature, validate=True), signed.signed_bytes)
    except (InvalidSignature, *_INVALID_KEY_ERRORS):
        return False
    return True


def parse_public_key(text: str) -> str:
    """Return a public key in the form of signed heads. `text`: PEM, or its base64 content.

    Raises InvalidInput.
    """
    bare = text.strip().removeprefix(ARMOUR[0]).removesuffix(ARMOUR[1])
    bare = "".join(bare.split())
    if not bare:
        raise InvalidInput(
            "The public key is empty; give PEM, or the base64 text in publicKey of a head."
        )
    try:
        key = load_der_public_key(base64.b64decode(bare, validate=True))
    except _INVALID_KEY_ERRORS as error:
        raise InvalidInput(
            f"This is no public key ({error}); give PEM, or the base64 text in publicKey of a head."
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput("The public key must be an Ed25519 key.")
    return bare
