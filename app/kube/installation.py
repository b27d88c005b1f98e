"""Since when Fairgate is in this cluster: a ConfigMap that the first leader writes, once.

It tells the pods that were there before from those that got round the gate, so it outlives every
leader. Never changed here.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.kube.client import Client
from app.kube.convert import created, read_time

log = logging.getLogger("fairgate.kube")

NAME = "fairgate-installation"
KEY = "since"


class _Record(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    data: dict[str, str] | None = None


_record = msgspec.json.Decoder(_Record)


def _since(record: _Record) -> Millis:
    """Return what the record says; nothing legible is no reason not to lead."""
    try:
        return read_time(KEY, (record.data or {}).get(KEY, ""))
    except InvalidInput as error:
        log.warning(
            "the record of the installation is not legible; the time of its creation counts",
            extra={"object": NAME, "why": str(error)},
        )
        return Millis(0)


class KeptInstallation:
    """`ports.Installation` in a ConfigMap of Fairgate's own namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"

    async def since(self, now: Millis) -> Millis:
        """Return since when Fairgate is installed; if nobody knows, since `now`, from now on.

        A record without a legible time counts from its creation. Raises ClusterError.
        """
        found = await self._read()
        if found is None:
            await self._write(now)
            found = await self._read()
        if found is None:
            raise ClusterUnavailable(f"ConfigMap {NAME} was deleted as soon as it was written.")
        return found

    async def _read(self) -> Millis | None:
        try:
            answer = await self._client.request("GET", f"{self._path}/{NAME}", timeout=5.0)
            record = _record.decode(answer)
            # The clock of whoever wrote it may have been slow; then nobody is to suffer for it.
            return max(_since(record), created(record.metadata))
        except (msgspec.DecodeError, InvalidInput) as error:
            raise ClusterUnavailable(f"ConfigMap {NAME}: garbled ({error}).") from error
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, now: Millis) -> None:
        since = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {KEY: since.replace("+00:00", "Z")},
        }
        try:
            await self._client.request("POST", self._path, body=body, timeout=5.0)
        except ClusterRefused as error:
            if error.status != 409:  # somebody else was first
                raise
