"""Since when Fairgate is in this cluster: a ConfigMap that the first leader writes, once.

It tells the pods that were there before from those that got round the gate, so it outlives every
leader. Never changed here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.kube.client import Client
from app.kube.convert import created, read_time

NAME = "fairgate-installation"
KEY = "since"


class _Record(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    data: dict[str, str] | None = None


_record = msgspec.json.Decoder(_Record)


class KeptInstallation:
    """`ports.Installation` in a ConfigMap of Fairgate's own namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"

    async def since(self, now: Millis) -> Millis:
        """Return since when Fairgate is installed; if nobody knows, since `now`, from now on.

        Raises ClusterError, also for a record that cannot be read.
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
            since = read_time(KEY, (record.data or {}).get(KEY, ""))
            # The clock of whoever wrote it may have been slow; then nobody is to suffer for it.
            return max(since, created(record.metadata))
        except (msgspec.DecodeError, InvalidInput) as error:
            raise ClusterUnavailable(
                f"ConfigMap {NAME} does not tell since when Fairgate is installed ({error}); "
                f"write a time such as 2026-01-02T03:04:05Z under {KEY}, or delete it."
            ) from error
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
