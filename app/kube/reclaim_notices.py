"""Writes the notice of a reclaim on a pod: an annotation, a condition, and an EvictionRequest.

The annotation has the end of the notice, and a pod can read it through a volume of the downward
API. The EvictionRequest (KEP-4563) activates the responders that the pod names. It is optional:
API servers without `lifecycle.k8s.io/v1alpha1` answer 404.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from app.core.effects import GiveReclaimNotice, PodRef, WithdrawReclaimNotice
from app.core.errors import ClusterRefused
from app.core.model import Millis
from app.core.well_known import ANNOTATION_RECLAIM_AT
from app.kube.client import STRATEGIC_PATCH, Client

CONDITION = "fairgate.io/ReclaimNotice"
REQUESTER = "fairgate.io/controller"
GROUP = "lifecycle.k8s.io/v1alpha1"

SERVER_SECONDS = 5
"""Time limit of the API server for one request. It gives up afterwards."""

HARMLESS_STATUSES = (404, 409)
"""The pod is gone, or another pod has its name. An EvictionRequest exists, or has no API."""


class PodReclaimNotifier:
    """Implements `ports.cluster.ReclaimNotifier` on the API server."""

    def __init__(self, client: Client, clock: Callable[[], Millis]) -> None:
        self._client = client
        self._clock = clock

    async def give_notice(self, order: GiveReclaimNotice) -> None:
        """Write the notice. A deleted pod is no error. Raises ClusterError."""
        ends = _time_text(order.ends_at)
        told = f"Fairgate evicts this pod at {ends}: {order.why}"
        await self._patch(order.ref, ends, "True", "Reclaim", told)
        if order.has_responders:
            await self._create_eviction_request(order.ref)

    async def withdraw_notice(self, order: WithdrawReclaimNotice) -> None:
        """Remove the notice. A deleted pod is no error. Raises ClusterError."""
        if order.has_responders:
            await self._send(
                "DELETE", _eviction_request_path(order.ref, _eviction_request_name(order.ref)), {}
            )
        told = "Fairgate does not evict this pod."
        await self._patch(order.ref, None, "False", "Withdrawn", told)

    async def _patch(
        self, ref: PodRef, ends: str | None, status: str, reason: str, message: str
    ) -> None:
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": _time_text(self._clock()),
        }
        # A uid is immutable, so the server refuses this for any other pod.
        metadata = {"uid": ref.uid, "annotations": {ANNOTATION_RECLAIM_AT: ends}}
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        await self._send("PATCH", f"{_path(ref)}/status", body, STRATEGIC_PATCH)

    async def _create_eviction_request(self, ref: PodRef) -> None:
        """Ask the responders of a pod to end it. The pod owns the request, so both go together."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": ref.name, "uid": ref.uid}
        body = {
            "apiVersion": GROUP,
            "kind": "EvictionRequest",
            "metadata": {"name": _eviction_request_name(ref), "ownerReferences": [owner]},
            "spec": {
                "target": {"pod": {"name": ref.name, "uid": ref.uid}},
                "requester": REQUESTER,
                "intent": "Eviction",
            },
        }
        await self._send("POST", _eviction_request_path(ref), body)

    async def _send(
        self, method: str, path: str, body: dict[str, Any], kind: str | None = None
    ) -> None:
        try:
            await self._client.request(
                method,
                path,
                query=[("timeout", f"{SERVER_SECONDS}s")],
                body=body,
                timeout=SERVER_SECONDS + 1.0,
                **({"content_type": kind} if kind else {}),
            )
        except ClusterRefused as error:
            if error.status not in HARMLESS_STATUSES:
                raise


def _time_text(at: Millis) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _eviction_request_name(ref: PodRef) -> str:
    return f"fairgate-{ref.uid}"


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"


def _eviction_request_path(ref: PodRef, name: str = "") -> str:
    path = f"/apis/{GROUP}/namespaces/{quote(ref.namespace, safe='')}/evictionrequests"
    return f"{path}/{name}" if name else path
