"""Stores checkpoints in the status of Tenants, and in a ConfigMap for tenants without an object.

Amounts are resource-seconds in the units that people use (cores, bytes, devices), as exact decimal
text. An invalid checkpoint counts as missing: the history then starts from zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.fairshare.checkpoint import FairnessState, TenantCheckpoint, Totals
from app.core.fairshare.sort_key import NEVER_SERVED, Served
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName
from app.core.quantities import CPU
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import MERGE_PATCH, Client

NAME = "fairgate-checkpoint"
KEY = "checkpoint.json"
SECONDS = 5.0

_STAMP = re.compile(r"(\d{1,12})\.(\d{1,15})", re.ASCII)
_DECIMAL = re.compile(r"\d{1,40}(\.\d{1,9})?", re.ASCII)


class _Record(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    data: dict[str, str] | None = None


_record = Decoder(_Record)
_others = msgspec.json.Decoder(dict[str, objects.CheckpointObject])


class KeptCheckpoints:
    """Implements `ports.cluster.CheckpointStore` on the API server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._maps = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._version: str | None = None
        """resourceVersion of the ConfigMap when this object last read or wrote it."""

    async def store_checkpoint(self, name: TenantName, checkpoint: TenantCheckpoint) -> None:
        """Store it in the Tenant's status. A deleted Tenant is no error. Raises ClusterError."""
        path = f"/apis/fairgate.io/v1alpha1/tenants/{quote(name, safe='')}/status"
        body = {"status": {"checkpoint": to_stored(checkpoint)}}
        await self._patch(path, body)

    async def store_other_checkpoints(
        self, checkpoints: Mapping[TenantName, TenantCheckpoint]
    ) -> None:
        """Store the checkpoints in the ConfigMap, which is created if needed. Raises ClusterError.

        The write replaces only the version that this object last read or wrote. So a late write,
        after that of a newer leader, is refused.
        """
        if self._version is None:
            await self.read_other_checkpoints()
        version, self._version = self._version, None
        text = msgspec.json.encode({str(n): to_stored(c) for n, c in checkpoints.items()}).decode()
        body: dict[str, Any] = {"metadata": {"resourceVersion": version}, "data": {KEY: text}}
        answer = await self._patch(f"{self._maps}/{NAME}", body) if version else None
        if answer is None:
            body["metadata"] = {"name": NAME}
            new = {"apiVersion": "v1", "kind": "ConfigMap", **body}
            answer = await self._client.request("POST", self._maps, body=new, timeout=SECONDS)
        self._version = _version_of(answer)

    async def read_other_checkpoints(self) -> Mapping[TenantName, TenantCheckpoint]:
        """Return the checkpoints in the ConfigMap. Raises ClusterError if they cannot be read."""
        try:
            answer = await self._client.request("GET", f"{self._maps}/{NAME}", timeout=SECONDS)
            text = (_record.decode(answer).data or {}).get(KEY, "{}")
            self._version = _version_of(answer)
        except ClusterRefused as error:
            if error.status == 404:
                self._version = None
                return {}
            raise
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"ConfigMap {NAME}: garbled ({error}).") from error
        try:
            found = _others.decode(text)
        except msgspec.DecodeError:
            return {}
        read = {TenantName(name): read_checkpoint(each) for name, each in found.items()}
        return {name: each for name, each in read.items() if each is not None}

    async def _patch(self, path: str, body: dict[str, Any]) -> bytes | None:
        """Merge the body into an object and return the object, or None if it does not exist."""
        try:
            return await self._client.request(
                "PATCH", path, body=body, content_type=MERGE_PATCH, timeout=SECONDS
            )
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise


def _version_of(answer: bytes) -> str | None:
    try:
        return _record.decode(answer).metadata.resource_version or None
    except msgspec.DecodeError:
        return None


def to_stored(checkpoint: TenantCheckpoint) -> dict[str, object]:
    """Return a checkpoint in its stored form."""
    when = datetime.fromtimestamp(checkpoint.at / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "time": when.replace("+00:00", "Z"),
        "epoch": checkpoint.epoch,
        "served": _stamp_text(checkpoint.own.last_served),
        "history": _history_text(checkpoint.own.history),
        "users": [
            {
                "name": user,
                "served": _stamp_text(kept.last_served),
                "history": _history_text(kept.history),
                "spent": _totals_text(kept.totals),
            }
            for user, kept in checkpoint.users.items()
        ],
        "others": _totals_text(checkpoint.own.totals),
    }


def read_checkpoint(kept: objects.CheckpointObject | None) -> TenantCheckpoint | None:
    """Return the parsed checkpoint, or None if it is missing or invalid."""
    if kept is None:
        return None
    try:
        at = Millis(int(datetime.fromisoformat(kept.time).timestamp() * 1000 + 0.5))
        users = {
            UserName(user.name): FairnessState(
                _parse_stamp(user.served), _parse_history(user.history), _parse_totals(user.spent)
            )
            for user in kept.users or ()
            if user.name
        }
        own = FairnessState(
            _parse_stamp(kept.served), _parse_history(kept.history), _parse_totals(kept.others)
        )
        return TenantCheckpoint(at, kept.epoch, own, users)
    except ValueError:
        return None


def _stamp_text(served: Served) -> str:
    return f"{served[0]}.{served[1]}"


def _parse_stamp(text: str) -> Served:
    match = _STAMP.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else NEVER_SERVED


def _history_text(history: Mapping[Resource, float]) -> dict[str, str]:
    return {str(r): f"{part:.9f}" for r, part in history.items()}


def _parse_history(parts: Mapping[str, str] | None) -> dict[Resource, float]:
    return {Resource(r): float(_decimal(text)) for r, text in (parts or {}).items()}


def _totals_text(spent: Totals) -> dict[str, dict[str, str]]:
    return {
        str(pool): {
            str(r): _to_decimal_text(value, _decimal_places(r)) for r, value in amounts.items()
        }
        for pool, amounts in spent.items()
    }


def _parse_totals(seconds: Mapping[str, Mapping[str, str]] | None) -> dict[PoolName, Amounts]:
    return {
        PoolName(pool): {
            Resource(r): _from_decimal_text(text, _decimal_places(r)) for r, text in amounts.items()
        }
        for pool, amounts in (seconds or {}).items()
    }


def _decimal_places(resource: str) -> int:
    """Return the decimal places between the internal unit and the stored unit."""
    return 6 if resource == CPU else 3  # millicore-milliseconds, else unit-milliseconds


def _to_decimal_text(value: int, places: int) -> str:
    whole, rest = divmod(value, 10**places)
    return f"{whole}.{rest:0{places}}".rstrip("0").rstrip(".")


def _from_decimal_text(text: str, places: int) -> int:
    whole, _, rest = _decimal(text).partition(".")
    return int(whole + rest[:places].ljust(places, "0"))


def _decimal(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a decimal number")
    return text
