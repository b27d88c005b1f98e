"""A certificate to serve with and the CAs by which callers know it; what their PEM tells.

Values only: reads no file, asks no clock.
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
class Serving:
    """A serving certificate, its key, and the CAs by which callers know it; all PEM."""

    certificate: bytes
    key: bytes
    ca: bytes


def serving(certificate: bytes, key: bytes, ca: bytes) -> Serving:
    """Return the three together. Raises InvalidSettings where a certificate should be and is not.

    That the key belongs to the certificate is found out by whoever serves with them.
    """
    ends(certificate)
    if not _blocks(ca):
        raise InvalidSettings("The CA of the serving certificate is no PEM certificate; give one.")
    return Serving(certificate, key, ca)


def ends(certificate_pem: bytes) -> datetime:
    """Return when the certificate, the first of a chain, ends. Raises InvalidSettings."""
    return _first(certificate_pem).not_valid_after_utc


def is_due(certificate_pem: bytes, now: datetime) -> bool:
    """Tell whether two thirds of its life have passed. Raises InvalidSettings."""
    certificate = _first(certificate_pem)
    begun, ended = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begun + (ended - begun) * 2 / 3


def merge(*bundles: bytes) -> bytes:
    """Return one bundle with every certificate of these once, in their order."""
    blocks = dict.fromkeys(block for bundle in bundles for block in _blocks(bundle))
    return b"".join(block + b"\n" for block in blocks)


def is_within(few: bytes, many: bytes) -> bool:
    """Tell whether whoever trusts the bundle `many` trusts all that `few` trusts."""
    return set(_blocks(few)) <= set(_blocks(many))


def vouching(bundle: bytes, certificate_pem: bytes) -> bytes:
    """Return those of a bundle that have signed the certificate. Raises InvalidSettings."""
    leaf = _first(certificate_pem)
    return merge(*(block for block in _blocks(bundle) if _has_signed(block, leaf)))


def _has_signed(authority_pem: bytes, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(_first(authority_pem))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _blocks(bundle: bytes) -> list[bytes]:
    # Not parsed: a bundle may hold comments, and certificates that only API servers understand.
    return [block.replace(b"\r\n", b"\n") for block in _BLOCK.findall(bundle)]


def _first(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise InvalidSettings(
            f"The serving certificate cannot be read ({error}); give a PEM certificate."
        ) from error
