"""Stamps pods that were there before Fairgate, and evicts pods. Decides about neither.

Both name the uid, so that another pod of the same name is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from app.core.effects import Adopt, PodRef
from app.core.errors import ClusterError, ClusterRefused
from app.core.model import ADOPTED, ANNOTATION_RELEASE, Uid
from app.kube.budgets import Guarded, overdrawn, read_guarded
from app.kube.client import MERGE_PATCH, Client

SERVER_SECONDS = 5
"""What the API server may spend on one request; it gives up on it afterwards."""

LEAST_SECONDS = 0.05
"""An eviction that may not take even so long is not sent."""

_LIMIT = [("timeout", f"{SERVER_SECONDS}s")]


class PodAdopter:
    """`ports.Adopter` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def adopt(self, order: Adopt) -> None:
        """Write the stamp and the labels; a pod that is gone is no error. Raises ClusterError."""
        uid = order.ref.uid
        annotations = {ANNOTATION_RELEASE: ADOPTED}
        # A uid cannot be changed, so the server refuses this for any other pod.
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
    """`ports.Evictor` by the Eviction API, which honours disruption budgets.

    `left` tells for how many seconds this process may act: no eviction may take longer.
    """

    def __init__(self, client: Client, *, left: Callable[[], float] = lambda: float("inf")) -> None:
        self._client = client
        self._left = left

    async def evict(self, ref: PodRef) -> bool:
        """Evict a pod; False: it stays for now, because a budget or a busy server says so.

        True also if it is gone already. Raises ClusterError.
        """
        if await read_guarded(self._client, _path(ref), ref.uid, SERVER_SECONDS) is None:
            return True  # the server tries for ten seconds to evict another pod of that name
        seconds = min(SERVER_SECONDS, 0.8 * self._left())
        if seconds < LEAST_SECONDS:
            return False
        return not await self._ask(ref, seconds)

    async def kept(self, refs: Sequence[PodRef]) -> Mapping[Uid, str]:
        """Return those who would stay if all of these were evicted now. Raises ClusterError."""
        kept: dict[Uid, str] = {}
        there: list[tuple[PodRef, Guarded]] = []
        for ref in refs:
            pod = await read_guarded(self._client, _path(ref), ref.uid, SERVER_SECONDS)
            if pod is None:
                continue
            there.append((ref, pod))
            try:
                why = await self._ask(ref, SERVER_SECONDS, dry=True)
            except ClusterError as error:
                why = str(error)
            if why:
                kept[ref.uid] = why
        return kept or await overdrawn(self._client, there, SERVER_SECONDS)

    async def _ask(self, ref: PodRef, seconds: float, *, dry: bool = False) -> str:
        """Ask for an eviction; return why it is put off, "" if it is not. Raises ClusterError."""
        options: dict[str, Any] = {"preconditions": {"uid": ref.uid}}
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
        return ""


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"
