"""Issues and writes the certificates and kubeconfigs of a local cluster.

Each trust relation has its own CA. A client of the API server can therefore not call etcd, and
cannot pose as the aggregator or, towards a webhook, as the API server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.core.errors import InvalidInput
from app.tls.certificate_authority import (
    CertificateAuthority,
    Credential,
    new_authority,
    write_private,
)

DAYS = 365
LOOPBACK = ("127.0.0.1", "localhost")
CLUSTER_NAMES = (
    *LOOPBACK,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
AUTHORITIES = ("cluster", "etcd", "front-proxy", "webhook-client")
MASTERS = "system:masters"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"

LONGEST_NAME = 64
"""Largest number of bytes of a common name or organization (X.520)."""


class Certificates:
    """The `pki` folder of one cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, addresses: Sequence[str] = ()) -> None:
        """Create every CA, and every certificate that the control plane needs.

        `addresses`: further addresses of the API server.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in AUTHORITIES:
            authority = new_authority(f"fairgate-dev-{name}", _now(), DAYS)
            self._write(f"{name}-ca", Credential(authority.certificate_pem, authority.key_pem))
        names = tuple(dict.fromkeys((*CLUSTER_NAMES, *addresses)))
        self._issue("cluster", "kube-apiserver", names=names, server=True)
        self._write(KUBELET_CLIENT, self._person(KUBELET_CLIENT, [MASTERS]))
        self._issue("cluster", "kube-controller-manager", names=LOOPBACK, server=True)
        self._issue("cluster", "kube-scheduler", names=LOOPBACK, server=True)
        # etcd also calls itself with this certificate.
        self._issue("etcd", "etcd", names=LOOPBACK, server=True, client=True)
        self._issue("etcd", "etcd-client", client=True)
        self._issue("front-proxy", "front-proxy-client", client=True)
        self._issue("webhook-client", "kube-apiserver-webhook-client", client=True)
        # Only the key is used, to sign and verify service account tokens.
        self._issue("cluster", "service-accounts", client=True)

    def certificate(self, name: str) -> Path:
        """Return the file with a certificate. The name of a CA ends with `-ca`."""
        return self._folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the file with a private key."""
        return self._folder / f"{name}.key"

    def create_kubelet(self, node: str, address: str) -> None:
        """Issue the certificate with which the kubelet of a node serves."""
        self._issue("cluster", node, names=(node, address), server=True)

    def create_person(self, name: str, groups: Sequence[str]) -> None:
        """Issue a client certificate for a user of the cluster and write it to files."""
        self._write(name, self._person(name, groups))

    def kubeconfig(self, server: str, name: str, groups: Sequence[str] = ()) -> str:
        """Return a self-contained kubeconfig for a user, with a new client certificate."""
        issued = self._person(name, groups)
        user = {
            "client-certificate-data": _base64(issued.certificate_pem),
            "client-key-data": _base64(issued.key_pem),
        }
        return self.kubeconfig_for(server, name, user)

    def kubeconfig_for(self, server: str, name: str, user: dict[str, Any]) -> str:
        """Return a kubeconfig for a user with other credentials, such as a token file."""
        authority = _base64(self.certificate("cluster-ca").read_bytes())
        cluster = {"server": server, "certificate-authority-data": authority}
        return kubeconfig_text(cluster, name, user)

    def webhook_client(self) -> str:
        """Return the kubeconfig with which the API server authenticates to admission webhooks."""
        # The API server matches a name with its port, or `*`, but no pattern of ports. Webhooks
        # of this cluster listen on any port of the loopback.
        name = "kube-apiserver-webhook-client"
        user = {
            "client-certificate": str(self.certificate(name)),
            "client-key": str(self.key(name)),
        }
        users = [{"name": "*", "user": user}]
        return json.dumps({"apiVersion": "v1", "kind": "Config", "users": users})

    def _person(self, name: str, groups: Sequence[str]) -> Credential:
        for text in (name, *groups):
            if not 1 <= len(text.encode("utf-8", "replace")) <= LONGEST_NAME:
                raise InvalidInput(
                    f"{text[:80]!r} cannot stand in a certificate; a name of a user or group has "
                    f"1 to {LONGEST_NAME} bytes."
                )
        return self._authority("cluster").issue(
            name, groups=groups, server=False, client=True, now=_now(), days=DAYS
        )

    def _authority(self, name: str) -> CertificateAuthority:
        certificate, key = self.certificate(f"{name}-ca"), self.key(f"{name}-ca")
        return CertificateAuthority.load(certificate.read_bytes(), key.read_bytes())

    def _issue(
        self,
        authority: str,
        name: str,
        *,
        names: Sequence[str] = (),
        server: bool = False,
        client: bool = False,
    ) -> None:
        issued = self._authority(authority).issue(
            name, names=names, server=server, client=client, now=_now(), days=DAYS
        )
        self._write(name, issued)

    def _write(self, name: str, issued: Credential) -> None:
        write_private(self.certificate(name), issued.certificate_pem)
        write_private(self.key(name), issued.key_pem)


def kubeconfig_text(cluster: dict[str, Any], name: str, user: dict[str, Any]) -> str:
    """Return a kubeconfig with one cluster and one user. It is JSON, which YAML includes."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fairgate-dev", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [
            {"name": "fairgate-dev", "context": {"cluster": "fairgate-dev", "user": name}}
        ],
        "current-context": "fairgate-dev",
    }
    # Names are not escaped, because YAML does not support surrogate pairs.
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _now() -> datetime:
    return datetime.now(UTC)
