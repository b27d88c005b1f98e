"""The certificate of a process, and the listeners that show it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from fastapi import FastAPI

from app.kube.bundle import Bundle
from app.settings import HostPort
from app.tls.client_ca import ClientCa
from app.tls.renewal import PublishCa, Renewal, Source, first
from app.tls.serving import Brought, Kept
from app.web.metrics import CERTIFICATE_EXPIRY
from app.web.serve import Listener, renew, require_client, tls_context
from app.wiring.process import Process


async def certificate_of(process: Process) -> Renewal:
    """Return the certificate of this process, got once for all of its roles.

    The webhook makes one if there is none; the others wait for it. It is followed from the start.
    """
    if process.certificate is None:
        settings = process.settings
        settle = timedelta(seconds=settings.tls_settle_seconds)
        source = _source(process, settle)
        renewal = Renewal(
            source, await first(source), settle=settle, now=_utc, clock=time.monotonic
        )
        CERTIFICATE_EXPIRY.set_function(renewal.seconds_left)
        # An API server that trusts us before we answer would find nobody.
        process.after_start.append(renewal.run)
        process.certificate = renewal
    return process.certificate


def _source(process: Process, settle: timedelta) -> Source:
    settings = process.settings
    if settings.tls_cert_file:
        assert settings.tls_key_file is not None
        assert settings.tls_ca_file is not None
        return Brought(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return Kept(
        Bundle(process.client),
        settings.namespace,
        names=settings.tls_names,
        days=settings.tls_days,
        settle=settle,
        now=_utc,
        writes="webhook" in settings.roles,
    )


def tls_listener(process: Process, name: str, app: FastAPI, at: HostPort) -> Listener:
    """Return a listener that shows the certificate, and each that follows it."""
    certificate = process.certificate
    assert certificate is not None, "got by the role before it listens"
    context = tls_context(certificate.serving.certificate, certificate.serving.key)
    certificate.attach(lambda new: renew(context, new.certificate, new.key))
    client_ca = process.settings.tls_client_ca_file
    if name == "webhook" and client_ca:
        process.tasks.append(ClientCa(client_ca, lambda ca: require_client(context, ca)).run)
    return Listener(name, app, at, context)


def publish_also(certificate: Renewal, publish: PublishCa) -> None:
    """Have the CAs of a certificate published here too."""
    earlier = certificate.publish

    async def both(ca_pem: bytes) -> None:
        await earlier(ca_pem)
        await publish(ca_pem)

    certificate.publish = both


def _utc() -> datetime:
    return datetime.now(UTC)
