"""The Secret in which the webhook process keeps its certificate. Knows nothing of what is in it."""

from __future__ import annotations

import base64
import binascii

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import Client


class Bundle:
    """Secrets of the API server, as `ports.Secrets`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """Return the contents of a Secret; None if there is none. Raises ClusterError."""
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        try:
            answer = await self._client.request("GET", path)
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise
        try:
            data = msgspec.json.decode(answer, type=wire.Secret).data or {}
            return {key: base64.b64decode(text, validate=True) for key, text in data.items()}
        except (msgspec.DecodeError, binascii.Error) as error:
            raise ClusterError(f"Secret {namespace}/{name} cannot be read: {error}") from error

    async def create_secret(
        self,
        namespace: str,
        name: str,
        data: dict[str, bytes],
        kind: str = "Opaque",
    ) -> bool:
        """Create a Secret of type `kind`; False if there is one of that name already."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "fairgate"}},
            "type": kind,
            "data": {key: _text(value) for key, value in data.items()},
        }
        try:
            await self._client.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body=body)
        except ClusterRefused as error:
            if error.status == 409:
                return False
            raise
        return True


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
