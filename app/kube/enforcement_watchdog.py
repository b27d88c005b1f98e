"""Creates the webhook configurations and admission policies of the ConfigMap, and restores them.

Every replica runs one. All replicas write the same, and only if there is a difference. The objects
of a new installation refuse nothing until the API server has reached a replica, so an image that
cannot start refuses no pod. It never deletes an object. It creates no object after an uninstall:
see `Restorer.put_back`. It has more than 500 lines because each comparison needs all that is known
of an object: its document, its normal form, and what was agreed or sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from app.core.errors import (
    ClusterError,
    ClusterRefused,
    FairgateError,
    InvalidInput,
    WriteUnanswered,
)
from app.core.policy import Mode
from app.core.retry import ServerBackoff
from app.kube.client import Client
from app.kube.enforcement_apply import OURS, Restorer
from app.kube.enforcement_reports import EnforcementReports
from app.kube.enforcement_spec import (
    CONFIG_MAP,
    HOLDING,
    PATHS,
    WEBHOOKS,
    Object,
    Ref,
    differences,
    field,
    has_other_writer,
    identity,
    in_force,
    is_denying,
    only_ca,
    read_documents,
    read_mode,
)
from app.kube.enforcement_timing import AT_ONCE, NORMAL, TRIES, WARN_SECONDS, WatchdogTiming
from app.kube.event_recorder import Alarm
from app.kube.informer.change_watch import follow
from app.ports.audit import Reporter
from app.ports.metrics import EnforcementMetrics

log = logging.getLogger("fairgate.kube")

DELETED = "deleted"


class Watchdog:
    """Enforces the objects of ConfigMap `fairgate-enforcement`, by `run`."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        owner: str,
        ca: Callable[[], bytes],
        observing: Callable[[], bool | None],
        unreached: Callable[[], Awaitable[str]],
        default_mode: Callable[[Mode], None],
        meters: EnforcementMetrics,
        alarm: Alarm,
        is_ours: Callable[[bytes], Awaitable[bool]],
        then: Callable[[], None],
        pace: WatchdogTiming = NORMAL,
        reporter: Reporter | None = None,
    ) -> None:
        """`owner`: ClusterRole that owns every object created here; without it, none is restored.

        `observing`: whether the mode is Observe, None while unknown.
        `unreached`: why the API server reaches no replica, "" if it does. Asked until it does once,
        if the mode is Enforce and nothing denies yet.
        `default_mode`: called with the mode in the ConfigMap.
        `then`: called after each restore of an object that another client changed.
        `is_ours`: whether another replica may have published a CA other than `ca`.
        """
        self._client = client
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._ca = ca
        self._mode_now = observing
        self._unreached = unreached
        self._default_mode = default_mode
        self._is_ours = is_ours
        self._pace = pace
        self._reports = EnforcementReports(meters, alarm, reporter, then)
        self._restorer = Restorer(client, owner)
        self._lock = asyncio.Lock()
        self._restoring = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._dirty: set[Ref] = set()
        self._all_dirty = True
        self._warn_at = self._look_at = self._mode_by = 0.0
        self._failures = 0
        self._mode: tuple[bool, bytes] | None = None
        self._may_deny = False
        """Whether objects may deny: one of them does already, or a replica was reached."""
        self._map: Object | None = None
        self._documents: dict[Ref, Object] = {}
        self._normal: dict[Ref, Object] = {}
        self._other_ca: dict[Ref, float] = {}
        """Objects with the CA of another replica, and since when."""
        self.has_looked = False
        """Whether every object was checked once, and the webhooks that hold pods exist."""
        self._seen: set[Ref] = set()
        """Objects that existed once, or that may not be created because of an uninstall."""
        self._applied: tuple[bool, float] | None = None
        """The mode that every object was last written for (whether it is Observe), and when."""
        self._agreed: dict[Ref, Object] = {}
        """Each live object when it was last found as wanted."""
        self._sent: dict[Ref, Object] = {}
        """Objects of writes without an answer. The API server may still store them."""

    async def run(self) -> None:
        """Enforce until cancelled."""
        followed: set[str] = set()
        self._mode_by = time.monotonic() + self._pace.mode
        async with asyncio.TaskGroup() as group:
            on_change = partial(self._note_change, None)
            group.create_task(follow(self._client, self._maps, on_change, only=CONFIG_MAP))
            await self._tried(f"ConfigMap {CONFIG_MAP}", self._read_map)
            while True:
                await self._rest()
                await self._round()
                # Ready only after the first proof: it takes a moment, in which the API server loads
                # the objects. Right before it, pods of devices may be refused for lack of a gate.
                holding = {ref for ref in self._documents if ref.kind == HOLDING}
                self.has_looked |= self._map is not None and holding <= self._seen
                for kind in sorted({ref.kind for ref in self._documents} - followed):
                    on_change = partial(self._note_change, kind)
                    group.create_task(follow(self._client, PATHS[kind], on_change))
                    followed.add(kind)

    @property
    def is_applied(self) -> bool:
        """Return whether every object was written or compared once for the current mode.

        It is also true if a write failed, or if no replica was reached for a minute: the holes of
        these states are not part of a start.
        """
        if self._applied is None:
            return False
        observing, at = self._applied
        return observing is self._observing() and time.monotonic() >= at + self._pace.effect

    async def publish(self, ca_pem: bytes) -> None:
        """Write a CA into every webhook, and return after it is there. Raises ClusterError.

        Call it before serving with a certificate of the new CA. `ca` must return the new CA by
        then, otherwise the old one is restored.
        """
        async with self._lock:
            await self._read_map()
            for ref in sorted(self._documents):
                if ref.kind in WEBHOOKS:
                    await self._restore_object(ref, ca_pem, is_newest=True)
        await self._sound()

    def _note_change(self, kind: str | None, name: str | None) -> None:
        """Record a change. No `kind` means the ConfigMap, no `name` any object of the kind."""
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
        """Wait until a check is due."""
        while not self._is_due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look):  # wait_for can swallow a cancellation
                    await self._stirred.wait()
        self._stirred.clear()

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._mode_now() is None and now < self._mode_by:
            self._stirred.clear()  # the first round checks every object
            return False
        if self._mode != (self._observing(), self._ca()) or now >= self._look_at:
            self._all_dirty = True
        return self._all_dirty or self._stirred.is_set()

    async def _round(self) -> None:
        """Check and restore all objects that may have changed."""
        everything, self._all_dirty = self._all_dirty, False
        dirty, self._dirty = self._dirty, set()
        self._look_at = time.monotonic() + self._pace.sweep
        ca, failed = self._ca(), False
        async with self._lock:
            self._mode = (self._observing(), ca)
            if everything:
                failed = await self._tried(f"ConfigMap {CONFIG_MAP}", self._read_map)
            refs = sorted(self._documents if everything else dirty & self._documents.keys())
            fresh = await self._normalize([ref for ref in refs if ref not in self._normal], ca)
            failed |= await self._restore_all(refs, ca, fresh)
        if not self._may_deny and not self._observing():
            failed |= await self._tried("proof that a replica is reached", self._prove)
        if everything and (
            failed or (not self._all_dirty and (self._may_deny or self._observing()))
        ):
            self._set_applied()
        await self._sound()
        if failed:
            least, most = self._pace.again
            self._look_again(min(most, least * 2 ** min(self._failures, 10)))
            self._failures += 1
        else:
            self._failures = 0

    async def _restore_all(self, refs: list[Ref], ca: bytes, fresh: set[Ref]) -> bool:
        """Make objects as wanted, those that hold pods first. Return whether one failed."""
        seats = asyncio.Semaphore(AT_ONCE)

        async def restore(ref: Ref) -> bool:
            async with seats:
                work = partial(self._restore_object, ref, ca, is_fresh=ref in fresh)
                return await self._tried(str(ref), work)

        others = [ref for ref in refs if ref.kind != HOLDING]
        random.shuffle(others)  # replicas that start together then write different objects
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(restore(ref)) for ref in refs if ref.kind == HOLDING]
            if tasks:
                await asyncio.wait(tasks, timeout=self._pace.head_start)
            tasks += [group.create_task(restore(ref)) for ref in others]
        return any(each.result() for each in tasks)

    async def _prove(self) -> None:
        """Let objects deny if the API server reaches a replica. Raises ClusterError."""
        why = await self._unreached()
        if not why:
            self._may_deny = self._all_dirty = True
            return
        now = time.monotonic()
        if now >= self._warn_at:
            if self._warn_at:
                self._set_applied()
            self._warn_at = now + WARN_SECONDS
            facts = {"why": why, "failing": dict(self._reports.failing)}
            log.warning("nothing is refused: no replica was reached", extra=facts)
        self._look_again(self._pace.proof)

    def _set_applied(self) -> None:
        """Record that the objects were written for the current mode, unless that is recorded."""
        observing = self._observing()
        if self._applied is None or self._applied[0] is not observing:
            self._applied = (observing, time.monotonic())

    async def _tried(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Run one step. Return whether it failed; all objects are then checked again soon."""
        try:
            await work()
        except ClusterError as error:
            self._reports.failed(what, error)
            return True
        except Exception:  # invalid input must not end the process that holds pods
            log.exception("cannot be kept in force", extra={"what": what})
            return True
        self._reports.succeeded(what)
        return False

    def _look_again(self, seconds: float) -> None:
        self._look_at = min(self._look_at, time.monotonic() + seconds)

    async def _read_map(self) -> bool:
        """Read the ConfigMap. Return whether it changed. A missing ConfigMap is restored."""
        path = f"{self._maps}/{CONFIG_MAP}"
        with contextlib.suppress(InvalidInput):
            return self._accept(await self._restorer.live(path))
        async with self._restoring:  # the other objects of a round find the same
            found = await self._restorer.live(path)
            try:
                return self._accept(found)
            except InvalidInput as error:
                await self._no_map(path, found, str(error))
                return False

    def _accept(self, found: Object | None) -> bool:
        """Enforce the contents of the ConfigMap. Return whether they changed.

        Raises InvalidInput if it is missing or invalid.
        """
        data = found.get("data") if found is not None else None
        if found is not None and self._map is not None and data == self._map["data"]:
            self._map = found
            return False
        documents, mode = read_documents(data), read_mode(data)
        assert found is not None, "what is not there holds no documents"
        self._map = found
        self._default_mode(mode)
        self._take(documents)
        return True

    def _take(self, documents: dict[Ref, Object]) -> None:
        """Enforce these documents from now on. Drop the state of all others."""
        before = self._documents
        same = {ref for ref, each in documents.items() if before.get(ref) == each}
        self._normal = {ref: each for ref, each in self._normal.items() if ref in same}
        for kept in (self._agreed, self._sent):
            for ref in kept.keys() - documents.keys():
                del kept[ref]
        self._documents = documents
        self._all_dirty = True
        self._stirred.set()

    async def _no_map(self, path: str, found: Object | None, why: str) -> None:
        """Restore a missing or invalid ConfigMap, if its contents are known."""
        if self._map is None:
            raise ClusterError(f"{why} Nothing is kept in force until then.")
        if found is None and self._observing():
            return
        wanted = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": identity(self._map),
            "data": self._map["data"],
        }
        if await self._restorer.put_back(path, found, wanted) is None:
            self._is_removed(f"ConfigMap {CONFIG_MAP}")
            return
        self._reports.restored(Ref("ConfigMap", CONFIG_MAP), found, [why] if found else [DELETED])

    async def _normalize(self, refs: list[Ref], ca: bytes) -> set[Ref]:
        """Read the normal forms of documents with live objects, and return those documents."""
        seats = asyncio.Semaphore(AT_ONCE)

        async def read(ref: Ref) -> None:
            async with seats:
                with contextlib.suppress(ClusterError):  # `_restore_object` tries again
                    live = await self._live(ref)
                    if live is not None:
                        self._normal[ref] = await self._normal_form(ref, live, ca)

        await asyncio.gather(*map(read, refs))
        return {ref for ref in refs if ref in self._normal}

    async def _normal_form(self, ref: Ref, live: Object, ca: bytes) -> Object:
        """Return the document as the API server would store it. Raises ClusterError.

        If a live object equals the document, whatever its CA and mode, the document has all
        defaults, so no dry run is needed. A dry run costs the API server 50 to 600 ms of CPU,
        because it compiles every expression.
        """
        plain, found = self._plain(ref), only_ca(live) or ca
        if any(not differences(live, in_force(plain, found, denies)) for denies in (True, False)):
            return plain
        return await self._restorer.normal(self._documents[ref])

    def _plain(self, ref: Ref) -> Object:
        """Return the document as the chart has it, which usually has all defaults."""
        document = self._documents[ref]
        return {**document, "metadata": identity(document)}

    async def _restore_object(
        self, ref: Ref, ca: bytes, *, is_newest: bool = False, is_fresh: bool = False
    ) -> None:
        """Make one object as wanted. Raises ClusterError.

        `is_newest`: no replica can have a later CA. `is_fresh`: its normal form was just read.
        """
        backoff = ServerBackoff(self._pace.again[0])
        for attempt in range(TRIES):
            try:
                await self._compare(ref, ca, is_newest, is_fresh)
            except WriteUnanswered as error:  # read it again: it may be written
                if attempt + 1 == TRIES:
                    raise
                self._reports.failed(str(ref), error)
                await asyncio.sleep(backoff.after(error))
            except ClusterRefused as error:
                is_fresh = False
                self._normal.pop(ref, None)  # it may be outdated
                if error.status != 409 or attempt + 1 == TRIES:  # changed since it was read
                    raise
            else:
                return

    async def _compare(self, ref: Ref, ca: bytes, is_newest: bool, is_fresh: bool) -> None:
        documents = self._documents
        if ref not in documents:
            return  # the chart was upgraded since the list of objects was read
        live = await self._live(ref)
        if self._documents is not documents:
            return
        denies = self._denies()
        if live is not None:
            known = self._normal.get(ref)
            if known is not None and self._agrees(ref, live, in_force(known, ca, denies)):
                return
        elif self._observing() and ref in self._agreed:
            return  # somebody deleted it in mode Observe
        # The API server may have new defaults, and the chart may have been upgraded. A missing
        # object is restored at once from the known state, and created from the document.
        if live is None:
            self._normal.setdefault(ref, self._plain(ref))
        elif not is_fresh or ref not in self._normal:
            normal = await self._normal_form(ref, live, ca)
            if self._documents is not documents:
                return
            self._normal[ref] = normal
        wanted = in_force(self._normal[ref], ca, denies)
        if live is not None and self._agrees(ref, live, wanted):
            return
        if await self._read_map() or self._documents is not documents:
            return  # all objects will be checked again
        by_us = self._was_agreed(ref, live) or self._is_new(ref, live, ca)
        if not by_us and await self._is_ahead(ref, live, denies):
            if not is_newest:
                return
            by_us = True  # another replica wrote it earlier
        try:
            written = await self._restorer.put_back(ref.path, live, wanted)
        except WriteUnanswered:
            self._sent[ref] = wanted
            raise
        self._sent.pop(ref, None)
        self._seen.add(ref)
        if written is None:
            self._is_removed(str(ref))
            return
        is_shared = live is None and has_other_writer(written, OURS)
        if is_shared:
            self._agreed.pop(ref, None)  # somebody created it first, maybe with other fields
        else:
            at = field(ref.kind)
            self._agreed[ref] = {**wanted, at: written[at]}  # with the defaults of the API server
        self._other_ca.pop(ref, None)
        if by_us:
            log.info("enforcement written", extra={"kind": ref.kind, "object": ref.name})
        else:
            self._reports.restored(ref, live, differences(live, wanted) if live else [DELETED])
        if is_shared:
            await self._compare(ref, ca, is_newest, is_fresh=False)

    async def _live(self, ref: Ref) -> Object | None:
        """Return the live object. If it denies, all objects may. Raises ClusterError."""
        live = await self._restorer.live(ref.path)
        if live is not None:
            self._seen.add(ref)
            if not self._may_deny and is_denying(live):
                self._may_deny = self._all_dirty = True
        return live

    def _denies(self) -> bool:
        """Return whether objects deny now, except those that always do."""
        return self._may_deny and not self._observing()

    def _is_removed(self, what: str) -> None:
        log.warning(
            "a deleted object is not restored: Fairgate is uninstalled", extra={"what": what}
        )

    def _agrees(self, ref: Ref, live: Object, wanted: Object) -> bool:
        if differences(live, wanted):
            return False
        self._agreed[ref] = wanted
        self._sent.pop(ref, None)
        self._other_ca.pop(ref, None)
        return True

    async def _is_ahead(self, ref: Ref, live: Object | None, denies: bool) -> bool:
        """Return whether only the CA differs, because another replica has a newer one."""
        other = only_ca(live) if live is not None else None
        if live is None or other is None:
            return False
        if differences(live, in_force(self._normal[ref], other, denies)):
            return False
        left = self._other_ca.setdefault(ref, time.monotonic()) + self._pace.ca - time.monotonic()
        try:
            if left <= 0 or not await self._is_ours(other):
                return False
        except FairgateError as error:  # without an answer the CA is not trusted
            log.warning("another CA cannot be judged", extra={"why": str(error)})
            return False
        self._look_again(left)
        return True

    def _was_agreed(self, ref: Ref, live: Object | None) -> bool:
        """Return whether only the desired state has changed, or another replica knew it first."""
        known = [each[ref] for each in (self._agreed, self._sent) if ref in each]
        if live is None:
            return ref not in self._agreed
        return any(not differences(live, each) for each in known)

    def _is_new(self, ref: Ref, live: Object | None, ca: bytes) -> bool:
        """Return whether another replica has created an object, which does not deny yet.

        No client can weaken an object unnoticed in this way: a change increases its generation, and
        a replica that runs has seen the object before.
        """
        if live is None or ref in self._agreed or live["metadata"].get("generation") != 1:
            return False
        if has_other_writer(live, OURS):
            return False
        return not differences(live, in_force(self._normal[ref], ca, denies=False))

    async def _sound(self) -> None:
        """Emit the events for operators after all restores, then pause in case of more changes."""
        if await self._reports.emit():
            await asyncio.sleep(self._pace.breath)
