"""Leader election on a Lease object. Expiry uses monotonic time and never a wall clock.

Every write contains the resourceVersion that was read, so the API server refuses one of two
candidates. The times in the record are for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.k8s_types import objects
from app.kube.client import JSON, MERGE_PATCH

log = logging.getLogger("fairgate.kube")

_lease = msgspec.json.Decoder(objects.Lease)

NAME = "fairgate-controller"

EXPIRED_FRACTION = 0.9
"""Fraction of the duration. A silent holder stops at 0.8, and the next one must lead by 1.0."""

STALLED = "the process makes no progress"

POLL_SECONDS = 0.5
"""How often a candidate reads the Lease, one small object. A released Lease waits this long."""


def uptime() -> float:
    """Return seconds that also pass while the machine sleeps, unlike `time.monotonic`."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseApi(Protocol):
    """The part of `client.Client` that is needed."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        content_type: str = JSON,
        timeout: float = 10.0,
    ) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A record as first seen at `first_seen_at`, unchanged since."""

    version: str
    first_seen_at: float
    holder: str
    duration: float

    @property
    def expires_at(self) -> float:
        """Return when the Lease expires: a silent holder has stopped, half its margin is left."""
        return self.first_seen_at + EXPIRED_FRACTION * self.duration


class LeaseLeadership:
    """Implements `ports.leadership.Leadership` on a Lease.

    `duration`: seconds after which another replica leads if the holder is silent. The holder stops
        a fifth of it earlier, because clocks differ and a patch may be in flight.
    `makes_progress`: returns False if the process makes no progress. It then does not renew the
    Lease.
    """

    def __init__(
        self,
        api: LeaseApi,
        namespace: str,
        identity: str,
        *,
        makes_progress: Callable[[], bool],
        name: str = NAME,
        duration: float = 15.0,
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._makes_progress = makes_progress
        self._identity = identity
        self._duration = duration
        self._term_seconds = duration * 4 / 5
        self._renew_interval = duration / 5
        self._clock = clock
        self._last_sighting: _Sighting | None = None
        self._version = ""
        self._valid_until = float("-inf")
        self._ended = asyncio.Event()
        self._ended.set()
        self._renewing: asyncio.Task[None] | None = None

    def seconds_left(self) -> float:
        """Return for how many seconds this replica may still act. At 0 or less it may not."""
        return 0.0 if self._ended.is_set() else self._valid_until - self._clock()

    def is_held_by_another(self) -> bool:
        """Return whether another replica holds the Lease and renews it in time."""
        seen = self._last_sighting
        if seen is None or seen.holder in ("", self._identity):
            return False
        return self._clock() <= seen.expires_at

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        """Wait until this replica leads. Return `leaseTransitions` of the acquired Lease.

        `fit` is called each time the Lease is available. If it returns False, another replica may
        lead.
        """
        await self._stop_renewing()
        while True:
            try:
                transitions = await self._try_to_take(fit)
            except ClusterError as error:
                log.warning("lease not readable", extra={"lease": self._name, "why": str(error)})
                transitions = None
            if transitions is not None:
                log.info("lease taken", extra={"lease": self._name, "transitions": transitions})
                self._renewing = asyncio.create_task(self._renew(), name="lease-renewal")
                return transitions
            pause = min(POLL_SECONDS, self._duration / 8) * random.uniform(0.8, 1.2)  # noqa: S311
            lapses = self._last_sighting.expires_at - self._clock() if self._last_sighting else 0.0
            await asyncio.sleep(min(pause, lapses) if lapses > 0 else pause)

    async def wait_until_lost(self) -> None:
        """Wait until leadership has ended."""
        await self._ended.wait()

    async def release_lease(self) -> None:
        """Release the Lease, so that another replica need not wait until it expires."""
        held = not self._ended.is_set()
        self._end_term("given up")
        await self._stop_renewing()
        if held:
            with contextlib.suppress(ClusterError):  # it expires by itself
                await self._patch({"holderIdentity": "", "renewTime": _now()}, self._renew_interval)

    async def _try_to_take(self, fit: Callable[[], Awaitable[bool]] | None) -> int | None:
        """Acquire the Lease if it is free or expired. Return None if it is not."""
        lease = await self._read()
        if not self._observe_is_free(lease) or (fit is not None and not await fit()):
            return None
        started = self._clock()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": 0,
        }
        try:
            if lease is None:
                await self._create(spec)
                return self._start_term(started, 0)
            # Also if this replica is the last holder: every term counts.
            spec["leaseTransitions"] = (lease.spec.lease_transitions or 0) + 1
            await self._patch(spec, self._renew_interval)
        except ClusterRefused as error:
            if error.status == 409 or (error.status == 404 and lease is not None):
                return None  # another replica was faster
            raise
        return self._start_term(started, (lease.spec.lease_transitions or 0) + 1)

    def _observe_is_free(self, lease: objects.Lease | None) -> bool:
        """Record when the Lease last changed, and return whether it is free or expired."""
        now, seen = self._clock(), self._last_sighting
        if lease is None:
            # It may have been deleted while held. The holder notices that only at its next renewal.
            return seen is None or not seen.holder or now > seen.expires_at
        holder = lease.spec.holder_identity or ""
        if seen is None or seen.version != lease.metadata.resource_version:
            # An edited record must not make the holder's time shorter than the configured duration.
            lasts = max(float(lease.spec.lease_duration_seconds or 0), self._duration)
            seen = _Sighting(lease.metadata.resource_version, now, holder, lasts)
            self._last_sighting = seen
        self._version = lease.metadata.resource_version
        return holder in ("", self._identity) or now > seen.expires_at

    def _start_term(self, started: float, transitions: int) -> int:
        self._valid_until = started + self._term_seconds
        self._ended.clear()
        return transitions

    async def _renew(self) -> None:
        """Renew until another replica has the Lease, or the time has run out."""
        try:
            await self._keep_renewing()
        finally:
            self._end_term("renewal stopped")

    async def _keep_renewing(self) -> None:
        while not self._ended.is_set():
            left = self._valid_until - self._clock()
            if left <= 0:
                self._end_term("not renewed in time")
                return
            await asyncio.sleep(min(self._renew_interval, left))
            started = self._clock()
            left = self._valid_until - started
            if left <= 0:
                continue
            if not self._makes_progress():
                log.warning("lease not renewed", extra={"lease": self._name, "why": STALLED})
                continue
            try:
                async with asyncio.timeout(left):
                    await self._renew_once(started)
            except TimeoutError:
                continue
            except ClusterError as error:
                log.warning("lease not renewed", extra={"lease": self._name, "why": str(error)})

    async def _renew_once(self, started: float) -> None:
        try:
            await self._patch({"renewTime": _now()}, self._renew_interval)
        except ClusterRefused as error:
            if error.status not in (404, 409):
                raise
            # The response to our own write may be lost, and its version too: read the holder.
            lease = await self._read()
            if lease is None or lease.spec.holder_identity != self._identity:
                self._end_term("taken by another")
                return
            self._version = lease.metadata.resource_version
            await self._patch({"renewTime": _now()}, self._renew_interval)
        if self._clock() < self._valid_until:  # a term that ended is not revived
            self._valid_until = started + self._term_seconds

    def _end_term(self, why: str) -> None:
        if not self._ended.is_set():
            self._valid_until = float("-inf")
            self._ended.set()
            log.warning("leadership ended", extra={"lease": self._name, "why": why})

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            self._renewing = None

    async def _read(self) -> objects.Lease | None:
        try:
            return _decode(await self._api.request("GET", self._path, timeout=self._renew_interval))
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def _create(self, spec: dict[str, Any]) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        self._record_version(
            await self._api.request(
                "POST", self._collection, body=body, timeout=self._renew_interval
            )
        )

    async def _patch(self, spec: dict[str, Any], timeout: float) -> None:
        # A resourceVersion in a merge patch makes it conditional: 409 if the record has changed.
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        self._record_version(
            await self._api.request(
                "PATCH", self._path, body=body, content_type=MERGE_PATCH, timeout=timeout
            )
        )

    def _record_version(self, answer: bytes) -> None:
        self._version = _decode(answer).metadata.resource_version


def _decode(answer: bytes) -> objects.Lease:
    try:
        return _lease.decode(answer)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"the lease cannot be read: {error}") from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
