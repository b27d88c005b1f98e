"""What the webhook process keeps in the cluster: the Secret with its certificate, and the CA by
which the API server trusts it. Knows nothing of what is in them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import JSON_PATCH, Client
from app.ports import Secret

TRIES = 5
MANAGED_BY = "app.kubernetes.io/managed-by"
US = "fairgate"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = "MutatingWebhookConfiguration"
VALIDATING = "ValidatingWebhookConfiguration"

_configuration = msgspec.json.Decoder(wire.WebhookConfiguration)


class Bundle:
    """Secrets, and the `caBundle` of webhook configurations."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_secret(self, namespace: str, name: str) -> Secret | None:
        """Return a Secret; None if there is none. Raises ClusterError."""
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        try:
            answer = await self._client.request("GET", path)
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise
        try:
            found = msgspec.json.decode(answer, type=wire.Secret)
            data = {
                key: base64.b64decode(text, validate=True)
                for key, text in (found.data or {}).items()
            }
        except (msgspec.DecodeError, binascii.Error) as error:
            raise ClusterError(f"Secret {namespace}/{name} cannot be read: {error}") from error
        ours = (found.metadata.labels or {}).get(MANAGED_BY) == US
        return Secret(data, found.metadata.resource_version, ours)

    async def create_secret(
        self,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        kind: str = "Opaque",
    ) -> bool:
        """Create a Secret of type `kind`; False if there is one of that name already."""
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
        """Put this in place of all a Secret held at that version; False if it has changed."""
        patch = [
            # With a version in it, the API server applies the patch to that version or answers 409.
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

    async def publish_ca(self, configuration: str, ca_pem: bytes) -> bool:
        """Write the CA into every webhook of the webhook configurations of that name.

        There must be a MutatingWebhookConfiguration, there may be a validating one. Returns False,
        and writes nothing, if it is there already. Raises ClusterError.
        """
        bundle = _text(ca_pem)
        wrote = await self._publish(MUTATING, configuration, bundle)
        try:
            return await self._publish(VALIDATING, configuration, bundle) or wrote
        except ClusterRefused as error:
            if error.status != 404:
                raise
            return wrote

    async def _publish(self, kind: str, name: str, bundle: str) -> bool:
        path = f"{ADMISSION}/{kind.lower()}s/{name}"
        for _ in range(TRIES):
            patch = await self._missing(kind, name, path, bundle)
            if not patch:
                return False
            try:
                await self._client.request("PATCH", path, body=patch, content_type=JSON_PATCH)
            except ClusterRefused as error:
                if error.status not in (404, 409, 422):  # changed since we read it
                    raise
            else:
                return True
        raise ClusterError(f"{kind} {name} changes too often to be written; see who else edits it.")

    async def _missing(self, kind: str, name: str, path: str, bundle: str) -> list[dict[str, Any]]:
        """Return the patch that is needed."""
        try:
            written = _configuration.decode(await self._client.request("GET", path))
        except msgspec.DecodeError as error:
            raise ClusterError(f"{path} cannot be read: {error}") from error
        except ClusterRefused as error:
            if error.status != 404:
                raise
            raise ClusterRefused(f"There is no {kind} {name}: install the chart.", 404) from error
        patch: list[dict[str, Any]] = []
        for index, webhook in enumerate(written.webhooks or ()):
            if webhook.client_config.ca_bundle != bundle:
                at = f"/webhooks/{index}"
                patch += [
                    {"op": "test", "path": f"{at}/name", "value": webhook.name},
                    {"op": "add", "path": f"{at}/clientConfig/caBundle", "value": bundle},
                ]
        return patch


def _texts(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: _text(value) for key, value in data.items()}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
