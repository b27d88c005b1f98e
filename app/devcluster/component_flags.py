"""The command lines of the programs of the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import msgspec

from app.devcluster.certificates import KUBELET_CLIENT, Certificates

HOST = "127.0.0.1"
AUTHENTICATION = "authentication.json"
"""The file with the OIDC providers that the API server trusts."""

QPS = 2000
"""Far above the capacity of one machine, so that clients are not throttled on their own side."""

STAGES = Path(__file__).parent / "kwok"


class Ports(msgspec.Struct, frozen=True):
    """Ports of the control plane, on 127.0.0.1, and the API server's on the network's address."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controllers: int
    scheduler: int


class Network(msgspec.Struct, frozen=True):
    """The address at which nodes reach the API server, and the addresses of Services.

    On the loopback no node is real: no Service has endpoints and no kubelet is called.
    """

    address: str = HOST
    services: str = "10.96.0.0/16"

    @property
    def has_real_nodes(self) -> bool:
        return self.address != HOST

    @property
    def api_service(self) -> str:
        """The address of the Service `kubernetes`: the first of the range."""
        return str(ip_network(self.services)[1])


@dataclass(frozen=True, slots=True)
class ControlPlanePlan:
    """Files and ports of one control plane."""

    folder: Path
    ports: Ports
    certificates: Certificates
    network: Network

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{self.network.address}:{self.ports.apiserver}"

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, one JSON document per line."""
        return self.folder / "logs" / "audit.log"

    def file(self, name: str) -> Path:
        """Return a configuration file of the control plane."""
        return self.folder / "config" / name

    def kubeconfig(self, client: str) -> Path:
        """Return the kubeconfig of one client of the API server."""
        return self.folder / "config" / f"{client}.kubeconfig"


def etcd(plan: ControlPlanePlan, durable: bool) -> list[str]:
    """etcd with mutual TLS: only the API server can read it."""
    url, peer = f"https://{HOST}:{plan.ports.etcd}", f"https://{HOST}:{plan.ports.etcd_peer}"
    authority = plan.certificates.certificate("etcd-ca")
    flags = {
        "name": "only",
        "data-dir": plan.folder / "etcd",
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"only={peer}",
        **_served(plan, "etcd", "cert-file", "key-file"),
        "trusted-ca-file": authority,
        "client-cert-auth": "true",
        **_served(plan, "etcd", "peer-cert-file", "peer-key-file"),
        "peer-trusted-ca-file": authority,
        "peer-client-cert-auth": "true",
        "quota-backend-bytes": 4 * 1024**3,
        "log-level": "warn",
    }
    return _flags(flags) + ([] if durable else ["--unsafe-no-fsync"])


def apiserver(plan: ControlPlanePlan, extra: Mapping[str, str] = {}) -> list[str]:
    """The API server with the settings of a hardened cluster, and the flags in `extra`."""
    pem = plan.certificates
    return _flags(
        {
            "bind-address": plan.network.address,
            "secure-port": plan.ports.apiserver,
            "external-hostname": plan.network.address,
            "service-cluster-ip-range": plan.network.services,
            "allow-privileged": "true",
            "profiling": "false",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "admission-control-config-file": plan.file("admission.json"),
            "audit-policy-file": plan.file("audit-policy.json"),
            "audit-log-path": plan.audit_log,
            "authentication-config": plan.file(AUTHENTICATION),
            "client-ca-file": pem.certificate("cluster-ca"),
            **_served(plan, "kube-apiserver"),
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": pem.certificate("service-accounts"),
            "service-account-signing-key-file": pem.key("service-accounts"),
            "etcd-servers": f"https://{HOST}:{plan.ports.etcd}",
            "etcd-cafile": pem.certificate("etcd-ca"),
            "etcd-certfile": pem.certificate("etcd-client"),
            "etcd-keyfile": pem.key("etcd-client"),
            "requestheader-client-ca-file": pem.certificate("front-proxy-ca"),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": pem.certificate("front-proxy-client"),
            "proxy-client-key-file": pem.key("front-proxy-client"),
            **_nodes_of(plan),
            **extra,
        }
    )


def _nodes_of(plan: ControlPlanePlan) -> dict[str, object]:
    """Flags for pods that call the API server, and for the API server to call kubelets."""
    if not plan.network.has_real_nodes:
        return {"endpoint-reconciler-type": "none"}
    pem = plan.certificates
    return {
        "endpoint-reconciler-type": "lease",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-certificate-authority": pem.certificate("cluster-ca"),
        "kubelet-client-certificate": pem.certificate(KUBELET_CLIENT),
        "kubelet-client-key": pem.key(KUBELET_CLIENT),
    }


def controllers(plan: ControlPlanePlan) -> list[str]:
    """The controller manager. Each controller uses its own service account.

    It does not check the types in policies, which a start would spend a tenth of its CPU time on.
    """
    return _flags(
        {
            "controllers": "*,-validatingadmissionpolicy-status-controller",
            **_client(plan, "kube-controller-manager"),
            "bind-address": HOST,
            "secure-port": plan.ports.controllers,
            **_served(plan, "kube-controller-manager"),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": plan.certificates.key("service-accounts"),
            "root-ca-file": plan.certificates.certificate("cluster-ca"),
            "kube-api-qps": QPS,
            "kube-api-burst": 2 * QPS,
        }
    )


def scheduler(plan: ControlPlanePlan, extra: Mapping[str, str] = {}) -> list[str]:
    """The default scheduler, with the flags in `extra`. Its configuration file sets its client."""
    client = _client(plan, "kube-scheduler")
    del client["kubeconfig"]
    return _flags(
        {
            **client,
            "config": plan.file("scheduler.json"),
            "bind-address": HOST,
            "secure-port": plan.ports.scheduler,
            **_served(plan, "kube-scheduler"),
            **extra,
        }
    )


def kwok(plan: ControlPlanePlan) -> list[str]:
    """KWOK for all nodes, with only the stages of this package."""
    stages = [f"--config={stage}" for stage in sorted(STAGES.glob("*.yaml"))]
    own = {
        "kubeconfig": plan.kubeconfig("kwok"),
        "manage-all-nodes": "true",
        "node-lease-duration-seconds": 40,
        "v": "WARN",
    }
    return _flags(own) + stages


def _client(plan: ControlPlanePlan, name: str) -> dict[str, object]:
    kubeconfig = plan.kubeconfig(name)
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }


def _served(
    plan: ControlPlanePlan,
    name: str,
    certificate: str = "tls-cert-file",
    key: str = "tls-private-key-file",
) -> dict[str, object]:
    return {
        certificate: plan.certificates.certificate(name),
        key: plan.certificates.key(name),
    }


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
