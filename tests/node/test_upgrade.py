"""Helm upgrades, rolls back and uninstalls Fairgate while pods are held."""

from __future__ import annotations

import json

from tests.support.cluster_driver import name_of, until
from tests.support.real_node import Installation, gpu_pod

WAITING = ("waits-1", "waits-2")
LABEL = "app.kubernetes.io/name=fairgate"
ENFORCING = (
    "mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
KINDS_WITHOUT_NAMESPACE = f"namespaces,crds,priorityclasses,clusterroles,apiservices,{ENFORCING}"
REMOVED = (
    "deployments,services,serviceaccounts,pods,clusterroles,clusterrolebindings,apiservices,"
    f"networkpolicies,poddisruptionbudgets,{ENFORCING}"
)


def test_held_pods_stay_held_through_upgrade_and_rollback(fairgate: Installation) -> None:
    space = fairgate.team("upgraded")
    fairgate.stage.apply(space, *(gpu_pod(9, name=name) for name in WAITING))
    until("the pods are held", lambda: sorted(fairgate.stage.held(space)) == list(WAITING))
    first = fairgate.revision()
    with fairgate.load(space) as load:
        load.wait()
        fairgate.install("podAnnotations.version=next")
        load.wait()
        fairgate.helm("rollback", "fairgate", first, "--wait")
        load.wait()
    assert load.failures == []
    assert load.unheld == 0
    assert set(WAITING) <= set(fairgate.stage.held(space))

    fairgate.stage.apply(space, gpu_pod(1, args=("1s",), name="train"))
    until("releases go on", lambda: "train" not in fairgate.stage.held(space))


def test_uninstall_leaves_no_objects(fairgate: Installation) -> None:
    space = fairgate.team("left")
    fairgate.stage.apply(space, *(gpu_pod(9, name=name) for name in WAITING))
    until("the pods are held", lambda: sorted(fairgate.stage.held(space)) == list(WAITING))

    fairgate.release_all()
    assert fairgate.stage.held(space) == []
    fairgate.helm("uninstall", "fairgate", "--wait")
    until("no object of Fairgate acts", lambda: _left(fairgate) == [])
    fairgate.stage.apply(space, gpu_pod(1, args=("1s",), name="free"))
    until("a GPU pod runs without Fairgate", lambda: _phase(fairgate, space, "free") == "Succeeded")
    fairgate.documented("docs/operations.md", "This removes the objects in Kubernetes")
    fairgate.stage.objects.clear()  # the documented lines deleted the Tenants
    assert "fairgate" not in fairgate.node.kubectl("get", KINDS_WITHOUT_NAMESPACE, "-o", "name")


def _left(fairgate: Installation) -> list[str]:
    found = json.loads(fairgate.node.kubectl("get", REMOVED, "-A", "-l", LABEL, "-o", "json"))[
        "items"
    ]
    return [f"{each['kind']} {name_of(each)}" for each in found]


def _phase(fairgate: Installation, space: str, name: str) -> str:
    pods = {name_of(pod): pod["status"]["phase"] for pod in fairgate.stage.pods(space)}
    return str(pods[name])
