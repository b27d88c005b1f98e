"""The role controller: the engine, what it hears, and what carries out what it decides."""

from __future__ import annotations

import asyncio

from app.control.copier import Copier
from app.control.corrections import Corrections
from app.control.inbox import Inbox
from app.control.leader import Leader
from app.control.loop import Loop
from app.control.publisher import Publisher
from app.control.releases import Releases
from app.core.engine import Engine
from app.core.events import NEEDED
from app.core.model import Resource
from app.core.resources import ManagedResources
from app.kube.announce import PodAnnouncer
from app.kube.corrections import PodAdopter, PodEvictor
from app.kube.installation import KeptInstallation
from app.kube.lease import LeaseLeadership
from app.kube.release import PodReleaser
from app.kube.status import ResourceStatus
from app.web.metrics import Leading
from app.wiring.process import Process, now, redis_of, watch


async def controller(process: Process) -> None:
    """Put together what a leader, or its standby, needs."""
    settings, client = process.settings, process.client
    server = redis_of(process)
    store = process.adapters.store(server, settings.cluster)
    process.after_start.append(server.check)
    managed = ManagedResources(settings.managed_resources)
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    engine, inbox, meters, heard = (
        Engine(managed, evicts=False, evicts_bypassed=settings.evict_bypassed, classes=classes),
        Inbox(),
        Leading(),
        asyncio.Event(),
    )
    leadership = LeaseLeadership(
        client, settings.namespace, settings.identity, duration=settings.lease_seconds
    )
    releaser = PodReleaser(process.adapters.patches(client), may_act=leadership.is_valid)
    copier = Copier(store, engine, inbox, meters, now, lambda: leader.depose())  # noqa: PLW0108
    releases = Releases(
        releaser,
        copier,
        leadership,
        inbox,
        meters,
        now,
        settings.release_concurrency,
        lambda: leader.depose(),  # noqa: PLW0108
    )
    leader = Leader(
        engine,
        inbox,
        copier,
        releases,
        store,
        releaser,
        leadership,
        KeptInstallation(client, settings.namespace),
        meters,
        now,
        heard,
    )
    corrections = Corrections(
        PodAdopter(client), PodEvictor(client), leadership, inbox, meters, now
    )
    announcer = PodAnnouncer(client)
    publisher = Publisher(engine, ResourceStatus(client), meters, lambda: leader.leads, now)
    loop = Loop(engine, inbox, copier, releases, corrections, announcer, now, heard)
    watch(process, inbox, sorted(NEEDED, key=lambda source: source.value))
    process.tasks += [part.run for part in (loop, copier, leader, announcer, publisher)]
    process.checks["cluster heard"] = heard.is_set

    async def hand_over() -> None:
        leader.leave()
        await releases.drain(settings.drain_seconds)
        await corrections.stop()
        await leadership.give_up()

    process.before_end.append(hand_over)
