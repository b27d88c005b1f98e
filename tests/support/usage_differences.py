"""Differences between usage in Redis and a recount from the API server."""

from __future__ import annotations

import asyncio

from app.config.settings import EXEMPT, MANAGED
from app.core.engine import Engine
from app.core.events import ClusterEvent, Pass, SourceFresh, WatchedSource
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import UNFAIR
from app.kube.client import Client
from app.kube.enforcement_probes import NAMESPACE as CANARY
from app.kube.informer.sources import new_reflectors
from app.store.connection import Server
from app.store.reader import RedisReader
from tests.support.recount import compare


async def differences(cluster: LocalCluster, url: str) -> list[str]:
    """Return the differences between Redis and a recount of the objects in the API server."""
    engine = Engine(ManagedResources(MANAGED))
    whole: set[WatchedSource] = set()
    heard = asyncio.Event()

    class Ear:
        async def put(self, event: ClusterEvent, /) -> None:
            engine.handle(event)
            if isinstance(event, SourceFresh):
                whole.add(event.source)
                if whole == set(WatchedSource):
                    heard.set()
                # End without a pending connection: a connection that is cancelled while it is being
                # opened would stay open.
                await asyncio.Event().wait()

    client = await Client.connect(cluster.kubeconfig)
    exempt = (*EXEMPT, *UNFAIR, CANARY)
    tasks = [
        asyncio.create_task(watch.run())
        for watch in new_reflectors(
            client, Ear(), lambda: Millis(0), managed=MANAGED, exempt=exempt
        )
    ]
    server = Server.connect(url)
    try:
        async with asyncio.timeout(30):
            await heard.wait()
            engine.handle(Pass(Millis(0)))
            return await compare(RedisReader(server, "default"), engine.store_writes())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()
        await client.close()
