"""Builders of in-memory clusters, and of an installed Fairgate, for tests of `fairgate doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from app.commands.doctor.assumptions import planned_settings
from app.commands.doctor.snapshot import ClusterSnapshot, take_snapshot
from tests.fakes.fake_cluster_survey import FakeSurvey
from tests.support.doctor_cluster import GPU, made, pod

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOME = "fairgate-system"

PATHS = {
    "Pod": "/api/v1/pods",
    "Node": "/api/v1/nodes",
    "Event": "/api/v1/events",
    "ResourceQuota": "/api/v1/resourcequotas",
    "ConfigMap": "/api/v1/configmaps",
    "Secret": "/api/v1/secrets",
    "Deployment": "/apis/apps/v1/deployments",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Job": "/apis/batch/v1/jobs",
    "CronJob": "/apis/batch/v1/cronjobs",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "Lease": "/apis/coordination.k8s.io/v1/leases",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/"
    "validatingadmissionpolicybindings",
    "Policy": "/apis/fairgate.io/v1alpha1/policies",
    "Tenant": "/apis/fairgate.io/v1alpha1/tenants",
    "Pool": "/apis/fairgate.io/v1alpha1/pools",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/"
    "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/"
    "validatingwebhookconfigurations",
}

NODE = made("Node", "v1", "n", status={"capacity": {"cpu": "8", GPU: "4"}})


def cluster(
    *objects: Object, version: str = "v1.36.0", forbidden: Iterable[str] = ()
) -> FakeSurvey:
    """Return a cluster with these objects and one node with GPUs."""
    fake = FakeSurvey(forbidden=frozenset(forbidden))
    for item in (NODE, *objects):
        fake.add(PATHS[item["kind"]], [item])
    policies = [{"name": "validatingadmissionpolicies"}]
    fake.documents = {
        "/version": {"gitVersion": version},
        "/apis/admissionregistration.k8s.io/v1": {"resources": policies},
        "/apis/resource.k8s.io": {"preferredVersion": {"groupVersion": "resource.k8s.io/v1"}},
    }
    return fake


def look(fake: FakeSurvey, values: str = "") -> ClusterSnapshot:
    """Return the snapshot of a cluster, judged by a values file."""
    return asyncio.run(take_snapshot(fake, HOME, planned_settings(values) if values else None))


def time_of(age: timedelta) -> str:
    return (NOW - age).isoformat().replace("+00:00", "Z")


def installed(**changes: Object) -> dict[str, Object]:
    """Return the objects of a Fairgate in order, by kind. `changes` replaces some.

    `WebhookPod` is its pod, `Pod` the canary.
    """
    api = "admissionregistration.k8s.io/v1"
    hook = {"name": "hold.fairgate.io", "clientConfig": {"service": {}, "caBundle": "eA=="}}
    environment = [
        {"name": "FAIRGATE_EXEMPT_NAMESPACES", "value": "kube-system,calico-system"},
        {"name": "FAIRGATE_MANAGED_RESOURCES", "value": GPU},
    ]
    container = {"name": "fairgate", "image": "example.com/fairgate:1", "env": environment}
    labels = {"app.kubernetes.io/name": "fairgate", "app.kubernetes.io/component": "webhook"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    ready = made("Pod", "v1", "fairgate-webhook-0", HOME, spec={})
    ready["metadata"]["labels"] = labels
    ready["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    lease = {
        "holderIdentity": "controller-1",
        "leaseDurationSeconds": 15,
        "renewTime": time_of(timedelta(seconds=2)),
    }
    slices = made("EndpointSlice", "discovery.k8s.io/v1", "s", HOME)
    slices["metadata"]["labels"] = {"kubernetes.io/service-name": "fairgate-webhook"}
    slices["endpoints"] = [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]
    gates = [{"name": "fairgate.io/canary"}, {"name": "fairgate.io/queue"}]
    return {
        "Deployment": made(
            "Deployment",
            "apps/v1",
            "fairgate-webhook",
            HOME,
            spec={"replicas": 1, "template": template},
        ),
        "WebhookPod": ready,
        "MutatingWebhookConfiguration": made(
            "MutatingWebhookConfiguration", api, "fairgate", webhooks=[hook]
        ),
        "ValidatingWebhookConfiguration": made(
            "ValidatingWebhookConfiguration", api, "fairgate", webhooks=[hook]
        ),
        "EndpointSlice": slices,
        "Lease": made("Lease", "x", "fairgate-controller", HOME, spec=lease),
        "Policy": made("Policy", "x", "default", spec={"mode": "Enforce"}),
        "Pod": pod("fairgate-canary", "fairgate-canary", 1, schedulingGates=gates),
        **changes,
    }
