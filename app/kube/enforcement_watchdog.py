"""Creates the webhook configurations and admission policies of the ConfigMap, and restores them.

Every replica runs one. All replicas write the same, and only if there is a difference. The objects
of a new installation do not refuse pods until the API server has reached a replica, so an image
that cannot start refuses no pod. It never deletes an object. It creates no object after an
uninstall: see `Restorer.restore`. This module decides when objects are checked. `enforcement_map`
has the documents, and `enforcement_reconciler` compares and restores one object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from app.core.errors import ClusterError
from app.core.policy import Mode
from app.kube.client import Client
from app.kube.enforcement_apply import Restorer
from app.kube.enforcement_map import Documents, EnforcementMap
from app.kube.enforcement_reconciler import ObjectReconciler
from app.kube.enforcement_reports import EnforcementReports
from app.kube.enforcement_spec import CONFIG_MAP, HOLD_KIND, PATHS, WEBHOOKS, Ref
from app.kube.enforcement_timing import CONCURRENCY, NORMAL, WARN_SECONDS, WatchdogTiming
from app.kube.event_recorder import EnforcementAlarm
from app.kube.informer.change_watch import watch_changes
from app.ports.audit import Reporter
from app.ports.metrics import EnforcementMetrics

log = logging.getLogger("fairgate.kube")


class Watchdog:
    """Enforces the objects of ConfigMap `fairgate-enforcement`, by `run`."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        owner: str,
        ca: Callable[[], bytes],
        read_observing: Callable[[], bool | None],
        unreachable_reason: Callable[[], Awaitable[str]],
        default_mode: Callable[[Mode], None],
        meters: EnforcementMetrics,
        alarm: EnforcementAlarm,
        is_ours: Callable[[bytes], Awaitable[bool]],
        then: Callable[[], None],
        timing: WatchdogTiming = NORMAL,
        reporter: Reporter | None = None,
    ) -> None:
        """`owner`: ClusterRole that owns every object created here; without it, none is restored.

        `read_observing`: whether the mode is Observe, None while unknown.
        `unreachable_reason`: in mode Enforce, why the API server reaches no replica; asked until ""
        once. `default_mode` gets the mode in the ConfigMap.
        `then`: called after each restore of an object that another client changed.
        `is_ours`: whether another replica may have published a CA other than `ca`.
        """
        self._client = client
        self._ca = ca
        self._read_observing = read_observing
        self._unreachable_reason = unreachable_reason
        self._timing = timing
        self._reports = EnforcementReports(meters, alarm, reporter, then)
        restorer = Restorer(client, owner)
        self._map = EnforcementMap(
            restorer,
            self._reports,
            namespace,
            observing=self._observing,
            default_mode=default_mode,
            on_change=self._accept_documents,
        )
        self._objects = ObjectReconciler(
            restorer,
            self._map,
            self._reports,
            timing,
            observing=self._observing,
            is_ours=is_ours,
            check_all=self._mark_all_dirty,
            check_again_after=self._check_again_after,
        )
        self._lock, self._changed = asyncio.Lock(), asyncio.Event()
        self._dirty: set[Ref] = set()
        self._all_dirty = True
        self._warn_at = self._next_check_at = self._mode_deadline = 0.0
        self._failures = 0
        self._checked_state: tuple[bool, bytes] | None = None
        self.has_checked_all = False
        """Whether every object was checked once, and the webhooks that hold pods exist."""
        self._applied_mode: tuple[bool, float] | None = None
        """Whether it was written for mode Observe, and when."""

    async def run(self) -> None:
        """Enforce until cancelled."""
        followed: set[str] = set()
        self._mode_deadline = time.monotonic() + self._timing.mode_wait
        async with asyncio.TaskGroup() as group:
            on_change = partial(self._note_change, None)
            group.create_task(
                watch_changes(self._client, self._map.collection, on_change, only=CONFIG_MAP)
            )
            await self._run_step(f"ConfigMap {CONFIG_MAP}", self._map.read)
            while True:
                await self._wait_until_due()
                await self._check_objects()
                # Ready only after the first proof: it takes a moment, in which the API server loads
                # the objects. Right before it, pods of devices may be refused for lack of a gate.
                holding = {ref for ref in self._map.documents if ref.kind == HOLD_KIND}
                self.has_checked_all |= self._map.is_known and holding <= self._objects.seen_refs
                for kind in sorted({ref.kind for ref in self._map.documents} - followed):
                    on_change = partial(self._note_change, kind)
                    group.create_task(watch_changes(self._client, PATHS[kind], on_change))
                    followed.add(kind)

    @property
    def is_applied(self) -> bool:
        """Return whether every object was written or compared once for the current mode.

        It is also true if a write failed, or if no replica was reached for a minute: the holes of
        these states are not part of a start.
        """
        if self._applied_mode is None:
            return False
        observing, at = self._applied_mode
        return observing is self._observing() and time.monotonic() >= at + self._timing.effect_delay

    async def publish(self, ca_pem: bytes) -> None:
        """Write a CA into every webhook, and return after it is there. Raises ClusterError.

        Call it before serving with a certificate of the new CA. `ca` must return the new CA by
        then, otherwise the old one is restored.
        """
        async with self._lock:
            await self._map.read()
            for ref in sorted(self._map.documents):
                if ref.kind in WEBHOOKS:
                    await self._objects.reconcile(ref, ca_pem, is_newest=True)
        await self._emit_events()

    def _note_change(self, kind: str | None, name: str | None) -> None:
        """Record a change. No `kind` means the ConfigMap, no `name` any object of the kind."""
        if kind is None:
            self._all_dirty = True
        else:
            ours = {
                ref for ref in self._map.documents if ref.kind == kind and name in (None, ref.name)
            }
            if not ours:
                return
            self._dirty |= ours
        self._changed.set()

    def _observing(self) -> bool:
        return bool(self._read_observing())

    async def _wait_until_due(self) -> None:
        """Wait until a check is due."""
        while not self._is_due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._timing.poll
                ):  # wait_for can swallow a cancellation
                    await self._changed.wait()
        self._changed.clear()

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._read_observing() is None and now < self._mode_deadline:
            self._changed.clear()  # the first round checks every object
            return False
        if self._checked_state != (self._observing(), self._ca()) or now >= self._next_check_at:
            self._all_dirty = True
        return self._all_dirty or self._changed.is_set()

    async def _check_objects(self) -> None:
        """Check and restore all objects that may have changed."""
        everything, self._all_dirty = self._all_dirty, False
        dirty, self._dirty = self._dirty, set()
        self._next_check_at = time.monotonic() + self._timing.sweep
        ca, failed = self._ca(), False
        async with self._lock:
            self._checked_state = (self._observing(), ca)
            if everything:
                failed = await self._run_step(f"ConfigMap {CONFIG_MAP}", self._map.read)
            refs = sorted(self._map.documents if everything else dirty & self._map.documents.keys())
            fresh = await self._objects.normalize(refs, ca)
            failed |= await self._restore_all(refs, ca, fresh)
        if not self._objects.may_deny and not self._observing():
            failed |= await self._run_step("proof that a replica is reached", self._prove_reachable)
        if everything and (
            failed or (not self._all_dirty and (self._objects.may_deny or self._observing()))
        ):
            self._set_applied()
        await self._emit_events()
        if failed:
            least, most = self._timing.backoff
            self._check_again_after(min(most, least * 2 ** min(self._failures, 10)))
            self._failures += 1
        else:
            self._failures = 0

    async def _restore_all(self, refs: list[Ref], ca: bytes, fresh: set[Ref]) -> bool:
        """Make objects as wanted, those that hold pods first. Return whether one failed."""
        seats = asyncio.Semaphore(CONCURRENCY)

        async def restore(ref: Ref) -> bool:
            async with seats:
                work = partial(self._objects.reconcile, ref, ca, is_fresh=ref in fresh)
                return await self._run_step(str(ref), work)

        others = [ref for ref in refs if ref.kind != HOLD_KIND]
        random.shuffle(others)  # replicas that start together then write different objects
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(restore(ref)) for ref in refs if ref.kind == HOLD_KIND]
            if tasks:
                await asyncio.wait(tasks, timeout=self._timing.head_start)
            tasks += [group.create_task(restore(ref)) for ref in others]
        return any(each.result() for each in tasks)

    async def _prove_reachable(self) -> None:
        """Let objects deny if the API server reaches a replica. Raises ClusterError."""
        why = await self._unreachable_reason()
        if not why:
            self._objects.allow_denial()
            return
        now = time.monotonic()
        if now >= self._warn_at:
            if self._warn_at:
                self._set_applied()
            self._warn_at = now + WARN_SECONDS
            facts = {"why": why, "failing": dict(self._reports.failures)}
            log.warning("nothing is refused: no replica was reached", extra=facts)
        self._check_again_after(self._timing.proof_interval)

    def _set_applied(self) -> None:
        """Record that the objects were written for the current mode, unless that is recorded."""
        observing = self._observing()
        if self._applied_mode is None or self._applied_mode[0] is not observing:
            self._applied_mode = (observing, time.monotonic())

    async def _run_step(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Run one step. Return whether it failed; all objects are then checked again soon."""
        try:
            await work()
        except ClusterError as error:
            self._reports.record_failure(what, error)
            return True
        except Exception:  # invalid input must not end the process that holds pods
            log.exception("cannot be kept in force", extra={"what": what})
            return True
        self._reports.record_success(what)
        return False

    def _check_again_after(self, seconds: float) -> None:
        self._next_check_at = min(self._next_check_at, time.monotonic() + seconds)

    def _accept_documents(self, before: Documents) -> None:
        """Enforce the new documents of the ConfigMap from now on."""
        self._objects.drop_changed_documents(before)
        self._mark_all_dirty()

    def _mark_all_dirty(self) -> None:
        self._all_dirty = True
        self._changed.set()

    async def _emit_events(self) -> None:
        """Emit the events for operators after all restores, then pause in case of more changes."""
        if await self._reports.emit_events():
            await asyncio.sleep(self._timing.restore_pause)
