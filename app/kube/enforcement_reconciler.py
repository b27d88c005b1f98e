"""Compares one enforcement object with its document in the ConfigMap, and restores it.

`enforcement_watchdog` decides when. This module has all that is known of an object: its normal
form, what was agreed or sent, and the CA of another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from app.core.errors import ClusterError, ClusterRefused, FairgateError, WriteUnanswered
from app.kube.enforcement_apply import OURS, Restorer
from app.kube.enforcement_map import Documents, EnforcementMap
from app.kube.enforcement_reports import DELETED, EnforcementReports
from app.kube.enforcement_spec import (
    Object,
    Ref,
    content_field,
    desired_metadata,
    desired_object,
    differences,
    has_other_writer,
    is_denying,
    shared_ca,
)
from app.kube.enforcement_timing import CONCURRENCY, TRIES, WatchdogTiming

log = logging.getLogger("fairgate.kube")


class ObjectReconciler:
    """Makes single objects as wanted. Objects may be reconciled at the same time."""

    def __init__(
        self,
        restorer: Restorer,
        map: EnforcementMap,
        reports: EnforcementReports,
        timing: WatchdogTiming,
        *,
        observing: Callable[[], bool],
        is_ours: Callable[[bytes], Awaitable[bool]],
        check_all: Callable[[], None],
        check_again_after: Callable[[float], None],
    ) -> None:
        """`observing`: whether the mode is Observe. `check_all`: every object must be checked.

        `is_ours`: whether another replica may have published a CA. `check_again_after`: every
        object must be checked after these seconds.
        """
        self._restorer = restorer
        self._map = map
        self._reports = reports
        self._timing = timing
        self._observing = observing
        self._is_ours = is_ours
        self._check_all = check_all
        self._check_again_after = check_again_after
        self.may_deny = False
        """Whether objects may deny: one of them does already, or a replica was reached."""
        self.seen_refs: set[Ref] = set()
        """Objects that existed once, or that may not be created because of an uninstall."""
        self._normal_forms: dict[Ref, Object] = {}
        self._other_ca_since: dict[Ref, float] = {}
        """Objects with the CA of another replica, and since when."""
        self._last_agreed: dict[Ref, Object] = {}
        """Each live object when it was last found as wanted."""
        self._unanswered_writes: dict[Ref, Object] = {}
        """Objects of writes without an answer. The API server may still store them."""

    def drop_changed_documents(self, before: Documents) -> None:
        """Drop the state of all objects whose documents have changed or gone since `before`."""
        documents = self._map.documents
        same = {ref for ref, each in documents.items() if before.get(ref) == each}
        self._normal_forms = {ref: each for ref, each in self._normal_forms.items() if ref in same}
        for kept in (self._last_agreed, self._unanswered_writes):
            for ref in kept.keys() - documents.keys():
                del kept[ref]

    def allow_denial(self) -> None:
        """Let objects deny from now on."""
        self.may_deny = True
        self._check_all()

    async def reconcile(
        self, ref: Ref, ca: bytes, *, is_newest: bool = False, is_fresh: bool = False
    ) -> None:
        """Make one object as wanted. Raises ClusterError.

        `is_newest`: no replica can have a later CA. `is_fresh`: its normal form was just read.
        """
        backoff = self._timing.write_backoff()
        for attempt in range(TRIES):
            try:
                await self._reconcile_once(ref, ca, is_newest, is_fresh)
            except WriteUnanswered as error:  # read it again: it may be written
                if attempt + 1 == TRIES:
                    raise
                self._reports.record_failure(str(ref), error)
                await asyncio.sleep(backoff.next_delay(error))
            except ClusterRefused as error:
                is_fresh = False
                self._normal_forms.pop(ref, None)  # it may be outdated
                if error.status != 409 or attempt + 1 == TRIES:  # changed since it was read
                    raise
            else:
                return

    async def normalize(self, refs: Iterable[Ref], ca: bytes) -> set[Ref]:
        """Read the unknown normal forms of documents with live objects. Return those documents."""
        wanted = [ref for ref in refs if ref not in self._normal_forms]
        seats = asyncio.Semaphore(CONCURRENCY)

        async def read(ref: Ref) -> None:
            async with seats:
                with contextlib.suppress(ClusterError):  # `reconcile` tries again
                    live = await self._read_live(ref)
                    if live is not None:
                        self._normal_forms[ref] = await self._normal_form(ref, live, ca)

        await asyncio.gather(*map(read, wanted))
        return {ref for ref in wanted if ref in self._normal_forms}

    async def _normal_form(self, ref: Ref, live: Object, ca: bytes) -> Object:
        """Return the document as the API server would store it. Raises ClusterError.

        If a live object equals the document, whatever its CA and mode, the document has all
        defaults, so no dry run is needed. A dry run costs the API server 50 to 600 ms of CPU,
        because it compiles every expression.
        """
        plain, found = self._document(ref), shared_ca(live) or ca
        if any(
            not differences(live, desired_object(plain, found, denies)) for denies in (True, False)
        ):
            return plain
        return await self._restorer.normalize(self._map.documents[ref])

    def _document(self, ref: Ref) -> Object:
        """Return the document as the chart has it, which usually has all defaults."""
        document = self._map.documents[ref]
        return {**document, "metadata": desired_metadata(document)}

    async def _reconcile_once(self, ref: Ref, ca: bytes, is_newest: bool, is_fresh: bool) -> None:
        documents = self._map.documents
        if ref not in documents:
            return  # the chart was upgraded since the list of objects was read
        live = await self._read_live(ref)
        if self._map.documents is not documents:
            return
        denies = self._may_deny_now()
        if live is not None:
            known = self._normal_forms.get(ref)
            if known is not None and self._record_if_equal(
                ref, live, desired_object(known, ca, denies)
            ):
                return
        elif self._observing() and ref in self._last_agreed:
            return  # somebody deleted it in mode Observe
        # The API server may have new defaults, and the chart may have been upgraded. A missing
        # object is restored at once from the known state, and created from the document.
        if live is None:
            self._normal_forms.setdefault(ref, self._document(ref))
        elif not is_fresh or ref not in self._normal_forms:
            normal = await self._normal_form(ref, live, ca)
            if self._map.documents is not documents:
                return
            self._normal_forms[ref] = normal
        wanted = desired_object(self._normal_forms[ref], ca, denies)
        if live is not None and self._record_if_equal(ref, live, wanted):
            return
        if await self._map.read() or self._map.documents is not documents:
            return  # all objects will be checked again
        by_us = self._is_own_difference(ref, live) or self._is_new(ref, live, ca)
        if not by_us and await self._is_ahead(ref, live, denies):
            if not is_newest:
                return
            by_us = True  # another replica wrote it earlier
        try:
            written = await self._restorer.restore(ref.path, live, wanted)
        except WriteUnanswered:
            self._unanswered_writes[ref] = wanted
            raise
        self._unanswered_writes.pop(ref, None)
        self.seen_refs.add(ref)
        if written is None:
            self._reports.report_removal(str(ref))
            return
        is_shared = live is None and has_other_writer(written, OURS)
        if is_shared:
            self._last_agreed.pop(ref, None)  # somebody created it first, maybe with other fields
        else:
            at = content_field(ref.kind)
            # with the defaults of the API server
            self._last_agreed[ref] = {**wanted, at: written[at]}
        self._other_ca_since.pop(ref, None)
        if by_us:
            log.info("enforcement written", extra={"kind": ref.kind, "object": ref.name})
        else:
            found = differences(live, wanted) if live else [DELETED]
            self._reports.report_restore(ref, live, found)
        if is_shared:
            await self._reconcile_once(ref, ca, is_newest, is_fresh=False)

    async def _read_live(self, ref: Ref) -> Object | None:
        """Return the live object. If it denies, all objects may. Raises ClusterError."""
        live = await self._restorer.read_live(ref.path)
        if live is not None:
            self.seen_refs.add(ref)
            if not self.may_deny and is_denying(live):
                self.allow_denial()
        return live

    def _may_deny_now(self) -> bool:
        """Return whether objects deny now, except those that always do."""
        return self.may_deny and not self._observing()

    def _record_if_equal(self, ref: Ref, live: Object, wanted: Object) -> bool:
        if differences(live, wanted):
            return False
        self._last_agreed[ref] = wanted
        self._unanswered_writes.pop(ref, None)
        self._other_ca_since.pop(ref, None)
        return True

    async def _is_ahead(self, ref: Ref, live: Object | None, denies: bool) -> bool:
        """Return whether only the CA differs, because another replica has a newer one."""
        other = shared_ca(live) if live is not None else None
        if live is None or other is None:
            return False
        if differences(live, desired_object(self._normal_forms[ref], other, denies)):
            return False
        left = (
            self._other_ca_since.setdefault(ref, time.monotonic())
            + self._timing.ca_wait
            - time.monotonic()
        )
        try:
            if left <= 0 or not await self._is_ours(other):
                return False
        except FairgateError as error:  # without an answer the CA is not trusted
            log.warning("another CA cannot be judged", extra={"why": str(error)})
            return False
        self._check_again_after(left)
        return True

    def _is_own_difference(self, ref: Ref, live: Object | None) -> bool:
        """Return whether only the desired state has changed, or another replica knew it first."""
        known = [each[ref] for each in (self._last_agreed, self._unanswered_writes) if ref in each]
        if live is None:
            return ref not in self._last_agreed
        return any(not differences(live, each) for each in known)

    def _is_new(self, ref: Ref, live: Object | None, ca: bytes) -> bool:
        """Return whether another replica has created an object, which does not deny yet.

        No client can weaken an object unnoticed in this way: a change increases its generation, and
        a replica that runs has seen the object before.
        """
        if live is None or ref in self._last_agreed or live["metadata"].get("generation") != 1:
            return False
        if has_other_writer(live, OURS):
            return False
        return not differences(live, desired_object(self._normal_forms[ref], ca, denies=False))
