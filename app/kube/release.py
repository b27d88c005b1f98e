"""Sends the one patch that releases a pod, and finds out what became of it.

Never guesses: an answer is given only when it is certain, and stays so. A patch whose reply was
lost may still be waiting in front of the API server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import msgspec

from app import wire
from app.core.admission import gate
from app.core.effects import PodRef, Release
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, PodUnyielding
from app.core.model import ANNOTATION_RELEASE, GATE, Answer
from app.kube.client import JSON_PATCH, Client

log = logging.getLogger("fairgate.kube")

_pod = msgspec.json.Decoder(wire.Pod)

TRIES = 4
FEW_TRIES = 2
"""A fence that is refused, or not answered, is tried so often: a new leader is waiting."""
PUT_OFF_TRIES = 8
"""A patch that 409 or 429 puts off is sent so often, over some ten seconds. Meanwhile the pod
keeps its place and what it takes; given up sooner, a storm would let others go before it."""
LONGEST_PAUSE = 2.0
"""Seconds between two tries, unless the server asks for more."""
SERVER_SECONDS = 5.0
"""What the API server may spend on one patch at most; it gives up on it afterwards."""
REPLY_SECONDS = 1.0
"""So much longer its answer is waited for."""
LEAST_SECONDS = 0.05
"""A patch that may not take even so long is not sent."""

_WHAT_TO_DO = {
    401: "Fairgate's token is not accepted: check its service account.",
    403: "grant the service account fairgate-controller the right to patch pods, and see which "
    "policy or webhook refuses it.",
}


class PodReleaser:
    """`ports.Releaser` on the API server.

    `left` tells for how many seconds this process may act. It is asked right before each patch,
    also a repeated one, and no patch may take longer, neither there nor here.
    """

    def __init__(
        self,
        client: Client,
        *,
        left: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self._client = client
        self._left = left

    async def release(self, order: Release) -> Answer | None:
        """Send the release patch; None if nobody can tell yet what became of it."""
        try:
            if not order.tested:
                await self._patch(order.intent.ref, gate.stamp_patch(order))
                order = replace(order, tested=gate.written_again(order))
            await self._patch(order.intent.ref, gate.release_patch(order))
        except ClusterUnavailable as error:
            log.warning("release unanswered", extra=_facts(order.intent.ref, error))
            return None
        except ClusterRefused as error:
            return await self._refused(order, error)
        except _NotOursToAct:
            return Answer.HELD
        return Answer.RELEASED

    async def look(self, order: Release) -> Answer | None:
        """Read the pod and tell what became of an earlier release of it; None: no answer came.

        A pod that is still held is fenced first, so that the patch cannot arrive late. Raises
        PodUnyielding if that fails, though the pod can be read.
        """
        ref = order.intent.ref
        try:
            pod = await self._read(ref)
        except (ClusterUnavailable, ClusterRefused) as error:
            log.warning("pod not readable", extra=_facts(ref, error))
            return None
        answer = _judge(pod, ref)
        if pod is None or answer is not Answer.HELD:
            return answer
        try:
            await self._fence_off(order, pod)
        except ClusterError as error:  # if it changed this instant, the next look tells
            raise _unyielding(ref, error) from error
        except _NotOursToAct:
            return None
        return Answer.HELD

    async def fence(self, ref: PodRef, epoch: int) -> Answer:
        """Make every release patch of an older epoch fail on this pod, if it is still held.

        Returns what the pod then tells. Raises PodUnyielding if it can be read, but not fenced,
        ClusterError if nothing is certain.
        """
        for attempt in range(1, TRIES + 1):
            pod = await self._read(ref)
            answer = _judge(pod, ref)
            if pod is None or answer is not Answer.HELD:
                return answer
            found = _stamp(pod)
            if found is None or found == gate.fenced(epoch):
                return answer  # without the annotation no release patch passes its test
            try:
                await self._patch(ref, gate.fence_patch(ref.uid, found, gate.fenced(epoch)))
                return answer
            except _NotOursToAct as error:
                name = f"{ref.namespace}/{ref.name}"
                raise ClusterUnavailable(f"the lease ended before {name} was fenced.") from error
            except ClusterError as error:
                # 404, 422: it may have changed since we read it.
                changed = isinstance(error, ClusterRefused) and error.status in (404, 422)
                if attempt >= (TRIES if changed else FEW_TRIES):
                    raise _unyielding(ref, error) from error
        raise AssertionError("unreachable")

    async def _refused(self, order: Release, error: ClusterRefused) -> Answer | None:
        ref = order.intent.ref
        match error.status:
            case 404:
                return Answer.GONE
            case 422:
                return await self._examine(order, error)
            case 409 | 429:
                log.warning("release put off", extra=_facts(ref, error))
            case status:
                advice = _WHAT_TO_DO.get(status, "see the reason the API server gave.")
                log.error("release refused", extra=_facts(ref, error) | {"advice": advice})
        return Answer.HELD

    async def _examine(self, order: Release, refusal: ClusterRefused) -> Answer | None:
        """Tell why the patch failed. That it did is certain: nothing is in flight."""
        ref = order.intent.ref
        try:
            answer = _judge(await self._read(ref), ref)
        except (ClusterUnavailable, ClusterRefused) as error:
            log.warning("pod not readable", extra=_facts(ref, error))
            return None
        if answer is Answer.HELD:  # another leader's stamp, another gate, or a policy
            log.warning("release did not apply", extra=_facts(ref, refusal))
        return answer

    async def _fence_off(self, order: Release, pod: wire.Pod) -> None:
        """Make sure that the release can no longer happen. Raises ClusterError."""
        ref, found = order.intent.ref, _stamp(pod)
        if found is None or found not in (order.tested, gate.written_again(order)):
            return
        await self._patch(ref, gate.fence_patch(ref.uid, found, gate.fence_of(order)))

    async def _patch(self, ref: PodRef, patch: gate.Patch) -> None:
        """Send a patch; a refusal that only asks for patience is repeated a few times."""
        for attempt in range(1, PUT_OFF_TRIES + 1):
            # Short of the end, so that the answer is here by then.
            seconds = min(SERVER_SECONDS, 0.8 * self._left())
            if seconds < LEAST_SECONDS:
                raise _NotOursToAct
            try:
                await self._client.request(
                    "PATCH",
                    _path(ref),
                    query=[("timeout", f"{round(1000 * seconds)}ms")],
                    body=patch,
                    content_type=JSON_PATCH,
                    timeout=min(seconds + REPLY_SECONDS, seconds / 0.8),
                )
                return
            except ClusterRefused as error:
                if error.status not in (409, 429) or attempt == PUT_OFF_TRIES:
                    raise
                asked = min(error.retry_after or 0.0, 10.0)
                pause = min(LONGEST_PAUSE, random.uniform(0.05, 0.1) * 2**attempt)  # noqa: S311
                await asyncio.sleep(max(asked, pause))

    async def _read(self, ref: PodRef) -> wire.Pod | None:
        """Read a pod as it is now (no resourceVersion: a quorum read); None if there is none."""
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


def _judge(pod: wire.Pod | None, ref: PodRef) -> Answer:
    """Tell what a pod, as stored, says of itself."""
    if pod is None or pod.metadata.uid != ref.uid:
        return Answer.GONE
    if any(each.name == GATE for each in pod.spec.scheduling_gates or ()):
        return Answer.HELD
    return Answer.GONE if pod.status.phase in ("Succeeded", "Failed") else Answer.RELEASED


def _unyielding(ref: PodRef, error: ClusterError) -> PodUnyielding:
    return PodUnyielding(
        f"pod {ref.namespace}/{ref.name} can be read, but not changed ({error}): delete it, or "
        "mend the webhook or policy that refuses the change."
    )


def _stamp(pod: wire.Pod) -> str | None:
    return (pod.metadata.annotations or {}).get(ANNOTATION_RELEASE)


def _path(ref: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/pods/{quote(ref.name, safe='')}"


def _facts(ref: PodRef, error: Exception) -> dict[str, str]:
    return {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": str(error)}
