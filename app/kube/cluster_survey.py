"""Implements `ports.cluster_survey.ClusterSurvey`: objects and paged lists, as plain JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.kube.list_paging import WHOLE_BYTES, Paging
from app.ports.cluster_survey import Object

TIMEOUT = 60.0
"""Seconds for one page."""

EXPIRED = 410
"""The API server no longer has the version that a continued list began with."""

ABSENT = 404

T = TypeVar("T")

_page = Decoder(objects.ListPage[msgspec.Raw])
_object = Decoder(dict[str, Any])


class ApiSurvey:
    """Reads one cluster through a client. It sends only GET requests."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, path: str) -> Object | None:
        """Return the object at a path, None if it does not exist."""
        try:
            body = await self._client.request("GET", path, timeout=TIMEOUT)
        except ClusterRefused as error:
            if error.status == ABSENT:
                return None
            raise
        return _decode(_object, path, body)

    async def list_pages(self, path: str, size: int) -> AsyncIterator[list[Object]]:
        """Yield the objects of a list. Raises ClusterUnavailable if it expires meanwhile.

        The objects of a large page are decoded and yielded one by one.
        """
        # The sizes of objects stay unknown: a survey reads each list once.
        limit, token = str(Paging(size).limit), ""
        while True:
            query = [("limit", limit), *([("continue", token)] if token else [])]
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
            page = _decode(_page, path, body)
            items = (_decode(_object, path, raw) for raw in page.items or ())
            if len(body) > WHOLE_BYTES:
                for item in items:
                    yield [item]
            else:
                yield list(items)
            token = page.metadata.continue_
            if not token:
                return


def _decode(decoder: Decoder[T], path: str, body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(
            f"The API server's answer to {path} cannot be read; check whether the kubeconfig "
            "names the right server."
        ) from error
