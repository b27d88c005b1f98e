"""Real users with real credentials, and the API server's answers to their requests."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml

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
    """A user, by a kubeconfig with a client certificate or a token."""

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

    def call(self, method: str, path: str, body: object = None, kind: str = "merge") -> Any:
        """Send a request; a PATCH has a type of `PATCHES`. Raises Refused."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = PATCHES[kind]
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            text = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["message"]
            raise Refused(error.code, text) from error

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


def person(cluster: LocalCluster, name: str, groups: Sequence[str] = ()) -> Person:
    """Return a user with a client certificate, without rights until RBAC grants some."""
    return Person(cluster.user(name, groups))
