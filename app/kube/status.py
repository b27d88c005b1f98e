"""Publishes the status of Tenant and Pool resources. Never touches their specs."""

from __future__ import annotations

from urllib.parse import quote

from app.core.errors import ClusterRefused
from app.kube.client import MERGE_PATCH, Client
from app.kube.sources import GROUP


class ResourceStatus:
    """`ports.StatusWriter` on the status subresource."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        """Merge `status` into that of one of the `tenants` or `pools`; None removes a field.

        An object that is gone is no error. Raises ClusterError.
        """
        path = f"{GROUP}/{kind}/{quote(name, safe='')}/status"
        try:
            await self._client.request(
                "PATCH", path, body={"status": status}, content_type=MERGE_PATCH
            )
        except ClusterRefused as error:
            if error.status != 404:
                raise
