"""Keeps the twins of the cluster's PriorityClasses, as `core.admission.priorities` wants them.

Every replica of the webhook does the same; whoever comes second finds it done. Touches no
PriorityClass that Fairgate did not make.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

from app import wire
from app.core.admission import priorities
from app.core.admission.priorities import NEVER, PriorityClass, Twin
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import ClusterEvent, PriorityGone, PriorityObserved, Source, SourceFresh
from app.core.model import Millis
from app.kube.client import Client
from app.ports import EventSink

PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
LABEL = "app.kubernetes.io/managed-by"
OURS = "fairgate"
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before another try, twice as long each time."""

log = logging.getLogger("fairgate.kube")


def read_priority(item: wire.PriorityClass, at: Millis) -> PriorityObserved:
    """Return a PriorityClass as the core knows it."""
    meta = item.metadata
    return PriorityObserved(
        at,
        PriorityClass(
            name=meta.name,
            value=item.value,
            never=item.preemption_policy == NEVER,
            is_default=item.global_default,
            ours=(meta.labels or {}).get(LABEL) == OURS,
            uid=meta.uid,
        ),
    )


class Twins:
    """An `EventSink` before another one: what it hears it passes on, and acts on by `run`."""

    def __init__(self, client: Client, then: EventSink) -> None:
        self.complete = False
        """Whether every twin was there once. It stays so: a pod whose twin lacks is refused."""
        self._client = client
        self._then = then
        self._known: dict[str, PriorityClass] = {}
        self._listed = False
        self._changed = asyncio.Event()

    async def put(self, event: ClusterEvent, /) -> None:
        """Take in what the watch of PriorityClasses saw, and pass it on."""
        match event:
            case PriorityObserved(priority=priority):
                self._known[priority.name] = priority
            case PriorityGone(name=name):
                self._known.pop(name, None)
            case SourceFresh(source=Source.PRIORITIES):
                self._listed = True
            case _:
                pass
        await self._then.put(event)
        self._changed.set()

    async def run(self) -> None:
        """Make, repair and delete twins until cancelled."""
        pause = FIRST_PAUSE
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._listed:
                continue
            try:
                await self._keep()
            except ClusterError as error:
                log.warning("twins of PriorityClasses cannot be kept", extra={"why": str(error)})
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._changed.set()
            else:
                pause = FIRST_PAUSE

    async def _keep(self) -> None:
        """Do what is wanting by what is known; what it changes comes back by the watch."""
        surplus, missing = priorities.surplus(self._known), priorities.missing(self._known)
        for each in surplus:
            await self._delete(each)
        for twin in missing:
            await self._create(twin)
        self.complete = self.complete or not (surplus or missing)

    async def _create(self, twin: Twin) -> None:
        body: dict[str, object] = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": twin.name, "labels": {LABEL: OURS}},
            "value": twin.value,
            "preemptionPolicy": NEVER,
            "globalDefault": False,
            "description": twin.description,
        }
        if await self._done("POST", PATH, body, but=409):
            log.info("made the twin of a PriorityClass", extra={"twin": twin.name})

    async def _delete(self, each: PriorityClass) -> None:
        # This very one: another replica may have made a sound one of the same name already.
        body: dict[str, object] = {"preconditions": {"uid": each.uid}}
        path = f"{PATH}/{quote(each.name, safe='')}"
        if await self._done("DELETE", path, body, but=404):
            log.info("deleted a twin that nothing needs", extra={"twin": each.name})

    async def _done(self, method: str, path: str, body: dict[str, object], but: int) -> bool:
        """Send it; False if another replica was first. A uid that differs is a 409."""
        try:
            await self._client.request(method, path, body=body)
        except ClusterRefused as error:
            if error.status in (but, 409):
                return False
            raise
        return True
