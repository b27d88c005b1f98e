"""The KWOK nodes of the local cluster, and the RBAC rules of KWOK."""

from __future__ import annotations

from typing import Any

import msgspec

from app.devcluster.api_client import SetupClient

KWOK_USER = "kwok"
GPU = "nvidia.com/gpu"
GPU_ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class NodeTaint(msgspec.Struct, frozen=True):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""


class NodeGroup(msgspec.Struct, frozen=True):
    """`count` equal nodes with the names NAME-0, NAME-1, ... `capacity` is their whole capacity."""

    name: str
    count: int
    capacity: dict[str, str]
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()

    def names(self) -> list[str]:
        """Return the names of its nodes."""
        return [f"{self.name}-{number}" for number in range(self.count)]


def gpu_nodes(count: int, gpus: int) -> NodeGroup:
    """Return the default group: `count` nodes gpu-node-N with `gpus` GPUs each."""
    return NodeGroup(
        "gpu-node",
        count,
        {**GPU_ROOM, GPU: str(gpus)},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    )


def create_nodes(api: SetupClient, group: NodeGroup) -> None:
    """Create the missing nodes of a group."""
    for name in group.names():
        api.create("/api/v1/nodes", _node(name, group))


def ready_nodes(api: SetupClient) -> set[str]:
    """Return the names of the nodes that accept pods now."""
    return {
        node["metadata"]["name"] for node in api.call("GET", "/api/v1/nodes")["items"] if _ok(node)
    }


def grant_kwok(api: SetupClient) -> None:
    """Grant KWOK the rights to simulate nodes and the life of their pods, and no others."""
    rules = [
        _rule("", ["nodes"], "get", "list", "watch"),
        _rule("", ["nodes/status", "pods/status"], "patch", "update"),
        _rule("", ["pods"], "get", "list", "watch", "delete"),
        _rule("", ["events"], "create", "patch", "update"),
    ]
    leases = [_rule("coordination.k8s.io", ["leases"], "get", "list", "watch", "create", "update")]
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "name": KWOK_USER, "apiGroup": group}]
    for kind, path, own in (
        ("ClusterRole", RBAC, rules),
        ("Role", f"{RBAC}/namespaces/kube-node-lease", leases),
    ):
        api.create(
            f"{path}/{kind.lower()}s",
            {
                "apiVersion": f"{group}/v1",
                "kind": kind,
                "metadata": {"name": KWOK_USER},
                "rules": own,
            },
        )
        api.create(
            f"{path}/{kind.lower()}bindings",
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{kind}Binding",
                "metadata": {"name": KWOK_USER},
                "roleRef": {"apiGroup": group, "kind": kind, "name": KWOK_USER},
                "subjects": subjects,
            },
        )


def _node(name: str, group: NodeGroup) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "type": "kwok", **group.labels}
    taints = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in group.taints
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"capacity": group.capacity, "allocatable": group.capacity},
    }


def _ok(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    taints = node["spec"].get("taints") or ()
    return ready and not any(t["key"].startswith("node.kubernetes.io/") for t in taints)


def _rule(group: str, resources: list[str], *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
