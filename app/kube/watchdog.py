"""Keeps webhook configurations and admission policies in force: what is changed or deleted is put
back, as the chart's ConfigMap has it.

Every replica runs one; all write the same, and nothing when nothing differs. Knows nothing of
what the policies say, and never deletes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from app.audit_ports import Reporter
from app.core.audit import Deed, Fact
from app.core.errors import ClusterError, ClusterRefused, FairgateError, InvalidInput
from app.kube.alarm import Alarm
from app.kube.client import Client
from app.kube.enforcement import (
    CONFIG_MAP,
    PATHS,
    WEBHOOKS,
    Object,
    Ref,
    differences,
    helm_marks,
    identity,
    in_force,
    lacks_only_ca,
    last_writer,
    only_ca,
    read_documents,
)
from app.kube.follow import follow
from app.kube.restore import OURS, Restorer
from app.ports import EnforcementMeters

log = logging.getLogger("fairgate.kube")

TRIES = 5
DELETED = "deleted"
LONGEST_TOLD = 300
"""Characters that the audit chain is told of what was touched."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    look: float = 0.5
    """How often mode and CA are looked at."""
    sweep: float = 30.0
    """How often everything is, though nothing was heard."""
    grace: float = 15.0
    """How long an object that we never saw is left to helm, which fails if we are first."""
    again: tuple[float, float] = (0.5, 15.0)
    """When something could not be written; longer each time."""
    breath: float = 0.25
    """After something was put back, in case somebody insists."""
    mode: float = 30.0
    """How long to wait for the mode to be known; then it is Enforce."""
    ca: float = 15.0
    """How long another replica may be ahead of us with its CA."""


NORMAL = Pace()


async def nobodys(ca_pem: bytes) -> bool:
    """No CA but our own is ours."""
    return False


class Watchdog:
    """Keeps the objects of ConfigMap `fairgate-enforcement` in force, by `run`."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        ca: Callable[[], bytes],
        observing: Callable[[], bool | None],
        meters: EnforcementMeters,
        alarm: Alarm,
        is_ours: Callable[[bytes], Awaitable[bool]] = nobodys,
        then: Callable[[], None] = lambda: None,
        pace: Pace = NORMAL,
        reporter: Reporter | None = None,
    ) -> None:
        """`observing` is None while the mode is not known yet. `then` is called whenever something
        that somebody touched was put back.

        `is_ours` tells whether other CAs than `ca` may be what another replica has published.
        """
        self._client = client
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._ca = ca
        self._mode_now = observing
        self._is_ours = is_ours
        self._then = then
        self._meters = meters
        self._alarm = alarm
        self._pace = pace
        self._reporter = reporter
        self._restorer = Restorer(client)
        self._lock = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._dirty: set[Ref] = set()
        self._all_dirty = True
        self._look_at = 0.0
        self._mode_by = 0.0
        self._failures = 0
        self._mode: tuple[bool, bytes] | None = None
        self._map: Object | None = None
        self._documents: dict[Ref, Object] = {}
        self._normal: dict[Ref, Object] = {}
        self._unseen: dict[Ref, float] = {}
        """Documents whose object was never seen, and since when they are known."""
        self._other_ca: dict[Ref, float] = {}
        """Where another replica's CA is, and since when."""
        self.has_looked = False
        """Whether it has seen everything once: what goes from then on was deleted."""
        self._alarms: dict[str, str] = {}
        """What operators are still to be told, by what it is about."""
        self._agreed: dict[Ref, Object] = {}
        """What each live object was when we last found it as wanted."""

    async def run(self) -> None:
        """Keep until cancelled."""
        followed: set[str] = set()
        self._mode_by = time.monotonic() + self._pace.mode
        async with asyncio.TaskGroup() as group:
            heard = partial(self._heard, None)
            group.create_task(follow(self._client, self._maps, heard, only=CONFIG_MAP))
            while True:
                await self._rest()
                await self._round()
                self.has_looked = True
                for kind in sorted({ref.kind for ref in self._documents} - followed):
                    heard = partial(self._heard, kind)
                    group.create_task(follow(self._client, PATHS[kind], heard))
                    followed.add(kind)

    async def publish(self, ca_pem: bytes) -> None:
        """Write a CA into every webhook; return once it is there. Raises ClusterError.

        For whoever changes the CA, before serving with a certificate of the new one. `ca` must
        return it by then, or the old one comes back.
        """
        async with self._lock:
            await self._read_map()
            for ref in sorted(self._documents):
                if ref.kind in WEBHOOKS:
                    await self._mend(ref, ca_pem, is_newest=True)
        await self._sound()

    def _heard(self, kind: str | None, name: str | None) -> None:
        """Something changed. No kind: the ConfigMap; no name: any object of the kind."""
        if kind is None:
            self._all_dirty = True
        else:
            ours = {ref for ref in self._documents if ref.kind == kind and name in (None, ref.name)}
            if not ours:
                return
            self._dirty |= ours
        self._stirred.set()

    def _observing(self) -> bool:
        return bool(self._mode_now())

    async def _rest(self) -> None:
        """Wait until there may be something to do."""
        while not self._is_due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look):  # wait_for can swallow a cancellation
                    await self._stirred.wait()
        self._stirred.clear()

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._mode_now() is None and now < self._mode_by:
            self._stirred.clear()  # the first round looks at everything
            return False
        if self._mode != (self._observing(), self._ca()) or now >= self._look_at:
            self._all_dirty = True
        return self._all_dirty or self._stirred.is_set()

    async def _round(self) -> None:
        """Mend whatever may need it."""
        everything, self._all_dirty = self._all_dirty, False
        dirty, self._dirty = self._dirty, set()
        self._look_at = time.monotonic() + self._pace.sweep
        ca, failed = self._ca(), False
        async with self._lock:
            self._mode = (self._observing(), ca)
            if everything:
                failed = await self._tried(f"ConfigMap {CONFIG_MAP}", self._read_map)
            for ref in sorted(self._documents if everything else dirty & self._documents.keys()):
                failed |= await self._tried(str(ref), partial(self._mend, ref, ca))
        await self._sound()
        if failed:
            least, most = self._pace.again
            self._look_again(min(most, least * 2 ** min(self._failures, 10)))
            self._failures += 1
        else:
            self._failures = 0

    async def _tried(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Do one thing; tell whether it failed, for then all is looked at again soon."""
        try:
            await work()
        except ClusterError as error:
            level = logging.ERROR if self._failures % 20 == 0 else logging.DEBUG
            log.log(level, "cannot be kept in force", extra={"what": what, "why": str(error)})
            return True
        except Exception:  # what somebody wrote must not end the process that holds pods
            log.exception("cannot be kept in force", extra={"what": what})
            return True
        return False

    def _look_again(self, seconds: float) -> None:
        self._look_at = min(self._look_at, time.monotonic() + seconds)

    async def _read_map(self) -> bool:
        """Take in the ConfigMap; True if it says something new. One that is gone is put back."""
        path = f"{self._maps}/{CONFIG_MAP}"
        found = await self._restorer.live(path)
        if found is not None and self._map is not None and found.get("data") == self._map["data"]:
            self._map = found
            return False
        try:
            documents = read_documents((found or {}).get("data"))
        except InvalidInput as error:
            await self._no_map(path, found, str(error))
            return False
        assert found is not None, "what is not there holds no documents"
        self._map = found
        self._take(documents)
        return True

    def _take(self, documents: dict[Ref, Object]) -> None:
        """Keep these from now on; what is known of the others is forgotten."""
        before, now = self._documents, time.monotonic()
        same = {ref for ref, each in documents.items() if before.get(ref) == each}
        self._unseen = {
            ref: self._unseen.get(ref, now)
            for ref in documents
            if ref not in before or ref in self._unseen
        }
        self._normal = {ref: each for ref, each in self._normal.items() if ref in same}
        self._agreed = {ref: each for ref, each in self._agreed.items() if ref in documents}
        self._documents = documents
        self._all_dirty = True
        self._stirred.set()

    async def _no_map(self, path: str, found: Object | None, why: str) -> None:
        """The ConfigMap is gone or unusable: put it back, if we know what it was."""
        if self._map is None:
            raise ClusterError(f"{why} Nothing is kept in force until then.")
        if found is None and self._observing():
            return
        wanted = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": identity(self._map, helm_marks(self._map)),
            "data": self._map["data"],
        }
        await self._restorer.put_back(path, found, wanted)
        self._tell(Ref("ConfigMap", CONFIG_MAP), found, [why] if found else [DELETED])

    async def _mend(self, ref: Ref, ca: bytes, *, is_newest: bool = False) -> None:
        """Make one object as wanted. Raises ClusterError.

        `is_newest`: no replica can know of a later CA.
        """
        for attempt in range(TRIES):
            try:
                await self._compare(ref, ca, is_newest)
            except ClusterRefused as error:
                self._normal.pop(ref, None)  # it may be what is not right any more
                if error.status != 409 or attempt + 1 == TRIES:  # changed since we read it
                    raise
            else:
                return

    async def _compare(self, ref: Ref, ca: bytes, is_newest: bool) -> None:
        live = await self._restorer.live(ref.path)
        observing = self._observing()
        if live is not None:
            self._unseen.pop(ref, None)
            known = self._normal.get(ref)
            if known is not None and self._agrees(ref, live, in_force(known, ca, observing)):
                return
        elif observing or self._is_helms(ref):
            return
        # The API server may have learned new defaults, and the chart may have been upgraded.
        # Both can wait where there is nothing: what we know is put there at once.
        if live is not None or ref not in self._normal:
            marks = helm_marks(self._map) if self._map else {}
            self._normal[ref] = await self._restorer.normal(self._documents[ref], marks)
        wanted = in_force(self._normal[ref], ca, observing)
        if live is not None and self._agrees(ref, live, wanted):
            return
        if await self._read_map():
            return  # all will be looked at again
        by_us = live is not None and self._was_agreed(ref, live, wanted)
        if not by_us and await self._is_ahead(ref, live, observing):
            if not is_newest:
                return
            by_us = True  # somebody of ours wrote it, before
        await self._restorer.put_back(ref.path, live, wanted)
        self._agreed[ref] = wanted
        self._other_ca.pop(ref, None)
        if by_us:
            log.info("enforcement written", extra={"kind": ref.kind, "object": ref.name})
        else:
            self._tell(ref, live, differences(live, wanted) if live else [DELETED])

    def _agrees(self, ref: Ref, live: Object, wanted: Object) -> bool:
        if differences(live, wanted):
            return False
        self._agreed[ref] = wanted
        self._other_ca.pop(ref, None)
        return True

    async def _is_ahead(self, ref: Ref, live: Object | None, observing: bool) -> bool:
        """Tell whether only the CA differs, by that of a replica that learned of it before us."""
        other = only_ca(live) if live is not None else None
        if live is None or other is None:
            return False
        if differences(live, in_force(self._normal[ref], other, observing)):
            return False
        left = self._other_ca.setdefault(ref, time.monotonic()) + self._pace.ca - time.monotonic()
        try:
            if left <= 0 or not await self._is_ours(other):
                return False
        except FairgateError as error:  # who cannot be asked does not vouch for it
            log.warning("another CA cannot be judged", extra={"why": str(error)})
            return False
        self._look_again(left)
        return True

    def _was_agreed(self, ref: Ref, live: Object, wanted: Object) -> bool:
        """Tell whether nobody touched the object: it is we who want it otherwise now."""
        agreed = self._agreed.get(ref)
        if agreed is not None and not differences(live, agreed):
            return True
        return lacks_only_ca(live, wanted, agreed)

    def _is_helms(self, ref: Ref) -> bool:
        """Tell whether an object that was never seen is still helm's to create."""
        since = self._unseen.get(ref)
        if since is None:
            return False
        left = since + self._pace.grace - time.monotonic()
        if left > 0:
            self._look_again(left)
        return left > 0

    def _tell(self, ref: Ref, live: Object | None, what: list[str]) -> None:
        """Report that an object was touched by somebody, and put back."""
        who = last_writer(live, OURS) if live is not None else "the audit log tells who"
        facts = {"kind": ref.kind, "object": ref.name, "what": what, "who": who}
        log.warning("enforcement was touched, and put back", extra=facts)
        self._meters.restored(ref.kind)
        if self._reporter is not None:
            done: dict[str, Fact] = {"kind": ref.kind, "name": ref.name, "manager": who}
            done["what"] = ", ".join(what)[:LONGEST_TOLD]
            self._reporter.report(Deed.RESTORED, done)
        self._then()
        told = f"{ref}: {', '.join(what)}"
        self._alarms[told] = f"Somebody touched {told} ({who}); it has been put back."

    async def _sound(self) -> None:
        """Tell operators, now that everything is back, and pause, in case somebody insists."""
        alarms, self._alarms = self._alarms, {}
        for told, message in alarms.items():
            await self._alarm.tell("EnforcementRestored", told, message)
        if alarms:
            await asyncio.sleep(self._pace.breath)
