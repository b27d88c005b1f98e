"""Teams and a Policy for tests of reclaim on a cluster."""

from __future__ import annotations

from typing import Any

from tests.support.cluster_driver import GPU, Stage, until

NINE, SEVEN = "nine", "seven"


def policy(stage: Stage, **spec: Any) -> None:
    """Apply the Policy. It allows evictions at once unless `spec` says otherwise."""
    kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy"}
    spec = {"minRuntime": "0s", **spec}
    stage.apply("default", {**kind, "metadata": {"name": "default"}, "spec": spec})
    stage.objects.append(("policies.fairgate.io", "default"))


def team(stage: Stage, name: str, guarantee: int, pool: str = NINE, weight: str = "1") -> str:
    """Create a tenant and its namespace, wait until the leader has it, and return the namespace."""
    namespace = stage.namespace(name)
    quotas = [{"pool": pool, "guarantee": {GPU: guarantee}}]
    stage.tenant(name, weight, namespace, quotas=quotas)
    until("the leader knows it", lambda: "pending" in stage.get("tenant", name).get("status", {}))
    return namespace


def told(stage: Stage, namespace: str, reason: str) -> list[str]:
    """Return the events of a reason, each with the name of its pod."""
    found = stage.get("events", "-n", namespace, f"--field-selector=reason={reason}")["items"]
    return [f"{event['involvedObject']['name']}: {event['message']}" for event in found]
