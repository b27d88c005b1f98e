"""The core, the policies and the webhook give the same answers, case by case.

The cases run twice on the real API server with real users: first with the policies alone, then with
the webhook alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from app.config.settings import MANAGED
from app.core.admission.hold import DenyDecision, IgnoreDecision
from app.core.admission.pod_templates import group_by_resource
from app.core.admission.validation import PodValidator, ValidationRules
from app.core.admission.workload_kinds import BUILT_IN
from app.core.podspec.resource_claims import IMPLICIT
from app.core.quantities import ManagedResources
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import KWOK_USER
from app.k8s_types.admission import DeleteOptions, RequestedResource, UserInfo
from app.web.webhook.admission_review import Request
from app.web.webhook.cache import WebhookCache
from app.web.webhook.handlers import HandlerContext, ValidateHandler
from tests.contract.enforcement_cases import (
    ALICE,
    CASES,
    CLAIMS,
    CLASS,
    KUBE_SCHEDULER,
    NODE,
    OTHER_NODE,
    RELEASER,
    SECOND_SCHEDULER,
    Case,
    extended_claim,
)
from tests.support.chart import Object
from tests.support.cluster_driver import until
from tests.support.enforcement_layers import POLICIES, VALIDATING, keep_only
from tests.support.kubernetes_features import require_extended_resources
from tests.support.personas import Person, person

HOME = "rules"
RULES = ValidationRules(scheduler_users=(KUBE_SCHEDULER, SECOND_SCHEDULER))
IDS = [case.rule.replace(" ", "-") for case in CASES]


# --- the rules themselves ---


@pytest.fixture(scope="module")
def validation() -> ValidateHandler:
    kinds = group_by_resource(BUILT_IN)
    managed, exempt = ManagedResources((*MANAGED, IMPLICIT + "*")), frozenset(["kube-system"])
    context = HandlerContext(
        WebhookCache(), managed, exempt, PodValidator(RULES), kinds, lambda: True
    )
    return ValidateHandler(context, frozenset([RELEASER]))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_rules_say(case: Case, validation: ValidateHandler) -> None:
    group, resource = case.resource
    request = Request(
        uid="x",
        operation=case.operation,
        resource=RequestedResource(group, resource),
        sub_resource=case.subresource,
        namespace=HOME,
        user_info=UserInfo(case.caller),
        options=DeleteOptions(case.grace) if case.deletes else None,
        object=None if case.deletes else case.after,
        old_object=None if case.evicts else case.before,
    )
    wanted = DenyDecision(403, case.sentence) if case.sentence else IgnoreDecision()
    assert validation.decide(request) == wanted


# --- the policies alone, and the webhook alone ---


@dataclass
class Court:
    """A cluster that enforces with one layer, and the users that send requests."""

    cluster: LocalCluster
    layer: str
    people: dict[str, Person]

    def judge(self, case: Case) -> str | None:
        """Send the request; return the message of the refusal, None if it was accepted."""
        if case.deletes:
            return self.delete(case)
        if case.evicts:
            return self.evict(case)
        return self.create(case) if case.before is None else self.change(case)

    def delete(self, case: Case) -> str | None:
        where = f"{_path(case)}/{_name(case)}?dryRun=All"
        return self.people[case.caller].refused("DELETE", where, case.options)

    def evict(self, case: Case) -> str | None:
        eviction = case.after
        eviction["metadata"]["name"] = _name(case)
        eviction["deleteOptions"]["dryRun"] = ["All"]
        where = f"{_path(case)}/{_name(case)}/eviction"
        return self.people[case.caller].refused("POST", where, eviction)

    def create(self, case: Case) -> str | None:
        made = case.after
        made["metadata"]["generateName"] = "made-"
        path = f"{_path(case)}?dryRun=All"
        return self.people[case.caller].refused("POST", path, made)

    def change(self, case: Case) -> str | None:
        """Change an object that existed before the layer. Only `change` may cause a refusal."""
        where = f"{_path(case)}/{_name(case)}"
        admin = self.people["admin"]
        assert case.change is not None
        for _ in range(5):  # controllers write it too
            found = admin.get(where)
            found["metadata"].setdefault("annotations", {})
            found["metadata"].setdefault("labels", {})
            case.change(found)
            at = f"{where}/{case.subresource}" if case.subresource else where
            said = self.people[case.caller].refused("PUT", f"{at}?dryRun=All", found)
            if said is None or "the object has been modified" not in said:
                return said
        raise AssertionError(f"{where} changes all the time")


@pytest.fixture(scope="module", params=["policies", "webhook"])
def court(request: pytest.FixtureRequest, cluster_tools: Tools) -> Iterator[Court]:
    """A cluster with the objects to change later; the layer is installed after them."""
    layer: str = request.param
    cluster = LocalCluster(folders.own_folder(f"rules-{layer}"))
    try:
        rules = {"scheduler_users": RULES.scheduler_users, "phase_writers": (KWOK_USER,)}
        environment = {"FAIRGATE_RULES": json.dumps(rules)}
        cluster.up(ClusterOptions(nodes=1, fairgate=False, environment=environment))
        court = Court(cluster, layer, _people(cluster))
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        twin = {"metadata": {"name": CLASS}, "value": 0, "preemptionPolicy": "Never"}
        court.people["admin"].call(
            "POST", f"/apis/{kind['apiVersion']}/priorityclasses", kind | twin
        )
        for case in CASES:
            if case.before is not None:
                made = json.loads(json.dumps(case.before))
                made["metadata"]["name"] = _name(case)
                court.people["admin"].call("POST", _path(case), made)
                if case.resource == CLAIMS and "status" in made:
                    path = f"{_path(case)}/{_name(case)}/status"
                    body = {"status": made["status"]}
                    court.people["admin"].call("PATCH", path, body)
        _enforce(court)
        yield court
    finally:
        cluster.down()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_api_server_gives_the_expected_answer(
    case: Case, court: Court, cluster_tools: Tools
) -> None:
    if case.change is extended_claim:
        require_extended_resources(cluster_tools)
    said = court.judge(case)
    if case.sentence is None:
        assert said is None
    else:
        assert said is not None, "it was allowed"
        assert case.sentence in said
        assert ("AdmissionPolicy" in said) == (court.layer == "policies")


def test_binding_is_refused_without_the_verb_bind(court: Court) -> None:
    admin, alice = court.people["admin"], court.people[ALICE]
    free = {"spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"rules": "no"}}}
    admin.call("POST", f"/api/v1/namespaces/{HOME}/pods", {"metadata": {"name": "free"}, **free})
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "free"},
        "target": {"kind": "Node", "name": "node-0"},
    }
    for path in ("pods/free/binding", "bindings"):
        said = alice.refused("POST", f"/api/v1/namespaces/{HOME}/{path}", binding)
        assert said is not None
        assert "only accounts with the verb bind" in said


def test_pods_are_bound_by_the_scheduler(court: Court) -> None:
    admin = court.people["admin"]
    body = {"metadata": {"name": "bound"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    admin.call("POST", f"/api/v1/namespaces/{HOME}/pods", body)
    where = f"/api/v1/namespaces/{HOME}/pods/bound"
    until("it is bound", lambda: bool(admin.get(where)["spec"].get("nodeName")))
    until("it runs", lambda: admin.get(where)["status"].get("phase") == "Running")


# --- tenants ---

TEAM_NAMESPACES = [f"n{number}".rjust(63, "n") for number in range(499)]
"""Nearly as many, and as long, as a Tenant may have: to compare them costs the API server most."""
GONE = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone"}


@pytest.mark.parametrize(
    ("rule", "who", "change", "sentence"),
    [
        ("own users", "lead", {"users": [{"name": "x", "weight": "2"}]}, None),
        ("users with names of 64 000 characters", "lead", {"users": [{"name": f"{n:064}"} for n in range(1000)]}, None),
        ("users with longer names", "lead", {"users": [{"name": f"{n:066}"} for n in range(1000)]}, "list fewer users"),
        ("own weight", "lead", {"weight": "9"}, "the right to update its parent"),
        ("own guarantee", "lead", {"quotas": [{"pool": "p", "guarantee": {"nvidia.com/gpu": 1}}]}, "the right to update its parent"),
        ("weight and users by an administrator", "admin", {"weight": "3", "users": [{"name": "y"}]}, None),
        ("weight and users by its own admin", "lead", {"weight": "3", "users": [{"name": "y"}]}, "the right to update its parent"),
        ("another parent", "lead", {"parent": "other"}, "the right to update its parent"),
        ("a child's weight by the parent's admin", "head", {"weight": "9"}, None),
        ("a child's users by the parent's admin", "head", {"users": [{"name": "x"}]}, "tenants/users"),
        ("up to the top by the parent's admin", "head", {"parent": None}, "the right to update its parent"),
        ("a namespace more by the parent's admin", "head", {"namespaces": [*TEAM_NAMESPACES, "other"]}, "gains a namespace"),
        ("another namespace by the parent's admin", "head", {"namespaces": ["other", *TEAM_NAMESPACES[1:]]}, "gains a namespace"),
        ("a namespace less by the parent's admin", "head", {"namespaces": TEAM_NAMESPACES[1:]}, None),
        ("a namespace less and another parent by an administrator", "admin", {"namespaces": TEAM_NAMESPACES[1:], "parent": None}, None),
        ("a namespace more by an administrator", "admin", {"namespaces": [*TEAM_NAMESPACES, "other"]}, None),
    ],
)  # fmt: skip
def test_a_tenant_is_governed_from_above(
    court: Court, rule: str, who: str, change: Object, sentence: str | None
) -> None:
    path = "/apis/fairgate.io/v1alpha1/tenants/team?dryRun=All"
    said = court.people[who].refused("PATCH", path, {"spec": change})
    if sentence is None:
        assert said is None, rule
    else:
        assert said is not None, rule
        assert sentence in said


@pytest.mark.parametrize("links", [{"ownerReferences": [GONE]}, {"finalizers": ["example.com/x"]}])
def test_tenant_admin_cannot_change_owner_references_or_finalizers(
    court: Court, links: Object
) -> None:
    """The garbage collector deletes an object whose owner does not exist."""
    path = "/apis/fairgate.io/v1alpha1/tenants/team?dryRun=All"
    said = court.people["lead"].refused("PATCH", path, {"metadata": links})
    assert "the right to update its parent" in str(said)
    assert court.people["admin"].refused("PATCH", path, {"metadata": links}) is None


def test_creating_or_deleting_a_tenant_requires_a_right_on_its_parent(court: Court) -> None:
    tenants = "/apis/fairgate.io/v1alpha1/tenants"
    child = {"metadata": {"name": "child"}, "spec": {"parent": "team"}}
    top = {"metadata": {"name": "top"}, "spec": {}}
    kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Tenant"}
    lead = court.people["lead"]
    assert lead.refused("POST", f"{tenants}?dryRun=All", {**kind, **child}) is None
    assert "right to update its parent" in str(lead.refused("POST", tenants, {**kind, **top}))
    assert "right to update its parent" in str(lead.refused("DELETE", f"{tenants}/team", None))


def _people(cluster: LocalCluster) -> dict[str, Person]:
    admin = Person(cluster.kubeconfig)
    names = (ALICE, RELEASER, NODE, OTHER_NODE, KUBE_SCHEDULER, SECOND_SCHEDULER, "lead", "head")
    people = {"admin": admin, **{name: person(cluster, name) for name in names}}
    apply = ("apply", "-f", "-")
    cluster.kubectl("create", "namespace", HOME)
    account = f"/api/v1/namespaces/{HOME}/serviceaccounts/default"
    until("pods can be made", lambda: admin.refused("GET", account, None) is None)
    subresources = [
        f"pods/{s}" for s in ("status", "binding", "resize", "ephemeralcontainers", "eviction")
    ]
    everything = {"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["*"]}
    claims = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["*"]}
    doors = {"apiGroups": [""], "resources": [*subresources, "bindings"], "verbs": ["*"]}
    release = {"apiGroups": ["fairgate.io"], "resources": ["podgates"], "verbs": ["release"]}
    tenants = {"apiGroups": ["fairgate.io"], "resources": ["tenants"]}
    lead = [
        {**tenants, "verbs": ["create", "delete"]},
        {**tenants, "verbs": ["get", "update", "patch"], "resourceNames": ["team"]},
        {**tenants, "resources": ["tenants/users"], "verbs": ["update"], "resourceNames": ["team"]},
    ]
    head = [
        {**tenants, "verbs": ["get", "patch"]},
        {**tenants, "verbs": ["update"], "resourceNames": ["above"]},
    ]
    editor = [everything, claims, doors]
    rights = {
        ALICE: editor,
        NODE: editor,
        OTHER_NODE: editor,
        KUBE_SCHEDULER: editor,
        SECOND_SCHEDULER: editor,
        RELEASER: [everything, claims, doors, release],
    }
    bind = [{"apiGroups": ["fairgate.io"], "resources": ["podgates"], "verbs": ["bind"]}]
    everywhere = {"lead": lead, "head": head, SECOND_SCHEDULER: bind}
    documents = [*_granted(rights, "Role"), *_granted(everywhere, "ClusterRole")]
    cluster.kubectl(*apply, stdin=yaml.safe_dump_all(documents))
    return people


def _granted(rights: dict[str, list[Any]], kind: str) -> Iterator[Object]:
    group, where = "rbac.authorization.k8s.io", {"namespace": HOME} if kind == "Role" else {}
    for name, rules in rights.items():
        metadata = {"name": f"rules-{name}", **where}
        yield {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules}
        yield {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": f"rules-{name}"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
        }


def _enforce(court: Court) -> None:
    """Install the chart and remove the other layer."""
    cluster = court.cluster
    cluster.start_fairgate("webhook")  # it creates the objects of both layers
    keep_only(cluster, VALIDATING if court.layer == "webhook" else POLICIES)
    tenant = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Tenant"}
    team = {"parent": "above", "namespaces": TEAM_NAMESPACES}
    for name, spec in (("above", {}), ("team", team)):
        admin = court.people["admin"]
        body = {**tenant, "metadata": {"name": name}, "spec": spec}
        admin.call("POST", "/apis/fairgate.io/v1alpha1/tenants", body)
    samples = ("a pod without the gate", "privilege", "a gang", "a colleague's stamp on a Job")
    samples += ("a bound pod deleted at once", "a bound pod evicted at once")
    samples += ("the finalizer is removed",)
    for case in CASES:
        if case.rule in samples:
            until(f"{case.rule} meets the layer", partial(_meets, court, case))


def _meets(court: Court, case: Case) -> bool:
    said = court.judge(case)
    return said is not None and ("AdmissionPolicy" in said) == (court.layer == "policies")


def _path(case: Case) -> str:
    group, resource = case.resource
    root = f"/apis/{group}/v1" if group else "/api/v1"
    return f"{root}/namespaces/{HOME}/{resource}"


def _name(case: Case) -> str:
    return "".join(c if c.isalnum() else "-" for c in case.rule.lower())
