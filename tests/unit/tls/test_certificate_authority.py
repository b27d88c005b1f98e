"""Issued certificates pass Python's strictest checks and are limited to their purpose."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from app.core.errors import InvalidInput
from app.tls.certificate_authority import (
    CertificateAuthority,
    Credential,
    new_authority,
    write_private,
)

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def authority() -> CertificateAuthority:
    return new_authority("a-ca", NOW, 10)


def leaf(credential: Credential) -> x509.Certificate:
    return x509.load_pem_x509_certificate(credential.certificate_pem)


def files(folder: Path, name: str, credential: Credential) -> tuple[str, str]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    write_private(certificate, credential.certificate_pem)
    write_private(key, credential.key_pem)
    return str(certificate), str(key)


def shake_hands(folder: Path, authority: CertificateAuthority, host: str) -> dict[str, object]:
    """Connect with strict checks on both sides; return the client's certificate as received."""
    trust = authority.certificate_pem.decode()
    served = authority.issue(
        "srv", names=["127.0.0.1", "localhost"], server=True, client=False, now=NOW, days=1
    )
    caller = authority.issue("me", groups=["g1"], server=False, client=True, now=NOW, days=1)
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=trust)
    inside.load_cert_chain(*files(folder, "srv", served))
    inside.verify_mode = ssl.CERT_REQUIRED
    outside = ssl.create_default_context(cadata=trust)
    outside.load_cert_chain(*files(folder, "me", caller))
    for context in (inside, outside):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()
    seen: list[dict[str, object]] = []

    def serve() -> None:
        with far, inside.wrap_socket(far, server_side=True) as secured:
            seen.append(dict(secured.getpeercert() or {}))
            secured.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, outside.wrap_socket(near, server_hostname=host) as secured:
            assert secured.recv(1) == b"x"
    finally:
        thread.join(10)
    return seen[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_strict_verification_accepts_both_ends(
    tmp_path: Path, authority: CertificateAuthority, host: str
) -> None:
    seen = shake_hands(tmp_path, authority, host)
    assert seen["subject"] == ((("organizationName", "g1"),), (("commonName", "me"),))


def test_loaded_authority_signs_for_the_same_ca(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    again = CertificateAuthority.load(authority.certificate_pem, authority.key_pem)
    assert shake_hands(tmp_path, again, "localhost")


def test_key_of_another_ca_is_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(InvalidInput, match="does not belong"):
        CertificateAuthority.load(authority.certificate_pem, new_authority("b", NOW, 1).key_pem)


def test_text_that_is_no_pem_is_refused() -> None:
    with pytest.raises(InvalidInput, match="PEM"):
        CertificateAuthority.load(b"certificate", b"key")


def test_valid_from_five_minutes_ago_and_never_longer_than_the_ca(
    authority: CertificateAuthority,
) -> None:
    issued = leaf(authority.issue("c", server=False, client=True, now=NOW, days=1000))
    assert issued.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert issued.not_valid_after_utc == NOW + timedelta(days=10)


def test_serials_are_long_and_differ(authority: CertificateAuthority) -> None:
    serials = {
        leaf(authority.issue("c", server=False, client=True, now=NOW, days=1)).serial_number
        for _ in range(20)
    }
    assert len(serials) == 20
    assert max(serial.bit_length() for serial in serials) > 140
    assert max(serial.bit_length() for serial in serials) <= 159


def test_certificate_has_only_the_requested_purpose(authority: CertificateAuthority) -> None:
    issued = leaf(authority.issue("c", server=False, client=True, now=NOW, days=1))
    purposes = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_server_without_names_is_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(InvalidInput, match="name"):
        authority.issue("c", server=True, client=False, now=NOW, days=1)


def test_certificate_without_a_purpose_is_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(InvalidInput, match="server"):
        authority.issue("c", server=False, client=False, now=NOW, days=1)


def test_private_file_has_mode_0600_and_replaces_a_readable_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_failed_write_of_a_private_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_private(tmp_path / "taken", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
