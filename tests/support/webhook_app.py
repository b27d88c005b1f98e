"""The webhook application with admission reviews to send."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import ASGIApp

from app.core.quantities import ManagedResources
from app.web.webhook.app import WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from tests.support.asgi import Reply, call

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
JSON = {"content-type": "application/json"}


def gpu_pod(count: Any = "1", **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": count}}}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def review(pod: Any, **request: Any) -> dict[str, Any]:
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "operation": "CREATE",
            "namespace": "team-a",
            "userInfo": {"username": "alice"},
            "object": pod,
            **request,
        },
    }


def app_of(view: WebhookCache) -> ASGIApp:
    enforced = WebhookConfig(ManagedResources(["nvidia.com/gpu"]), frozenset(["kube-system"]))
    return admission_app(view, enforced, lambda: view.is_ready)


async def post(app: ASGIApp, body: Any, headers: dict[str, str] = JSON) -> Reply:
    raw = body if isinstance(body, (bytes, list)) else msgspec.json.encode(body)
    return await call(app, "POST", "/admit", raw, headers)


async def answer(app: ASGIApp, body: Any) -> dict[str, Any]:
    reply = await post(app, body)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    decoded = reply.json
    assert decoded["apiVersion"] == "admission.k8s.io/v1"
    assert decoded["kind"] == "AdmissionReview"
    assert decoded["response"]["uid"] == UID
    response: dict[str, Any] = decoded["response"]
    return response
