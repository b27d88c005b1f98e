"""Real users with real credentials, and the API server's answers to their requests."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.devcluster.api_client import close_if_ended
from app.devcluster.cluster import LocalCluster

PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Refused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Person:
    """A user, by a kubeconfig with a client certificate or a token.

    Connections are kept for later calls. Several threads may call at once.
    """

    def __init__(self, kubeconfig: Path | str) -> None:
        text = kubeconfig.read_text() if isinstance(kubeconfig, Path) else kubeconfig
        document = yaml.safe_load(text)
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self.server: str = cluster["server"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.context = ssl.create_default_context(cadata=ca)
        self._token: str | None = user.get("token")
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as pem:  # created with mode 0600
                for part in ("client-certificate-data", "client-key-data"):
                    pem.write(base64.b64decode(user[part]))
                pem.flush()
                self.context.load_cert_chain(pem.name)
        self._idle: list[http.client.HTTPSConnection] = []
        weakref.finalize(self, _close, self._idle)

    def call(self, method: str, path: str, body: object = None, kind: str = "merge") -> Any:
        """Send a request; a PATCH has a type of `PATCHES`. Raises Refused."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = PATCHES[kind]
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._idle.pop() if self._idle else self._connection()
        close_if_ended(connection)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except BaseException:
            connection.close()
            raise
        finally:
            self._idle.append(connection)
        if answer.status < 400:
            return json.loads(text)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = json.loads(text)["message"]
        raise Refused(answer.status, text)

    def _connection(self) -> http.client.HTTPSConnection:
        server = urlsplit(self.server)
        return http.client.HTTPSConnection(
            server.hostname or "", server.port, timeout=30, context=self.context
        )

    def get(self, path: str) -> Any:
        """Return an object. Raises Refused."""
        return self.call("GET", path)

    def refused(self, method: str, path: str, body: object, kind: str = "merge") -> str | None:
        """Return the message of the refusal of a request; None if accepted."""
        try:
            self.call(method, path, body, kind)
        except Refused as error:
            return error.message
        return None

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Return whether RBAC lets this user do this. A new binding counts after some time."""
        what = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self.call("POST", path, {"spec": {"resourceAttributes": what}})
        return bool(answer["status"]["allowed"])


def _close(idle: list[http.client.HTTPSConnection]) -> None:
    for connection in idle:
        connection.close()


def person(cluster: LocalCluster, name: str, groups: Sequence[str] = ()) -> Person:
    """Return a user with a client certificate, without rights until RBAC grants some."""
    return Person(cluster.create_user(name, groups))
