"""Objects of a cluster in use for tests of `fairgate doctor`: node agents, operator, schedulers.

The specs have the parts of the real projects that Fairgate judges: privilege, host paths,
tolerations, variables. Each namespace has one kind of agent.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
EVERYWHERE = [{"operator": "Exists"}]
ON_GPU_NODES = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
RBAC = "rbac.authorization.k8s.io/v1"
OPERATOR = "system:serviceaccount:kuberay:kuberay-operator"
BINDER = "system:serviceaccount:volcano-system:volcano-scheduler"


def made(kind: str, api: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """Return an object."""
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}


def daemon_set(namespace: str, name: str, image: str, **spec: Any) -> Object:
    """Return a DaemonSet. `privileged`, `paths` and `env` are options, the rest is pod spec."""
    container: Object = {"name": "main", "image": image}
    if spec.pop("privileged", False):
        container["securityContext"] = {"privileged": True}
    if variables := spec.pop("env", {}):
        container["env"] = [{"name": k, "value": v} for k, v in variables.items()]
    paths = spec.pop("paths", ())
    volumes = [{"name": f"v{i}", "hostPath": {"path": path}} for i, path in enumerate(paths)]
    pod = {"containers": [container], "volumes": volumes, **spec}
    labels = {"app": name}
    return made(
        "DaemonSet",
        "apps/v1",
        name,
        namespace,
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    )


AGENTS = [
    daemon_set(
        "calico-system", "calico-node", "docker.io/calico/node:v3.30.0",
        privileged=True, hostNetwork=True, tolerations=EVERYWHERE,
        paths=["/lib/modules", "/var/run/calico", "/sys/fs/"],
    ),
    daemon_set(
        "cilium", "cilium", "quay.io/cilium/cilium:v1.18.0",
        privileged=True, hostNetwork=True, tolerations=EVERYWHERE, paths=["/proc", "/sys/fs/bpf"],
    ),
    daemon_set(
        "aws-ebs-csi", "ebs-csi-node", "public.ecr.aws/ebs-csi-driver/aws-ebs-csi-driver:v1.40.0",
        privileged=True, tolerations=EVERYWHERE, paths=["/var/lib/kubelet", "/dev"],
    ),
    daemon_set(
        "monitoring", "node-exporter", "quay.io/prometheus/node-exporter:v1.9.0",
        hostNetwork=True, hostPID=True, tolerations=EVERYWHERE, paths=["/proc", "/sys", "/"],
    ),
    daemon_set(
        "nvidia-device-plugin", "nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
        tolerations=ON_GPU_NODES, paths=["/var/lib/kubelet/device-plugins"],
    ),
]  # fmt: skip
"""DaemonSets of a network plugin (two), a storage driver, a monitoring agent, a device plugin."""


def template_schema() -> Object:
    """Return the schema of a pod template, as controller-gen writes it, without most fields."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    containers = {"type": "array", "items": anything}
    spec = {**anything, "properties": {"containers": containers}}
    return {"type": "object", "properties": {"metadata": anything, "spec": spec}}


def definition(group: str, plural: str, kind: str, spec: Object) -> Object:
    """Return a CustomResourceDefinition with this schema of `spec`."""
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return made(
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        f"{plural}.{group}",
        spec={"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    )


def fields(**properties: Object) -> Object:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties}


RAY_CLUSTERS = definition(
    "ray.io",
    "rayclusters",
    "RayCluster",
    fields(
        headGroupSpec=fields(template=template_schema()),
        workerGroupSpecs={"type": "array", "items": fields(template=template_schema())},
    ),
)
UNKNOWN_KIND = definition(
    "batch.example.com",
    "trainings",
    "Training",
    fields(replicas={"type": "object", "additionalProperties": fields(template=template_schema())}),
)
"""A kind that no version of Fairgate lists."""


def cluster_role(name: str, *rules: Object) -> Object:
    """Return a ClusterRole."""
    return made("ClusterRole", RBAC, name, rules=list(rules))


def role_binding(name: str, account: str) -> Object:
    """Return a ClusterRoleBinding of the role with this name to a service account or user."""
    parts = account.split(":")
    subject = {"kind": "User", "name": account, "apiGroup": "rbac.authorization.k8s.io"}
    if account.startswith("system:serviceaccount:"):
        subject = {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    return made("ClusterRoleBinding", RBAC, name, roleRef=ref, subjects=[subject])


ROLES = [
    cluster_role(
        "volcano-scheduler",
        {"apiGroups": [""], "resources": ["pods", "pods/binding"], "verbs": ["create", "list"]},
    ),
    cluster_role(
        "kuberay-operator",
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["create", "delete"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["list", "update"]},
    ),
    cluster_role(
        "training-operator",
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
        {"apiGroups": ["batch.example.com"], "resources": ["trainings"], "verbs": ["patch"]},
    ),
]
TRAINING_OPERATOR = "system:serviceaccount:training:training-operator"
BINDINGS = [
    role_binding("volcano-scheduler", BINDER),
    role_binding("kuberay-operator", OPERATOR),
    role_binding("training-operator", TRAINING_OPERATOR),
]


def pod(namespace: str, name: str, gpus: int = 0, **spec: Any) -> Object:
    """Return a pod."""
    container: Object = {"name": "main", "image": "train"}
    if gpus:
        container["resources"] = {"limits": {GPU: gpus}}
    return made("Pod", "v1", name, namespace, spec={"containers": [container], **spec})
