"""Configuration files of the node: containerd, CNI, kubelet, kube-proxy, CoreDNS.

Kubernetes programs read JSON, which is valid YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.devcluster.component_flags import ControlPlanePlan
from app.devcluster.node import addresses

SOCKET = "/run/containerd/containerd.sock"
"""A path in the namespaces of the node, as every path in /run and /var."""

CGROUP = "fairgate-node"
SANDBOX_IMAGE = "fairgate.local/pause:dev"
POD_LIMIT = 60
NEVER_EVICT = dict.fromkeys(
    (
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
    ),
    "0%",
)
"""The disk and memory of a developer's machine may be fuller than the kubelet accepts."""


def containerd(cni: Path, cni_config: Path) -> str:
    """Return the configuration of containerd, in TOML.

    No container has a lower OOM score than the kubelet: some machines do not allow even root to
    lower a score.
    """
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SANDBOX_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni}"
conf_dir = "{cni_config}"
"""


def cni() -> dict[str, Any]:
    """Return the CNI configuration: a routed link for each pod.

    Other than a bridge, it lets the nft rules of kube-proxy see the packets between two pods.
    """
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": addresses.PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "fairgate-node",
        "plugins": [{"type": "ptp", "ipam": ipam}],
    }


def kubelet(plan: ControlPlanePlan) -> dict[str, Any]:
    """Return the configuration of the kubelet, for cgroup v1 and v2."""
    pem = plan.certificates
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.NODE,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pem.certificate("cluster-ca"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pem.certificate(addresses.NODE_NAME)),
        "tlsPrivateKeyFile": str(pem.key(addresses.NODE_NAME)),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": NEVER_EVICT,
        "imageGCHighThresholdPercent": 100,
        "maxPods": POD_LIMIT,
        "clusterDNS": [addresses.NODE],
        "clusterDomain": addresses.DNS_DOMAIN,
    }


def kube_proxy(kubeconfig: Path) -> dict[str, Any]:
    """Return the configuration of kube-proxy. Its settings of the kernel stay unchanged."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": addresses.NODE_NAME,
        "clusterCIDR": addresses.PODS,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def corefile(kubeconfig: Path) -> str:
    """Return the configuration of CoreDNS: names of Services and pods, and no others."""
    return f""".:53 {{
    errors
    ready 127.0.0.1:8181
    kubernetes {addresses.DNS_DOMAIN} {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
"""


def coredns_role() -> dict[str, Any]:
    """Return the rights of CoreDNS."""
    rules = [
        {
            "apiGroups": [""],
            "resources": ["services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "coredns"},
        "rules": rules,
    }
