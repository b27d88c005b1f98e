"""The files a control plane reads at its start: audit policy, admission, scheduler.

Documents only; where they are kept and who reads them is said in control_plane. JSON is YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WRITES = ["create", "update", "patch", "delete", "deletecollection"]

GUARDED = [
    {
        "group": "",
        "resources": [
            "pods",
            "pods/binding",
            "pods/ephemeralcontainers",
            "pods/eviction",
            "pods/resize",
            "pods/status",
            "bindings",
            "namespaces",
            "nodes",
            "secrets",
            "serviceaccounts/token",
        ],
    },
    {"group": "fairgate.io"},
    {"group": "scheduling.k8s.io"},
    {"group": "admissionregistration.k8s.io"},
    {"group": "rbac.authorization.k8s.io"},
]


TOLD = [{"group": "", "resources": ["pods"]}, {"group": "fairgate.io"}]


def audit_policy(bodies: bool = False) -> dict[str, Any]:
    """Every write to what Fairgate guards or lives by; nothing else.

    `bodies`: with what was sent and answered about pods and Fairgate's own resources.
    """
    whole = {"level": "RequestResponse", "verbs": WRITES, "resources": TOLD}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            *([whole] if bodies else ()),
            {"level": "Metadata", "verbs": WRITES, "resources": GUARDED},
            {"level": "None"},
        ],
    }


def admission(webhook_kubeconfig: Path) -> dict[str, Any]:
    """The API server shows webhooks a client certificate, so that they know who calls."""
    webhooks = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(webhook_kubeconfig),
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {"name": plugin, "configuration": webhooks}
            for plugin in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
        ],
    }


def scheduler(kubeconfig: Path, qps: int) -> dict[str, Any]:
    """The stock scheduler, alone, and not throttled by its client."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": 2 * qps},
    }
