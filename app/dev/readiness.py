"""What must be true before Fairgate counts as ready in the local cluster. Changes nothing."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

from app.dev.api import Api
from app.dev.ready import Condition

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairgate"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1.api.fairgate.io"
NAMESPACE = "default"
ANSWER_SECONDS = 2


def answers_ready(url: str) -> Condition:
    """Return a condition: the process whose operations are at `url` calls itself ready."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_ready() -> bool:
        try:
            with opener.open(f"{url}/readyz", timeout=ANSWER_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return is_ready


def has_ca(api: Api) -> bool:
    """Tell whether the webhook has written its CA into its configuration."""
    webhooks = (api.find(WEBHOOKS) or {}).get("webhooks") or ()
    return bool(webhooks) and all(w["clientConfig"].get("caBundle") for w in webhooks)


def is_aggregated(api: Api) -> bool:
    """Tell whether the API server reaches the REST API behind it."""
    conditions = (api.find(API_SERVICE) or {}).get("status", {}).get("conditions") or ()
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


def holds(api: Api, managed: Sequence[str], exempt: Sequence[str]) -> bool:
    """Tell whether a pod that asks for a managed resource would be held now.

    The API server learns of a webhook's configuration late. True if that cannot be tried.
    """
    exact = [name for name in managed if not name.endswith("*")]
    if NAMESPACE in exempt or not exact:
        return True
    container = {"name": "c", "image": "c", "resources": {"limits": {exact[0]: "1"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "fairgate-dev-probe-"},
        "spec": {"containers": [container]},
    }
    made = api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    return bool(made["spec"].get("schedulingGates"))
