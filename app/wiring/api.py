"""Assembles the role api: the REST API, served from a read-only engine that follows the cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastapi import FastAPI

from app.config.setting_parsers import HostPort
from app.config.settings import Settings
from app.controller.enforcement_sync import EnforcementReader
from app.controller.event_queue import EventQueue
from app.controller.follower import Follower
from app.controller.leader_state_sync import LeaderStateReader
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.events import GROUP_SOURCES, REQUIRED_SOURCES, ClusterEvent
from app.core.explain.leader_state import recent_message
from app.core.model import Resource
from app.core.quantities import ManagedResources
from app.kube.access_review import Reviews
from app.kube.api_aggregation import ApiServiceBundle, FrontProxy
from app.kube.device_selectors import DeviceSelectors
from app.kube.event_reader import PodEventReader
from app.kube.proposed_pods import ProposedPods
from app.kube.tenants_pools import KubeResources
from app.ports.store import QueueReader
from app.sim.forecast.estimates import Estimates
from app.sim.forecast.trial_service import TrialRuns
from app.sim.forecast.what_if_service import WhatIfs
from app.store.audit_stream import RedisAuditReader
from app.store.enforcement_results import RedisEnforcementResults
from app.store.leader_state_store import RedisLeaderState
from app.store.reader import RedisReader
from app.store.usage_records import RedisRuns
from app.tls.ca_bundle import is_subset
from app.tls.certificate_watcher import Renewal
from app.web.api.api_aggregation import Aggregated, FrontDoor
from app.web.api.app import api_app
from app.web.api.auth import Access
from app.web.api.queue_sources import EngineQueues, LeaderQueues
from app.web.api.quota_history import AuditedQuotas
from app.web.api.route_context import RouteContext
from app.web.server.rate_limit import RateLimit
from app.web.server.server import Listener
from app.web.webhook.cache import WebhookCache
from app.wiring.certificate import add_publisher, certificate_of, tls_listener
from app.wiring.process import RoleProcess, connect_redis, create_report_sender, now, watch

BAD_TOKENS_PER_SECOND = 10
"""Bad tokens a second from one address."""


@dataclass(frozen=True, slots=True)
class _EventFanOut:
    """Passes each event to the view, then to the engine."""

    view: WebhookCache
    event_queue: EventQueue

    async def put(self, event: ClusterEvent, /) -> None:
        await self.view.put(event)
        await self.event_queue.put(event)


async def api(process: RoleProcess) -> None:
    """Assemble the REST API."""
    settings = process.settings
    managed = ManagedResources(settings.managed_resources)
    engine = _following_engine(settings, managed)
    inbox, view = EventQueue(), WebhookCache()
    fan_out = _EventFanOut(view, inbox)
    needed = watch(process, fan_out, sorted(REQUIRED_SOURCES, key=lambda source: source.value))
    watch(process, fan_out, sorted(GROUP_SOURCES, key=lambda source: source.value))
    mirror = Follower(engine, inbox, process.steps, now, needed.seconds_stale)
    process.tasks.append(mirror.follow_events)
    server = connect_redis(process)
    chain = RedisAuditReader(server, settings.cluster)
    published = RedisLeaderState(server, settings.cluster)
    hearing = LeaderStateReader(published, mirror.receive_leader_state)
    process.tasks.append(hearing.read_state)
    enforcement = EnforcementReader(RedisEnforcementResults(server, settings.cluster))
    process.tasks.append(enforcement.read_results)
    process.checks["cluster heard"] = lambda: mirror.has_synced
    runs = RedisRuns(server, settings.cluster)
    estimates = Estimates(
        lambda: engine.queries.snapshot(now()) if mirror.has_synced else None, runs, managed
    )
    process.tasks.append(estimates.renew_periodically)
    simulations = WhatIfs(lambda: engine.queries.snapshot(now()), lambda: estimates.run_times)
    trials = TrialRuns(
        lambda: engine.queries.snapshot(now()), lambda: estimates.run_times, simulations.worker
    )
    process.stack.push_async_callback(simulations.close)
    context = RouteContext(
        _access(process),
        engine,
        lambda: mirror.has_synced,
        mirror.age_milliseconds,
        now,
        view,
        runs,
        chain,
        KubeResources(process.client),
        PodEventReader(process.client),
        create_report_sender(process),
        queues=_queues(mirror, engine, RedisReader(server, settings.cluster)),
        managed=managed,
        forecasts=estimates,
        past_quotas=AuditedQuotas(chain, view),
        leader_message=lambda: mirror.leader_message,
        simulations=simulations,
        trials=trials,
        proposals=ProposedPods(
            managed, frozenset(settings.exempt_namespaces), engine.charge_proposed
        ),
        leader_state_read=lambda: hearing.has_read,
        store_reachable=lambda: hearing.is_reachable,
        enforcement=lambda: enforcement.result,
    )
    app = api_app(context, process.checks, process.liveness)
    certificate = await certificate_of(process)
    process.listeners.append(tls_listener(process, "api", app, settings.api_listen))
    if settings.aggregated_listen is not None:
        _add_aggregated_listener(process, app, settings.aggregated_listen, certificate)


def _queues(mirror: Follower, engine: Engine, copy: QueueReader) -> LeaderQueues:
    return LeaderQueues(
        copy,
        EngineQueues(engine.queries),
        lambda: recent_message(mirror.leader_message, now()) is not None,
        lambda: mirror.has_synced,
    )


def _access(process: RoleProcess) -> Access:
    rates = (process.settings.api_requests_per_second, BAD_TOKENS_PER_SECOND)
    callers, strangers = (RateLimit(rate, time.monotonic) for rate in rates)
    providers = process.settings.token_audiences or ()
    reviews = Reviews(process.client, time.monotonic, of_providers=providers)
    return Access(reviews, callers, strangers)


def _following_engine(settings: Settings, managed: ManagedResources) -> Engine:
    return Engine(
        managed,
        EngineOptions(
            evicts=False,
            resource_by_device_class={
                each.name: Resource(each.resource) for each in settings.device_classes
            },
            emits_audit_records=False,
            mode=settings.mode,
            selector_evaluator=DeviceSelectors(),
        ),
    )


def _add_aggregated_listener(
    process: RoleProcess, app: FastAPI, at: HostPort, certificate: Renewal
) -> None:
    """Add the listener for the API server's aggregation layer, which calls on behalf of users."""
    serving = certificate.serving
    door = FrontDoor(serving.certificate, serving.key)
    certificate.subscribe(lambda new: door.renew_certificate(new.certificate, new.key))
    proxy, service = (
        FrontProxy(process.client, door.trust_proxy),
        ApiServiceBundle(process.client, is_subset),
    )
    add_publisher(certificate, service.publish)
    process.tasks += [proxy.watch_ca, service.maintain_bundle]
    process.checks["front proxy known"] = lambda: proxy.is_known
    process.listeners.append(
        Listener("aggregated", Aggregated(app, door), at, door.current_context)
    )
