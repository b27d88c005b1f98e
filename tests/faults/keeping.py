"""The Secret with the serving certificate, read and written as who set the cluster up."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from app.dev.fairgate import NAMESPACE, SECRET
from app.kube.bundle import Bundle
from app.kube.client import Client
from app.ports import Secret
from app.tls.rotation import new_content
from tests.faults.rig import Rig

NAMES = ["127.0.0.1", "localhost"]
LIFE = timedelta(days=90)


@contextlib.asynccontextmanager
async def admin(rig: Rig) -> AsyncIterator[Client]:
    """A client that may do anything."""
    client = await Client.connect(rig.cluster.kubeconfig)
    try:
        yield client
    finally:
        await client.close()


async def kept(rig: Rig) -> Secret:
    """Return the Secret as it is."""
    async with admin(rig) as client:
        found = await Bundle(client).read_secret(NAMESPACE, SECRET)
    assert found is not None
    return found


async def keep(rig: Rig, left: timedelta) -> None:
    """Put a certificate of `LIFE` in the Secret that ends after so long; below 0 it has ended."""
    content = new_content(NAMES, datetime.now(UTC) + left - LIFE, LIFE.days)
    before = await kept(rig)
    async with admin(rig) as client:
        assert await Bundle(client).replace_secret(NAMESPACE, SECRET, content, before.version)
