"""Watches the source of the serving certificate, publishes its CA, and swaps the certificate.

`rotation` decides the next step. Callers supply the listeners and the function that publishes CAs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol

from app.core.errors import ClusterUnavailable, FairgateError
from app.tls.ca_bundle import ServingBundle, expires_at, is_subset, merge_bundles, signing_cas
from app.tls.rotation import PublishCAs, ServeCertificate, ServedState, next_move

CHECK_SECONDS = 5.0
RETRY_SECONDS = 1.0

log = logging.getLogger("fairgate.tls")

PublishCa = Callable[[bytes], Awaitable[object]]
"""Make API servers trust exactly these CAs (PEM). Returns after the cluster has stored them.

Raises ClusterError.
"""


class CertificateSource(Protocol):
    """Source of the certificate. Both methods may raise FairgateError."""

    async def read_bundle(self) -> ServingBundle | None:
        """Return the certificate to serve with; None if there is no certificate yet."""

    async def advance_rotation(self, steady: timedelta) -> None:
        """Take the next step of a renewal if it is due.

        `steady`: how long the current content has been served and published.
        """


async def wait_for_certificate(source: CertificateSource) -> ServingBundle:
    """Return the first certificate. Wait while it does not exist or the API server is unreachable.

    Raises other FairgateErrors of the source.
    """
    while True:
        try:
            found = await source.read_bundle()
        except ClusterUnavailable as error:
            log.warning("the API server cannot be reached yet", extra={"why": str(error)})
            found = None
        if found is not None:
            return found
        await asyncio.sleep(RETRY_SECONDS)


async def publish_nowhere(ca_pem: bytes) -> None:
    """Do not publish: clients of this process get its CA by other means."""


class Renewal:
    """The certificate of one process, for all of its listeners."""

    def __init__(
        self,
        source: CertificateSource,
        first: ServingBundle,
        *,
        settle: timedelta,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """`wait_for_certificate` is served from the start. `now` is an aware time, `clock`
        monotonic seconds.
        """
        self.publish_ca: PublishCa = publish_nowhere
        self._source = source
        self._state = ServedState(first)
        self._settle = settle
        self._now = now
        self._clock = clock
        self._changed_at = clock()
        self._subscribers: list[Callable[[ServingBundle], None]] = []
        self._last_error = ""

    @property
    def serving(self) -> ServingBundle:
        """The certificate in use."""
        return self._state.serving

    def seconds_left(self) -> float:
        """Return the seconds until the certificate in use expires."""
        return (expires_at(self.serving.certificate) - self._now()).total_seconds()

    def subscribe(self, use: Callable[[ServingBundle], None]) -> None:
        """Call `use` with every new certificate. If it raises, the old one stays in use."""
        self._subscribers.append(use)

    async def may_have_published(self, ca_pem: bytes) -> bool:
        """Return whether another replica, one check ahead, may have published these CAs.

        True if this replica or the source has each CA, and clients then accept the served
        certificate: one CA signed it, or they have all CAs of its bundle. Raises FairgateError.
        """
        found = await self._source.read_bundle()
        known = merge_bundles(self._state.published, self.serving.ca, found.ca if found else b"")
        is_accepted = is_subset(self.serving.ca, ca_pem) or bool(
            signing_cas(ca_pem, self.serving.certificate)
        )
        return is_accepted and is_subset(ca_pem, known)

    async def watch_certificate(self) -> None:
        """Check the source every few seconds until cancelled. Log a repeated failure once."""
        # Several checks fit into `settle`, the time in which all replicas must follow.
        usual = min(CHECK_SECONDS, self._settle.total_seconds() / 4)
        while True:
            try:
                await self.check_source()
                self._last_error = ""
            except FairgateError as error:
                if str(error) != self._last_error:
                    log.warning("the certificate cannot be renewed yet", extra={"why": str(error)})
                self._last_error = str(error)
            # No client accepts an expired certificate, so check every second then.
            await asyncio.sleep(usual if self.seconds_left() > 0 else min(usual, RETRY_SECONDS))

    async def check_source(self) -> None:
        """Check once and take the next step.

        Raises FairgateError. The certificate in use then stays in use.
        """
        found = await self._source.read_bundle()
        if found is None:
            return
        waited = timedelta(seconds=self._clock() - self._changed_at)
        match next_move(self._state, found, self._now(), waited, self._settle):
            case PublishCAs(ca):
                await self.publish_ca(ca)
                self._set_state(ServedState(self.serving, ca))
            case ServeCertificate(serving):
                self._serve(serving)
                self._set_state(ServedState(serving, self._state.published))
            case None:
                has_arrived = (found.certificate, found.key) == (
                    self.serving.certificate,
                    self.serving.key,
                )
                await self._source.advance_rotation(waited if has_arrived else timedelta())

    def _serve(self, serving: ServingBundle) -> None:
        for use in self._subscribers:
            use(serving)
        facts = {"ends": expires_at(serving.certificate).isoformat()}
        log.info("serving with a new certificate", extra=facts)

    def _set_state(self, shown: ServedState) -> None:
        self._state = shown
        self._changed_at = self._clock()
