"""The RBAC rules of the chart: each account of Fairgate has the rights it needs and no others."""

from __future__ import annotations

import json

import pytest

from app.devcluster.cluster import LocalCluster
from app.kube import enforcement_apply, enforcement_probes, enforcement_spec
from tests.support.chart import ROLES, Object
from tests.support.personas import Person

OURS = "fairgate-system"
OTHER = "default"
CANARY = enforcement_probes.NAMESPACE
TRIED = enforcement_apply.NORMAL_FORM
"""The object name for server-side dry runs of documents. No object with this name is stored."""

KEPT = [path.rpartition("/")[2] for path in enforcement_spec.PATHS.values()]
"""The kinds of objects that the webhook restores."""

ANY = ""
"""No namespace: all namespaces, or a cluster-scoped object."""

Right = tuple[str, str, str, str, str]
"""Account, verb, resource[/subresource][.group], namespace, name (empty: any)."""

ALLOWED: list[Right] = [
    *(
        (role, "create", review, ANY, "")
        for role in ("webhook", "controller")
        for review in (
            "tokenreviews.authentication.k8s.io",
            "subjectaccessreviews.authorization.k8s.io",
        )
    ),
    ("webhook", "list", "tenants.fairgate.io", ANY, ""),
    ("webhook", "watch", "policies.fairgate.io", ANY, ""),
    ("webhook", "watch", "namespaces", ANY, ""),
    ("webhook", "get", "pods", OTHER, "some"),
    ("webhook", "get", "jobs.batch", OTHER, "some"),
    ("webhook", "get", "rayjobs.ray.io", OTHER, "some"),
    ("webhook", "create", "secrets", OURS, ""),
    ("webhook", "get", "secrets", OURS, "fairgate-webhook-tls"),
    ("webhook", "patch", "secrets", OURS, "fairgate-webhook-tls"),
    (
        "webhook",
        "patch",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ANY,
        "fairgate",
    ),
    ("webhook", "watch", "priorityclasses.scheduling.k8s.io", ANY, ""),
    ("webhook", "create", "priorityclasses.scheduling.k8s.io", ANY, ""),
    ("webhook", "delete", "priorityclasses.scheduling.k8s.io", ANY, "fairgate-high"),
    *(
        ("webhook", verb, f"{kind}.admissionregistration.k8s.io", ANY, name)
        for kind in KEPT
        for verb, name in [("watch", ""), ("patch", TRIED), ("create", TRIED)]
    ),
    ("webhook", "create", f"{KEPT[0]}.admissionregistration.k8s.io", ANY, "fairgate"),
    ("webhook", "update", f"{KEPT[0]}.admissionregistration.k8s.io", ANY, "fairgate"),
    ("webhook", "watch", "configmaps", OURS, "fairgate-enforcement"),
    ("webhook", "create", "configmaps", OURS, "fairgate-enforcement"),
    ("webhook", "create", "events", OURS, ""),
    ("webhook", "create", "pods", CANARY, ""),
    ("webhook", "patch", "pods", CANARY, "fairgate-canary"),
    ("controller", "watch", "pods", ANY, ""),
    ("controller", "get", "pods", OTHER, "some"),
    ("controller", "patch", "pods", OTHER, "some"),
    ("controller", "list", "nodes", ANY, ""),
    ("controller", "watch", "pools.fairgate.io", ANY, ""),
    ("controller", "list", "policies.fairgate.io", ANY, ""),
    ("controller", "watch", "policies.fairgate.io", ANY, ""),
    ("controller", "patch", "tenants/status.fairgate.io", ANY, "team-a"),
    ("controller", "patch", "pools/status.fairgate.io", ANY, "h100"),
    ("controller", "patch", "policies/status.fairgate.io", ANY, "default"),
    ("controller", "create", "events", OTHER, ""),
    ("controller", "create", "pods/eviction", OTHER, "some"),
    ("controller", "patch", "pods/status", OTHER, "some"),
    ("controller", "create", "evictionrequests.lifecycle.k8s.io", OTHER, ""),
    ("controller", "delete", "pods", OTHER, "some"),
    ("controller", "watch", "poddisruptionbudgets.policy", ANY, ""),
    ("api", "watch", "poddisruptionbudgets.policy", ANY, ""),
    ("controller", "get", "jobs.batch", OTHER, "some"),
    ("controller", "get", "replicasets.apps", OTHER, "some"),
    ("controller", "get", "replicationcontrollers", OTHER, "some"),
    ("controller", "create", "configmaps", OURS, ""),
    ("controller", "get", "configmaps", OURS, "fairgate-installation"),
    ("controller", "patch", "configmaps", OURS, "fairgate-audit"),
    ("controller", "create", "secrets", OURS, ""),
    ("controller", "get", "secrets", OURS, "fairgate-audit"),
    ("controller", "patch", "secrets", OURS, "fairgate-audit"),
    ("controller", "watch", "resourceclaims.resource.k8s.io", ANY, ""),
    ("controller", "patch", "resourceclaims.resource.k8s.io", OTHER, "some"),
    ("controller", "list", "deviceclasses.resource.k8s.io", ANY, ""),
    *(
        (role, "watch", kind, ANY, "")
        for role in ("controller", "api")
        for kind in (
            "jobs.batch",
            "jobsets.jobset.x-k8s.io",
            "podgroups.scheduling.x-k8s.io",
            "podgroups.scheduling.k8s.io",
        )
    ),
    ("controller", "release", "podgates.fairgate.io", OTHER, ""),
    ("controller", "create", "leases.coordination.k8s.io", OURS, ""),
    ("controller", "patch", "leases.coordination.k8s.io", OURS, "fairgate-controller"),
    ("api", "watch", "tenants.fairgate.io", ANY, ""),
    ("api", "get", "pools.fairgate.io", ANY, "h100"),
    ("api", "list", "pods", ANY, ""),
    ("api", "create", "tokenreviews.authentication.k8s.io", ANY, ""),
    ("api", "create", "subjectaccessreviews.authorization.k8s.io", ANY, ""),
    ("api", "get", "secrets", OURS, "fairgate-webhook-tls"),
    *(
        ("api", verb, f"{kind}.fairgate.io", ANY, "some")
        for verb in ("create", "update", "patch", "delete")
        for kind in ("tenants", "pools")
    ),
    ("api", "update", "tenants/users.fairgate.io", ANY, "team-a"),
    ("api", "patch", "apiservices.apiregistration.k8s.io", ANY, "v1.api.fairgate.io"),
    ("api", "watch", "configmaps", "kube-system", "extension-apiserver-authentication"),
]

DENIED: list[Right] = [
    ("webhook", "get", "secrets", OURS, "redis"),
    ("webhook", "list", "secrets", OURS, ""),
    ("webhook", "create", "secrets", OTHER, ""),
    ("webhook", "delete", "secrets", OURS, "fairgate-webhook-tls"),
    (
        "webhook",
        "patch",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ANY,
        "other",
    ),
    (
        "webhook",
        "delete",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ANY,
        "fairgate",
    ),
    ("webhook", "patch", "priorityclasses.scheduling.k8s.io", ANY, "fairgate-high"),
    ("controller", "create", "priorityclasses.scheduling.k8s.io", ANY, ""),
    *(
        ("webhook", verb, f"{kind}.admissionregistration.k8s.io", ANY, name)
        for kind in KEPT
        for verb, name in [("create", ""), ("create", "other"), ("update", "other")]
    ),
    *(("webhook", "delete", f"{kind}.admissionregistration.k8s.io", ANY, TRIED) for kind in KEPT),
    ("webhook", "create", "configmaps", OURS, ""),
    ("webhook", "patch", "configmaps", OURS, "other"),
    ("webhook", "watch", "configmaps", ANY, ""),
    ("webhook", "delete", "configmaps", OURS, "fairgate-enforcement"),
    ("webhook", "create", "events", OTHER, ""),
    ("webhook", "list", "pods", CANARY, ""),
    ("webhook", "patch", "pods", CANARY, "some"),
    ("webhook", "create", "pods", OTHER, ""),
    ("webhook", "release", "podgates.fairgate.io", CANARY, ""),
    ("webhook", "patch", "pods", OTHER, "some"),
    ("webhook", "list", "pods", ANY, ""),
    ("webhook", "list", "jobs.batch", ANY, ""),
    ("webhook", "get", "widgets.acme.io", OTHER, "some"),
    ("webhook", "release", "podgates.fairgate.io", OTHER, ""),
    ("webhook", "update", "tenants.fairgate.io", ANY, "team-a"),
    ("controller", "create", "pods", OTHER, ""),
    ("controller", "list", "secrets", ANY, ""),
    ("controller", "get", "secrets", OURS, "fairgate-webhook-tls"),
    ("controller", "delete", "configmaps", OURS, "fairgate-audit"),
    ("webhook", "get", "secrets", OURS, "fairgate-audit"),
    ("controller", "update", "pods", OTHER, "some"),
    ("controller", "update", "configmaps", OURS, "fairgate-installation"),
    ("controller", "get", "configmaps", OURS, "other"),
    ("controller", "create", "configmaps", OTHER, ""),
    ("controller", "update", "pods/status", OTHER, "some"),
    ("controller", "create", "pods/binding", OTHER, "some"),
    ("controller", "patch", "nodes", ANY, "some"),
    ("controller", "delete", "resourceclaims.resource.k8s.io", OTHER, "some"),
    ("controller", "patch", "resourceclaims/status.resource.k8s.io", OTHER, "some"),
    ("controller", "patch", "jobs.batch", OTHER, "some"),
    ("controller", "patch", "tenants.fairgate.io", ANY, "team-a"),
    ("controller", "update", "tenants/status.fairgate.io", ANY, "team-a"),
    ("controller", "get", "secrets", OURS, "fairgate-webhook-tls"),
    (
        "controller",
        "patch",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ANY,
        "fairgate",
    ),
    ("controller", "patch", "leases.coordination.k8s.io", OURS, "other"),
    ("controller", "create", "leases.coordination.k8s.io", "kube-system", ""),
    ("api", "patch", "policies.fairgate.io", ANY, "default"),
    ("api", "deletecollection", "tenants.fairgate.io", ANY, ""),
    ("api", "create", "apiservices.apiregistration.k8s.io", ANY, "v1.api.fairgate.io"),
    ("api", "patch", "apiservices.apiregistration.k8s.io", ANY, "v1beta1.metrics.k8s.io"),
    ("api", "get", "configmaps", "kube-system", "other"),
    ("api", "patch", "configmaps", "kube-system", "extension-apiserver-authentication"),
    ("api", "patch", "tenants/status.fairgate.io", ANY, "team-a"),
    ("api", "create", "pods", OTHER, ""),
    ("api", "patch", "pods", OTHER, "some"),
    ("api", "release", "podgates.fairgate.io", OTHER, ""),
    ("api", "create", "secrets", OURS, ""),
    ("api", "get", "secrets", OURS, "redis"),
    ("api", "impersonate", "users", ANY, "anybody"),
]


def may(cluster: LocalCluster, right: Right) -> bool:
    """Ask the API server, as `kubectl auth can-i` does."""
    account, verb, what, namespace, name = right
    resource, _, group = what.partition(".")
    resource, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{OURS}:fairgate-{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "namespace": namespace,
                "name": name,
            },
        },
    }
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    said = Person(cluster.kubeconfig).call("POST", reviews, review)
    return bool(said["status"]["allowed"])


@pytest.mark.parametrize("right", ALLOWED, ids=" ".join)
def test_account_may(installed: LocalCluster, right: Right) -> None:
    assert may(installed, right)


@pytest.mark.parametrize("right", DENIED, ids=" ".join)
def test_account_may_not(installed: LocalCluster, right: Right) -> None:
    assert not may(installed, right)


def rules_of(cluster: LocalCluster, *accounts: str) -> list[Object]:
    """Return every rule of the accounts' roles."""
    names = [f"fairgate-{each}" for each in accounts]
    wide = cluster.kubectl("get", "clusterroles", *names, "-o", "json")
    own = cluster.kubectl("-n", OURS, "get", "roles", *names, "-o", "json")
    roles = [role for said in (wide, own) for role in listed(said)]
    return [rule for role in roles for rule in role["rules"]]


def listed(said: str) -> list[Object]:
    """Return the objects that kubectl printed, one alone or a list."""
    found: Object = json.loads(said)
    return list(found.get("items", [found]))


def test_no_account_has_a_wildcard(installed: LocalCluster) -> None:
    assert not [rule for rule in rules_of(installed, *ROLES) if "*" in str(rule)]


def test_api_account_may_write_only_reviews_and_rest_resources(installed: LocalCluster) -> None:
    written = {
        resource
        for rule in rules_of(installed, "api")
        if set(rule["verbs"]) - {"get", "list", "watch"}
        for resource in rule["resources"]
    }
    asks = {"tokenreviews", "subjectaccessreviews"}
    assert written == asks | {"tenants", "tenants/users", "pools", "apiservices"}
