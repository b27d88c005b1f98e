"""An API server client with administrator rights: JSON over TLS, one connection per caller.

It does not interpret the objects. Every failure of the connection is an OSError.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One connection, opened again after a failure. Not thread-safe."""

    def __init__(self, kubeconfig: Path, seconds: float = 40.0) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._where = urlsplit(cluster["server"])
        self._seconds = seconds
        self._ssl = _context(cluster, user)
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        self._connection: http.client.HTTPSConnection | None = None

    def get(self, path: str, **query: str) -> Object:
        """Return the answer. Raises Refused, OSError."""
        try:
            answer = self._send(path, query)
            body = answer.read()
            document: Object = json.loads(body)
        except (http.client.HTTPException, ValueError) as error:
            self.close()
            raise OSError(f"{path}: {error!r}") from error
        except OSError:
            self.close()
            raise
        if answer.status >= 400:
            raise Refused(answer.status, str(document.get("message", body[:200])))
        return document

    def open(self, path: str, **query: str) -> http.client.HTTPResponse:
        """Return an answer that is still streaming. Raises Refused, OSError."""
        try:
            answer = self._send(path, query)
            if answer.status < 400:
                return answer
            message = answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            self.close()
            raise OSError(f"{path}: {error!r}") from error
        except OSError:
            self.close()
            raise
        raise Refused(answer.status, message[:200])

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, path: str, query: dict[str, str]) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self._where.hostname or "", self._where.port, timeout=self._seconds,
                context=self._ssl,
            )  # fmt: skip
        whole = f"{path}?{urlencode(query)}" if query else path
        self._connection.request("GET", whole, headers=self._headers)
        return self._connection.getresponse()


def _context(cluster: Object, user: Object) -> ssl.SSLContext:
    if "certificate-authority-data" in cluster:
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
    else:
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as pem:  # created with mode 0600
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]) + b"\n")
            pem.flush()
            context.load_cert_chain(pem.name)
    elif "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context
