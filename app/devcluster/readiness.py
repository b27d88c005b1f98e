"""Waits until the components of the local cluster are ready, and finds free ports."""

from __future__ import annotations

import atexit
import random
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.core.errors import ClusterError, ClusterUnavailable
from app.devcluster.api_client import SetupClient

POLL_SECONDS = 0.05
PORTS = range(20_000, 32_000)
"""Below the ephemeral ports of the kernel, so that no connection takes a port first."""

_RESERVED_SOCKETS: list[socket.socket] = []
"""Sockets bound to the returned ports, so that no concurrent program chooses the same ports."""


@atexit.register
def _close_sockets() -> None:
    for kept in _RESERVED_SOCKETS:
        kept.close()


ReadyCondition = Callable[[], bool]


def wait_until(
    conditions: Mapping[str, ReadyCondition],
    *,
    seconds: float,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when every condition has been true once, each after those before it.

    `check` is called in between and may raise. ClusterUnavailable counts as false. Raises
    ClusterError, naming the missing conditions, after `seconds`.
    """
    missing = dict(conditions)
    reasons: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    while True:
        for name, condition in list(missing.items()):
            try:
                if not condition():
                    break
            except ClusterUnavailable as error:
                reasons[name] = str(error)
                break
            del missing[name]
        if not missing:
            return
        check()
        if time.monotonic() > deadline:
            told = "; ".join(
                f"{name} ({reasons[name]})" if name in reasons else name for name in missing
            )
            raise ClusterError(f"Not ready after {seconds:.0f} s: {told}.")
        time.sleep(POLL_SECONDS)


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of the loopback, which were not returned before.

    They stay reserved while this program runs: a socket that never listens is bound to each. A
    server that listens there must set SO_REUSEADDR, as servers usually do.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _RESERVED_SOCKETS.append(kept)
        found.append(port)
    raise ClusterError(f"No {count} ports are free between {PORTS.start} and {PORTS.stop}.")


WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairgate"
ENFORCEMENT = "/api/v1/namespaces/fairgate-system/configmaps/fairgate-enforcement"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/fairgate-create"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1.api.fairgate.io"
NAMESPACE = "default"
ANSWER_SECONDS = 2


def answers_ready(url: str) -> ReadyCondition:
    """Return a condition: /readyz at `url` answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_ready() -> bool:
        try:
            with opener.open(f"{url}/readyz", timeout=ANSWER_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return is_ready


def has_ca(api: SetupClient) -> bool:
    """Return whether the webhook has written its CA into its configuration."""
    webhooks = (api.find(WEBHOOKS) or {}).get("webhooks") or ()
    return bool(webhooks) and all(w["clientConfig"].get("caBundle") for w in webhooks)


def is_enforcing(api: SetupClient) -> bool:
    """Return whether the policies deny. True if the installation has no policies."""
    data = (api.find(ENFORCEMENT) or {}).get("data") or {}
    if not any("kind: ValidatingAdmissionPolicyBinding" in text for text in data.values()):
        return True
    found = (api.find(BINDING) or {}).get("spec", {})
    return "Deny" in found.get("validationActions", ())


def is_established(api: SetupClient, crd: str) -> bool:
    """Return whether the API server serves the kind of a CRD.

    `kubectl wait` cannot be used: it fails while the conditions of a new CRD are null.
    """
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}"
    return _has_condition(api.find(path), "Established")


def is_aggregated(api: SetupClient) -> bool:
    """Return whether the API server reaches the aggregated REST API."""
    return _has_condition(api.find(API_SERVICE), "Available")


def _has_condition(found: Any, condition: str) -> bool:
    """Return whether a condition of an object is true. New objects may have null conditions."""
    conditions = (found or {}).get("status", {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


def is_pod_held(api: SetupClient, managed: Sequence[str], exempt: Sequence[str]) -> bool:
    """Return whether a pod that requests a managed resource would be held now.

    Tried by a dry run, because the API server applies a webhook configuration with a delay. True
    if no pod can be tried.
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
