"""Reads and writes Secrets, in which the webhook process stores its certificate."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from app.core.errors import ClusterError, ClusterRefused
from app.k8s_types import objects
from app.kube.client import JSON_PATCH, Client
from app.ports.cluster import SecretData

MANAGED_BY = "app.kubernetes.io/managed-by"
US = "fairgate"


class Bundle:
    """Implements `ports.cluster.Secrets` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_secret(self, namespace: str, name: str) -> SecretData | None:
        """Return a Secret, or None if it does not exist. Raises ClusterError."""
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        try:
            answer = await self._client.request("GET", path)
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise
        try:
            found = msgspec.json.decode(answer, type=objects.SecretObject)
            data = {
                key: base64.b64decode(text, validate=True)
                for key, text in (found.data or {}).items()
            }
        except (msgspec.DecodeError, binascii.Error) as error:
            raise ClusterError(f"Secret {namespace}/{name} cannot be read: {error}") from error
        ours = (found.metadata.labels or {}).get(MANAGED_BY) == US
        return SecretData(data, found.metadata.resource_version, ours)

    async def create_secret(
        self,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        kind: str = "Opaque",
    ) -> bool:
        """Create a Secret of type `kind`. Return False if the name exists already."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {MANAGED_BY: US}},
            "type": kind,
            "data": _texts(data),
        }
        try:
            await self._client.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body=body)
        except ClusterRefused as error:
            if error.status == 409:
                return False
            raise
        return True

    async def replace_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], version: str
    ) -> bool:
        """Replace the data of a Secret at `version`. Return False if the Secret has changed."""
        patch = [
            # The API server applies a patch with a version to that version, or returns 409.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/data", "value": _texts(data)},
        ]
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        try:
            await self._client.request("PATCH", path, body=patch, content_type=JSON_PATCH)
        except ClusterRefused as error:
            if error.status in (404, 409):
                return False
            raise
        return True


def _texts(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: _text(value) for key, value in data.items()}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
