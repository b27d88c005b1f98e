"""Reports a standstill in the API server: events on held pods and on the Lease, a Policy condition.

Every controller replica may write them. All replicas choose the same event names, so each event is
written once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.core.effects import EmitEvent, EventReason, PodRef
from app.core.errors import ClusterRefused
from app.core.model import Millis, Uid
from app.kube.client import Client
from app.kube.event_recorder import event_body
from app.kube.lease import NAME as LEASE
from app.kube.tenants_pools import ResourceStatus

AGAIN_MS = 600_000
"""Interval after which an event is written again."""


class ClusterOutageNotices:
    """Implements `controller.outage_detector.OutageNotices` in the API server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._status = ResourceStatus(client)
        self._written: set[str] = set()
        self._period = -1

    async def write_events(
        self, pods: list[PodRef], reason: str, message: str, now: Millis
    ) -> None:
        """Write one event for each pod and one on the Lease. Raises ClusterError."""
        period = now // AGAIN_MS
        if period != self._period:
            self._period, self._written = period, set()
        lease = event_body(
            EmitEvent(PodRef(Uid(""), self._namespace, LEASE), EventReason.WAITING, message)
        )
        about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": LEASE}
        lease["involvedObject"] = {**about, "namespace": self._namespace}
        lease["reason"] = reason
        await self._write(lease, f"{LEASE}.standstill-{period}")
        for ref in pods:
            asks = f"{message} Ask the operators of this cluster."
            waits = event_body(EmitEvent(ref, EventReason.WAITING, asks))
            await self._write(
                waits, f"{ref.name[:200].rstrip('-.')}.standstill-{ref.uid[:8]}-{period}"
            )

    async def _write(self, body: dict[str, Any], name: str) -> None:
        namespace = body["metadata"]["namespace"]
        key = f"{namespace}/{name}"
        if key in self._written:
            return
        body["metadata"] = {"name": name, "namespace": namespace}
        body["type"] = "Warning"
        try:
            path = f"/api/v1/namespaces/{namespace}/events"
            await self._client.request("POST", path, body=body, timeout=5.0)
        except ClusterRefused as error:
            if error.status not in (403, 404, 409):  # written already, or no namespace
                raise
        self._written.add(key)

    async def write_condition(
        self, releasing: bool, reason: str, message: str, now: Millis
    ) -> None:
        """Write the condition `Releasing` of the Policy if it exists. Raises ClusterError."""
        at = datetime.fromtimestamp(now / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Releasing",
            "status": "True" if releasing else "False",
            "reason": reason,
            "message": message[:1024],
            "lastTransitionTime": at,
        }
        await self._status.write_status("policies", "default", {"conditions": [condition]})
