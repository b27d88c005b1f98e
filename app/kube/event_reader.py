"""Reads the Kubernetes events of a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.errors import ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.kube.convert import read_time
from app.ports.api import EventList, PodEvent

LONGEST_LIST = 500
"""Events asked for. Users can create any number of events on their pods."""

_anything = Decoder[Any](object)


class PodEventReader:
    """Implements `ports.api.PodEvents` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of_pod(self, namespace: str, name: str, limit: int) -> EventList:
        """Return the last events of all pods of this name, newest first. Raises ClusterError."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
        query = [("fieldSelector", selector), ("limit", str(LONGEST_LIST))]
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        answer = await self._client.request("GET", path, query=query)
        try:
            document = _anything.decode(answer)
            found = [_event(item) for item in document["items"]]
        except (msgspec.DecodeError, InvalidInput, KeyError) as error:
            raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
        found.sort(key=lambda each: each.at, reverse=True)
        is_cut = bool(document["metadata"].get("continue")) or len(found) > limit
        return EventList(found[:limit], is_cut)


def _event(item: Mapping[str, Any]) -> PodEvent:
    source = item.get("reportingComponent") or (item.get("source") or {}).get("component") or ""
    series = item.get("series") or {}
    return PodEvent(
        at=_time(item, series),
        reason=item.get("reason") or "",
        message=item.get("message") or "",
        source=source,
        warning=item.get("type") == "Warning",
        count=series.get("count") or item.get("count") or 1,
    )


def _time(item: Mapping[str, Any], series: Mapping[str, Any]) -> Millis:
    """Return when the event was last seen. Old and new clients use different fields."""
    times: Sequence[Any] = (
        series.get("lastObservedTime"),
        item.get("lastTimestamp"),
        item.get("eventTime"),
        item["metadata"].get("creationTimestamp"),
    )
    return read_time("time of an event", next(filter(None, times), ""))
