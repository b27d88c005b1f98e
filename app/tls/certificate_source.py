"""Sources of the serving certificate: a Secret that all replicas share, or files.

The first replica creates the Secret, and the others read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from app.core.errors import ClusterError, InvalidSettings
from app.ports.cluster import SecretData, Secrets
from app.tls import rotation
from app.tls.ca_bundle import ServingBundle, serving_bundle
from app.tls.rotation import KEYS, RotationStep

SECRET = "fairgate-webhook-tls"  # noqa: S105 (a name)

log = logging.getLogger("fairgate.tls")


class FileCertificate:
    """A certificate, key and CA in files that another program writes and replaces."""

    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        self._files = (certificate, key, ca)
        self._stable: ServingBundle | None = None
        self._last_read: ServingBundle | None = None

    async def read_bundle(self) -> ServingBundle:
        """Return the contents of the files when they were last stable. Raises InvalidSettings."""
        try:
            parts = [file.read_bytes() for file in self._files]
        except OSError as error:
            raise InvalidSettings(
                f"{error.filename} cannot be read ({error.strerror}); give the certificate, key "
                "and CA as files this process may read."
            ) from error
        found = serving_bundle(*parts)
        # Three files are not written atomically, so a change counts after two equal reads.
        if self._stable is None or found == self._last_read:
            self._stable = found
        self._last_read = found
        return self._stable

    async def advance_rotation(self, steady: timedelta) -> None:
        """Do nothing: the program that writes the files renews them."""


class SecretCertificate:
    """The Secret. Fairgate renews a Secret that it created, and only reads any other."""

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
        """`writes`: this process may create and renew the Secret. `now` returns an aware time."""
        self._secrets = secrets
        self._namespace = namespace
        self._names = names
        self._days = days
        self._settle = settle
        self._now = now
        self._may_write = writes
        self._last_read: SecretData | None = None

    async def read_bundle(self) -> ServingBundle | None:
        """Return the certificate of the Secret, and create the Secret if necessary.

        Return None if it does not exist and this process may not create it. Raises ClusterError,
        also if the Secret lacks a key.
        """
        found = await self._secrets.read_secret(self._namespace, SECRET)
        if found is None and self._may_write:
            made = rotation.new_content(self._names, self._now(), self._days)
            await self._secrets.create_secret(
                self._namespace, SECRET, made, kind="kubernetes.io/tls"
            )
            # Read it again, because another replica may have created it first.
            found = await self._secrets.read_secret(self._namespace, SECRET)
        self._last_read = found
        if found is None:
            return None
        missing = [key for key in KEYS if not found.data.get(key)]
        if missing:
            self._last_read = None
            raise ClusterError(
                f"Secret {self._namespace}/{SECRET} lacks {', '.join(missing)}; complete it, or "
                "delete it and Fairgate makes a new one."
            )
        return serving_bundle(*(found.data[key] for key in KEYS))

    async def advance_rotation(self, steady: timedelta) -> None:
        """Take the next step of the rotation, unless another replica was first.

        `steady`: how long this replica has served and published the content of the last read.
        """
        found = self._last_read
        if found is None or not found.ours or not self._may_write:
            return
        now = self._now()
        step = rotation.next_step(found.data, now, steady, self._settle)
        if step is RotationStep.REST:
            return
        data = rotation.content_after(step, found.data, self._names, now, self._days)
        if await self._secrets.replace_secret(self._namespace, SECRET, data, found.version):
            log.info("the serving certificate is being renewed", extra={"step": step.value})
