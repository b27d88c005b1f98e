"""Watches the file with the CA of the API server's client certificate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from app.core.errors import InvalidSettings

CHECK_SECONDS = 5.0

log = logging.getLogger("fairgate.tls")


class ClientCa:
    """One file, read at once and then every few seconds by `watch_file`."""

    def __init__(self, path: Path, trust: Callable[[bytes], None]) -> None:
        """`trust` receives the PEM at once and after each change; it may raise InvalidSettings.

        Raises InvalidSettings.
        """
        self._path = path
        self._trust = trust
        self._last_read = self._read_file()
        trust(self._last_read)

    async def watch_file(self) -> None:
        """Check the file every few seconds until cancelled. An unreadable file has no effect."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check_file()

    def check_file(self) -> None:
        """Check the file once."""
        try:
            found = self._read_file()
            if found == self._last_read:
                return
            self._last_read = found
            self._trust(found)
        except InvalidSettings as error:
            log.warning("the CA of client certificates stays", extra={"why": str(error)})
        else:
            log.info("the CA of client certificates has changed")

    def _read_file(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise InvalidSettings(
                f"{self._path} cannot be read ({error.strerror}); give the CA of the API server's "
                "client certificate as a file this process may read."
            ) from error
