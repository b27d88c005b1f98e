"""Reads nodes, pools and pods for `fairgate nodes`, and writes the labels it is told to.

As the person who calls, with that person's rights. Prints nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import quote

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import ANNOTATION_MIRROR, PoolName
from app.core.places.inventory import Labelling, Seen
from app.core.places.others import Other
from app.core.resources import ManagedResources, amounts
from app.kube import hami
from app.kube.client import JSON_PATCH, Client
from app.kube.sources import GROUP

PAGE = 500

T = TypeVar("T")


class _Status(wire.Wire, frozen=True):
    capacity: wire.Quantities | None = None
    allocatable: wire.Quantities | None = None


class _Node(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    status: _Status = _Status()


class Survey:
    """What a person with the right to list nodes may learn, and with that to patch them, do."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def nodes(self) -> list[Seen]:
        """Return every node. Raises ClusterError."""
        return [_seen(node) async for node in self._list("/api/v1/nodes", _Node)]

    async def pools(self) -> dict[PoolName, dict[str, str]]:
        """Return the selectors of all pools; none where Fairgate is not installed."""
        try:
            return {
                PoolName(pool.metadata.name): pool.spec.node_selector or {}
                async for pool in self._list(f"{GROUP}/pools", wire.Pool)
            }
        except ClusterRefused as error:
            if error.status == 404:
                return {}
            raise

    async def others(self, managed: ManagedResources, exempt: frozenset[str]) -> list[Other] | None:
        """Return the bound pods that ask for no device; None if the caller may not list pods.

        Those of DaemonSets, of nodes themselves and of exempt namespaces belong where they are.
        """
        found: list[Other] = []
        try:
            async for pod in self._list("/api/v1/pods", wire.Pod):
                if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                    found += _other(pod, managed, exempt)
        except ClusterRefused as error:
            if error.status == 403:
                return None
            raise
        return found

    async def write(self, change: Labelling) -> None:
        """Label one node, if its labels are still as they were seen. Raises ClusterError."""
        await self._client.request(
            "PATCH",
            f"/api/v1/nodes/{quote(change.node.name, safe='')}",
            body=_patch(change),
            content_type=JSON_PATCH,
        )

    async def _list(self, path: str, kind: type[T]) -> AsyncIterator[T]:
        token = ""
        while True:
            query = [("limit", str(PAGE)), *([("continue", token)] if token else [])]
            body = await self._client.request("GET", path, query=query, timeout=60.0)
            try:
                page = msgspec.json.decode(body, type=wire.Page[kind])  # type: ignore[valid-type]
            except msgspec.DecodeError as error:
                raise ClusterUnavailable(
                    f"The API server's list {path} cannot be read; see whether the kubeconfig "
                    "names the right server."
                ) from error
            for item in page.items or ():
                yield item
            token = page.metadata.continue_
            if not token:
                return


def _seen(node: _Node) -> Seen:
    meta, status = node.metadata, node.status
    notes = meta.annotations or {}
    # A device that is ill is advertised in the capacity alone; its node has it all the same.
    offer = {**amounts(status.allocatable or {}), **amounts(status.capacity or {})}
    return Seen(
        meta.name,
        meta.labels or {},
        hami.with_hami(offer, notes),
        hami.product(notes),
        meta.uid,
    )


def _other(pod: wire.Pod, managed: ManagedResources, exempt: frozenset[str]) -> list[Other]:
    meta = pod.metadata
    try:
        demand = pod.spec.demand()
    except InvalidInput:
        demand = {}
    if managed.asked(demand) or pod.spec.resource_claims:
        return []
    daemon = any(each.kind == "DaemonSet" for each in meta.owner_references or ())
    mirror = ANNOTATION_MIRROR in (meta.annotations or {})
    belongs = daemon or mirror or meta.namespace in exempt
    name = f"{meta.namespace}/{meta.name}"
    return [Other(name, str(pod.spec.node_name), demand, belongs)]


def _patch(change: Labelling) -> list[dict[str, object]]:
    node, label, value = change.node, change.label, change.product.name
    patch: list[dict[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": node.uid}]
    if not node.labels:
        patch.append({"op": "add", "path": "/metadata/labels", "value": {label: value}})
        return patch
    # Nobody has labelled it meanwhile: what is there is never replaced.
    patch.append({"op": "test", "path": "/metadata/labels", "value": dict(node.labels)})
    key = label.replace("~", "~0").replace("/", "~1")
    patch.append({"op": "add", "path": f"/metadata/labels/{key}", "value": value})
    return patch
