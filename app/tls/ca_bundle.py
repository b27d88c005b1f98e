"""The serving certificate with its CA bundle, and functions on PEM certificates and bundles.

All functions are pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from app.core.errors import InvalidSettings

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True, repr=False)
class ServingBundle:
    """A serving certificate, its key, and the CAs that clients trust; all PEM."""

    certificate: bytes
    key: bytes
    ca: bytes


def serving_bundle(certificate: bytes, key: bytes, ca: bytes) -> ServingBundle:
    """Return the three as one value. Raises InvalidSettings if a certificate cannot be parsed.

    It does not check that the key belongs to the certificate: the TLS context does.
    """
    expires_at(certificate)
    if not _blocks(ca):
        raise InvalidSettings("The CA of the serving certificate is no PEM certificate; give one.")
    return ServingBundle(certificate, key, ca)


def expires_at(certificate_pem: bytes) -> datetime:
    """Return when the first certificate of a chain expires. Raises InvalidSettings."""
    return _first_certificate(certificate_pem).not_valid_after_utc


def is_valid_yet(certificate_pem: bytes, now: datetime) -> bool:
    """Return whether the first certificate of a chain is valid already. Raises InvalidSettings."""
    return now >= _first_certificate(certificate_pem).not_valid_before_utc


def is_renewal_due(certificate_pem: bytes, now: datetime) -> bool:
    """Return whether two thirds of the lifetime have passed. Raises InvalidSettings."""
    certificate = _first_certificate(certificate_pem)
    begun, ended = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begun + (ended - begun) * 2 / 3


def merge_bundles(*bundles: bytes) -> bytes:
    """Return one bundle that contains each certificate of the bundles once, in their order."""
    blocks = dict.fromkeys(block for bundle in bundles for block in _blocks(bundle))
    return b"".join(block + b"\n" for block in blocks)


def is_subset(few: bytes, many: bytes) -> bool:
    """Return whether the bundle `many` contains every certificate of `few`."""
    return set(_blocks(few)) <= set(_blocks(many))


def signing_cas(bundle: bytes, certificate_pem: bytes) -> bytes:
    """Return the CAs of a bundle that signed the certificate. Raises InvalidSettings."""
    leaf = _first_certificate(certificate_pem)
    return merge_bundles(*(block for block in _blocks(bundle) if _has_signed(block, leaf)))


def _has_signed(authority_pem: bytes, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(_first_certificate(authority_pem))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _blocks(bundle: bytes) -> list[bytes]:
    # Not parsed: a bundle may contain comments, and certificates that only API servers support.
    return [block.replace(b"\r\n", b"\n") for block in _BLOCK.findall(bundle)]


def _first_certificate(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise InvalidSettings(
            f"The serving certificate cannot be read ({error}); give a PEM certificate."
        ) from error
