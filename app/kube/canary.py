"""Tries, every few seconds and soon after something was put back, whether enforcement holds.

What is tried is in `trials`; nothing here writes to the API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from app.core.errors import ClusterError
from app.kube.alarm import Alarm
from app.kube.client import Client
from app.kube.trials import HoleFound, Layer, Stop, Trials
from app.ports import EnforcementMeters

log = logging.getLogger("fairgate.kube")

HOLD = "hold"
CREATE = "create"
RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Haste:
    """How the canary proves what was just put back. Seconds, and how often at most."""

    first: float = 2.0
    """An API server heeds a change within about a second. Tried before, the old rule might answer
    for the new one."""
    again: float = 1.0
    tries: int = 15


NORMAL = Haste()


class Canary:
    """The trials, by `run`: `hold`, a new pod is held; `create`, what may not be made is refused;
    `release`, a gate cannot be taken."""

    def __init__(
        self,
        client: Client,
        managed: Sequence[str],
        *,
        seconds: float,
        observing: Callable[[], bool],
        meters: EnforcementMeters,
        alarm: Alarm,
        checks: Sequence[str] = (HOLD, CREATE, RELEASE),
        haste: Haste = NORMAL,
    ) -> None:
        """`managed`: patterns of resources. While `observing` nothing is held, nor tried."""
        self._seconds = seconds
        self._observing = observing
        self._meters = meters
        self._alarm = alarm
        self._haste = haste
        made = Trials(client, managed)
        trials: Mapping[str, Callable[[], Awaitable[Stop]]] = {
            HOLD: made.hold,
            CREATE: made.create,
            RELEASE: made.release,
        }
        self._trials = {check: trials[check] for check in checks}
        self._well: dict[str, bool] = {}
        self._usual: dict[str, Stop] = {}
        """What stopped each trial when nothing was amiss. Two layers stand behind each other: that
        the second stops a trial does not prove the first."""
        self._latest: dict[str, Stop] = {}
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Something was just put back: prove, soon, that it has an effect."""
        self._hurried.set()

    async def run(self) -> None:
        """Try for ever. The first time is after a while: the webhook may be new to the server."""
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._hurried.wait()
            except TimeoutError:
                self._learn(await self.look())
            else:
                await self.prove()

    async def prove(self) -> bool:
        """Try until all is stopped by the layer that stopped it before; tell whether it was."""
        began = time.monotonic()
        self._hurried.clear()
        pause = self._haste.first
        found: dict[str, Stop] = {}
        for _ in range(self._haste.tries):
            await asyncio.sleep(pause)
            if self._hurried.is_set():  # more was put back, which has to settle as well
                self._hurried.clear()
                pause = self._haste.first
                continue
            pause = self._haste.again
            found = await self.look()
            if self._observing():
                return False
            if self._proves(found):
                facts = {check: str(stop) for check, stop in found.items()}
                seconds = round(time.monotonic() - began, 3)
                log.info("enforcement is proven", extra={"seconds": seconds, "by": facts})
                self._usual |= found
                return True
        facts = {check: str(stop) for check, stop in found.items()}
        log.warning("enforcement is not proven", extra={"by": facts})
        return False

    def _proves(self, found: Mapping[str, Stop]) -> bool:
        """Tell whether all was stopped, and nothing by the second layer that was the first's."""
        if found.keys() != self._trials.keys():
            return False
        return all(
            stop.layer is Layer.POLICY or self._usual.get(check, stop).layer is stop.layer
            for check, stop in found.items()
        )

    def _learn(self, found: dict[str, Stop]) -> None:
        """Take what stopped the trials for usual if it did so twice: an upgrade may drop a layer,
        and the second may have stood in for the first just once."""
        for check, stop in found.items():
            if check not in self._usual or self._latest.get(check) == stop:
                self._usual[check] = stop
        self._latest = found

    async def look(self) -> dict[str, Stop]:
        """Make each trial once and report what it showed; return what stopped those that were."""
        found: dict[str, Stop] = {}
        for check, trial in self._trials.items():
            if self._observing():
                self._well.pop(check, None)
                self._meters.checked(check, None)
                continue
            try:
                found[check] = await trial()
            except HoleFound as error:
                await self._report(check, str(error))
            except ClusterError as error:  # it could not be tried, which says nothing
                log.info(
                    "enforcement could not be tried", extra={"check": check, "why": str(error)}
                )
            else:
                await self._report(check, None)
        return found

    async def _report(self, check: str, hole: str | None) -> None:
        well = hole is None
        self._meters.checked(check, well)
        if self._well.get(check, True) == well:
            self._well[check] = well
            return
        self._well[check] = well
        if hole is None:
            log.info("enforcement holds again", extra={"check": check})
            return
        log.error("enforcement does not hold", extra={"check": check, "why": hole})
        await self._alarm.tell("EnforcementFails", check, f"Enforcement does not hold: {hole}")
