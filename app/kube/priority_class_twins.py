"""Creates and deletes twin PriorityClasses, as defined by `core.admission.priority_class_twins`.

Every replica of the webhook does the same. A replica that comes second finds the work done. It only
changes PriorityClasses that Fairgate created.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

from app.core.admission import priority_class_twins
from app.core.admission.priority_class_twins import NEVER, PriorityClass, Twin
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import ClusterEvent, PriorityGone, PriorityObserved, SourceFresh, WatchedSource
from app.core.model import Millis
from app.k8s_types import objects
from app.kube.client import Client
from app.ports.cluster import EventSink

PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
LABEL = "app.kubernetes.io/managed-by"
OURS = "fairgate"
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before the next attempt. The pause doubles each time."""

log = logging.getLogger("fairgate.kube")


def read_priority(item: objects.PriorityClassObject, at: Millis) -> PriorityObserved:
    """Return the event for a PriorityClass."""
    meta = item.metadata
    return PriorityObserved(
        at,
        PriorityClass(
            name=meta.name,
            value=item.value,
            never_preempts=item.preemption_policy == NEVER,
            is_default=item.global_default,
            is_ours=(meta.labels or {}).get(LABEL) == OURS,
            uid=meta.uid,
        ),
    )


class Twins:
    """An `EventSink` that forwards events to another one. `maintain_twins` acts on them."""

    def __init__(self, client: Client, next_sink: EventSink) -> None:
        self.is_complete = False
        """Whether all twins existed at some time. It stays True: pods without twin are refused."""
        self._client = client
        self._next_sink = next_sink
        self._known: dict[str, PriorityClass] = {}
        self._listed = False
        self._changed = asyncio.Event()

    async def put(self, event: ClusterEvent, /) -> None:
        """Record an event about PriorityClasses, and forward it."""
        match event:
            case PriorityObserved(priority=priority):
                self._known[priority.name] = priority
            case PriorityGone(name=name):
                self._known.pop(name, None)
            case SourceFresh(source=WatchedSource.PRIORITIES):
                self._listed = True
            case _:
                pass
        await self._next_sink.put(event)
        self._changed.set()

    async def maintain_twins(self) -> None:
        """Create, repair and delete twins until cancelled."""
        pause = FIRST_PAUSE
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._listed:
                continue
            try:
                await self._apply_changes()
            except ClusterError as error:
                log.warning("twins of PriorityClasses cannot be kept", extra={"why": str(error)})
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._changed.set()
            else:
                pause = FIRST_PAUSE

    async def _apply_changes(self) -> None:
        """Apply the missing changes. The watch reports their result."""
        surplus, missing = (
            priority_class_twins.surplus_twins(self._known),
            priority_class_twins.missing_twins(self._known),
        )
        for each in surplus:
            await self._delete(each)
        for twin in missing:
            await self._create(twin)
        self.is_complete = self.is_complete or not (surplus or missing)

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
        if await self._send("POST", PATH, body, but=409):
            log.info("made the twin of a PriorityClass", extra={"twin": twin.name})

    async def _delete(self, each: PriorityClass) -> None:
        # With the uid: another replica may already have created a valid one with this name.
        body: dict[str, object] = {"preconditions": {"uid": each.uid}}
        path = f"{PATH}/{quote(each.name, safe='')}"
        if await self._send("DELETE", path, body, but=404):
            log.info("deleted an unused twin", extra={"twin": each.name})

    async def _send(self, method: str, path: str, body: dict[str, object], but: int) -> bool:
        """Send a request. Return False if another replica was first. A different uid is a 409."""
        try:
            await self._client.request(method, path, body=body)
        except ClusterRefused as error:
            if error.status in (but, 409):
                return False
            raise
        return True
