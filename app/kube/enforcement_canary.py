"""Proves periodically, and soon after a restore, that enforcement works.

The probes are in `enforcement_probes`. This module sends no requests itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from app.core.errors import ClusterError
from app.kube.client import Client
from app.kube.enforcement_probes import (
    BlockingObject,
    EnforcementLayer,
    EnforcementProbes,
    HoleFound,
)
from app.kube.event_recorder import EnforcementAlarm
from app.ports.metrics import EnforcementMetrics

log = logging.getLogger("fairgate.kube")

HOLD = "hold"
CREATE = "create"
RELEASE = "release"


@dataclass(frozen=True, slots=True)
class ProofTiming:
    """Timing of the proof after a restore, in seconds, and the maximum number of attempts."""

    first_pause: float = 2.0
    """An API server applies a change within about a second. The old rule might answer earlier."""
    retry_pause: float = 1.0
    tries: int = 15


NORMAL = ProofTiming()


class Canary:
    """Runs the probes: `hold` (a new pod is held), `create` (a forbidden pod is refused) and
    `release` (a gate cannot be removed).
    """

    def __init__(
        self,
        client: Client,
        managed: Sequence[str],
        *,
        seconds: float,
        is_applied: Callable[[], bool],
        observing: Callable[[], bool],
        meters: EnforcementMetrics,
        alarm: EnforcementAlarm,
        publish: Callable[[Mapping[str, str]], Awaitable[None]],
        checks: Sequence[str] = (HOLD, CREATE, RELEASE),
        timing: ProofTiming = NORMAL,
    ) -> None:
        """`managed`: resource patterns. Probes do not run while `observing`.

        `is_applied`: whether the watchdog has written the objects for the current mode once.
        Regular rounds wait for that: before, a probe finds holes that are part of every start.

        `publish` receives, after each round, how enforcement does not work, by failed check.
        """
        self._seconds = seconds
        self._is_applied = is_applied
        self._observing = observing
        self._meters = meters
        self._alarm = alarm
        self._publish = publish
        self._holes: dict[str, str] = {}
        self._timing = timing
        self._probes = made = EnforcementProbes(client, managed)
        trials: Mapping[str, Callable[[], Awaitable[BlockingObject]]] = {
            HOLD: made.probe_hold,
            CREATE: made.probe_create,
            RELEASE: made.probe_release,
        }
        self._checks = {check: trials[check] for check in checks}
        self._last_results: dict[str, bool] = {}
        self._usual_stops: dict[str, BlockingObject] = {}
        """What blocked each probe in normal operation. There are two layers, so a block by the
        second layer does not prove that the first one works.
        """
        self._latest_stops: dict[str, BlockingObject] = {}
        self._proof_requested = asyncio.Event()

    def probe_soon(self) -> None:
        """Request a proof soon, because an object was restored."""
        self._proof_requested.set()

    async def unreachable_reason(self) -> str:
        """Return why a new pod is not held; "" if it is, so the API server reaches a replica.

        Raises ClusterError if that could not be tried.
        """
        try:
            await self._probes.probe_hold()
        except HoleFound as error:
            return str(error)
        return ""

    async def run(self) -> None:
        """Probe until cancelled. The first one is delayed: the webhook may be new."""
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._proof_requested.wait()
            except TimeoutError:
                if self._observing() or self._is_applied():
                    self._learn_usual_layers(await self.probe_all())
            else:
                await self.prove_enforcement()

    async def prove_enforcement(self) -> bool:
        """Probe until the usual layer blocks every probe. Return whether it did."""
        began = time.monotonic()
        self._proof_requested.clear()
        pause = self._timing.first_pause
        found: dict[str, BlockingObject] = {}
        for _ in range(self._timing.tries):
            await asyncio.sleep(pause)
            if self._proof_requested.is_set():  # another restore, which must take effect as well
                self._proof_requested.clear()
                pause = self._timing.first_pause
                continue
            pause = self._timing.retry_pause
            found = await self.probe_all()
            if self._observing():
                return False
            if self._is_proof(found):
                facts = {check: str(stop) for check, stop in found.items()}
                seconds = round(time.monotonic() - began, 3)
                log.info("enforcement is proven", extra={"seconds": seconds, "by": facts})
                self._usual_stops |= found
                return True
        facts = {check: str(stop) for check, stop in found.items()}
        log.warning("enforcement is not proven", extra={"by": facts})
        return False

    def _is_proof(self, found: Mapping[str, BlockingObject]) -> bool:
        """Return whether every probe was blocked, and not by the second layer instead."""
        if found.keys() != self._checks.keys():
            return False
        return all(
            stop.layer is EnforcementLayer.POLICY
            or self._usual_stops.get(check, stop).layer is stop.layer
            for check, stop in found.items()
        )

    def _learn_usual_layers(self, found: dict[str, BlockingObject]) -> None:
        """Store a blocking layer as the usual one after two equal results. An upgrade may drop a
        layer, and the second layer may have replaced the first just once.
        """
        for check, stop in found.items():
            if check not in self._usual_stops or self._latest_stops.get(check) == stop:
                self._usual_stops[check] = stop
        self._latest_stops = found

    async def probe_all(self) -> dict[str, BlockingObject]:
        """Run each probe once and report its result. Return what blocked the probes."""
        found: dict[str, BlockingObject] = {}
        for check, trial in self._checks.items():
            if self._observing():
                self._last_results.pop(check, None)
                self._holes.pop(check, None)
                self._meters.set_check_result(check, None)
                continue
            try:
                found[check] = await trial()
            except HoleFound as error:
                await self._report(check, str(error))
            except ClusterError as error:  # the probe did not run, so there is no result
                log.info(
                    "enforcement could not be tried", extra={"check": check, "why": str(error)}
                )
            else:
                await self._report(check, None)
        await self._publish(dict(self._holes))
        return found

    async def _report(self, check: str, hole: str | None) -> None:
        well = hole is None
        if hole is None:
            self._holes.pop(check, None)
        else:
            self._holes[check] = hole
        self._meters.set_check_result(check, well)
        if self._last_results.get(check, True) == well:
            self._last_results[check] = well
            return
        self._last_results[check] = well
        if hole is None:
            log.info("enforcement holds again", extra={"check": check})
            return
        log.error("enforcement does not hold", extra={"check": check, "why": hole})
        await self._alarm.emit("EnforcementFails", check, f"Enforcement does not hold: {hole}")
