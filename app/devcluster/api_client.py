"""Blocking client of the API server with administrator rights, for the setup of a cluster.

Fairgate itself uses `app.kube`.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable

TIMEOUT_SECONDS = 10.0


class SetupClient:
    """One connection to the API server, with a client certificate; closed by `with`."""

    def __init__(self, server: str, ca: Path, certificate: Path, key: Path) -> None:
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(certificate, key)
        at = urlsplit(server)
        self._connection = http.client.HTTPSConnection(
            at.hostname or "", at.port, timeout=TIMEOUT_SECONDS, context=context
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send one request and return the JSON of its answer; None if the body is not JSON.

        Raises ClusterRefused for 4xx, ClusterUnavailable for 5xx or no answer.
        """
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        close_if_ended(self._connection)
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            status, answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ClusterUnavailable(f"{method} {path}: no answer, {error}") from error
        if status >= 500:
            raise ClusterUnavailable(f"{method} {path}: {status} {_error_message(answer)}")
        if status >= 400:
            raise ClusterRefused(f"{method} {path}: {status} {_error_message(answer)}", status)
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return None

    def create(self, path: str, body: object) -> None:
        """Create an object. An existing object is left unchanged."""
        try:
            self.call("POST", path, body)
        except ClusterRefused as error:
            if error.status != 409:
                raise

    def find(self, path: str) -> Any:
        """Return an object; None if it does not exist."""
        try:
            return self.call("GET", path)
        except ClusterRefused as error:
            if error.status != 404:
                raise
            return None

    def __enter__(self) -> SetupClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def close_if_ended(connection: http.client.HTTPConnection) -> None:
    """Close an idle connection that the server has closed. The next request opens a new one."""
    if connection.sock is not None:
        idle = select.poll()
        idle.register(connection.sock, select.POLLIN)
        if idle.poll(0):
            connection.close()


def _error_message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace").strip()[:500]
