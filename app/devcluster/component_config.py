"""Configuration files of the control plane: audit policy, admission, scheduler.

Returns the documents; `control_plane` writes them as JSON, which is valid YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WRITES = ["create", "update", "patch", "delete", "deletecollection"]

LOGGED_RESOURCES = [
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


BODY_RESOURCES = [{"group": "", "resources": ["pods"]}, {"group": "fairgate.io"}]


def audit_policy(bodies: bool = False) -> dict[str, Any]:
    """Return an audit policy that logs every write to resources that Fairgate guards or uses.

    `bodies`: also log requests and responses for pods and for Fairgate's own resources.
    """
    whole = {"level": "RequestResponse", "verbs": WRITES, "resources": BODY_RESOURCES}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            *([whole] if bodies else ()),
            {"level": "Metadata", "verbs": WRITES, "resources": LOGGED_RESOURCES},
            {"level": "None"},
        ],
    }


def authentication(*providers: dict[str, Any]) -> dict[str, Any]:
    """Return the authentication configuration: the OIDC providers that the API server trusts."""
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": list(providers),
    }


def admission(webhook_kubeconfig: Path) -> dict[str, Any]:
    """Return the admission configuration: webhooks see a client certificate of the API server."""
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
    """Return the configuration of the default scheduler, without leader election."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": 2 * qps},
    }
