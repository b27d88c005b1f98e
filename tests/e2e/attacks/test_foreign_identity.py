"""Rows 10 and 13: attempts to be charged as another tenant or user, or not at all."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from app.core.admission import validation
from app.core.errors import ClusterError
from app.devcluster.kubectl import Kubectl
from tests.e2e.attacks.attack_cluster import (
    RED,
    TOO_MANY,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import (
    CHANGED,
    answer,
    ready,
    remove,
    rule,
    somebody,
    told,
    with_token,
)
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.support.cluster_driver import GATE, RELEASE, gates, until
from tests.support.personas import Person, Refused

SUBMITTER = "fairgate.io/submitter"


CHANGES = (
    {"labels": {"fairgate.io/tenant": "ns.blue"}},
    {"labels": {"fairgate.io/user": "bob"}},
    {"labels": {"fairgate.io/user": None}},
    {"labels": {"fairgate.io/pool": "other"}},
    {"annotations": {SUBMITTER: "bob"}},
    {"annotations": {RELEASE: "9.9"}},
    {"annotations": {RELEASE: None}},
    {"annotations": {"fairgate.io/gang": "x"}},
    {"annotations": {"fairgate.io/gang-size": "2"}},
)


@pytest.fixture(scope="module")
def clerk(env: AttackEnvironment) -> Person:
    """A user with the right to write the status of pods."""
    return somebody(env, "clerk", rule("patch update", "pods/status"))


def test_10_accounting_labels_of_a_pod_cannot_be_changed(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    for name in (env.held(), env.released()):
        before = env.pod(name)
        for change in CHANGES:
            for who in (env.mallory, env.chief):
                said = who.refused("PATCH", path(RED, name), {"metadata": change})
                assert said is not None, change
                assert layer_of(said) == CHANGED[env.mode]
                assert validation.STAMPS_KEPT in said
        assert stamps(env.pod(name)) == stamps(before)
    outcomes(10, env.mode, "tenant, user, pool, gang of a pod", layer_of(said), said)


def test_10_nor_through_the_status(
    env: AttackEnvironment, outcomes: Outcomes, clerk: Person
) -> None:
    name = env.held()
    before = env.pod(name)
    for change in CHANGES:
        patch = {"metadata": change}
        said = env.mallory.refused("PATCH", path(RED, name, "status"), patch)
        assert said is not None
        assert layer_of(said) == "R"
        by_right = clerk.refused("PATCH", path(RED, name, "status"), patch)
        assert by_right is not None, change
        assert layer_of(by_right) == CHANGED[env.mode]
        assert validation.STAMPS_KEPT in by_right
    assert stamps(env.pod(name)) == stamps(before)
    outcomes(10, env.mode, "through pods/status", "R", said)
    outcomes(10, env.mode, "through pods/status, by right", layer_of(by_right), by_right)


UNLABELLED = {"labels": {"fairgate.io/tenant": None}}
BARE = {"labels": {f"fairgate.io/{key}": None for key in ("tenant", "user", "pool")}}
ENDED = {"phase": "Succeeded"}


def test_10_no_pod_loses_the_label_by_which_status_updates_are_judged(
    env: AttackEnvironment, outcomes: Outcomes, clerk: Person
) -> None:
    """The rules of pods/status match pods that have the label before or after the update."""
    name = env.released()
    before = env.pod(name)
    for who, sub in ((clerk, "status"), (env.mallory, ""), (env.chief, "")):
        for change in (UNLABELLED, BARE):
            said = who.refused("PATCH", path(RED, name, sub), {"metadata": change})
            assert said is not None
            assert layer_of(said) == CHANGED[env.mode]
            assert validation.STAMPS_KEPT in said
    for change in (UNLABELLED, BARE):
        patch = {"metadata": change, "status": ENDED}
        said = clerk.refused("PATCH", path(RED, name, "status"), patch)
        assert said is not None
        assert layer_of(said) == CHANGED[env.mode]
    after = env.pod(name)
    assert stamps(after) == stamps(before)
    assert after["status"]["phase"] == "Running"
    attack = "remove the label that the status rules select by, and end the pod"
    outcomes(10, env.mode, attack, layer_of(said), said)


def test_10_no_managed_pod_is_created_without_that_label(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("unlabelled")
    made = env.stamped(body(name, TOO_MANY))
    del made["metadata"]["labels"]["fairgate.io/tenant"]
    said = answer(env.mallory, "POST", path(RED), made)
    attack = "create a pod without the label that the status rules select by"
    match env.mode:
        case "everything" | "webhook":
            assert said["metadata"]["labels"]["fairgate.io/tenant"] == "ns.red"
            remove(env, name)
            outcomes(10, env.mode, attack, "W", "the webhook writes it")
        case "policies":
            assert validation.UNSTAMPED in said.message
            outcomes(10, env.mode, attack, layer_of(said.message), said.message)
        case _:
            assert layer_of(said.message) == "outage"
            outcomes(10, env.mode, attack, "outage", said.message)


def stamps(pod: Object) -> Object:
    """Return the labels and annotations of a pod that Fairgate reads."""
    written = {**pod["metadata"].get("labels", {}), **pod["metadata"].get("annotations", {})}
    return {key: value for key, value in written.items() if key.startswith("fairgate.io/")}


def test_10_forged_tenant_and_user_labels_have_no_effect(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    """If no webhook overwrites the labels at create, they are stored. Accounting ignores them."""
    name = env.name("labelled")
    made = env.stamped(body(name, TOO_MANY))
    made["metadata"]["labels"] |= {"fairgate.io/tenant": "ns.blue", "fairgate.io/user": "bob"}
    said = answer(env.mallory, "POST", path(RED), made)
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        return
    if env.mode != "policies":
        found = env.pod(name)["metadata"]["labels"]
        assert (found["fairgate.io/tenant"], found["fairgate.io/user"]) == ("ns.red", "mallory")
    until("its place is told", told(env, name, "in ns.red/mallory"))
    remove(env, name)


# --- 13: the name of another user ---


def by(template_stamp: str = "", gpus: int = TOO_MANY) -> Object:
    """Return a pod template, with or without a submitter stamp."""
    made: Object = {"metadata": {"labels": {"app": "x"}}, "spec": body("x", gpus)["spec"]}
    if template_stamp:
        made["metadata"]["annotations"] = {SUBMITTER: template_stamp}
    return made


def job(name: str, template: Object, *, suspended: bool = True) -> Object:
    template["spec"]["restartPolicy"] = "Never"
    spec = {"suspend": suspended, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, template: Object) -> Object:
    selector = {"matchLabels": template["metadata"]["labels"]}
    spec = {"replicas": 0, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


JOBS = f"/apis/batch/v1/namespaces/{RED}/jobs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{RED}/deployments"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{RED}/replicasets"


def owner(env: AttackEnvironment, user: str) -> str:
    """Return the stamp that the user must write by hand if no webhook writes it, else ""."""
    return user if env.mode == "policies" else ""


def stamp_in(found: Object) -> str:
    """Return the submitter in the pod template of a stored object."""
    return str(found["spec"]["template"]["metadata"].get("annotations", {}).get(SUBMITTER, ""))


def submitter(pod: Object) -> tuple[str, str]:
    """Return the user that a pod is charged to: annotation and label."""
    about = pod["metadata"]
    return about["annotations"][SUBMITTER], about["labels"]["fairgate.io/user"]


def test_13_forged_submitter_of_a_pod_is_refused_or_overwritten(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("forged")
    made = ready(env, body(name, TOO_MANY), "chief")
    made["metadata"]["annotations"] = {
        **made["metadata"].get("annotations", {}),
        SUBMITTER: "chief",
    }
    said = answer(env.mallory, "POST", path(RED), made)
    layer = {"policies": "P", "killed": "outage"}.get(env.mode, "W")
    match said:
        case Refused():
            assert layer_of(said.message) == layer
            assert layer == "outage" or validation.UNSTAMPED in said.message
            assert not env.exists(name)
        case _:
            assert layer == "W"
            assert submitter(env.pod(name)) == ("mallory", "mallory")
    saw = said.message if isinstance(said, Refused) else "overwritten by the caller's own name"
    outcomes(13, env.mode, "a colleague's name on a pod", layer, saw)
    remove(env, name)


@pytest.mark.parametrize("kind", ["job", "deployment"])
def test_13_forged_submitter_in_a_template_is_refused_or_overwritten(
    env: AttackEnvironment, outcomes: Outcomes, kind: str
) -> None:
    name = env.name("forged")
    made, at = (job, JOBS) if kind == "job" else (deployment, DEPLOYMENTS)
    said = answer(env.mallory, "POST", at, made(name, by("chief")))
    layer = {"policies": "P", "killed": "outage"}.get(env.mode, "W")
    match said:
        case Refused():
            assert layer_of(said.message) == layer
            assert layer == "outage" or validation.TEMPLATE in said.message
            assert env.admin.refused("GET", f"{at}/{name}", None) is not None
        case _:
            assert layer == "W"
            assert stamp_in(said) == "mallory"
    saw = said.message if isinstance(said, Refused) else "overwritten by the caller's own name"
    outcomes(13, env.mode, "a colleague's name in a template", layer, saw)


def test_13_a_template_does_not_change_hands(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.name("kept")
    at = f"{DEPLOYMENTS}/{name}"
    # If the webhook is down, only a Deployment without GPU requests can be created.
    empty = deployment(name, by(owner(env, "mallory"), 0 if env.mode == "killed" else 1))
    env.mallory.call("POST", DEPLOYMENTS, empty)
    before = stamp_in(env.admin.get(at))
    assert before == ("" if env.mode == "killed" else "mallory")
    forged = {"spec": {"template": {"metadata": {"annotations": {SUBMITTER: "chief"}}}}}
    for who in (env.mallory, env.chief):
        said = who.refused("PATCH", at, forged)
        if env.mode == "killed":
            assert layer_of(said) == "outage"
        elif who is env.mallory:
            assert said is not None
            assert layer_of(said) == CHANGED[env.mode]
            assert validation.TEMPLATE in said
            outcomes(13, env.mode, "change the submitter of a template", layer_of(said), said)
        else:
            assert said is not None
            assert validation.TEMPLATE in said
    assert stamp_in(env.admin.get(at)) == before


def test_13_pod_of_a_job_is_charged_to_the_creator_of_the_job(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("job")
    made = job(name, by(owner(env, "mallory")), suspended=False)
    said = answer(env.mallory, "POST", JOBS, made)
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        return
    if (
        env.mode == "policies"
    ):  # policies refuse the controller's pods, because no webhook adds the gate
        events = f"/api/v1/namespaces/{RED}/events?fieldSelector=involvedObject.name={name}"
        until(
            "the controller was refused",
            lambda: any(validation.UNGATED in e["message"] for e in env.admin.get(events)["items"]),
        )
        assert pods_of(env, name) == []
    else:
        until("its pod is there", lambda: pods_of(env, name) != [])
        [pod] = pods_of(env, name)
        assert submitter(pod) == ("mallory", "mallory")
        assert gates(pod) == [GATE]
    env.admin.call("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


def pods_of(env: AttackEnvironment, job_name: str) -> list[Object]:
    selector = f"labelSelector=batch.kubernetes.io/job-name={job_name}"
    return list(env.admin.get(f"{path(RED)}?{selector}")["items"])


def test_13_a_pod_put_under_a_colleagues_owner_counts_for_its_maker(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("theirs")
    made = deployment(name, by(owner(env, "chief"), 1))
    said = answer(env.chief, "POST", DEPLOYMENTS, made)
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        outcomes(13, env.mode, "under a colleague's Deployment", "outage", said.message)
        return
    assert stamp_in(said) == "chief"
    owners = replica_sets(env, name)
    pod = ready(env, body(env.name("under"), TOO_MANY))
    pod["metadata"]["ownerReferences"] = owners
    stored = env.mallory.call("POST", path(RED), pod)
    assert submitter(stored) == ("mallory", "mallory")
    forged = ready(env, body(env.name("under"), TOO_MANY), "chief")
    forged["metadata"] |= {"ownerReferences": owners}
    forged["metadata"].setdefault("annotations", {})[SUBMITTER] = "chief"
    match answer(env.mallory, "POST", path(RED), forged):
        case Refused() as refused:
            assert env.mode == "policies"
            assert validation.UNSTAMPED in refused.message
        case second:
            assert env.mode != "policies"
            assert submitter(second) == ("mallory", "mallory")
    saw = "the owner is ignored: the pod counts for its creator"
    outcomes(13, env.mode, "under a colleague's Deployment", "D", saw)
    env.admin.call("DELETE", f"{DEPLOYMENTS}/{name}?propagationPolicy=Background")


def replica_sets(env: AttackEnvironment, name: str) -> list[Object]:
    """Return the owner references of a pod of a Deployment's ReplicaSet."""

    def found() -> list[Object]:
        sets = env.admin.get(REPLICA_SETS)["items"]
        return [s["metadata"] for s in sets if s["metadata"]["name"].startswith(f"{name}-")]

    until("it has a ReplicaSet", lambda: found() != [])
    kind = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
    return [{**kind, "name": each["name"], "uid": each["uid"]} for each in found()]


def test_13_pods_of_a_scaled_deployment_are_charged_to_its_creator(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    """RBAC controls edits of an object, not Fairgate. Its pods are charged to its creator."""
    name = env.name("scaled")
    made = deployment(name, by(owner(env, "chief")))
    said = answer(env.chief, "POST", DEPLOYMENTS, made)
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        outcomes(13, env.mode, "scale a colleague's Deployment", "outage", said.message)
        return
    at = f"{DEPLOYMENTS}/{name}"
    assert env.mallory.refused("PATCH", at, {"spec": {"replicas": 1}}) is None
    assert stamp_in(env.admin.get(at)) == "chief"
    if env.mode != "policies":
        until("its pod is there", lambda: made_by(env, name) != [])
        [pod] = made_by(env, name)
        assert submitter(pod) == ("chief", "chief")
        assert gates(pod) == [GATE]
    saw = "counts for its creator: RBAC decides who may edit it"
    outcomes(13, env.mode, "scale a colleague's Deployment", NOT_ITS_LAYER, saw)
    env.admin.call("DELETE", f"{at}?propagationPolicy=Background")


def made_by(env: AttackEnvironment, name: str) -> list[Object]:
    items = env.admin.get(path(RED))["items"]
    return [each for each in items if each["metadata"]["name"].startswith(f"{name}-")]


def test_13_tenant_user_cannot_impersonate_another_user(
    env: AttackEnvironment, outcomes: Outcomes, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "mallory.kubeconfig"
    kubeconfig.write_text(env.cluster.create_user("mallory"))
    mallory = Kubectl(Path(env.cluster.details().kubectl), kubeconfig, tmp_path)
    name = env.name("posing")
    for guise in (f"--as={CONTROLLER}", "--as=chief"):
        create = ("create", f"--raw={path(RED)}", guise, "-f", "-")
        with pytest.raises(ClusterError, match="cannot impersonate") as refused:
            mallory.run(*create, stdin=json.dumps(body(name)))
    assert not env.exists(name)
    outcomes(13, env.mode, "impersonation", "R", str(refused.value).partition(": ")[2])


def test_13_pod_of_a_service_account_is_charged_to_the_account(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    account = f"system:serviceaccount:{RED}:default"
    grant = ("--clusterrole=edit", f"--serviceaccount={RED}:default", "-n", RED)
    with contextlib.suppress(ClusterError):  # granted before
        env.cluster.kubectl("create", "rolebinding", "robot", *grant)
    robot, name = with_token(env, RED, "default"), env.name("robot")
    until("it may edit", lambda: robot.refused("GET", path(RED), None) is None)
    said = answer(robot, "POST", path(RED), ready(env, body(name, TOO_MANY), account))
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        outcomes(13, env.mode, "a shared service account", "outage", said.message)
        return
    written, label = submitter(env.pod(name))
    assert written == account
    assert "mallory" not in label
    outcomes(13, env.mode, "a shared service account", "D", f"counts as {written}")
    remove(env, name)


CONTROLLER = "system:serviceaccount:kube-system:job-controller"
"""The controller that may create pods with the submitter of their template."""
