"""Adds Fairgate's finalizer to resource claims and removes it, and records releases on them.

All patches contain the uid, which is immutable. So they never change another claim with the same
name.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.effects import ClaimAddress
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.core.podspec.resource_claims import FINALIZER, ResourceClaim
from app.core.well_known import ANNOTATION_RELEASE
from app.k8s_types.deep_json import Decoder
from app.k8s_types.device_objects import ResourceClaimObject
from app.kube.client import STRATEGIC_PATCH, Client
from app.kube.convert_devices import read_claim

CLAIMS = "/apis/resource.k8s.io/v1"
SERVER_SECONDS = 5.0
"""Time limit of the API server for one patch. It gives up afterwards."""
LEAST_SECONDS = 0.05
"""Shortest useful time limit. A patch with less time is not sent."""

TRIES = 5
"""Maximum number of attempts if the API server returns 409 or 429."""

_claim = Decoder(ResourceClaimObject)


class ClaimFinalizers:
    """Implements `ports.cluster.ClaimProtector` on the API server.

    `seconds_left` returns for how many seconds this process may act. No patch may take longer.
    """

    def __init__(
        self, client: Client, *, seconds_left: Callable[[], float] = lambda: float("inf")
    ) -> None:
        self._client = client
        self._seconds_left = seconds_left

    async def protect(self, ref: ClaimAddress) -> None:
        """Add the finalizer. A deletion that began before may still remove the claim.

        Raises ClusterError, or ClusterRefused with 404 or 422 if the claim is gone or terminating.
        """
        await self._patch_with_retries(ref, {"uid": ref.uid, "finalizers": [FINALIZER]})

    async def stamp_release(self, ref: ClaimAddress, stamp: str) -> ResourceClaim | None:
        """Record a release. Return the claim as stored, or None if there is no time left.

        This changes the claim, so that a removal of the finalizer that was decided earlier fails.
        The annotation ends with a random part: otherwise a tenant could write it first, and the
        claim would not change. It adds no finalizer, because a new one may come too late. Raises
        ClusterError, or ClusterRefused with 404 or 422 if the claim is gone.
        """
        written = {ANNOTATION_RELEASE: f"{stamp}-{secrets.token_hex(8)}"}
        answer = await self._patch_with_retries(ref, {"uid": ref.uid, "annotations": written})
        return None if answer is None else _read(ref, answer)

    async def _patch_with_retries(
        self, ref: ClaimAddress, metadata: dict[str, Any]
    ) -> bytes | None:
        """Send a patch. Repeat it a few times if the server returns 409 or 429."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._patch(ref, metadata)
            except ClusterRefused as error:  # many pods of a gang may share a claim
                if error.status not in (409, 429) or attempt == TRIES:
                    raise
                pause = random.uniform(0.05, 0.1) * 2**attempt  # noqa: S311
                await asyncio.sleep(max(pause, min(error.retry_after or 0.0, 10.0)))
        raise AssertionError("unreachable")

    async def unprotect(self, ref: ClaimAddress, version: str) -> None:
        """Remove the finalizer if the claim is still at `version`. Raises ClusterError."""
        try:
            await self._patch(ref, removal_metadata(ref.uid, version))
        except ClusterRefused as error:
            if error.status not in (404, 409, 422):
                raise

    async def _patch(self, ref: ClaimAddress, metadata: dict[str, Any]) -> bytes | None:
        seconds = min(SERVER_SECONDS, 0.8 * self._seconds_left())
        if seconds < LEAST_SECONDS:
            return None
        return await self._client.request(
            "PATCH",
            claim_path(ref.namespace, ref.name),
            query=[("timeout", f"{round(1000 * seconds)}ms")],
            body={"metadata": metadata},
            content_type=STRATEGIC_PATCH,
            timeout=min(seconds + 1.0, seconds / 0.8),
        )


def removal_metadata(uid: str, version: str = "") -> dict[str, Any]:
    """Return the metadata of the patch that removes the finalizer. "" matches any version."""
    metadata = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    return metadata | ({"resourceVersion": version} if version else {})


def claim_path(namespace: str, name: str) -> str:
    """Return the API path of a claim."""
    space = quote(namespace, safe="")
    return f"{CLAIMS}/namespaces/{space}/resourceclaims/{quote(name, safe='')}"


def _read(ref: ClaimAddress, answer: bytes) -> ResourceClaim:
    try:
        return read_claim(_claim.decode(answer), Millis(0)).claim
    except (msgspec.DecodeError, InvalidInput) as error:
        raise ClusterUnavailable(f"claim {ref.namespace}/{ref.name}: garbled ({error}).") from error
