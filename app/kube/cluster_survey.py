"""Implements `ports.cluster_survey.ClusterSurvey`: objects and paged lists, as plain JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.ports.cluster_survey import Object

TIMEOUT = 60.0
"""Seconds for one page."""

EXPIRED = 410
"""The API server no longer has the version that a continued list began with."""

ABSENT = 404


class ApiSurvey:
    """Reads one cluster through a client. It sends only GET requests."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, path: str) -> Object | None:
        """Return the object at a path, None if it does not exist."""
        try:
            return self._decoded(path, await self._client.request("GET", path, timeout=TIMEOUT))
        except ClusterRefused as error:
            if error.status == ABSENT:
                return None
            raise

    async def list_pages(self, path: str, size: int) -> AsyncIterator[list[Object]]:
        """Yield the objects of a list. Raises ClusterUnavailable if it expires meanwhile."""
        token = ""
        while True:
            query = [("limit", str(size)), *([("continue", token)] if token else [])]
            try:
                body = await self._client.request("GET", path, query=query, timeout=TIMEOUT)
            except ClusterRefused as error:
                if error.status == ABSENT:
                    return
                if error.status == EXPIRED and token:
                    raise ClusterUnavailable(
                        f"The list {path} changed too fast to be read to its end; try again."
                    ) from error
                raise
            page = self._decoded(path, body)
            yield list(page.get("items") or ())
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    @staticmethod
    def _decoded(path: str, body: bytes) -> dict[str, Any]:
        try:
            return Decoder(dict[str, Any]).decode(body)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(
                f"The API server's answer to {path} cannot be read; check whether the kubeconfig "
                "names the right server."
            ) from error
