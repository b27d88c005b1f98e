"""The role controller: the engine, what it hears, and what carries out what it decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app.control.auditor import Auditor
from app.control.bulletins import Posting
from app.control.chain import Chain, Retention
from app.control.checkpoints import Checkpoints
from app.control.copier import Copier
from app.control.corrections import Corrections
from app.control.inbox import Inbox
from app.control.leader import Leader
from app.control.loop import Loop
from app.control.narrator import Narrator
from app.control.opening import Opening
from app.control.publisher import Publisher
from app.control.reclaims import Allowance, Reclaims
from app.control.releases import Releases
from app.control.reporting import Collecting
from app.control.trimming import Keeping, Trimming
from app.control.zombies import Patrol
from app.core.durations import DAY
from app.core.engine import Engine
from app.core.events import GROUPS, NEEDED
from app.core.model import Millis, Resource
from app.core.pods.vain import Vain
from app.core.resources import ManagedResources
from app.kube.anchor import KeptAnchor
from app.kube.announce import PodAnnouncer
from app.kube.bundle import Bundle
from app.kube.checkpoint import KeptCheckpoints
from app.kube.corrections import PodAdopter, PodEvictor
from app.kube.installation import KeptInstallation
from app.kube.lease import LeaseLeadership
from app.kube.owners import KubeOwners
from app.kube.release import PodReleaser
from app.kube.sources import Watched
from app.kube.status import ResourceStatus
from app.ports import Store
from app.store.audit import RedisTrail
from app.store.bulletins import RedisBulletins
from app.store.connection import Server
from app.store.outlet import Backlog, Folder, output
from app.store.reports import RedisReports
from app.store.runs import RedisRuns
from app.tls.signing import KeptKey, holds
from app.web.metrics import ENGINE_SECONDS, Leading
from app.web.prometheus import Prometheus
from app.wiring.process import Process, now, redis_of, watch

HAND_OVER_SECONDS = 1.0
"""How long a leader that stops waits for answers. What has none by then, the next one settles."""

FLUSH_SECONDS = 1.0
"""How long a process that ends waits for a sink of the audit chain."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all parts of a controller share."""

    engine: Engine
    inbox: Inbox
    meters: Leading
    heard: asyncio.Event
    server: Server
    store: Store
    leadership: LeaseLeadership
    keeper: KeptCheckpoints


@dataclass(frozen=True, slots=True)
class _Lead:
    """What works only, or otherwise, while this replica leads."""

    leader: Leader
    copier: Copier
    releases: Releases
    auditor: Auditor
    outlets: list[Backlog]


async def controller(process: Process) -> None:
    """Put together what a leader, or its standby, needs."""
    settings, client = process.settings, process.client
    ground = _ground(process)
    engine, inbox, meters, heard = ground.engine, ground.inbox, ground.meters, ground.heard
    sight = watch(process, inbox, sorted(NEEDED, key=lambda source: source.value))
    watch(process, inbox, sorted(GROUPS, key=lambda source: source.value))
    lead = _lead(process, ground, sight)
    leader, copier, auditor, leadership = lead.leader, lead.copier, lead.auditor, ground.leadership
    corrections, reclaims = _correcting(process, ground)
    announcer = PodAnnouncer(client)
    checkpoints = Checkpoints(engine.memory, ground.keeper, lambda: leadership.left() > 0, now)
    publisher = Publisher(engine, ResourceStatus(client), meters, lambda: leader.leads, now)
    narrator = Narrator(engine, announcer, lambda: leader.leads, now)
    loop = Loop(
        engine,
        inbox,
        copier,
        lead.releases,
        corrections,
        reclaims,
        announcer,
        auditor,
        now,
        heard,
        ENGINE_SECONDS.observe,
    )
    process.tasks += [part.run for part in (loop, copier, leader, announcer, publisher, narrator)]
    process.tasks.append(_patrol(process, ground, lambda: leader.leads).run)
    reports = RedisReports(ground.server, settings.cluster)
    collecting = Collecting(reports, auditor, lambda: leader.epoch, now)
    bulletins = RedisBulletins(ground.server, settings.cluster)
    process.tasks.append(Posting(engine, bulletins, lambda: leader.epoch, now).run)
    keeping = Keeping(Millis(settings.usage_days * DAY), settings.usage_runs)
    runs = RedisRuns(ground.server, settings.cluster)
    trimming = Trimming(runs, keeping, lambda: leader.epoch, now)
    process.tasks += [checkpoints.run, auditor.run, collecting.run, trimming.run]
    process.tasks += [outlet.run for outlet in lead.outlets]
    process.checks["cluster heard"] = heard.is_set
    process.before_end.append(
        partial(_hand_over, lead, (corrections, reclaims), leadership, settings.drain_seconds)
    )


def _correcting(process: Process, ground: _Ground) -> tuple[Corrections, Reclaims]:
    """Put together what changes pods that were released: for their own sake, and for others."""
    client, leadership, engine = process.client, ground.leadership, ground.engine
    evictor = PodEvictor(client, left=leadership.left)
    corrections = Corrections(
        PodAdopter(client),
        evictor,
        leadership,
        ground.inbox,
        ground.meters,
        now,
        engine.outlook.released,
        engine.wants_gone,
    )
    reclaims = Reclaims(
        evictor,
        leadership,
        ground.inbox,
        ground.meters,
        now,
        engine.wants_gone,
        Allowance(process.settings.evictions_per_minute),
        engine.outlook.released,
    )
    return corrections, reclaims


def _patrol(process: Process, ground: _Ground, leads: Callable[[], bool]) -> Patrol:
    """Return who looks for pods that hold their place in vain."""
    settings = process.settings
    return Patrol(
        ground.engine,
        KubeOwners(process.client),
        Prometheus(settings.prometheus_url) if settings.prometheus_url else None,
        ground.inbox,
        ground.meters,
        leads,
        now,
        window=Millis(settings.idle_minutes * 60_000),
    )


def _ground(process: Process) -> _Ground:
    settings, client, server = process.settings, process.client, redis_of(process)
    process.after_start.append(server.check)
    managed = ManagedResources(settings.managed_resources)
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    return _Ground(
        Engine(
            managed,
            evicts_bypassed=settings.evict_bypassed,
            classes=classes,
            reclaims=[Vain(kind) for kind in settings.reclaim_zombies or ()],
        ),
        Inbox(),
        Leading(),
        asyncio.Event(),
        server,
        process.adapters.store(server, settings.cluster),
        LeaseLeadership(
            client, settings.namespace, settings.identity, duration=settings.lease_seconds
        ),
        KeptCheckpoints(client, settings.namespace),
    )


def _lead(process: Process, ground: _Ground, sight: Watched) -> _Lead:
    """Return the leader, and whoever can depose it: each knows of the other."""
    settings, client, leadership = process.settings, process.client, ground.leadership
    engine, inbox, meters, store = ground.engine, ground.inbox, ground.meters, ground.store

    def depose() -> None:
        leader.depose()

    releaser = PodReleaser(process.adapters.patches(client), left=leadership.left)
    copier = Copier(store, engine, inbox, meters, now, depose)
    concurrency = settings.release_concurrency
    releases = Releases(releaser, copier, leadership, inbox, meters, now, concurrency, depose)
    anchor = KeptAnchor(client, settings.namespace)
    auditor, outlets = _auditing(process, ground.server, anchor, depose)
    installation = KeptInstallation(client, settings.namespace)
    opening = Opening(
        engine,
        inbox,
        store,
        releaser,
        installation,
        sight,
        ground.keeper,
        anchor,
        now,
        ground.heard,
    )
    leader = Leader(opening, leadership, inbox, copier, releases, auditor, meters, now)
    return _Lead(leader, copier, releases, auditor, outlets)


async def _hand_over(
    lead: _Lead,
    evicting: tuple[Corrections, Reclaims],
    leadership: LeaseLeadership,
    drain: float,
) -> None:
    """Leave the lead in order: what has no answer within `drain` seconds the next one settles."""
    lead.leader.leave()
    await lead.releases.drain(min(drain, HAND_OVER_SECONDS))
    for part in evicting:
        await part.stop()
    await lead.auditor.end()
    await leadership.give_up()
    for outlet in lead.outlets:
        await outlet.flush(FLUSH_SECONDS)


def _auditing(
    process: Process, server: Server, anchor: KeptAnchor, depose: Callable[[], None]
) -> tuple[Auditor, list[Backlog]]:
    """Return who writes the audit chain, and where it is copied to."""
    settings, key = process.settings, KeptKey(Bundle(process.client), process.settings.namespace)
    outlets = [Backlog("standard output", output())]
    if settings.audit_folder:
        outlets.append(Backlog(str(settings.audit_folder), Folder(settings.audit_folder)))
    retention = Retention(Millis(settings.audit_days * DAY), settings.audit_megabytes * 2**20)
    trail = RedisTrail(server, settings.cluster)
    chain = Chain(trail, anchor, key.load, holds, outlets, settings.cluster, retention, now)
    return Auditor(chain, settings.identity, now, depose), outlets
