"""The ConfigMap `fairgate-audit`: the newest signed head of the audit chain, and the epoch floor.

It survives the loss of Redis and the Lease. Every write is bound to the resourceVersion that was
read, and never lowers the epoch. Signatures are not checked here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from app.core.audit.codec import SignedHead, parse_stored_head
from app.core.epochs import MAX_EPOCH
from app.core.errors import ClusterRefused, ClusterUnavailable, EpochStale, InvalidInput
from app.k8s_types import objects
from app.kube.client import MERGE_PATCH, Client

log = logging.getLogger("fairgate.kube")

NAME = "fairgate-audit"
FLOOR = "floor"
HEAD = ("cluster", "number", "hash", "epoch", "at", "signature", "publicKey")
TRIES = 4
SECONDS = 5.0


class _Record(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    data: dict[str, str] | None = None


_record = msgspec.json.Decoder(_Record)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Contents of the ConfigMap. `version` is None if it does not exist."""

    version: str | None
    floor: int
    signed: SignedHead | None


class KeptAnchor:
    """`ports.leadership.EpochFloor` and `ports.audit.Anchor` in a ConfigMap of Fairgate."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"

    async def read_epoch_floor(self) -> int:
        """Return the highest epoch that was ever claimed, 0 if there is no such epoch."""
        return (await self._read()).floor

    async def claim_epoch(self, epoch: int) -> None:
        """Raise the floor to `epoch`. Raises EpochStale if the floor is equal or higher."""
        await self._change({FLOOR: str(epoch)}, epoch - 1)

    async def read_anchored_head(self) -> SignedHead | None:
        """Return the newest anchored head, or None if it is missing or invalid."""
        return (await self._read()).signed

    async def anchor_head(self, epoch: int, signed: SignedHead) -> None:
        """Store this head as leader of `epoch`. Raises EpochStale if a newer leader has claimed."""
        head = {name: str(value) for name, value in signed.json_fields().items()}
        await self._change({FLOOR: str(epoch), **head}, epoch)

    async def _change(self, data: dict[str, str], most: int) -> None:
        """Write the data, unless the floor is above `most`."""
        for _ in range(TRIES):
            kept = await self._read()
            if kept.floor > most:
                raise EpochStale(
                    f"epoch {kept.floor} has been claimed in ConfigMap {NAME}: "
                    "an older leader may not write any more."
                )
            if await self._write(data, kept.version):
                return
        raise ClusterUnavailable(f"ConfigMap {NAME} changes all the time; it cannot be written.")

    async def _read(self) -> _Kept:
        try:
            answer = await self._client.request("GET", f"{self._path}/{NAME}", timeout=SECONDS)
            record = _record.decode(answer)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"ConfigMap {NAME}: garbled ({error}).") from error
        except ClusterRefused as error:
            if error.status == 404:
                return _Kept(None, 0, None)
            raise
        data = record.data or {}
        signed = _signed(data)
        floor = max(_epoch(data.get(FLOOR, "")), _epoch(data.get("epoch", "")))
        return _Kept(record.metadata.resource_version, floor, signed)

    async def _write(self, data: dict[str, str], version: str | None) -> bool:
        """Write the data. Return False if another client was first."""
        try:
            if version is None:
                await self._create(data)
            else:
                # The API server applies a merge patch with a version to that version, or returns
                # 409.
                patch = {"metadata": {"resourceVersion": version}, "data": data}
                await self._client.request(
                    "PATCH",
                    f"{self._path}/{NAME}",
                    body=patch,
                    content_type=MERGE_PATCH,
                    timeout=SECONDS,
                )
        except ClusterRefused as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def _create(self, data: dict[str, str]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": data,
        }
        await self._client.request("POST", self._path, body=body, timeout=SECONDS)


def _signed(data: dict[str, str]) -> SignedHead | None:
    if not any(name in data for name in HEAD):
        return None
    try:
        return parse_stored_head(data)
    except InvalidInput as error:
        facts = {"object": NAME, "why": str(error)}
        log.warning("the anchored head of the audit chain is not legible: ignored", extra=facts)
        return None


def _epoch(text: str) -> int:
    """Return the epoch, or 0 if it is invalid or implausible."""
    legible = text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= MAX_EPOCH
    return int(text) if legible else 0
