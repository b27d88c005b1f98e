"""Adopts and evicts pods through the API server.

Requests contain the uid, so that they never affect another pod of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from app.core.effects import Adopt, PodRef
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.model import Uid
from app.core.podspec.granted_claims import write_grants
from app.core.well_known import ANNOTATION_CLAIMS, ANNOTATION_RELEASE, RELEASE_ADOPTED
from app.kube.client import MERGE_PATCH, Client
from app.kube.disruption_budgets import BudgetedPod, find_overdrawn, read_guarded_pod

SERVER_SECONDS = 5
"""Time limit of the API server for one request. It gives up afterwards."""

LEAST_SECONDS = 0.05
"""Shortest useful time limit. An eviction with less time is not sent."""

LONGEST_GRACE = 540
"""Longest grace period of an evicted pod in seconds, shorter than the 600 s that a reclaim waits.

The pod's own grace period may be a year.
"""

OVERRIDE_GRACE = 20
"""The same for a pod that is deleted against its budget: the guarantee has waited already."""

SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""In the answer 500 of the API server to an eviction from a pod that several budgets cover."""

_LIMIT = [("timeout", f"{SERVER_SECONDS}s")]


class PodAdopter:
    """Implements `ports.cluster.Adopter` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def adopt(self, order: Adopt) -> None:
        """Write annotation and labels. A deleted pod is no error. Raises ClusterError."""
        uid = order.ref.uid
        annotations = {ANNOTATION_RELEASE: RELEASE_ADOPTED}
        if order.claims:
            annotations[ANNOTATION_CLAIMS] = write_grants(order.claims)
        # A uid is immutable, so the server refuses this for any other pod.
        metadata = {"uid": uid, "labels": dict(order.labels), "annotations": annotations}
        try:
            await self._client.request(
                "PATCH",
                _path(order.ref),
                query=_LIMIT,
                body={"metadata": metadata},
                content_type=MERGE_PATCH,
                timeout=SERVER_SECONDS + 1.0,
            )
        except ClusterRefused as error:
            if error.status != 404:
                raise


class PodEvictor:
    """Implements `ports.cluster.Evictor` by the Eviction API, which respects disruption budgets.

    `seconds_left` returns for how many seconds this process may act. No eviction may take longer.
    """

    def __init__(
        self, client: Client, *, seconds_left: Callable[[], float] = lambda: float("inf")
    ) -> None:
        self._client = client
        self._seconds_left = seconds_left

    async def evict(self, ref: PodRef) -> bool:
        """Evict a pod. False: it stays for now, because of a budget or a busy server.

        True also if it is gone already. Raises ClusterError.
        """
        pod = await read_guarded_pod(self._client, _path(ref), ref.uid, SERVER_SECONDS)
        if pod is None:
            return True  # the server would retry for ten seconds on another uid
        seconds = min(SERVER_SECONDS, 0.8 * self._seconds_left())
        if seconds < LEAST_SECONDS:
            return False
        return not await self._request_eviction(ref, seconds, pod)

    async def delete(self, ref: PodRef) -> None:
        """Delete a pod regardless of budgets. A deleted pod is no error. Raises ClusterError."""
        pod = await read_guarded_pod(self._client, _path(ref), ref.uid, SERVER_SECONDS)
        if pod is None:
            return
        seconds = min(SERVER_SECONDS, max(LEAST_SECONDS, 0.8 * self._seconds_left()))
        options = {
            "preconditions": {"uid": ref.uid},
            "gracePeriodSeconds": max(1, min(pod.grace_seconds, OVERRIDE_GRACE)),
        }
        try:
            await self._client.request(
                "DELETE",
                _path(ref),
                query=[("timeout", f"{seconds:.2f}s")],
                body=options,
                timeout=seconds + 1.0,
            )
        except ClusterRefused as error:
            if error.status not in (404, 409):
                raise

    async def find_unevictable(self, refs: Sequence[PodRef]) -> Mapping[Uid, str]:
        """Return the pods that would stay, with reasons. Raises ClusterError."""
        kept: dict[Uid, str] = {}
        there: list[tuple[PodRef, BudgetedPod]] = []
        for ref in refs:
            pod = await read_guarded_pod(self._client, _path(ref), ref.uid, SERVER_SECONDS)
            if pod is None:
                continue
            there.append((ref, pod))
            try:
                why = await self._request_eviction(ref, SERVER_SECONDS, pod, dry=True)
            except ClusterError as error:
                why = str(error)
            if why:
                kept[ref.uid] = why
        return kept or await find_overdrawn(self._client, there, SERVER_SECONDS)

    async def _request_eviction(
        self, ref: PodRef, seconds: float, pod: BudgetedPod, *, dry: bool = False
    ) -> str:
        """Request an eviction. Return why it is refused for now, or "". Raises ClusterError."""
        options: dict[str, Any] = {"preconditions": {"uid": ref.uid}}
        if pod.grace_seconds > LONGEST_GRACE:
            options["gracePeriodSeconds"] = LONGEST_GRACE
        if dry:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "deleteOptions": options,
        }
        try:
            await self._client.request(
                "POST",
                f"{_path(ref)}/eviction",
                query=[("timeout", f"{seconds:.2f}s")],
                body=body,
                timeout=seconds + 1.0,
            )
        except ClusterRefused as error:
            if error.status == 429:
                return str(error)
            if error.status not in (404, 409):
                raise
        except ClusterUnavailable as error:
            if SEVERAL_BUDGETS not in str(error):
                raise
            return str(error)
        return ""


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"
