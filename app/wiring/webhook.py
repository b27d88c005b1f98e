"""Assembles the role webhook: admission, and the watchdog of its webhooks and policies."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from app.controller.audit_reports import AuditReportSender
from app.controller.enforcement_sync import EnforcementReporter
from app.core.admission.pod_templates import group_by_resource
from app.core.events import WatchedSource
from app.core.podspec.resource_claims import IMPLICIT
from app.core.quantities import ManagedResources
from app.kube.access_review import Reviews
from app.kube.enforcement_canary import Canary
from app.kube.enforcement_watchdog import Watchdog
from app.kube.event_recorder import EnforcementAlarm
from app.kube.priority_class_twins import Twins
from app.kube.submitter_lookup import KubeSubmitters
from app.store.enforcement_results import RedisEnforcementResults
from app.tls.certificate_watcher import Renewal
from app.web.metrics import PrometheusEnforcement
from app.web.webhook.app import WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from app.web.webhook.owner_resolver import OwnerResolver
from app.web.webhook.pod_facts import spec_requests_managed
from app.wiring.certificate import add_publisher, certificate_of, tls_listener
from app.wiring.process import RoleProcess, connect_redis, create_report_sender, now, watch

log = logging.getLogger("fairgate.kube")

ROLE = "fairgate-webhook"
"""ClusterRole that the chart creates for this role."""


async def webhook(process: RoleProcess) -> None:
    """Assemble the admission webhook."""
    settings = process.settings
    needs = [WatchedSource.TENANTS, WatchedSource.POOLS, WatchedSource.POLICIES]
    view = WebhookCache([*needs, WatchedSource.PRIORITIES] if settings.preemption_twins else needs)
    watch(process, view, needs)
    if settings.preemption_twins:
        twins = Twins(process.client, view)
        watch(process, twins, [WatchedSource.PRIORITIES])
        process.tasks.append(twins.maintain_twins)
        process.checks["twins of PriorityClasses made"] = lambda: twins.is_complete
    certificate = await certificate_of(process)
    # The webhook does not read DeviceClasses, so it holds every pod that requests one by name.
    managed = ManagedResources((*settings.managed_resources, IMPLICIT + "*"))
    enforced = WebhookConfig(
        managed,
        frozenset(settings.exempt_namespaces),
        settings.rules,
        settings.templates,
        frozenset([f"system:serviceaccount:{settings.namespace}:fairgate-controller"]),
        frozenset([f"system:serviceaccount:{settings.namespace}:fairgate-api"]),
    )
    reporting = _reporting(process)
    app = admission_app(view, enforced, lambda: view.is_ready, reporting, _owners(process, managed))
    process.listeners.append(tls_listener(process, "webhook", app, settings.webhook_listen))
    process.checks["tenants and pools known"] = lambda: view.is_ready
    _start_watchdog(process, certificate, view, reporting)


def _owners(process: RoleProcess, managed: ManagedResources) -> OwnerResolver:
    """Return the search for the submitters of objects that controllers create."""
    settings, client = process.settings, process.client
    kinds = group_by_resource(settings.templates)
    return OwnerResolver(
        settings.rules.controllers,
        Reviews(client, time.monotonic),
        KubeSubmitters(
            client,
            kinds,
            time.monotonic,
            lambda spec: spec_requests_managed(spec, managed, if_invalid=False),
        ),
    )


def _reporting(process: RoleProcess) -> AuditReportSender | None:
    """Return the sender of audit reports. None without Redis: only the log has them."""
    return None if process.settings.redis_url is None else create_report_sender(process)


def _start_watchdog(
    process: RoleProcess,
    certificate: Renewal,
    view: WebhookCache,
    reporting: AuditReportSender | None,
) -> None:
    """Start the watchdog that restores webhooks and policies, and the canary that tests them."""
    settings, client = process.settings, process.client
    meters, alarm = PrometheusEnforcement(), EnforcementAlarm(client, settings.namespace)
    latest = certificate.serving.ca

    publish_result = _publisher(process)
    tried = Canary(
        client,
        settings.managed_resources,
        seconds=settings.canary_seconds,
        is_applied=lambda: watchdog.is_applied,
        observing=lambda: view.is_observing,
        meters=meters,
        alarm=alarm,
        publish=publish_result,
    )
    watchdog = Watchdog(
        client,
        settings.namespace,
        owner=ROLE,
        ca=lambda: latest,
        read_observing=lambda: view.is_observing if view.is_ready else None,
        unreachable_reason=tried.unreachable_reason,
        default_mode=view.set_default_mode,
        meters=meters,
        alarm=alarm,
        is_ours=certificate.may_have_published,
        then=tried.probe_soon,
        reporter=reporting,
    )

    async def publish(ca_pem: bytes) -> None:
        nonlocal latest
        latest = ca_pem
        await watchdog.publish(ca_pem)

    add_publisher(certificate, publish)
    process.tasks.append(watchdog.run)
    process.checks["enforcement seen"] = lambda: watchdog.has_checked_all
    if settings.canary_seconds:
        process.tasks.append(tried.run)
    else:
        process.after_start.append(lambda: publish_result({}))


def _publisher(process: RoleProcess) -> Callable[[Mapping[str, str]], Awaitable[None]]:
    """Return a function that stores the result of the probes for the API replicas."""
    settings = process.settings
    if settings.redis_url is None:
        return _discard_result
    results = RedisEnforcementResults(connect_redis(process), settings.cluster)
    reporter = EnforcementReporter(
        results,
        now,
        settings.canary_seconds,
        is_ready=lambda: all(check() for check in process.checks.values()),
    )
    process.tasks.append(reporter.send_heartbeats)
    return reporter.publish


async def _discard_result(holes: Mapping[str, str]) -> None:
    """Drop a result: without Redis, only metrics and events show it."""
