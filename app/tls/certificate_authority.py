"""A small certificate authority (ECDSA P-256) that Python's strict verification accepts.

It has no state and no clock: callers pass the time. `rotation` has the rules of rotation.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.core.errors import InvalidInput

BACKDATED = timedelta(minutes=5)
"""How long before its creation a certificate becomes valid, because clocks of machines differ."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A certificate and its private key, both PEM. Never printed."""

    certificate_pem: bytes
    key_pem: bytes


class CertificateAuthority:
    """A CA that signs leaf certificates.

    Create it by `new_authority` or `CertificateAuthority.load`.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> CertificateAuthority:
        """Return the CA of a PEM certificate and its PEM key. Raises InvalidInput."""
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = load_pem_private_key(key_pem, password=None)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"The CA cannot be read ({error}); give plain PEM.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput("The key of the CA must be an elliptic curve key, P-256.")
        if certificate.public_key() != key.public_key():
            raise InvalidInput("The certificate of the CA does not belong to its key.")
        return cls(certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        """The CA certificate, which clients trust."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The CA's private key. Its owner can issue certificates."""
        return _pem(self._key)

    def issue(
        self,
        common_name: str,
        *,
        groups: Sequence[str] = (),
        names: Sequence[str] = (),
        server: bool,
        client: bool,
        now: datetime,
        days: int,
    ) -> Credential:
        """Create a key and sign its certificate, which never outlives the CA.

        `names` are DNS names or IP addresses, `groups` become O=. Raises InvalidInput for a server
        without names.
        """
        if server and not names:
            raise InvalidInput(f"A server certificate for {common_name} needs at least one name.")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        )
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        builder = (
            _builder(subject, self._certificate.subject, key, now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_purposes(server, client)), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Credential(certificate.public_bytes(Encoding.PEM), _pem(key))

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def new_authority(name: str, now: datetime, days: int) -> CertificateAuthority:
    """Create a CA with a new key. It may sign leaf certificates, but no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = (
        _builder(subject, subject, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return CertificateAuthority(certificate, key)


def write_private(path: Path, data: bytes) -> None:
    """Write or replace a file atomically. Only its owner may read it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(server: bool, client: bool) -> list[x509.ObjectIdentifier]:
    purposes = []
    if server:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    if client:
        purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    if not purposes:
        raise InvalidInput("A certificate must be for a server, a client or both.")
    return purposes


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
