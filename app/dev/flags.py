"""The command lines of the control plane: which program is told what. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.dev.certificates import Certificates

HOST = "127.0.0.1"
QPS = 2000
"""Far above what one machine can do: no client of the control plane throttles itself."""

STAGES = Path(__file__).parent / "kwok"


class Ports(msgspec.Struct, frozen=True):
    """Where the control plane listens, all on 127.0.0.1."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controllers: int
    scheduler: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the files and ports of one control plane are."""

    folder: Path
    ports: Ports
    certificates: Certificates

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{HOST}:{self.ports.apiserver}"

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, one JSON document a line."""
        return self.folder / "logs" / "audit.log"

    def file(self, name: str) -> Path:
        """Return a configuration file of the control plane."""
        return self.folder / "config" / name

    def kubeconfig(self, client: str) -> Path:
        """Return the kubeconfig of one client of the API server."""
        return self.folder / "config" / f"{client}.kubeconfig"


def etcd(plan: Plan, durable: bool) -> list[str]:
    """etcd with TLS both ways: who is not the API server learns nothing from it."""
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


POD_GROUPS = {
    "feature-gates": "GenericWorkload=true",
    "runtime-config": "scheduling.k8s.io/v1alpha2=true",
}
"""What makes the API server offer Kubernetes' own pod groups."""


def apiserver(plan: Plan, pod_groups: bool = False) -> list[str]:
    """The API server as a cluster that takes security seriously would run it."""
    pem = plan.certificates
    return _flags(
        {
            "bind-address": HOST,
            "secure-port": plan.ports.apiserver,
            "external-hostname": HOST,
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.96.0.0/16",
            "allow-privileged": "true",
            "profiling": "false",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "admission-control-config-file": plan.file("admission.json"),
            "audit-policy-file": plan.file("audit-policy.json"),
            "audit-log-path": plan.audit_log,
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
            **(POD_GROUPS if pod_groups else {}),
        }
    )


def controllers(plan: Plan) -> list[str]:
    """The controller manager; each controller acts under a service account of its own."""
    return _flags(
        {
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


def scheduler(plan: Plan) -> list[str]:
    """The stock scheduler; its own client is set up in its configuration file."""
    client = _client(plan, "kube-scheduler")
    del client["kubeconfig"]
    return _flags(
        {
            **client,
            "config": plan.file("scheduler.json"),
            "bind-address": HOST,
            "secure-port": plan.ports.scheduler,
            **_served(plan, "kube-scheduler"),
        }
    )


def kwok(plan: Plan) -> list[str]:
    """KWOK for all nodes, with the stages of ours and no others."""
    stages = [f"--config={stage}" for stage in sorted(STAGES.glob("*.yaml"))]
    own = {
        "kubeconfig": plan.kubeconfig("kwok"),
        "manage-all-nodes": "true",
        "node-lease-duration-seconds": 40,
        "v": "WARN",
    }
    return _flags(own) + stages


def _client(plan: Plan, name: str) -> dict[str, object]:
    kubeconfig = plan.kubeconfig(name)
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }


def _served(
    plan: Plan, name: str, certificate: str = "tls-cert-file", key: str = "tls-private-key-file"
) -> dict[str, object]:
    return {
        certificate: plan.certificates.certificate(name),
        key: plan.certificates.key(name),
    }


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
