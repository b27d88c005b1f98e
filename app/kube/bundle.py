"""What the webhook process keeps in the cluster: the Secret with its certificate, and the CA by
which the API server trusts it. Knows nothing of what is in them.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import JSON_PATCH, Client

TRIES = 5

_configuration = msgspec.json.Decoder(wire.WebhookConfiguration)


class Bundle:
    """Secrets, and the `caBundle` of webhook configurations."""

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

    async def publish_ca(self, configuration: str, ca_pem: bytes) -> bool:
        """Write the CA into every webhook of a MutatingWebhookConfiguration.

        Returns False, and writes nothing, if it is there already. Raises ClusterError.
        """
        path = (
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + configuration
        )
        for _ in range(TRIES):
            patch = await self._missing(configuration, path, _text(ca_pem))
            if not patch:
                return False
            try:
                await self._client.request("PATCH", path, body=patch, content_type=JSON_PATCH)
            except ClusterRefused as error:
                if error.status not in (404, 409, 422):  # changed since we read it
                    raise
            else:
                return True
        raise ClusterError(
            f"MutatingWebhookConfiguration {configuration} changes too often to be written; "
            "see who else edits it."
        )

    async def _missing(self, configuration: str, path: str, bundle: str) -> list[dict[str, Any]]:
        """Return the patch that is needed."""
        try:
            written = _configuration.decode(await self._client.request("GET", path))
        except msgspec.DecodeError as error:
            raise ClusterError(f"{path} cannot be read: {error}") from error
        except ClusterRefused as error:
            if error.status != 404:
                raise
            raise ClusterRefused(
                f"There is no MutatingWebhookConfiguration {configuration}: install the chart.",
                404,
            ) from error
        patch: list[dict[str, Any]] = []
        for index, webhook in enumerate(written.webhooks or ()):
            if webhook.client_config.ca_bundle != bundle:
                at = f"/webhooks/{index}"
                patch += [
                    {"op": "test", "path": f"{at}/name", "value": webhook.name},
                    {"op": "add", "path": f"{at}/clientConfig/caBundle", "value": bundle},
                ]
        return patch


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
