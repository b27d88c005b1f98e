"""Checkpoints as the API server keeps them: in the status of Tenants, the others in a ConfigMap.

Amounts are resource-seconds in the unit a person would write (cores, bytes, devices), as decimal
text, exact. What is not legible is no checkpoint: history then starts anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.fair.checkpoint import Checkpoint, Kept, Totals
from app.core.fair.order import NEVER, Served
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName
from app.core.resources import CPU
from app.kube.client import MERGE_PATCH, Client

NAME = "fairgate-checkpoint"
KEY = "checkpoint.json"
SECONDS = 5.0

_STAMP = re.compile(r"(\d{1,12})\.(\d{1,15})", re.ASCII)
_DECIMAL = re.compile(r"\d{1,40}(\.\d{1,9})?", re.ASCII)


class _Record(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    data: dict[str, str] | None = None


_record = msgspec.json.Decoder(_Record)
_others = msgspec.json.Decoder(dict[str, wire.Checkpoint])


class KeptCheckpoints:
    """`ports.Keeper` on the API server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._maps = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._version: str | None = None
        """Of the ConfigMap, as it was last read or written here."""

    async def keep(self, name: TenantName, checkpoint: Checkpoint) -> None:
        """Keep it in the status of the Tenant; no error if that is gone. Raises ClusterError."""
        path = f"/apis/fairgate.io/v1alpha1/tenants/{quote(name, safe='')}/status"
        body = {"status": {"checkpoint": written(checkpoint)}}
        await self._patch(path, body)

    async def keep_others(self, checkpoints: Mapping[TenantName, Checkpoint]) -> None:
        """Keep them in the ConfigMap, which is made if need be. Raises ClusterError.

        In place of what was last read or written here alone: a write that comes late, after that
        of a later leader, is refused.
        """
        if self._version is None:
            await self.read_others()
        version, self._version = self._version, None
        text = msgspec.json.encode({str(n): written(c) for n, c in checkpoints.items()}).decode()
        body: dict[str, Any] = {"metadata": {"resourceVersion": version}, "data": {KEY: text}}
        answer = await self._patch(f"{self._maps}/{NAME}", body) if version else None
        if answer is None:
            body["metadata"] = {"name": NAME}
            new = {"apiVersion": "v1", "kind": "ConfigMap", **body}
            answer = await self._client.request("POST", self._maps, body=new, timeout=SECONDS)
        self._version = _version_of(answer)

    async def read_others(self) -> Mapping[TenantName, Checkpoint]:
        """Return what the ConfigMap holds. Raises ClusterError if that cannot be told."""
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
        """Merge this into an object, and return it; None if it is not there."""
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


def written(checkpoint: Checkpoint) -> dict[str, object]:
    """Return a checkpoint as it is kept."""
    when = datetime.fromtimestamp(checkpoint.at / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "time": when.replace("+00:00", "Z"),
        "epoch": checkpoint.epoch,
        "served": _stamp(checkpoint.own.served),
        "history": _parts(checkpoint.own.history),
        "users": [
            {
                "name": user,
                "served": _stamp(kept.served),
                "history": _parts(kept.history),
                "spent": _seconds(kept.spent),
            }
            for user, kept in checkpoint.users.items()
        ],
        "others": _seconds(checkpoint.own.spent),
    }


def read_checkpoint(kept: wire.Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint as the core knows it; None for none, or one that is not legible."""
    if kept is None:
        return None
    try:
        at = Millis(int(datetime.fromisoformat(kept.time).timestamp() * 1000 + 0.5))
        users = {
            UserName(user.name): Kept(
                _served(user.served), _history(user.history), _spent(user.spent)
            )
            for user in kept.users or ()
            if user.name
        }
        own = Kept(_served(kept.served), _history(kept.history), _spent(kept.others))
        return Checkpoint(at, kept.epoch, own, users)
    except ValueError:
        return None


def _stamp(served: Served) -> str:
    return f"{served[0]}.{served[1]}"


def _served(text: str) -> Served:
    match = _STAMP.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else NEVER


def _parts(history: Mapping[Resource, float]) -> dict[str, str]:
    return {str(r): f"{part:.9f}" for r, part in history.items()}


def _history(parts: Mapping[str, str] | None) -> dict[Resource, float]:
    return {Resource(r): float(_decimal(text)) for r, text in (parts or {}).items()}


def _seconds(spent: Totals) -> dict[str, dict[str, str]]:
    return {
        str(pool): {str(r): _divided(value, _places(r)) for r, value in amounts.items()}
        for pool, amounts in spent.items()
    }


def _spent(seconds: Mapping[str, Mapping[str, str]] | None) -> dict[PoolName, Amounts]:
    return {
        PoolName(pool): {Resource(r): _multiplied(text, _places(r)) for r, text in amounts.items()}
        for pool, amounts in (seconds or {}).items()
    }


def _places(resource: str) -> int:
    """Return how many decimals lie between the ledger's unit and what is written."""
    return 6 if resource == CPU else 3  # millicore-milliseconds, else unit-milliseconds


def _divided(value: int, places: int) -> str:
    whole, rest = divmod(value, 10**places)
    return f"{whole}.{rest:0{places}}".rstrip("0").rstrip(".")


def _multiplied(text: str, places: int) -> int:
    whole, _, rest = _decimal(text).partition(".")
    return int(whole + rest[:places].ljust(places, "0"))


def _decimal(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a decimal number")
    return text
