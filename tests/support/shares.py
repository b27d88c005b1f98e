"""Policy, quotas and status of tenants on a cluster."""

from __future__ import annotations

from typing import Any

from tests.support.cluster_driver import GPU, Object, Stage


def quotas(**amounts: int) -> list[Object]:
    """Return quotas for the single pool of a cluster without Pools."""
    return [{"pool": "default", **{kind: {GPU: count} for kind, count in amounts.items()}}]


def policy(stage: Stage, **spec: Any) -> None:
    """Apply the Policy, which is deleted when the test ends."""
    kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy"}
    stage.apply("default", {**kind, "metadata": {"name": "default"}, "spec": spec})
    stage.objects.append(("policies.fairgate.io", "default"))


def status(stage: Stage, tenant: str) -> Object:
    return dict(stage.get("tenant", tenant).get("status", {}))
