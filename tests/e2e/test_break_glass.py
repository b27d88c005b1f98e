"""Break glass: permitted users release held pods by hand, and then uninstall Fairgate."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import CHART, NAMESPACE
from tests.support.cluster_driver import GATE, GPU, Object, Stage, gates, name_of, pod, stamp, until
from tests.support.manual_release import Done, bind, release

MINE = "example.com/mine"
MANY = 120


def one(stage: Stage, namespace: str, name: str) -> Object:
    return dict(stage.get("pod", name, "-n", namespace))


@pytest.fixture
def operator(stage: Stage) -> str:
    """A user that may release pods by hand."""
    bind(stage.cluster, "olga")
    stage.objects.append(("clusterrolebinding", "operator-olga"))
    return "olga"


def test_an_operator_releases_a_held_pod_past_its_queue(stage: Stage, operator: str) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("hurried")
    blockers = stage.block(wall)
    stage.apply(ours, pod("first", 8), pod("jumper", 8))
    until("both are held", lambda: len(stage.held(ours)) == 2)
    before = one(stage, ours, "jumper")["metadata"]["labels"]

    done = release(stage.cluster, operator, stage.folder, "jumper", "-n", ours, "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Released pod hurried/jumper by hand, as olga.")
    jumper = one(stage, ours, "jumper")
    assert (gates(jumper), stamp(jumper)) == ([], "adopted")
    assert jumper["metadata"]["labels"] == before
    messages = [
        event["message"]
        for event in stage.get("events", "-n", ours)["items"]
        if event["reason"] == "Released" and event["involvedObject"]["name"] == "jumper"
    ]
    assert messages == ["by hand, as olga, past its queue"]
    # The leader counts the pod as used, so its capacity is not given to another pod.
    stage.delete(wall, blockers[0])
    until("the released pod runs", lambda: stage.running(ours) == ["jumper"])
    assert stage.held(ours) == ["first"]
    stage.delete(wall, blockers[1])
    until("the other has its turn", lambda: len(stage.running(ours)) == 2)


def test_user_with_role_edit_cannot_release_pods(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("edited")
    stage.block(wall)
    stage.apply(ours, pod("mine", 1))
    until("it is held", lambda: stage.held(ours) == ["mine"])
    stage.as_user("ed", ours)
    for args in (("mine", "-n", ours), ("--all",)):
        done = release(stage.cluster, "ed", stage.folder, *args, "--yes")
        assert done.returncode == 1
        assert "ed may not release pods of" in done.stderr
        assert "fairgate-operator" in done.stderr
    assert stage.held(ours) == ["mine"]
    assert stamp(one(stage, ours, "mine")) == "0"


def test_operator_of_one_namespace_cannot_release_in_another(stage: Stage) -> None:
    ours, theirs = stage.namespace("own"), stage.namespace("foreign")
    stage.cluster.kubectl(
        "create", "rolebinding", "op", "-n", ours, "--clusterrole=fairgate-operator", "--user=otto"
    )
    wait = {"schedulingGates": [{"name": MINE}]}
    stage.apply(ours, pod("a", 1, **wait))
    stage.apply(theirs, pod("a", 1, **wait))
    done = release(stage.cluster, "otto", stage.folder, "a", "-n", theirs, "--yes")
    assert done.returncode == 1
    assert gates(one(stage, theirs, "a")) == [MINE, GATE]
    done = release(stage.cluster, "otto", stage.folder, "a", "-n", ours, "--yes", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["otherGates"] == [MINE]
    assert gates(one(stage, ours, "a")) == [MINE]


def test_release_reports_a_pod_that_is_absent_or_not_held(stage: Stage, operator: str) -> None:
    ours = stage.namespace("plain")
    stage.apply(ours, pod("cpu-only", 0))
    done = release(stage.cluster, operator, stage.folder, "ghost", "-n", ours, "--yes")
    assert done.returncode == 2
    assert "There is no pod plain/ghost" in done.stderr
    done = release(stage.cluster, operator, stage.folder, "cpu-only", "-n", ours, "--yes")
    assert done.returncode == 0
    assert "is not held by Fairgate; nothing was changed" in done.stdout
    assert stamp(one(stage, ours, "cpu-only")) == ""


# --- release all pods, then uninstall ---


@dataclass(frozen=True)
class Emptied:
    """A separate cluster after `fairgate release --all`, and the output of the command."""

    stage: Stage
    done: Done


@pytest.fixture(scope="module")
def emptied(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emptied]:
    cluster = LocalCluster(folders.own_folder("emptied"))
    try:
        cluster.up(ClusterOptions(nodes=2, fairgate=False))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        bind(cluster, "olga")
        stage = Stage(cluster, folder=tmp_path_factory.mktemp("emptied"))
        for name in ("team-a", "team-b"):
            stage.namespace(name)
        stage.block("team-a", 2)
        stage.apply("team-a", *(pod(f"a-{number}") for number in range(MANY)))
        stage.apply("team-b", *(pod(f"b-{number}") for number in range(5)))
        own = {"schedulingGates": [{"name": MINE}]}
        stage.apply("team-b", *(pod(f"other-{number}", **own) for number in range(3)))
        until("all are held", lambda: len(stage.held("team-a") + stage.held("team-b")) == MANY + 8)
        done = release(cluster, "olga", stage.folder, "--all", "--yes", "--output", "json")
        yield Emptied(stage, done)
    finally:
        cluster.down()


def test_release_all_leaves_no_gate_of_ours_and_every_gate_of_others(emptied: Emptied) -> None:
    assert emptied.done.returncode == 0, emptied.done.stderr
    assert json.loads(emptied.done.stdout) == {
        "released": MANY + 8,
        "otherGates": 3,
        "failed": [],
        "stillHeld": 0,
        "claims": 0,
        "mode": "Observe",
        "by": "olga",
    }
    pods = emptied.stage.pods("team-a") + emptied.stage.pods("team-b")
    assert not [name_of(item) for item in pods if GATE in gates(item)]
    others = {name_of(item): gates(item) for item in pods if gates(item)}
    assert others == {f"other-{number}": [MINE] for number in range(3)}
    by_hand = [item for item in pods if not name_of(item).startswith("blocker")]
    assert {stamp(item) for item in by_hand} == {"adopted"}


def test_release_all_sets_mode_observe(emptied: Emptied) -> None:
    assert emptied.stage.get("policy", "default")["spec"]["mode"] == "Observe"


def test_second_release_all_finds_no_held_pod(emptied: Emptied) -> None:
    done = release(emptied.stage.cluster, "olga", emptied.stage.folder, "--all", "--yes")
    assert done.returncode == 0
    assert "Released 0 pods by hand, as olga." in done.stdout
    assert "kubectl patch policies.fairgate.io default --type merge" in done.stdout
    assert "helm uninstall fairgate" in done.stdout


def test_uninstall_after_release_all_leaves_no_pod_stuck(
    emptied: Emptied, cluster_tools: Tools
) -> None:
    stage, cluster = emptied.stage, emptied.stage.cluster
    # The local cluster applies rendered manifests. Helm adopts them to run a real uninstall.
    values = str(cluster.folder / "fairgate" / "values.json")
    take = ("--take-ownership", "--force-conflicts", "--values", values)
    helm(cluster, cluster_tools, "install", "fairgate", str(CHART), *take)
    for role in ("controller", "webhook"):
        cluster.stop_fairgate(role)
    helm(cluster, cluster_tools, "uninstall", "fairgate")

    left = cluster.kubectl("get", "mutatingwebhookconfigurations", "-o", "name")
    left += cluster.kubectl("get", "validatingwebhookconfigurations", "-o", "name")
    left += cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    left += cluster.kubectl("get", policies, "-o", "name")
    assert [each for each in left.split() if "/fairgate" in each] == []
    stage.delete("team-a", *(name_of(item) for item in stage.pods("team-a")))
    stage.delete("team-b", *(f"b-{number}" for number in range(4)))
    until("the pod that was held runs", lambda: stage.running("team-b") == ["b-4"])
    stage.apply("team-a", pod("after", 4))
    until("a new GPU pod runs", lambda: stage.running("team-a") == ["after"])
    after = one(stage, "team-a", "after")
    assert (gates(after), stamp(after)) == ([], "")
    assert after["spec"]["containers"][0]["resources"]["limits"] == {GPU: "4"}
    assert stage.held("team-a") == stage.held("team-b") == []


def helm(cluster: LocalCluster, tools: Tools, *args: str) -> None:
    done = subprocess.run(
        [str(tools.helm), *args, "--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig)],
        env={"PATH": os.defpath, "HOME": str(cluster.folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
