"""Checks whether the controller of a pod still exists. It reads metadata only."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import METADATA, Client

KINDS = {
    ("v1", "ReplicationController"): "replicationcontrollers",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "DaemonSet"): "daemonsets",
    ("batch/v1", "Job"): "jobs",
}
"""Kinds that create pods and that the leader may read. Other kinds count as unknown."""


class _Owned(objects.KubeStruct, frozen=True):
    metadata: objects.OwnedMetadata = objects.OwnedMetadata()


_owned = Decoder(_Owned)


class KubeOwners:
    """Implements `ports.cluster.OwnerLookup` on the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find_missing_owner(self, namespace: str, name: str, uid: str) -> str:
        """Return the missing controller of this very pod. Empty string: not missing or unknown."""
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
