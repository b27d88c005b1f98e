"""Tells people what happens to their pods, as Kubernetes events: may drop, never blocks.

At most ten a second in all, because every event is a write to etcd.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from app.core.effects import Notice, Tell
from app.core.errors import ClusterError
from app.core.model import Uid
from app.kube.client import Client

log = logging.getLogger("fairgate.kube")

COMPONENT = "fairgate"
LONGEST_MESSAGE = 1000
"""Characters; readers of events show little more."""


class PodAnnouncer:
    """`ports.Announcer`. `dropped` counts what nobody was told; `run` does the telling."""

    def __init__(
        self,
        client: Client,
        *,
        rate: float = 10.0,
        burst: int = 50,
        room: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self._client = client
        self._rate = rate
        self._burst = float(burst)
        self._room = room
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()
        self._waiting: dict[tuple[Uid, Notice], Tell] = {}
        self._something = asyncio.Event()

    def tell(self, notice: Tell) -> None:
        """Queue a notice. A newer one for the same pod and reason takes the older one's place."""
        key = (notice.ref.uid, notice.notice)
        if key in self._waiting:
            self.dropped += 1
        elif len(self._waiting) >= self._room:
            self.dropped += 1
            return
        self._waiting[key] = notice
        self._something.set()

    async def run(self) -> None:
        """Send what is queued, oldest first, until cancelled."""
        while True:
            await self._something.wait()
            await self._token()
            key = next(iter(self._waiting))
            notice = self._waiting.pop(key)
            if not self._waiting:
                self._something.clear()
            await self._send(notice)

    async def _token(self) -> None:
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

    async def _send(self, notice: Tell) -> None:
        path = f"/api/v1/namespaces/{notice.ref.namespace}/events"
        try:
            await self._client.request("POST", path, body=event(notice), timeout=5.0)
        except ClusterError as error:  # the pod or its namespace may be gone
            self.dropped += 1
            log.debug("notice not delivered", extra={"uid": notice.ref.uid, "why": str(error)})


def event(notice: Tell) -> dict[str, Any]:
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
        "type": "Warning" if notice.notice in (Notice.REFUSED, Notice.USELESS) else "Normal",
        "reason": notice.notice.value,
        "message": notice.message[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
