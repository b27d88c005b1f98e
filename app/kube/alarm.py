"""Tells operators that enforcement was touched or fails, as Kubernetes events in our namespace.

Never raises, and is no substitute for the log: an event may be lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from app.core.errors import ClusterError
from app.kube.announce import COMPONENT, LONGEST_MESSAGE
from app.kube.client import Client
from app.kube.enforcement import CONFIG_MAP

log = logging.getLogger("fairgate.kube")

QUIET_SECONDS = 10.0
"""The same words are told again only after this, so that a quarrel does not fill etcd."""


class Alarm:
    """Events on the ConfigMap from which enforcement is kept."""

    def __init__(
        self, client: Client, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._told: dict[tuple[str, str], float] = {}

    async def tell(self, reason: str, about: str, message: str) -> None:
        """Write a Warning event; `about` is what the message is about, one event at a time."""
        now = self._clock()
        self._told = {key: at for key, at in self._told.items() if now - at < QUIET_SECONDS}
        if (reason, about) in self._told:
            return
        self._told[reason, about] = now
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
            "message": message[:LONGEST_MESSAGE],
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
