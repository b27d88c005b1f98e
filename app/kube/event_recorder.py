"""Posts Kubernetes events: on pods for users, rate limited, and for operators."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.core.effects import EmitEvent, EventReason
from app.core.errors import ClusterError
from app.core.explain.pod_events import BRIEF_SECONDS
from app.core.model import Uid
from app.core.safe_text import escape_hidden
from app.kube.client import Client
from app.kube.enforcement_spec import CONFIG_MAP

log = logging.getLogger("fairgate.kube")

REPEAT_SECONDS = 10.0
"""Minimum interval between equal events, so that competing writers do not fill etcd."""


class EnforcementAlarm:
    """Emits events on the ConfigMap with the enforcement objects."""

    def __init__(
        self, client: Client, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._emitted: dict[tuple[str, str], float] = {}

    async def emit(self, reason: str, about: str, message: str) -> None:
        """Emit a Warning event, unless one with equal `reason` and `about` was emitted just now."""
        now = self._clock()
        self._emitted = {key: at for key, at in self._emitted.items() if now - at < REPEAT_SECONDS}
        if (reason, about) in self._emitted:
            return
        self._emitted[reason, about] = now
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{CONFIG_MAP}.", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "namespace": self._namespace,
                "name": CONFIG_MAP,
            },
            "type": "Warning",
            "reason": reason,
            "message": escape_hidden(message)[:LONGEST_MESSAGE],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{self._namespace}/events"
        try:
            await self._client.request("POST", path, body=event, timeout=2.0)
        except ClusterError as error:
            log.debug("alarm not delivered", extra={"reason": reason, "why": str(error)})


COMPONENT = "fairgate"
LONGEST_MESSAGE = 1000
"""In characters. Clients that show events display little more."""

WAITS = frozenset((EventReason.HELD, EventReason.WAITING))
"""Events that say why a pod waits."""

MOST_SHARED = 10
"""Pods of a namespace that its shared event may be about. Some end their wait before it is sent."""


class PodAnnouncer:
    """`ports.cluster.EventEmitter`. `send_events` sends events, `dropped` counts unsent ones.

    `wait_reason` returns why a pod waits now, None for a pod that does not wait. It is asked when
    an event without a message is sent, so that a late event reports no outdated reason.

    If too many events are queued, the pods of a namespace that wait share one event, sent later.
    """

    def __init__(
        self,
        client: Client,
        wait_reason: Callable[[Uid], str | None],
        *,
        rate: float = 10.0,
        burst: int = 50,
        capacity: int = 1000,
        held_seconds: float = BRIEF_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self._client = client
        self._wait_reason = wait_reason
        self._rate = rate
        self._burst = float(burst)
        self._capacity = capacity
        self._held_seconds = held_seconds
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()
        self._queued: dict[tuple[Uid, EventReason], EmitEvent] = {}
        self._shared: dict[str, dict[Uid, EmitEvent]] = {}
        """By namespace: the last `MOST_SHARED` pods with an event without room, newest last."""
        self._held: dict[Uid, EmitEvent] = {}
        """Events `Held` of pods that may be released at once."""
        self._has_queued = asyncio.Event()

    def emit(self, notice: EmitEvent) -> None:
        """Queue an event. It replaces a queued one with the same pod and reason.

        `Held` is queued later, and only if the pod was not released meanwhile. If it was, and
        `Released` explains no wait, it is not sent either: each event is a write to etcd. A
        `Waiting` without a message would repeat a `Held` that is not sent yet.
        """
        uid = notice.ref.uid
        match notice.reason:
            case EventReason.HELD:
                if uid not in self._held:
                    asyncio.get_running_loop().call_later(self._held_seconds, self._queue_held, uid)
                self._held[uid] = notice
            case EventReason.WAITING if not notice.message and self._will_send_held(uid):
                self.dropped += 1
            case EventReason.RELEASED:
                was_held = self._held.pop(uid, None) is not None
                self.dropped += was_held
                if was_held and not notice.explains_wait:
                    self.dropped += 1
                    return
                self.dropped += self._queued.pop((uid, EventReason.HELD), None) is not None
                self._queue(notice)
            case _:
                self._queue(notice)

    def _will_send_held(self, uid: Uid) -> bool:
        """Return whether a `Held` of the pod will be sent."""
        return uid in self._held or (uid, EventReason.HELD) in self._queued

    def _queue_held(self, uid: Uid) -> None:
        notice = self._held.pop(uid, None)
        if notice is not None:
            self._queue(notice)

    def _queue(self, notice: EmitEvent) -> None:
        key = (notice.ref.uid, notice.reason)
        if key in self._queued:
            self.dropped += 1
        elif len(self._queued) >= self._capacity:
            self.dropped += 1
            self._add_to_shared(notice)
            return
        self._queued[key] = notice
        self._has_queued.set()

    def _add_to_shared(self, notice: EmitEvent) -> None:
        """Store an event without room for the shared event of its namespace."""
        namespace = notice.ref.namespace
        if notice.reason in WAITS and (
            namespace in self._shared or len(self._shared) < self._capacity
        ):
            notices = self._shared.setdefault(namespace, {})
            notices.pop(notice.ref.uid, None)
            notices[notice.ref.uid] = notice
            if len(notices) > MOST_SHARED:
                del notices[next(iter(notices))]

    def _queue_shared(self) -> None:
        """Queue the shared events. Call it when no other event is queued.

        Each is that of the newest pod that still waits.
        """
        shared, self._shared = self._shared, {}
        for notices in shared.values():
            texts = ((each, self._text(each)) for each in reversed(notices.values()))
            waiting = (each for each in texts if each[1])
            if (newest := next(waiting, None)) is not None:
                notice, text = newest
                more = "; other pods of this namespace wait too" if any(waiting) else ""
                self._queue(replace(notice, message=text + more))

    async def send_events(self) -> None:
        """Send queued events, oldest first, until cancelled."""
        while True:
            await self._has_queued.wait()
            await self._take_token()
            # Never empty: only `emit` of `Released` removes an event, and it queues another.
            key = next(iter(self._queued))
            notice = self._queued.pop(key)
            if not self._queued:
                self._has_queued.clear()
                self._queue_shared()
            await self._send(notice)

    async def _take_token(self) -> None:
        """Wait until one more event is allowed."""
        while True:
            now = self._clock()
            earned = (now - self._filled_at) * self._rate
            self._tokens = min(self._burst, self._tokens + earned)
            self._filled_at = now
            if self._tokens >= 1.0:
                self._tokens -= 1.0
                return
            await asyncio.sleep((1.0 - self._tokens) / self._rate)

    def _text(self, notice: EmitEvent) -> str:
        """Return the message of an event, "" if it would explain a wait that ended."""
        return notice.message or self._wait_reason(notice.ref.uid) or ""

    async def _send(self, notice: EmitEvent) -> None:
        path, text = f"/api/v1/namespaces/{notice.ref.namespace}/events", self._text(notice)
        if not text:
            self.dropped += 1
            return
        body = event_body(replace(notice, message=text))
        try:
            await self._client.request("POST", path, body=body, timeout=5.0)
        except ClusterError as error:  # the pod or its namespace may be gone
            self.dropped += 1
            log.debug("notice not delivered", extra={"uid": notice.ref.uid, "why": str(error)})


WARNINGS = frozenset((EventReason.REFUSED, EventReason.USELESS, EventReason.NODE_REFUSED))


def event_body(notice: EmitEvent) -> dict[str, Any]:
    """Return a notice as a Kubernetes event on its pod."""
    ref, now = notice.ref, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{ref.name}.", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        },
        "type": "Warning" if notice.reason in WARNINGS else "Normal",
        "reason": notice.reason.value,
        "message": _message(notice),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _message(notice: EmitEvent) -> str:
    """Return the text of an event. An event about a wait names the command for details."""
    ref, hint = notice.ref, ""
    if notice.reason in WAITS and ref.uid:
        hint = f"; more: kubectl fairgate why {ref.name} -n {ref.namespace}"
    return escape_hidden(notice.message)[: LONGEST_MESSAGE - len(hint)] + hint
