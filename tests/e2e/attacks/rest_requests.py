"""Requests to the REST API with a token."""

from __future__ import annotations

import json
import ssl
import urllib.request
from urllib.error import HTTPError

from tests.e2e.attacks.attack_cluster import AttackEnvironment
from tests.support.personas import Person


def asked(
    env: AttackEnvironment, method: str, at: str, token: str, sent: object = None
) -> tuple[int, str]:
    """Send a request; return the status and the body. An empty token is not sent."""
    details = env.cluster.details()
    data = None if sent is None else json.dumps(sent).encode()
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{details.api}{at}", data, headers, method=method)
    context = ssl.create_default_context(cafile=details.ca)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def token_of(who: Person, namespace: str, **spec: object) -> str:
    """Return a token for the REST API, created by a user that may edit the namespace."""
    spec = {"audiences": ["fairgate"], "expirationSeconds": 600, **spec}
    at = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return str(who.call("POST", at, {"spec": spec})["status"]["token"])
