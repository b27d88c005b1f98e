"""The serving certificate of a process, and the TLS listeners that use it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from starlette.types import ASGIApp

from app.config.setting_parsers import HostPort
from app.kube.secrets import Bundle
from app.tls.certificate_source import FileCertificate, SecretCertificate
from app.tls.certificate_watcher import CertificateSource, PublishCa, Renewal, wait_for_certificate
from app.tls.client_ca import ClientCa
from app.web.metrics import CERTIFICATE_EXPIRY
from app.web.server.server import Listener, ServerTls
from app.wiring.process import RoleProcess


async def certificate_of(process: RoleProcess) -> Renewal:
    """Return the certificate of this process, which all of its roles share.

    The role webhook issues a certificate if there is no such Secret. The other roles wait for it.
    """
    if process.certificate is None:
        settings = process.settings
        settle = timedelta(seconds=settings.tls_settle_seconds)
        source = _source(process, settle)
        renewal = Renewal(
            source,
            await wait_for_certificate(source),
            settle=settle,
            now=_utc,
            clock=time.monotonic,
        )
        CERTIFICATE_EXPIRY.set_function(renewal.seconds_left)
        # Publish the CA after the start: the API server must not call before this process answers.
        process.after_start.append(renewal.watch_certificate)
        process.certificate = renewal
    return process.certificate


def _source(process: RoleProcess, settle: timedelta) -> CertificateSource:
    settings = process.settings
    if settings.tls_cert_file:
        assert settings.tls_key_file is not None
        assert settings.tls_ca_file is not None
        return FileCertificate(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return SecretCertificate(
        Bundle(process.client),
        settings.namespace,
        names=settings.tls_names,
        days=settings.tls_days,
        settle=settle,
        now=_utc,
        writes="webhook" in settings.roles,
    )


def tls_listener(process: RoleProcess, name: str, app: ASGIApp, at: HostPort) -> Listener:
    """Return a listener that uses the certificate, and each later one."""
    certificate = process.certificate
    assert certificate is not None, "got by the role before it listens"
    tls = ServerTls(certificate.serving.certificate, certificate.serving.key)
    certificate.subscribe(lambda new: tls.renew_certificate(new.certificate, new.key))
    client_ca = process.settings.tls_client_ca_file
    if name == "webhook" and client_ca:
        process.tasks.append(ClientCa(client_ca, tls.require_client).watch_file)
    return Listener(name, app, at, tls.current_context)


def add_publisher(certificate: Renewal, publish: PublishCa) -> None:
    """Publish the CAs of a certificate with this function, too."""
    earlier = certificate.publish_ca

    async def both(ca_pem: bytes) -> None:
        await earlier(ca_pem)
        await publish(ca_pem)

    certificate.publish_ca = both


def _utc() -> datetime:
    return datetime.now(UTC)
