"""Stamps pods that were there before Fairgate, and evicts pods. Decides about neither.

Both name the uid, so that another pod of the same name is never touched.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from app import wire
from app.core.effects import Adopt, PodRef
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import ADOPTED, ANNOTATION_RELEASE
from app.kube.client import MERGE_PATCH, Client

SERVER_SECONDS = 5
"""What the API server may spend on one request; it gives up on it afterwards."""

_bare = msgspec.json.Decoder(wire.Bare)
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
    """`ports.Evictor` by the Eviction API, which honours disruption budgets."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def evict(self, ref: PodRef) -> bool:
        """Evict a pod; False: it stays for now, because a budget or a busy server says so.

        True also if it is gone already. Raises ClusterError.
        """
        if not await self._is_there(ref):
            return True  # the server tries for ten seconds to evict another pod of that name
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "deleteOptions": {"preconditions": {"uid": ref.uid}},
        }
        try:
            await self._client.request(
                "POST",
                f"{_path(ref)}/eviction",
                query=_LIMIT,
                body=body,
                timeout=SERVER_SECONDS + 1.0,
            )
        except ClusterRefused as error:
            if error.status == 429:
                return False
            if error.status not in (404, 409):
                raise
        return True

    async def _is_there(self, ref: PodRef) -> bool:
        try:
            found = await self._client.request("GET", _path(ref), timeout=SERVER_SECONDS)
            return _bare.decode(found).metadata.uid == ref.uid
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{_path(ref)}: garbled ({error}).") from error
        except ClusterRefused as error:
            if error.status == 404:
                return False
            raise


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"
