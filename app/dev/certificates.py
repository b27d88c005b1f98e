"""The certificates and kubeconfigs of a local cluster. Issues and writes them, nothing else.

Each trust has a CA of its own: what may call the API server may not therefore call etcd, pose as
the aggregator, or pose as the API server towards a webhook.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.core.errors import InvalidInput
from app.tls.issue import Authority, Credential, new_authority, write_private

DAYS = 365
LOOPBACK = ("127.0.0.1", "localhost")
CLUSTER_NAMES = (
    *LOOPBACK,
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
AUTHORITIES = ("cluster", "etcd", "front-proxy", "webhook-client")
MASTERS = "system:masters"

LONGEST_NAME = 64
"""Of a common name or organization (X.520)."""


class Certificates:
    """The `pki` folder of one cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        """Make every authority, and every certificate that the control plane needs."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in AUTHORITIES:
            authority = new_authority(f"fairgate-dev-{name}", _now(), DAYS)
            self._write(f"{name}-ca", Credential(authority.certificate_pem, authority.key_pem))
        self._issue("cluster", "kube-apiserver", names=CLUSTER_NAMES, server=True)
        self._issue("cluster", "kube-controller-manager", names=LOOPBACK, server=True)
        self._issue("cluster", "kube-scheduler", names=LOOPBACK, server=True)
        # etcd also calls itself with its own certificate.
        self._issue("etcd", "etcd", names=LOOPBACK, server=True, client=True)
        self._issue("etcd", "etcd-client", client=True)
        self._issue("front-proxy", "front-proxy-client", client=True)
        self._issue("webhook-client", "kube-apiserver-webhook-client", client=True)
        # Only the key is used: to sign and verify the tokens of service accounts.
        self._issue("cluster", "service-accounts", client=True)

    def certificate(self, name: str) -> Path:
        """Return the file with a certificate; that of an authority is called `NAME-ca`."""
        return self._folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the file with a private key."""
        return self._folder / f"{name}.key"

    def create_person(self, name: str, groups: Sequence[str]) -> None:
        """Write a client certificate of the cluster into files."""
        self._write(name, self._person(name, groups))

    def kubeconfig(self, server: str, name: str, groups: Sequence[str] = ()) -> str:
        """Return a kubeconfig, complete in itself, for a person with a new client certificate."""
        issued = self._person(name, groups)
        user = {
            "client-certificate-data": _base64(issued.certificate_pem),
            "client-key-data": _base64(issued.key_pem),
        }
        return self.kubeconfig_for(server, name, user)

    def kubeconfig_for(self, server: str, name: str, user: dict[str, Any]) -> str:
        """Return a kubeconfig for a user known by other means, a token file for one."""
        authority = _base64(self.certificate("cluster-ca").read_bytes())
        cluster = {"server": server, "certificate-authority-data": authority}
        return kubeconfig_text(cluster, name, user)

    def webhook_client(self) -> str:
        """Return the kubeconfig by which the API server shows itself to admission webhooks."""
        # The resolver of the API server knows no pattern for ports, only a name with its port or
        # `*`, and webhooks of this cluster listen on any port of the loopback.
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

    def _authority(self, name: str) -> Authority:
        certificate, key = self.certificate(f"{name}-ca"), self.key(f"{name}-ca")
        return Authority.load(certificate.read_bytes(), key.read_bytes())

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
    # YAML knows no surrogate pairs, so names stay as they are.
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _now() -> datetime:
    return datetime.now(UTC)
