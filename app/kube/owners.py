"""Whether the controller that a pod names is still there. Only reads, and metadata alone."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.kube.client import Client

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

KINDS = {
    ("v1", "ReplicationController"): "replicationcontrollers",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "DaemonSet"): "daemonsets",
    ("batch/v1", "Job"): "jobs",
}
"""Those that make pods, and that the leader may read. Nobody can tell of others."""


class _Owner(wire.OwnerReference, frozen=True):
    api_version: str = ""


class _Metadata(wire.Metadata, frozen=True):
    owner_references: list[_Owner] | None = None


class _Owned(wire.Wire, frozen=True):
    metadata: _Metadata = _Metadata()


_owned = msgspec.json.Decoder(_Owned)


class KubeOwners:
    """`ports.Owners` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def missing(self, namespace: str, name: str, uid: str) -> str:
        """Return which controller of this very pod is gone; "": none, or nobody can tell."""
        pod = await self._read(_path("v1", namespace, "pods", name))
        if pod is None or pod.metadata.uid != uid:
            return ""
        owner = next((o for o in pod.metadata.owner_references or () if o.controller), None)
        plural = KINDS.get((owner.api_version, owner.kind)) if owner is not None else None
        if owner is None or plural is None:
            return ""
        found = await self._read(_path(owner.api_version, namespace, plural, owner.name))
        if found is not None and found.metadata.uid == owner.uid:
            return ""
        return f"{owner.kind} {owner.name}"

    async def _read(self, path: str) -> _Owned | None:
        try:
            return _owned.decode(await self._client.request("GET", path, accept=METADATA))
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise


def _path(version: str, namespace: str, plural: str, name: str) -> str:
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
