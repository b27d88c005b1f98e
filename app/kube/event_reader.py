"""Reads the Kubernetes events of a pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.errors import ClusterUnavailable, InvalidInput
from app.core.model import Millis
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.kube.convert import read_time
from app.ports.api import EventList, PodEvent

PAGE = 10
"""Events in one request. Users can create events of more than a megabyte on their pods."""

MOST_EVENTS = 200
"""Events after which no further request is sent."""

MOST_BYTES = 2_000_000
"""Size of all answers after which no further request is sent. The last one may be larger."""

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_anything = Decoder[Any](object)


class PodEventReader:
    """Implements `ports.api.PodEvents` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_pod_events(self, namespace: str, name: str, limit: int) -> EventList:
        """Return the newest of the events that were read, of all pods of this name.

        It reads in the order of event names, until MOST_EVENTS or MOST_BYTES. A name that no pod
        can have has no events. Raises ClusterError.
        """
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            return EventList([], False)
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
        query = [("fieldSelector", selector), ("limit", str(PAGE))]
        found, size, token = list[PodEvent](), 0, ""
        while True:
            more = [("continue", token)] if token else []
            answer = await self._client.request("GET", path, query=[*query, *more])
            size += len(answer)
            try:
                document = _anything.decode(answer)
                found += map(_event, document["items"])
                token = document["metadata"].get("continue") or ""
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
                raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
            if not token or len(found) >= MOST_EVENTS or size >= MOST_BYTES:
                break
        found.sort(key=lambda each: each.at, reverse=True)
        return EventList(found[:limit], bool(token) or len(found) > limit)


def _event(item: Mapping[str, Any]) -> PodEvent:
    source = item.get("reportingComponent") or (item.get("source") or {}).get("component") or ""
    series = item.get("series") or {}
    return PodEvent(
        at=_time(item, series),
        reason=item.get("reason") or "",
        message=(item.get("message") or "")[:1024],
        source=source,
        warning=item.get("type") == "Warning",
        count=series.get("count") or item.get("count") or 1,
    )


def _time(item: Mapping[str, Any], series: Mapping[str, Any]) -> Millis:
    """Return when the event was last seen. Clients use different fields, and may write any time."""
    seen = (series.get("lastObservedTime"), item.get("lastTimestamp"), item.get("eventTime"))
    for written in (*filter(None, seen), item["metadata"]["creationTimestamp"]):
        try:
            at = read_time("time of an event", written)
        except InvalidInput:
            continue
        if at > 0:
            return at
    return Millis(0)
