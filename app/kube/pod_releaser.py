"""Sends the patch that releases a pod, and determines its result.

A result is returned only if it is certain and final. A patch without a response may still wait in
front of the API server.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import msgspec

from app.core import release_patch
from app.core.effects import ClaimAddress, PodRef, Release
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, PodUnyielding
from app.core.model import ReleaseOutcome
from app.core.well_known import ANNOTATION_RELEASE, GATE
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.claim_finalizers import ClaimFinalizers
from app.kube.client import JSON_PATCH, METADATA, Client

log = logging.getLogger("fairgate.kube")

_pod = Decoder(objects.PodObject)

TRIES = 4
FEW_TRIES = 2
"""Number of attempts for a fence that is refused or unanswered, because a new leader waits."""
CONFLICT_TRIES = 8
"""Number of attempts for a patch that gets 409 or 429, over some ten seconds. Meanwhile the pod
keeps its place and its capacity. Fewer attempts would let other pods go first in an overload.
"""
LONGEST_PAUSE = 2.0
"""Longest pause between two attempts in seconds, unless the server requests more."""
SERVER_SECONDS = 5.0
"""Time limit of the API server for one patch. It gives up afterwards."""
REPLY_SECONDS = 1.0
"""Additional time for the response."""
LEAST_SECONDS = 0.05
"""Shortest useful time limit. A patch with less time is not sent."""

_WHAT_TO_DO = {
    401: "Fairgate's token is not accepted: check its service account.",
    403: "grant the service account fairgate-controller the right to patch pods, and see which "
    "policy or webhook refuses it.",
}


_TOO_LARGE = re.compile(r"request is too large|entity too large|Too long: ", re.IGNORECASE)
"""Errors of etcd and the API server for an object above about 1.5 MiB. It is not stored."""


class PodReleaser:
    """Implements `ports.cluster.Releaser` on the API server.

    `seconds_left` returns for how many seconds this process may act. It is called before each
    patch, including repeated ones. No patch may take longer, neither in the server nor here.
    """

    def __init__(
        self,
        client: Client,
        *,
        seconds_left: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self._client = client
        self._seconds_left = seconds_left
        self._claims = ClaimFinalizers(client, seconds_left=seconds_left)

    async def release(self, order: Release) -> ReleaseOutcome | None:
        """Send the release patch. Return None if its result is not known yet."""
        if not await self._stamp_claims(order):
            return ReleaseOutcome.HELD
        try:
            if not order.expected_annotation:
                await self._patch(order.intent.ref, release_patch.restore_annotation_patch(order))
                order = replace(order, expected_annotation=release_patch.restored_annotation(order))
            await self._patch(order.intent.ref, release_patch.release_patch(order))
        except ClusterUnavailable as error:
            if _TOO_LARGE.search(str(error)):  # an error of etcd, sent with status 500
                return _log_too_large(order.intent.ref, error)
            log.warning("release unanswered", extra=_facts(order.intent.ref, error))
            return None
        except ClusterRefused as error:
            return await self._outcome_of_refusal(order, error)
        except _NotOursToAct:
            return ReleaseOutcome.HELD
        return ReleaseOutcome.RELEASED

    async def _stamp_claims(self, order: Release) -> bool:
        """Record the release on every claim of the pod. Return whether the pod may be released.

        Each claim must still have the finalizer. From then on no other claim can take the name, and
        no other pod can become the owner.
        """
        ref = order.intent.ref
        for grant in order.claims:
            claim = ClaimAddress(grant.uid, ref.namespace, grant.name)
            try:
                stored = await self._claims.stamp_release(claim, order.stamp)
            except ClusterError as error:
                log.warning("claim not protected", extra=_facts(ref, error) | {"claim": grant.name})
                return False
            if stored is None or stored.terminating or not stored.has_finalizer:
                return False
            if grant.name in order.generated_claims and not (
                stored.is_of_group or stored.owner == ref.uid
            ):
                return False
        return True

    async def read_outcome(self, order: Release) -> ReleaseOutcome | None:
        """Read the pod and return the result of an earlier release, or None if there was no answer.

        A pod that is still held is fenced first, so that the patch cannot arrive late. Raises
        PodUnyielding if the pod can be read but not fenced.
        """
        ref = order.intent.ref
        try:
            pod = await self._read(ref)
        except (ClusterUnavailable, ClusterRefused) as error:
            log.warning("pod not readable", extra=_facts(ref, error))
            return None
        answer = _shown_outcome(pod, ref)
        if pod is None or answer is not ReleaseOutcome.HELD:
            return answer
        try:
            await self._fence_release(order, pod)
        except ClusterError as error:  # if it changed just now, the next look finds out
            raise _unyielding_error(ref, error) from error
        except _NotOursToAct:
            return None
        return ReleaseOutcome.HELD

    async def fence(self, ref: PodRef, epoch: int) -> ReleaseOutcome:
        """Make every release patch of an older epoch fail on this pod, if it is still held.

        Returns the result that the pod shows. Raises PodUnyielding if the pod can be read but not
        fenced, ClusterError if the result is uncertain.
        """
        for attempt in range(1, TRIES + 1):
            pod = await self._read(ref)
            answer = _shown_outcome(pod, ref)
            if pod is None or answer is not ReleaseOutcome.HELD:
                return answer
            found = _stamp(pod)
            if found is None or found == release_patch.fence_annotation(epoch):
                return answer  # release patches test the annotation, so they fail
            try:
                await self._patch(
                    ref,
                    release_patch.fence_patch(
                        ref.uid, found, release_patch.fence_annotation(epoch)
                    ),
                )
                return answer
            except _NotOursToAct as error:
                name = f"{ref.namespace}/{ref.name}"
                raise ClusterUnavailable(f"the lease ended before {name} was fenced.") from error
            except ClusterError as error:
                # 404, 422: the pod may have changed since it was read.
                changed = isinstance(error, ClusterRefused) and error.status in (404, 422)
                if attempt >= (TRIES if changed else FEW_TRIES):
                    raise _unyielding_error(ref, error) from error
        raise AssertionError("unreachable")

    async def _outcome_of_refusal(
        self, order: Release, error: ClusterRefused
    ) -> ReleaseOutcome | None:
        ref = order.intent.ref
        if error.status in (413, 422) and _TOO_LARGE.search(str(error)):
            return _log_too_large(ref, error)
        match error.status:
            case 404:
                return ReleaseOutcome.GONE
            case 422:
                return await self._outcome_after_conflict(order, error)
            case 409 | 429:
                log.warning("release put off", extra=_facts(ref, error))
            case status:
                advice = _WHAT_TO_DO.get(status, "see the reason the API server gave.")
                log.error("release refused", extra=_facts(ref, error) | {"advice": advice})
        return ReleaseOutcome.HELD

    async def _outcome_after_conflict(
        self, order: Release, refusal: ClusterRefused
    ) -> ReleaseOutcome | None:
        """Return why the patch failed. It certainly did: no patch is in flight."""
        ref = order.intent.ref
        try:
            answer = _shown_outcome(await self._read(ref), ref)
        except (ClusterUnavailable, ClusterRefused) as error:
            log.warning("pod not readable", extra=_facts(ref, error))
            return None
        if answer is ReleaseOutcome.HELD:  # stamp of another leader, another gate, or a policy
            log.warning("release did not apply", extra=_facts(ref, refusal))
        return answer

    async def _fence_release(self, order: Release, pod: objects.PodObject) -> None:
        """Make the release fail from now on. Raises ClusterError."""
        ref, found = order.intent.ref, _stamp(pod)
        if found is None or found not in (
            order.expected_annotation,
            release_patch.restored_annotation(order),
        ):
            return
        await self._patch(
            ref, release_patch.fence_patch(ref.uid, found, release_patch.release_fence(order))
        )

    async def _patch(self, ref: PodRef, patch: release_patch.Patch) -> None:
        """Send a patch. Repeat it a few times if the server returns 409 or 429."""
        for attempt in range(1, CONFLICT_TRIES + 1):
            # Less than the remaining time, so that the response arrives in time.
            seconds = min(SERVER_SECONDS, 0.8 * self._seconds_left())
            if seconds < LEAST_SECONDS:
                raise _NotOursToAct
            try:
                await self._client.request(
                    "PATCH",
                    _path(ref),
                    query=[("timeout", f"{round(1000 * seconds)}ms")],
                    body=patch,
                    content_type=JSON_PATCH,
                    accept=METADATA,
                    timeout=min(seconds + REPLY_SECONDS, seconds / 0.8),
                )
                return
            except ClusterRefused as error:
                if error.status not in (409, 429) or attempt == CONFLICT_TRIES:
                    raise
                asked = min(error.retry_after or 0.0, 10.0)
                pause = min(LONGEST_PAUSE, random.uniform(0.05, 0.1) * 2**attempt)  # noqa: S311
                await asyncio.sleep(max(asked, pause))

    async def _read(self, ref: PodRef) -> objects.PodObject | None:
        """Return the current pod (no resourceVersion: a quorum read), None if it is absent."""
        try:
            return _pod.decode(await self._client.request("GET", _path(ref), timeout=3.0))
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{_path(ref)}: garbled ({error}).") from error
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise


class _NotOursToAct(Exception):
    """Leadership ended before the patch was sent."""


def _shown_outcome(pod: objects.PodObject | None, ref: PodRef) -> ReleaseOutcome:
    """Return the release result that a stored pod shows."""
    if pod is None or pod.metadata.uid != ref.uid:
        return ReleaseOutcome.GONE
    if any(each.name == GATE for each in pod.spec.scheduling_gates or ()):
        return ReleaseOutcome.HELD
    return (
        ReleaseOutcome.GONE
        if pod.status.phase in ("Succeeded", "Failed")
        else ReleaseOutcome.RELEASED
    )


def _unyielding_error(ref: PodRef, error: ClusterError) -> PodUnyielding:
    return PodUnyielding(
        f"pod {ref.namespace}/{ref.name} can be read, but not changed ({error}): delete it, or "
        "mend the webhook or policy that refuses the change."
    )


def _stamp(pod: objects.PodObject) -> str | None:
    return (pod.metadata.annotations or {}).get(ANNOTATION_RELEASE)


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"


def _log_too_large(ref: PodRef, error: ClusterError) -> ReleaseOutcome:
    """Log that a pod is too large for a release. It waits with a growing backoff."""
    advice = "the pod is too large to be changed: its owner must create it again, smaller."
    log.error("release refused", extra=_facts(ref, error) | {"advice": advice})
    return ReleaseOutcome.HELD


def _facts(ref: PodRef, error: Exception) -> dict[str, str]:
    return {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": str(error)}
