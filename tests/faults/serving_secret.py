"""The Secret of the serving certificate, read and written as a cluster administrator."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from app.devcluster.fairgate_install import NAMESPACE, SECRET
from app.kube.client import Client
from app.kube.secrets import Bundle
from app.ports.cluster import SecretData
from app.tls.rotation import new_content
from tests.faults.fault_cluster import Rig

NAMES = ["127.0.0.1", "localhost"]
LIFE = timedelta(days=90)


@contextlib.asynccontextmanager
async def admin(rig: Rig) -> AsyncIterator[Client]:
    """Yield a client with all rights."""
    client = await Client.connect(rig.cluster.kubeconfig)
    try:
        yield client
    finally:
        await client.close()


async def kept(rig: Rig) -> SecretData:
    """Return the stored Secret."""
    async with admin(rig) as client:
        found = await Bundle(client).read_secret(NAMESPACE, SECRET)
    assert found is not None
    return found


async def keep(rig: Rig, left: timedelta) -> None:
    """Store a certificate of `LIFE` that expires after `left`; a negative value means expired."""
    content = new_content(NAMES, datetime.now(UTC) + left - LIFE, LIFE.days)
    before = await kept(rig)
    async with admin(rig) as client:
        assert await Bundle(client).replace_secret(NAMESPACE, SECRET, content, before.version)
