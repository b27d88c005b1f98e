"""Looks, slowly, for pods that hold a place in vain, and tells the engine of them.

A held pod whose controller is gone is found by asking for that controller: one a second, and only
of pods that are held for long. Who leaves devices idle is asked of Prometheus. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.control.inbox import Inbox
from app.core.engine import Engine
from app.core.errors import FairgateError
from app.core.events import FoundUseful, FoundUseless
from app.core.model import Millis, Pod, Uid
from app.core.pods.vain import Vain
from app.ports import DeviceUse, Meters, Owners

LOOK_SECONDS = 1.0
ASK_MS = Millis(300_000)
HELD_MS = Millis(600_000)
"""Only pods that are held for so long are looked at: of younger ones Kubernetes cares itself."""
BUSY = 0.01
"""Whoever uses a device less than this part of the time, and all others too, leaves them idle."""
SETTLED_MS = Millis(300_000)
"""A pod is judged so long after its first whole window: images and data take time to load."""

log = logging.getLogger("fairgate.control")


class Patrol:
    """`run` looks while this replica leads."""

    def __init__(
        self,
        engine: Engine,
        owners: Owners,
        use: DeviceUse | None,
        inbox: Inbox,
        meters: Meters,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        window: Millis,
    ) -> None:
        """`window` is how long devices must have been idle."""
        self._engine = engine
        self._owners = owners
        self._use = use
        self._inbox = inbox
        self._meters = meters
        self._leads = leads
        self._clock = clock
        self._window = window
        self._due: list[Pod] = []
        self._asked: Millis | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._leads():
                await self.look()
            else:
                self._due, self._asked = [], None
                self._meters.zombies({})

    async def look(self) -> None:
        """Look at the next held pod and, if it is time, at all devices: neither waits for the other
        to be answered."""
        for part in (self._look_at_owner, self._look_at_devices):
            try:
                await part()
            except FairgateError as error:
                log.warning("zombies not looked for", extra={"why": str(error)})
        self._meters.zombies(self._engine.zombies.count())

    async def _look_at_owner(self) -> None:
        if not self._due:
            old = self._clock() - HELD_MS
            self._due = [p for p in self._engine.held() if p.owner and p.since <= old][::-1]
        if not self._due:
            return
        pod = self._due.pop()
        gone = await self._owners.missing(pod.namespace, pod.name, pod.uid)
        if not gone:
            await self._inbox.put(FoundUseful(self._clock(), pod.uid, Vain.OWNERLESS))
            return
        why = (
            f"its controller, {gone}, is gone, so nobody waits for it; delete it, or take the "
            "controller off its ownerReferences"
        )
        await self._report(pod.uid, Vain.OWNERLESS, why)

    async def _look_at_devices(self) -> None:
        """Judge every pod that was measured, if it is time; of the others nobody knows."""
        now = self._clock()
        if self._use is None or (self._asked is not None and now - self._asked < ASK_MS):
            return
        self._asked = now
        measured = await self._use.busiest(self._window // 1000)
        for pod in self._engine.zombies.suspects():
            part = measured.get((pod.namespace, pod.name))
            began = pod.started
            if part is None or began is None or now - began < self._window + SETTLED_MS:
                continue
            if part >= BUSY:
                await self._inbox.put(FoundUseful(now, pod.uid, Vain.IDLE))
                continue
            why = (
                f"it has used none of its devices for {self._window // 60_000} min (at most "
                f"{part:.1%} of the time), while others may wait for them; end it if it is done"
            )
            await self._report(pod.uid, Vain.IDLE, why)

    async def _report(self, uid: Uid, kind: Vain, why: str) -> None:
        await self._inbox.put(FoundUseless(self._clock(), uid, kind, why))
