"""Reads nodes, pools and pods for `fairgate nodes`, and writes node labels.

It acts with the caller's own credentials and prints no output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import quote

import msgspec

from app.commands.nodes.label_findings import Labelling, ObservedNode
from app.commands.nodes.unmanaged_pods import Other
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.model import PoolName
from app.core.quantities import ManagedResources, parse_amounts
from app.core.well_known import ANNOTATION_MIRROR
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube import hami
from app.kube.client import JSON_PATCH, Client
from app.kube.informer.sources import GROUP

PAGE = 500

T = TypeVar("T")


class _Status(objects.KubeStruct, frozen=True):
    capacity: objects.Quantities | None = None
    allocatable: objects.Quantities | None = None


class _Node(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    status: _Status = _Status()


class Survey:
    """Reads and labels nodes. The caller needs permission to list nodes, and to patch them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def nodes(self) -> list[ObservedNode]:
        """Return every node. Raises ClusterError."""
        return [_seen(node) async for node in self._list("/api/v1/nodes", _Node)]

    async def pools(self) -> dict[PoolName, dict[str, str]]:
        """Return the selectors of all pools, empty if Fairgate is not installed."""
        try:
            return {
                PoolName(pool.metadata.name): pool.spec.node_selector or {}
                async for pool in self._list(f"{GROUP}/pools", objects.PoolObject)
            }
        except ClusterRefused as error:
            if error.status == 404:
                return {}
            raise

    async def pods_without_devices(
        self, managed: ManagedResources, exempt: frozenset[str]
    ) -> list[Other] | None:
        """Return the bound pods without devices, or None if the caller may not list pods.

        Pods of DaemonSets and exempt namespaces, and mirror pods, are marked as belonging to their
        node.
        """
        found: list[Other] = []
        try:
            async for pod in self._list("/api/v1/pods", objects.PodObject):
                if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                    found += _other(pod, managed, exempt)
        except ClusterRefused as error:
            if error.status == 403:
                return None
            raise
        return found

    async def write_label(self, change: Labelling) -> None:
        """Label one node if its labels are unchanged. Raises ClusterError."""
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
                page = Decoder(objects.ListPage[kind]).decode(body)  # type: ignore[valid-type]
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


def _seen(node: _Node) -> ObservedNode:
    meta, status = node.metadata, node.status
    notes = meta.annotations or {}
    # An unhealthy device is only in the capacity. The node contains it nevertheless.
    offer = {**parse_amounts(status.allocatable or {}), **parse_amounts(status.capacity or {})}
    return ObservedNode(
        meta.name,
        meta.labels or {},
        hami.add_hami_devices(meta.name, offer, notes),
        hami.device_product(notes),
        meta.uid,
    )


def _other(
    pod: objects.PodObject, managed: ManagedResources, exempt: frozenset[str]
) -> list[Other]:
    meta = pod.metadata
    try:
        demand = pod.demand()
    except InvalidInput:
        demand = {}
    if managed.has_managed(demand) or pod.spec.resource_claims:
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
    # The test fails if another client changed the labels. Existing labels are never replaced.
    patch.append({"op": "test", "path": "/metadata/labels", "value": dict(node.labels)})
    key = label.replace("~", "~0").replace("/", "~1")
    patch.append({"op": "add", "path": f"/metadata/labels/{key}", "value": value})
    return patch
