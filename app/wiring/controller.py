"""Assembles the role controller: the engine, its watches, and the executors of its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app.controller.adopt_evict import AdoptEvictExecutor
from app.controller.audit_chain import Chain, Retention
from app.controller.audit_reports import AuditReportCollector
from app.controller.audit_writer import Auditor
from app.controller.checkpoint_writer import Checkpoints
from app.controller.engine_loop import EngineLoop
from app.controller.event_queue import EventQueue
from app.controller.leader import Leader
from app.controller.leader_state_sync import LeaderStatePublisher
from app.controller.outage_detector import OutageDetector
from app.controller.pod_costs import PodCosts
from app.controller.reclaim_executor import EvictionRateLimiter, Reclaims
from app.controller.release_executor import Releases
from app.controller.stale_pod_scan import StalePodScanner
from app.controller.status_publisher import Publisher
from app.controller.store_writer import StoreWriter
from app.controller.takeover import Takeover
from app.controller.usage_retention import RetentionLimits, UsageRetention
from app.controller.wait_reason_events import WaitReasonEvents
from app.core.durations import DAY
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.events import GROUP_SOURCES, REQUIRED_SOURCES
from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import Millis, Resource
from app.core.quantities import ManagedResources
from app.kube.audit_anchor import KeptAnchor
from app.kube.checkpoint_store import KeptCheckpoints
from app.kube.claim_finalizers import ClaimFinalizers
from app.kube.client import Client
from app.kube.device_selectors import DeviceSelectors
from app.kube.event_recorder import PodAnnouncer
from app.kube.eviction import PodAdopter, PodEvictor
from app.kube.informer.sources import RunningWatches
from app.kube.install_record import KeptInstallation
from app.kube.lease import LeaseLeadership
from app.kube.lease_thread import LeaseThread
from app.kube.outage_notices import ClusterOutageNotices
from app.kube.owners import KubeOwners
from app.kube.pod_releaser import PodReleaser
from app.kube.reclaim_notices import PodReclaimNotifier
from app.kube.secrets import Bundle
from app.kube.tenants_pools import ResourceStatus
from app.ports.store import Store
from app.store.audit_reports import RedisReports
from app.store.audit_sinks import AuditFolder, Backlog, standard_output_sink
from app.store.audit_stream import RedisTrail
from app.store.connection import Server
from app.store.leader_state_store import RedisLeaderState
from app.store.usage_records import RedisRuns
from app.tls.audit_signing_key import KeptKey, is_signature_valid
from app.web.metrics import ENGINE_SECONDS, PrometheusLeader
from app.web.prometheus_client import Prometheus
from app.wiring.process import RoleProcess, connect_redis, now, watch

HAND_OVER_SECONDS = 1.0
"""How long a leader that stops waits for answers to releases. The next leader settles the rest."""

LEASE_CONNECTIONS = 2

FLUSH_SECONDS = 1.0
"""How long a process that ends waits for each sink of the audit chain."""


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """Dependencies that all parts of a controller share."""

    engine: Engine
    event_queue: EventQueue
    metrics: PrometheusLeader
    synced: asyncio.Event
    server: Server
    store: Store
    leadership: LeaseThread
    checkpoint_store: KeptCheckpoints
    costs: PodCosts


@dataclass(frozen=True, slots=True)
class _Lead:
    """Parts that depend on whether this replica leads."""

    leader: Leader
    store_writer: StoreWriter
    release_executor: Releases
    auditor: Auditor
    audit_sinks: list[Backlog]


async def controller(process: RoleProcess) -> None:
    """Assemble a controller, which leads or stands by."""
    settings, client = process.settings, process.client
    parts = _shared_parts(process)
    engine, inbox, meters, heard = parts.engine, parts.event_queue, parts.metrics, parts.synced
    sync = watch(process, inbox, sorted(REQUIRED_SOURCES, key=lambda source: source.value))
    watch(process, inbox, sorted(GROUP_SOURCES, key=lambda source: source.value))
    lead = _lead(process, parts, sync)
    leader, copier = lead.leader, lead.store_writer
    auditor, leadership = lead.auditor, parts.leadership
    corrections, reclaims = _executors(process, parts)
    announcer = PodAnnouncer(client, engine.queries.wait_reason)
    checkpoints = Checkpoints(
        engine.checkpoints, parts.checkpoint_store, lambda: leadership.seconds_left() > 0, now
    )
    publisher = Publisher(
        engine,
        ResourceStatus(client),
        meters,
        lambda: leader.is_leading and leadership.seconds_left() > 0,
        now,
    )
    narrator = WaitReasonEvents(engine, announcer, lambda: leader.is_leading, now)
    loop = EngineLoop(
        engine,
        inbox,
        copier,
        lead.release_executor,
        corrections,
        reclaims,
        announcer,
        auditor,
        now,
        heard,
        process.steps,
        parts.costs,
        ENGINE_SECONDS.observe,
    )
    process.tasks += [loop.run, copier.write_changes, leader.run]
    process.tasks += [announcer.send_events, publisher.publish_status, narrator.emit_changes]
    _detect_outages(process, parts, lead)
    process.tasks.append(_stale_pod_scanner(process, parts, lambda: leader.is_leading).scan_pods)
    reports = RedisReports(parts.server, settings.cluster)
    collecting = AuditReportCollector(reports, auditor, lambda: leader.epoch, now)
    store = RedisLeaderState(parts.server, settings.cluster)
    publishing = LeaderStatePublisher(engine, store, lambda: leader.epoch, now)
    process.tasks.append(publishing.publish_state)
    keeping = RetentionLimits(Millis(settings.usage_days * DAY), settings.usage_runs)
    runs = RedisRuns(parts.server, settings.cluster)
    trimming = UsageRetention(runs, keeping, lambda: leader.epoch, now)
    process.tasks += [
        checkpoints.write_checkpoints,
        auditor.write_records,
        collecting.collect_reports,
        trimming.trim_records,
    ]
    process.tasks += [outlet.write_lines for outlet in lead.audit_sinks]
    process.checks["cluster heard"] = heard.is_set
    process.before_end.append(
        partial(_hand_over, lead, (corrections, reclaims), leadership, settings.drain_seconds)
    )


def _detect_outages(process: RoleProcess, parts: _SharedParts, lead: _Lead) -> None:
    """Add the task that reports a missing leader, or a Redis that cannot be read or written."""
    standstill = OutageDetector(
        parts.engine,
        ClusterOutageNotices(process.client, process.settings.namespace),
        epoch=lambda: lead.leader.epoch,
        is_led=parts.leadership.is_held_by_another,
        ask_redis=parts.store.read_epoch_floor,
        write_failure=lambda: lead.store_writer.failure,
        clock=now,
    )
    process.tasks.append(standstill.detect_outages)
    process.outage_reason = lambda: standstill.fault


def _executors(process: RoleProcess, parts: _SharedParts) -> tuple[AdoptEvictExecutor, Reclaims]:
    """Assemble the executors that change released pods: corrections and reclaims."""
    client, leadership, engine = process.client, parts.leadership, parts.engine
    evictor = PodEvictor(client, seconds_left=leadership.seconds_left)
    corrections = AdoptEvictExecutor(
        PodAdopter(client),
        ClaimFinalizers(client, seconds_left=leadership.seconds_left),
        evictor,
        PodReclaimNotifier(client, now),
        leadership,
        parts.event_queue,
        parts.metrics,
        now,
        engine.queries.released_view,
        engine.is_eviction_needed,
    )
    reclaims = Reclaims(
        evictor,
        leadership,
        parts.event_queue,
        parts.metrics,
        now,
        engine.is_eviction_needed,
        EvictionRateLimiter(process.settings.evictions_per_minute),
        engine.queries.released_view,
    )
    return corrections, reclaims


def _stale_pod_scanner(
    process: RoleProcess, parts: _SharedParts, leads: Callable[[], bool]
) -> StalePodScanner:
    """Return the scanner for orphaned and idle pods."""
    settings = process.settings
    return StalePodScanner(
        parts.engine,
        KubeOwners(process.client),
        Prometheus(settings.prometheus_url) if settings.prometheus_url else None,
        parts.event_queue,
        parts.metrics,
        leads,
        now,
        window=Millis(settings.idle_minutes * 60_000),
    )


def _leadership(process: RoleProcess) -> LeaseThread:
    settings = process.settings

    async def connect() -> Client:
        return await Client.connect(settings.kubeconfig, pool_size=LEASE_CONNECTIONS)

    leadership = LeaseThread(
        connect,
        lambda client: LeaseLeadership(
            client,
            settings.namespace,
            settings.identity,
            makes_progress=process.liveness.makes_progress,
            duration=settings.lease_seconds,
        ),
    )
    process.stack.push_async_callback(leadership.close)
    return leadership


def _shared_parts(process: RoleProcess) -> _SharedParts:
    settings, client, server = process.settings, process.client, connect_redis(process)
    process.after_start.append(server.check)
    managed = ManagedResources(settings.managed_resources)
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    costs = PodCosts()
    return _SharedParts(
        Engine(
            managed,
            EngineOptions(
                evicts_bypassed=settings.evict_bypassed,
                resource_by_device_class=classes,
                evicted_stale_reasons=[
                    StaleReason(kind) for kind in settings.reclaim_zombies or ()
                ],
                on_evaluate=costs.start_pod,
                mode=settings.mode,
                selector_evaluator=DeviceSelectors(),
            ),
        ),
        EventQueue(),
        PrometheusLeader(),
        asyncio.Event(),
        server,
        process.adapters.store(server, settings.cluster),
        _leadership(process),
        KeptCheckpoints(client, settings.namespace),
        costs,
    )


def _lead(process: RoleProcess, parts: _SharedParts, sync: RunningWatches) -> _Lead:
    """Return the leader and the parts that can depose it. They refer to each other."""
    settings, client, leadership = process.settings, process.client, parts.leadership
    engine, inbox, meters, store = parts.engine, parts.event_queue, parts.metrics, parts.store

    def depose() -> None:
        leader.end_term()

    releaser = PodReleaser(process.adapters.patches(client), seconds_left=leadership.seconds_left)
    copier = StoreWriter(store, engine, inbox, meters, now, depose)
    concurrency = settings.release_concurrency
    releases = Releases(releaser, copier, leadership, inbox, meters, now, concurrency, depose)
    anchor = KeptAnchor(client, settings.namespace)
    auditor, outlets = _audit_writer(process, parts.server, anchor, depose)
    installation = KeptInstallation(client, settings.namespace)
    opening = Takeover(
        engine,
        inbox,
        store,
        releaser,
        installation,
        sync,
        parts.checkpoint_store,
        anchor,
        now,
        parts.synced,
    )
    leader = Leader(opening, leadership, inbox, copier, releases, auditor, meters, now)
    return _Lead(leader, copier, releases, auditor, outlets)


async def _hand_over(
    lead: _Lead,
    evicting: tuple[AdoptEvictExecutor, Reclaims],
    leadership: LeaseThread,
    drain: float,
) -> None:
    """Stop leading in order. The next leader settles releases unanswered within `drain` seconds."""
    lead.leader.stop_acquiring()
    await lead.release_executor.drain(min(drain, HAND_OVER_SECONDS))
    for part in evicting:
        await part.stop()
    await lead.auditor.end_term()
    await leadership.release_lease()
    for outlet in lead.audit_sinks:
        await outlet.flush(FLUSH_SECONDS)


def _audit_writer(
    process: RoleProcess, server: Server, anchor: KeptAnchor, depose: Callable[[], None]
) -> tuple[Auditor, list[Backlog]]:
    """Return the writer of the audit chain, and the sinks of its copies."""
    settings, key = process.settings, KeptKey(Bundle(process.client), process.settings.namespace)
    outlets = [Backlog("standard output", standard_output_sink())]
    if settings.audit_folder:
        outlets.append(Backlog(str(settings.audit_folder), AuditFolder(settings.audit_folder)))
    retention = Retention(Millis(settings.audit_days * DAY), settings.audit_megabytes * 2**20)
    trail = RedisTrail(server, settings.cluster)
    chain = Chain(
        trail, anchor, key.load, is_signature_valid, outlets, settings.cluster, retention, now
    )
    return Auditor(chain, settings.identity, now, depose), outlets
