"""Callers with real tokens, at three endpoints: API server, REST, REST behind the API server."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.support.cluster_driver import Stage

AGGREGATED = "/apis/api.fairgate.io"
ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass
class Endpoint:
    """One endpoint of Fairgate's API, as one caller."""

    base: str
    context: ssl.SSLContext
    token: str = ""

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Return the status, the JSON (or text) and the lower-case headers of an answer."""
        head = {"Content-Type": "application/json"}
        if self.token:
            head["Authorization"] = f"Bearer {self.token}"
        head |= {key.replace("_", "-"): value for key, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, head, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, _body(answer.read()), _lower(answer.headers)
        except HTTPError as error:
            with error:
                return error.code, _body(error.read()), _lower(error.headers)


@dataclass
class Callers:
    """Service accounts of one namespace, and their RBAC roles."""

    stage: Stage
    namespace: str
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, *rules: str) -> None:
        """Create an account. A rule is `VERB RESOURCE [NAME]` on group fairgate.io."""
        kubectl, role = self.stage.cluster.kubectl, f"{self.namespace}-{name}"
        kubectl("-n", self.namespace, "create", "serviceaccount", name)
        written = [
            {"apiGroups": ["fairgate.io"], "verbs": [verb], "resources": [what]}
            | ({"resourceNames": names} if names else {})
            for verb, what, *names in (rule.split() for rule in rules)
        ]
        rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": role}}
        account = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        self.stage.apply(
            "default",
            {"kind": "ClusterRole", **rbac, "rules": written},
            {"kind": "ClusterRoleBinding", **rbac, "roleRef": ref, "subjects": [account]},
        )
        self.stage.objects += [("clusterrole", role), ("clusterrolebinding", role)]

    def user(self, name: str) -> str:
        """Return the user name of an account for the API server."""
        return f"system:serviceaccount:{self.namespace}:{name}"

    def token(self, name: str, audience: str = "") -> str:
        """Return a token of an account. An empty audience gives a token for the API server."""
        if (name, audience) not in self.tokens:
            more = (f"--audience={audience}",) if audience else ()
            said = self.stage.cluster.kubectl("-n", self.namespace, "create", "token", name, *more)
            self.tokens[name, audience] = said.strip()
        return self.tokens[name, audience]

    def direct(self, name: str) -> Endpoint:
        """Return Fairgate's own endpoint for this account."""
        return direct(self.stage, self.token(name, "fairgate"))

    def api_server(self, name: str) -> Endpoint:
        """Return the API server for this account."""
        return api_server(self.stage, self.token(name))

    def aggregated(self, name: str) -> Endpoint:
        """Return the endpoint behind the API server for this account."""
        door = self.api_server(name)
        return Endpoint(door.base + AGGREGATED, door.context, door.token)


def direct(stage: Stage, token: str = "") -> Endpoint:
    """Return Fairgate's own endpoint."""
    details = stage.cluster.details()
    return Endpoint(str(details.api), ssl.create_default_context(cafile=details.ca), token)


def api_server(stage: Stage, token: str = "") -> Endpoint:
    """Return the API server."""
    cluster = yaml.safe_load(stage.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return Endpoint(cluster["server"], ssl.create_default_context(cadata=ca), token)


def own_token(stage: Stage, account: str, namespace: str, uid: str, seconds: int) -> str:
    """Return a token signed like those of the API server, valid for `seconds`."""
    key_file: Path = stage.cluster.folder / "pki" / "service-accounts.key"
    key = load_pem_private_key(key_file.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": ["fairgate"],
        "sub": f"system:serviceaccount:{namespace}:{account}",
        "iat": now - 3600,
        "nbf": now - 3600,
        "exp": now + seconds,
        "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": uid},
        },
    }
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "ES256"}, claims))
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _lower(headers: Any) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}
