"""The webhook's own port, reached directly and not through the API server."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.attacks.attack_cluster import RED, AttackEnvironment, body

JSON = {"content-type": "application/json"}
SECONDS = 20.0


class Port:
    """The address of the webhook. `stolen` has the API server's own client certificate."""

    def __init__(self, env: AttackEnvironment) -> None:
        details, pki = env.cluster.details(), env.cluster.folder / "pki"
        at = urlsplit(details.webhook or "")
        self.host, self.port = str(at.hostname), at.port or 443
        self._ca = str(details.ca)
        self.stolen = self.context(pki / "kube-apiserver-webhook-client")
        self.wrong = self.context(pki / "fairgate-dev-admin")
        self.bare = self.context()

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        """Return a TLS context that trusts the webhook, with this client certificate if given."""
        context = ssl.create_default_context(cafile=self._ca)
        if own is not None:
            context.load_cert_chain(own.with_suffix(".crt"), own.with_suffix(".key"))
        return context

    @contextmanager
    def connected(self, context: ssl.SSLContext) -> Iterator[http.client.HTTPSConnection]:
        """Use one connection for several posts."""
        connection = http.client.HTTPSConnection(
            self.host, self.port, timeout=SECONDS, context=context
        )
        try:
            yield connection
        finally:
            connection.close()

    def post(
        self,
        context: ssl.SSLContext,
        data: bytes,
        at: str = "/admit",
        headers: Mapping[str, str] = JSON,
        method: str = "POST",
    ) -> tuple[int, bytes]:
        """Post on a new connection. Raises OSError if the port does not answer."""
        with self.connected(context) as connection:
            connection.request(method, at, data, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()

    @contextmanager
    def crowded(self, mute: int, bare: int, slow: int) -> Iterator[None]:
        """Keep connections open: without handshake, without certificate, or with half a request."""
        with ExitStack() as stack:
            for _ in range(mute):
                stack.enter_context(self._reach())
            for _ in range(bare):
                stack.enter_context(self._greet(self.bare))
            for number in range(slow):
                tls = stack.enter_context(self._greet(self.stolen))
                tls.sendall(HALF_A_HEADING if number % 2 else HALF_A_BODY)
            yield

    def _reach(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=SECONDS)

    def _greet(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        return context.wrap_socket(self._reach(), server_hostname=self.host)


HALF_A_HEADING = b"POST /admit HTTP/1.1\r\nhost: x\r\ncontent-"
HALF_A_BODY = (
    b"POST /admit HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 4096\r\n\r\n{"
)


def review(item: Any = None, **changed: Any) -> dict[str, Any]:
    """Return an admission review of a pod of Mallory, as the API server sends it."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": RED,
        "name": "replayed",
        "userInfo": {"username": "mallory", "groups": ["system:authenticated"]},
        "object": body("replayed") if item is None else item,
        "oldObject": None,
        "dryRun": False,
        **changed,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def written(document: object) -> bytes:
    """Return JSON. NaN and lone surrogates are written as Python writes them."""
    return json.dumps(document).encode()
