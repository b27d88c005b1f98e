"""The role webhook: holds pods, judges changes, keeps in force what makes the API server ask."""

from __future__ import annotations

from app.control.reporting import Reporting
from app.core.asks.claims import IMPLICIT
from app.core.events import Source
from app.core.resources import ManagedResources
from app.kube.alarm import Alarm
from app.kube.canary import Canary
from app.kube.twins import Twins
from app.kube.watchdog import Watchdog
from app.tls.renewal import Renewal
from app.web.admission import Enforced, admission_app
from app.web.metrics import Enforcing
from app.web.view import View
from app.wiring.certificate import certificate_of, publish_also, tls_listener
from app.wiring.process import Process, reporting_of, watch


async def webhook(process: Process) -> None:
    """Put together what the webhook needs."""
    settings = process.settings
    needs = [Source.TENANTS, Source.POOLS, Source.POLICIES]
    view = View([*needs, Source.PRIORITIES] if settings.priority_twins else needs)
    watch(process, view, needs)
    if settings.priority_twins:
        twins = Twins(process.client, view)
        watch(process, twins, [Source.PRIORITIES])
        process.tasks.append(twins.run)
        process.checks["twins of PriorityClasses made"] = lambda: twins.complete
    certificate = await certificate_of(process)
    # What a device class counts as is not known here: whoever asks for one by name is held.
    managed = ManagedResources((*settings.managed_resources, IMPLICIT + "*"))
    enforced = Enforced(
        managed,
        frozenset(settings.exempt_namespaces),
        settings.rules,
        settings.templates,
        frozenset([f"system:serviceaccount:{settings.namespace}:fairgate-controller"]),
        frozenset([f"system:serviceaccount:{settings.namespace}:fairgate-api"]),
    )
    reporting = _reporting(process)
    app = admission_app(view, enforced, lambda: view.ready, reporting)
    process.listeners.append(tls_listener(process, "webhook", app, settings.webhook_listen))
    process.checks["tenants and pools known"] = lambda: view.ready
    _guard(process, certificate, view, reporting)


def _reporting(process: Process) -> Reporting | None:
    """Return where refusals and restorations are reported; without Redis the log alone tells."""
    return None if process.settings.redis_url is None else reporting_of(process)


def _guard(process: Process, certificate: Renewal, view: View, reporting: Reporting | None) -> None:
    """Keep in force what makes the API server ask us, and try whether it does."""
    settings, client = process.settings, process.client
    meters, alarm = Enforcing(), Alarm(client, settings.namespace)
    latest = certificate.serving.ca

    tried = Canary(
        client,
        settings.managed_resources,
        seconds=settings.canary_seconds,
        observing=lambda: view.observing,
        meters=meters,
        alarm=alarm,
    )
    watchdog = Watchdog(
        client,
        settings.namespace,
        ca=lambda: latest,
        observing=lambda: view.observing if view.ready else None,
        meters=meters,
        alarm=alarm,
        is_ours=certificate.knows,
        then=tried.hurry,
        reporter=reporting,
    )

    async def publish(ca_pem: bytes) -> None:
        nonlocal latest
        latest = ca_pem
        await watchdog.publish(ca_pem)

    publish_also(certificate, publish)
    process.tasks.append(watchdog.run)
    process.checks["enforcement seen"] = lambda: watchdog.has_looked
    if settings.canary_seconds:
        process.tasks.append(tried.run)
