"""The certificate we serve with: our own, kept in a Secret, or one that was brought.

All replicas serve with the same one: whoever comes first makes it, the others read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.core.errors import ClusterError, InvalidSettings
from app.ports import Secrets
from app.tls.issue import new_authority

SECRET = "fairgate-webhook-tls"  # noqa: S105 (a name)
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
KEYS = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True, slots=True, repr=False)
class Serving:
    """A serving certificate, its key, and the CA by which callers know it; all PEM."""

    certificate: bytes
    key: bytes
    ca: bytes


def brought(certificate: Path, key: Path, ca: Path) -> Serving:
    """Read a certificate that somebody else issued. Raises InvalidSettings."""
    try:
        return Serving(certificate.read_bytes(), key.read_bytes(), ca.read_bytes())
    except OSError as error:
        raise InvalidSettings(
            f"{error.filename} cannot be read ({error.strerror}); give the certificate, key and "
            "CA as files this process may read."
        ) from error


async def kept(secrets: Secrets, namespace: str) -> Serving | None:
    """Return the certificate kept in the Secret; None if there is none yet.

    Raises ClusterError, also if the Secret lacks a part.
    """
    data = await secrets.read_secret(namespace, SECRET)
    if data is None:
        return None
    missing = [key for key in KEYS if not data.get(key)]
    if missing:
        raise ClusterError(
            f"Secret {namespace}/{SECRET} lacks {', '.join(missing)}; complete it, or delete it "
            "and Fairgate makes a new one."
        )
    return Serving(*(data[key] for key in KEYS))


async def make(secrets: Secrets, namespace: str, names: tuple[str, ...], now: datetime) -> None:
    """Keep a new certificate in the Secret, unless somebody else was first."""
    await secrets.create_secret(namespace, SECRET, _make(names, now), kind="kubernetes.io/tls")


def _make(names: tuple[str, ...], now: datetime) -> dict[str, bytes]:
    authority = new_authority("fairgate-webhook-ca", now, AUTHORITY_DAYS)
    issued = authority.issue(
        "fairgate-webhook", names=names, server=True, client=False, now=now, days=CERTIFICATE_DAYS
    )
    # The CA's own key is not kept: a certificate that ends is replaced together with its CA.
    return dict(
        zip(KEYS, (issued.certificate_pem, issued.key_pem, authority.certificate_pem), strict=True)
    )
