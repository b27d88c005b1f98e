"""Where the certificate we serve with comes from: a Secret that all replicas share, or files.

Whoever comes first makes the one in the Secret, the others read it. Nothing here serves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from app.core.errors import ClusterError, InvalidSettings
from app.ports import Secret, Secrets
from app.tls import rotation
from app.tls.rotation import KEYS, Step
from app.tls.trust import Serving, serving

SECRET = "fairgate-webhook-tls"  # noqa: S105 (a name)

log = logging.getLogger("fairgate.tls")


class Brought:
    """A certificate, key and CA in files that somebody else writes, and may write anew."""

    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        self._files = (certificate, key, ca)
        self._stable: Serving | None = None
        self._seen: Serving | None = None

    async def read(self) -> Serving:
        """Return what the files held when they were last at rest. Raises InvalidSettings."""
        try:
            parts = [file.read_bytes() for file in self._files]
        except OSError as error:
            raise InvalidSettings(
                f"{error.filename} cannot be read ({error.strerror}); give the certificate, key "
                "and CA as files this process may read."
            ) from error
        found = serving(*parts)
        # Three files are not written at one instant: a change counts when it is seen twice.
        if self._stable is None or found == self._seen:
            self._stable = found
        self._seen = found
        return self._stable

    async def advance(self, steady: timedelta) -> None:
        """Do nothing: whoever brought them renews them."""


class Kept:
    """The Secret. One that Fairgate made, Fairgate renews; one that was put there, it follows."""

    def __init__(
        self,
        secrets: Secrets,
        namespace: str,
        *,
        names: tuple[str, ...],
        days: int,
        settle: timedelta,
        now: Callable[[], datetime],
        writes: bool,
    ) -> None:
        """`writes`: this process may make and renew it. `now` tells an aware time."""
        self._secrets = secrets
        self._namespace = namespace
        self._names = names
        self._days = days
        self._settle = settle
        self._now = now
        self._writes = writes
        self._read: Secret | None = None

    async def read(self) -> Serving | None:
        """Return what is kept; None if there is nothing yet, and this process may not make it.

        Raises ClusterError, also if the Secret lacks a part.
        """
        found = await self._secrets.read_secret(self._namespace, SECRET)
        if found is None and self._writes:
            made = rotation.new_content(self._names, self._now(), self._days)
            await self._secrets.create_secret(
                self._namespace, SECRET, made, kind="kubernetes.io/tls"
            )
            # Read it all the same: somebody else may have been first.
            found = await self._secrets.read_secret(self._namespace, SECRET)
        self._read = found
        if found is None:
            return None
        missing = [key for key in KEYS if not found.data.get(key)]
        if missing:
            self._read = None
            raise ClusterError(
                f"Secret {self._namespace}/{SECRET} lacks {', '.join(missing)}; complete it, or "
                "delete it and Fairgate makes a new one."
            )
        return serving(*(found.data[key] for key in KEYS))

    async def advance(self, steady: timedelta) -> None:
        """Take the step of its renewal that is due, unless another replica was first.

        `steady`: how long this replica has served and published what it read last.
        """
        found = self._read
        if found is None or not found.ours or not self._writes:
            return
        now = self._now()
        step = rotation.next_step(found.data, now, steady, self._settle)
        if step is Step.REST:
            return
        data = rotation.taken(step, found.data, self._names, now, self._days)
        if await self._secrets.replace_secret(self._namespace, SECRET, data, found.version):
            log.info("the serving certificate is being renewed", extra={"step": step.value})
