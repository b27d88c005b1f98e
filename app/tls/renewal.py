"""Follows the certificate while serving: looks at its source, has its CA trusted, shows it.

What to do and when is decided in `rotation`; what serves and how a CA is published is handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol

from app.core.errors import ClusterUnavailable, FairgateError
from app.tls.rotation import Publish, Shown, Use, move
from app.tls.trust import Serving, ends, is_within, merge, vouching

LOOK_SECONDS = 5.0
RETRY_SECONDS = 1.0

log = logging.getLogger("fairgate.tls")

PublishCa = Callable[[bytes], Awaitable[object]]
"""Have API servers trust these CAs (PEM), and no others. Returns once that is stored in the
cluster; raises ClusterError if it could not be."""


class Source(Protocol):
    """Where the certificate comes from. Both may raise FairgateError."""

    async def read(self) -> Serving | None:
        """Return the certificate to serve with; None if there is none."""

    async def advance(self, steady: timedelta) -> None:
        """Renew it if that is due; `steady`: how long it has been served and published as it is."""


async def first(source: Source) -> Serving:
    """Return the certificate to begin with, once there is one and the API server answers.

    Raises whatever else is wrong with it.
    """
    while True:
        try:
            found = await source.read()
        except ClusterUnavailable as error:
            log.warning("the API server cannot be reached yet", extra={"why": str(error)})
            found = None
        if found is not None:
            return found
        await asyncio.sleep(RETRY_SECONDS)


async def nowhere(ca_pem: bytes) -> None:
    """Publish nothing: for a process whose callers learn of its CA by other means."""


class Renewal:
    """The certificate of one process, for all of its listeners."""

    def __init__(
        self,
        source: Source,
        first: Serving,
        *,
        settle: timedelta,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """`first` is served from the start. `now` is an aware time, `clock` monotonic seconds."""
        self.publish: PublishCa = nowhere
        self._source = source
        self._shown = Shown(first)
        self._settle = settle
        self._now = now
        self._clock = clock
        self._moved_at = clock()
        self._users: list[Callable[[Serving], None]] = []
        self._complaint = ""

    @property
    def serving(self) -> Serving:
        """The certificate in use."""
        return self._shown.serving

    def seconds_left(self) -> float:
        """Return how long it is until the certificate in use ends."""
        return (ends(self.serving.certificate) - self._now()).total_seconds()

    def attach(self, use: Callable[[Serving], None]) -> None:
        """Have `use` called with every new certificate; if it raises, the old one stays in use."""
        self._users.append(use)

    async def knows(self, ca_pem: bytes) -> bool:
        """Tell whether another replica, a look ahead of us, may have published these CAs.

        That is: we know each of them, or find it at the source, and one vouches for what we show.
        Raises FairgateError.
        """
        found = await self._source.read()
        known = merge(self._shown.published, self.serving.ca, found.ca if found else b"")
        return is_within(ca_pem, known) and bool(vouching(ca_pem, self.serving.certificate))

    async def run(self) -> None:
        """Look every few seconds, for ever. What fails is tried again, and told once."""
        # Several looks fit into the time in which all replicas must have followed.
        usual = min(LOOK_SECONDS, self._settle.total_seconds() / 4)
        while True:
            try:
                await self.look()
                self._complaint = ""
            except FairgateError as error:
                if str(error) != self._complaint:
                    log.warning("the certificate cannot be renewed yet", extra={"why": str(error)})
                self._complaint = str(error)
            # With a certificate that has ended nobody is served: then every second counts.
            await asyncio.sleep(usual if self.seconds_left() > 0 else min(usual, RETRY_SECONDS))

    async def look(self) -> None:
        """Look once, and do what is due. Raises FairgateError; what was in use then stays so."""
        found = await self._source.read()
        if found is None:
            return
        waited = timedelta(seconds=self._clock() - self._moved_at)
        match move(self._shown, found, self._now(), waited, self._settle):
            case Publish(ca):
                await self.publish(ca)
                self._move(Shown(self.serving, ca))
            case Use(serving):
                self._use(serving)
                self._move(Shown(serving, self._shown.published))
            case None:
                has_arrived = (found.certificate, found.key) == (
                    self.serving.certificate,
                    self.serving.key,
                )
                await self._source.advance(waited if has_arrived else timedelta())

    def _use(self, serving: Serving) -> None:
        for use in self._users:
            use(serving)
        facts = {"ends": ends(serving.certificate).isoformat()}
        log.info("serving with a new certificate", extra=facts)

    def _move(self, shown: Shown) -> None:
        self._shown = shown
        self._moved_at = self._clock()
