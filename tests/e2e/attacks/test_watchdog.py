"""Row 28: attacks on the enforcement itself, by a namespace user and by an administrator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.devcluster.fairgate_install import NAMESPACE
from tests.e2e.attacks.attack_cluster import OPEN, RED, AttackEnvironment, body, layer_of, path
from tests.e2e.attacks.attack_helpers import rule, somebody
from tests.e2e.attacks.attack_namespaces import only, yard
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.support.cluster_driver import Object, Stage, audited, until

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
SYSTEM = f"/api/v1/namespaces/{NAMESPACE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/fairgate-controller"
SECRET = f"{SYSTEM}/secrets/fairgate-webhook-tls"
MAP = f"{SYSTEM}/configmaps/fairgate-enforcement"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tenants.fairgate.io"
BINDING = f"{REGISTRATION}/validatingadmissionpolicybindings/fairgate-update"
HOOKS = f"{REGISTRATION}/mutatingwebhookconfigurations/fairgate"
POLICY = f"{REGISTRATION}/validatingadmissionpolicies/fairgate-update"
VALIDATION = f"{REGISTRATION}/validatingwebhookconfigurations/fairgate"

GUARDED = (
    *(HOOKS, VALIDATION, POLICY, BINDING, SECRET, MAP, LEASE, DEFINITION),
    f"{SYSTEM}/configmaps/fairgate-installation",
    "/apis/fairgate.io/v1alpha1/policies/default",
    "/apis/scheduling.k8s.io/v1/priorityclasses/fairgate.none",
    "/api/v1/namespaces/fairgate-canary/pods/fairgate-canary",
    "/api/v1/nodes/gpu-node-0",
)
AS_ADMIN = "the same, as a cluster administrator"
WEBHOOK = f"system:serviceaccount:{NAMESPACE}:fairgate-webhook"
SOON = 30.0
"""Seconds. An idle machine needs less than two."""

FALSE = {"metadata": {"labels": {"row": "28"}}}
OK = "fairgate_canary_ok"


def test_28_namespace_users_cannot_change_enforcement_objects(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    for who in (env.mallory, env.chief):
        for at in GUARDED:
            for said in (who.refused("DELETE", at, None), who.refused("PATCH", at, FALSE)):
                assert said is not None, at
                assert layer_of(said) == "R", said
        for at in (SECRET, LEASE, MAP):
            assert layer_of(who.refused("GET", at, None)) == "R"
        said = who.refused("POST", path("kube-system"), body("exempt"))
        assert layer_of(said) == "R"
    attack = "delete or edit webhooks, policies, certificate, Lease, CRDs, as a namespace admin"
    outcomes(28, env.mode, attack, "R", said or "")


def live(env: AttackEnvironment, at: str) -> Object | None:
    """Return an object as stored, or None if it is gone."""
    if env.admin.refused("GET", at, None) is not None:
        return None
    found: Object = env.admin.get(at)
    return found


def content(found: Object | None) -> Any:
    """Return the content of an object without metadata and status."""
    return found and {k: v for k, v in found.items() if k not in ("metadata", "status")}


IGNORE = [
    {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
    {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "eA=="},
]


@only("everything", "webhook")
@pytest.mark.parametrize("at", [HOOKS, VALIDATION], ids=["mutating", "validating"])
def test_28_webhooks_and_their_trust_are_put_back_at_once(
    env: AttackEnvironment, outcomes: Outcomes, at: str
) -> None:
    put_back(env, at, IGNORE)
    outcomes(28, env.mode, AS_ADMIN, "X", "restored at once")


@only("everything")
@pytest.mark.parametrize("at", [POLICY, BINDING], ids=["policy", "binding"])
def test_28_policies_are_put_back_at_once(
    env: AttackEnvironment, outcomes: Outcomes, at: str
) -> None:
    path, value = {
        POLICY: ("/spec/validations/0/expression", "true"),
        BINDING: ("/spec/validationActions", ["Audit"]),
    }[at]
    put_back(env, at, [{"op": "replace", "path": path, "value": value}])
    outcomes(28, env.mode, AS_ADMIN, "X", "restored at once")


@only("everything")
@pytest.mark.parametrize("name", ["fairgate-update", "fairgate-status"])
def test_28_in_the_seconds_after_a_policy_is_deleted_the_webhook_refuses(
    env: AttackEnvironment, outcomes: Outcomes, name: str
) -> None:
    clerk = somebody(env, "clerk", rule("patch update", "pods/status"))
    running = env.released()
    attack = {
        "fairgate-update": lambda: env.mallory.refused(
            "PATCH", path(RED, env.waiting[0]) + "?dryRun=All", [OPEN], "json"
        ),
        "fairgate-status": lambda: clerk.refused(
            "PATCH", path(RED, running, "status"), {"status": {"phase": "Succeeded"}}
        ),
    }[name]
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        at, layers = f"{REGISTRATION}/{kind}/{name}", [layer_of(attack())]
        env.admin.call("DELETE", at)

        def is_back(at: str = at, layers: list[str] = layers) -> bool:
            layers.append(layer_of(attack()))
            return live(env, at) is not None and layers[-1] == "P"

        until("the policy refuses again", is_back, SOON)
        assert set(layers) <= {"P", "W"}, layers
    assert env.is_held(env.waiting[0])
    assert env.pod(running)["status"]["phase"] == "Running"
    outcomes(28, env.mode, "the same, and attack at once", "W", "refused all the time")


def put_back(env: AttackEnvironment, at: str, edit: list[Object]) -> None:
    """Delete an object, then edit it, and wait until the watchdog restores it each time."""
    before = live(env, at)
    assert before is not None
    env.admin.call("DELETE", at)
    until("it is back", lambda: content(live(env, at)) == content(before), SOON)
    env.admin.call("PATCH", at, edit, "json")
    until("it is as before", lambda: content(live(env, at)) == content(before), SOON)
    dry = path(RED, env.waiting[0]) + "?dryRun=All"
    until("the gate holds", lambda: not takes_off(env, dry))


@only("everything", "webhook")
def test_28_the_canary_proves_that_it_holds_again(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    env.admin.call("DELETE", HOOKS)
    until("it is back", lambda: live(env, HOOKS) is not None, SOON)
    before = trials(env)
    tried = lambda: all(trials(env)[verb] > count for verb, count in before.items())  # noqa: E731
    until("it was tried since", tried)
    checks = ('check="hold"', 'check="release"')
    until("it went well", lambda: all(stage.metric("webhook", OK, c) == 1 for c in checks))
    outcomes(28, env.mode, AS_ADMIN, "X", "the canary's next probe passes")


def trials(env: AttackEnvironment) -> Counter[str]:
    """Return how often the canary has tried to create a pod and to remove a gate."""
    found = Counter({"create": 0, "patch": 0})
    for entry in audited(env.cluster):
        is_canary = entry["objectRef"].get("namespace") == "fairgate-canary"
        if is_canary and entry["user"]["username"] == WEBHOOK and entry["verb"] in found:
            found[entry["verb"]] += 1
    return found


@only("everything", "webhook")
def test_28_certificate_map_and_lease_are_put_back(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "delete certificate, ConfigMap and Lease as a cluster administrator"
    epoch = stage.metric("controller", "fairgate_leader_epoch")
    before = {at: live(env, at) for at in (SECRET, MAP, LEASE)}
    for at in before:
        env.admin.call("DELETE", at)
    for at in before:
        until(f"{at} is back", lambda at=at: live(env, at) is not None)  # type: ignore[misc]
    assert content(live(env, MAP)) == content(before[MAP])
    assert content(live(env, SECRET)) != content(before[SECRET])
    leads = lambda: stage.metric("controller", "fairgate_leader_epoch") > epoch  # noqa: E731
    until("a term of a higher epoch has begun", leads)
    # Held pods stay held, and new pods are held.
    ours = yard(env, stage)
    assert ours.make(body("p")) is None
    until("it runs", lambda: stage.running(ours.namespace) == ["p"])
    outcomes(28, env.mode, attack, "X", "back; the epoch has risen, and pods are held and released")


@only("everything")
def test_28_no_pod_is_released_while_the_tenant_crd_is_deleted(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    """The watchdog does not restore a deleted CRD: its Tenants are deleted with it."""
    ours, definition = yard(env, stage), env.admin.get(DEFINITION)
    marks = ("name", "labels", "annotations")
    kept = {key: value for key, value in definition["metadata"].items() if key in marks}
    before = log_of(env).count(STALE)
    env.cluster.kubectl("delete", "crd", "tenants.fairgate.io")
    try:
        until("the leader has noticed", lambda: log_of(env).count(STALE) > before)
        assert ours.make(body("p")) is None
        until("it has seen the pod", lambda: pending(stage, ours.namespace) == 1)
        assert ours.held() == {"p"}
    finally:
        again = {k: v for k, v in definition.items() if k != "status"}
        stage.apply("default", {**again, "metadata": kept})
    until("it runs", lambda: stage.running(ours.namespace) == ["p"])
    attack = "delete a CRD as a cluster administrator"
    outcomes(28, env.mode, attack, "D", "pods are held, none is released until it is back")


STALE = '"source is stale", "facts": {"source": "tenants"'


def log_of(env: AttackEnvironment) -> str:
    return (env.cluster.folder / "logs" / "fairgate-controller.log").read_text()


def pending(stage: Stage, namespace: str) -> float:
    label = f'tenant="ns.{namespace}"'
    return stage.metric("controller", "fairgate_pending_workloads", label)


@only("policies")
def test_28_without_a_watchdog_an_administrator_takes_enforcement_away(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    """This limit is documented: if no Fairgate process runs, only RBAC protects the policies."""
    before, name = live(env, BINDING), env.held()
    assert before is not None
    dry = path(RED, name) + "?dryRun=All"
    try:
        env.admin.call("DELETE", BINDING)
        until("it holds no more", lambda: takes_off(env, dry))
    finally:
        marks = {"name": before["metadata"]["name"], "labels": before["metadata"]["labels"]}
        collection = BINDING.rpartition("/")[0]
        env.admin.call("POST", collection, {**before, "metadata": marks})
    until("it holds", lambda: not takes_off(env, dry))
    outcomes(28, env.mode, AS_ADMIN, NOT_ITS_LAYER, "taken away")


def takes_off(env: AttackEnvironment, at: str) -> bool:
    return env.mallory.refused("PATCH", at, [OPEN], "json") is None
