"""Install time of Fairgate, in a ConfigMap that the first leader creates and no process changes.

It distinguishes pods that are older than the installation from pods that bypassed the gate.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.k8s_types import objects
from app.kube.client import Client
from app.kube.convert import created, read_time

log = logging.getLogger("fairgate.kube")

NAME = "fairgate-installation"
KEY = "since"


class _Record(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    data: dict[str, str] | None = None


_record = msgspec.json.Decoder(_Record)


def _since(record: _Record) -> Millis:
    """Return the recorded time, or 0 if it is invalid: that must not prevent leadership."""
    try:
        return read_time(KEY, (record.data or {}).get(KEY, ""))
    except InvalidInput as error:
        log.warning(
            "the record of the installation is not legible; the time of its creation counts",
            extra={"object": NAME, "why": str(error)},
        )
        return Millis(0)


class KeptInstallation:
    """`ports.cluster.InstallRecord` in a ConfigMap of Fairgate's own namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"

    async def ensure_install_time(self, now: Millis) -> Millis:
        """Return the install time. If there is no record, create one with `now`.

        A record with an invalid time counts from its creation. Raises ClusterError.
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
            # The writer's clock may have been slow. The later time protects older pods.
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
            if error.status != 409:  # another replica was first
                raise
