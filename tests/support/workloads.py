"""Deployments and Jobs as manifests."""

from __future__ import annotations

from tests.support.cluster_driver import (
    Object,
    template,
)


def job(name: str, pods: int) -> Object:
    spec = {"parallelism": pods, "completions": pods, "template": template(1)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, pods: int) -> Object:
    spec = {
        "replicas": pods,
        "selector": {"matchLabels": {"app": "x"}},
        "template": template(1, policy="Always"),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": spec,
    }
