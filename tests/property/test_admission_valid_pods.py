"""Valid pods in every form: the independent `pod_judge` decides which are held and which unchanged.

FAIRGATE_FUZZ sets the number of reviews, and FAIRGATE_SEED the random seed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from app.core.events import SourceFresh, WatchedSource
from app.core.model import Millis
from app.core.quantities import ManagedResources
from app.web.webhook.app import WebhookConfig, admission_app
from app.web.webhook.cache import WebhookCache
from tests.support import pod_judge, valid_pods
from tests.support.asgi import call
from tests.support.json_patch import PatchFailed, apply

REVIEWS = int(os.environ.get("FAIRGATE_FUZZ") or 2000)
SEED = int(os.environ.get("FAIRGATE_SEED") or 0)
MANAGED = ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-*")
USERS = ("alice", "system:serviceaccount:a:b", "Ünï@example.com", "x" * 300, "a/b c")

pytestmark = pytest.mark.timeout(120 + REVIEWS // 20)


def review(random: Random, pod: dict[str, Any]) -> dict[str, Any]:
    """Return an AdmissionReview as in the API reference, with fields omitted or null."""
    request: dict[str, Any] = {
        "uid": f"{random.getrandbits(64):x}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team-a",
        "userInfo": {"username": random.choice(USERS), "groups": ["system:authenticated"]},
        "object": pod,
    }
    optional = {
        "name": pod["metadata"].get("name", ""),
        "subResource": "",
        "dryRun": random.random() < 0.5,
        "oldObject": None,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        "requestKind": request["kind"],
    }
    for key, value in optional.items():
        if random.random() < 0.5:
            request[key] = value if random.random() < 0.9 else None
    if random.random() < 0.1:
        request["userInfo"].update(random.choice(({"groups": None}, {"extra": {"a": ["b"]}})))
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def faults(request: dict[str, Any], status: int, answer: dict[str, Any]) -> list[str]:
    """Return the errors in the answer to a review of a valid pod."""
    response = answer.get("response", {})
    if status != 200 or response.get("uid") != request["uid"]:
        return [f"status {status}: {answer}"]
    if not response["allowed"]:
        return [f"refused: {response['status']}"]
    pod = request["object"]
    if not pod_judge.is_managed(pod, MANAGED):
        return [f"patched: {response['patch']}"] if response.get("patch") else []
    try:
        held = apply(pod, json.loads(base64.b64decode(response.get("patch", "W10="))))
    except PatchFailed as error:
        return [f"the patch does not apply: {error}"]
    return pod_judge.faults_of_held(pod, held, request["userInfo"]["username"])


def test_valid_pods_are_held_if_managed_and_untouched_otherwise() -> None:
    bad: list[str] = []
    seen: Counter[bool] = Counter()

    async def run() -> None:
        view = WebhookCache()
        await view.put(SourceFresh(Millis(0), WatchedSource.TENANTS))
        app = admission_app(
            view, WebhookConfig(ManagedResources(MANAGED), frozenset()), lambda: True
        )
        for number in range(REVIEWS):
            random = Random(f"{SEED}-{number}")
            document = review(random, valid_pods.draw(random))
            body = json.dumps(document, ensure_ascii=random.random() < 0.5).encode()
            reply = await call(app, "POST", "/admit", body, {"content-type": "application/json"})
            found = faults(document["request"], reply.status, reply.json if reply.body else {})
            bad.extend(f"pod {SEED}-{number}: {each}" for each in found)
            seen[pod_judge.is_managed(document["request"]["object"], MANAGED)] += 1

    asyncio.run(run())
    print(f"{REVIEWS} reviews, {seen[True]} of managed pods: {len(bad)} bad")
    assert bad == []
    assert min(seen.values()) > REVIEWS // 10
