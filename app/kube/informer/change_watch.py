"""Watches objects of one kind and reports the names of changed ones. The caller reads them itself.

Ends only when cancelled. It misses no change: after a gap it reports None.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec

from app.core.errors import ClusterError
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.kube.informer.watched_kind import Timing

log = logging.getLogger("fairgate.kube")

_page = Decoder(objects.MetadataOnly)
CALM = Timing(follow=(240.0, 300.0), silence=150.0)
"""Long watches: on None the caller reads everything again, which should be rare."""

_change = Decoder(objects.WatchEvent[objects.MetadataOnly])


async def watch_changes(
    client: Client,
    path: str,
    hear: Callable[[str | None], None],
    *,
    only: str = "",
    timing: Timing = CALM,
) -> None:
    """Call `hear` with the name of each changed object, or None if any object may have changed.

    `only`: the name of the one object to watch.
    """
    where = [("fieldSelector", f"metadata.name={only}")] if only else []
    failures = 0
    while True:
        try:
            version = await _read_version(client, path, where)
            hear(None)
            await _stream(client, path, where, version, hear, timing)
            failures = 0
        except (ClusterError, msgspec.DecodeError) as error:
            failures += 1
            facts = {"path": path, "why": str(error), "failures": failures}
            level = logging.WARNING if failures % 20 == 1 else logging.DEBUG
            log.log(level, "watch interrupted", extra=facts)
        least, most = timing.backoff
        wait = min(most, least * 2 ** min(failures, 16))
        await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311  (jitter, not a secret)


async def _read_version(client: Client, path: str, where: list[tuple[str, str]]) -> str:
    """Return the resourceVersion from which to watch. The listed objects are not needed."""
    answer = await client.request("GET", path, query=[*where, ("limit", "1")])
    return _page.decode(answer).metadata.resource_version


async def _stream(
    client: Client,
    path: str,
    where: list[tuple[str, str]],
    version: str,
    hear: Callable[[str | None], None],
    timing: Timing,
) -> None:
    query = [
        *where,
        ("watch", "1"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", version),
        ("timeoutSeconds", str(int(timing.follow[1]))),
    ]
    async with client.stream(path, query, read_timeout=timing.silence) as lines:
        async for line in lines:
            change = _change.decode(line)
            if change.type == "ERROR":
                return
            if change.type != "BOOKMARK":
                hear(change.object.metadata.name)
