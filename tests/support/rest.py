"""Sends requests to the REST API of a real cluster with a real token."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.support.cluster_driver import Stage


def ask(stage: Stage, path: str, token: str | None) -> tuple[int, Any]:
    """GET a path of the API; return the status and the JSON of the answer."""
    details = stage.cluster.details()
    context = ssl.create_default_context(cafile=details.ca)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{details.api}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
