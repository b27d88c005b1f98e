"""Policies from files of the API server: cluster administrators cannot remove them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.kubernetes_versions import DEFAULT, from_environment
from tests.support.cluster_driver import GATE, Stage, gates, pod, until
from tests.support.personas import person

SINCE = 37
KINDS = "validatingadmissionpolicies,validatingadmissionpolicybindings"
HOOKS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
CREATE = "fairgate-create.static.k8s.io"


@pytest.fixture
def stage(cluster_tools: Tools, tmp_path: Path) -> Iterator[Stage]:
    """A cluster with Fairgate, whose API server then loads the written policies."""
    if (from_environment() or DEFAULT).number < SINCE:
        pytest.skip(f"Kubernetes 1.{SINCE} loads policies from files")
    cluster = LocalCluster(folders.own_folder("static"))
    try:
        cluster.up(ClusterOptions(nodes=1))
        load_static_policies(cluster, tmp_path / "static")
        yield Stage(cluster, folder=tmp_path)
    finally:
        cluster.down()


def load_static_policies(cluster: LocalCluster, folder: Path) -> None:
    """Write the policies with the public command, and start the API server with its output."""
    command = [sys.executable, "-m", "app", "enforcement", "--static", str(folder)]
    arguments = [*command, "--kubeconfig", str(cluster.kubeconfig)]
    said = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    file = cluster.folder / "config" / "admission.json"
    configuration = json.loads(file.read_text())
    configuration["plugins"] += yaml.safe_load(said)["plugins"]
    file.write_text(json.dumps(configuration))
    cluster.restart("kube-apiserver")
    until("the API server is back", lambda: answers(cluster))


def answers(cluster: LocalCluster) -> bool:
    try:
        return cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except ClusterError:
        return False


def test_no_administrator_can_remove_policies_from_files(stage: Stage) -> None:
    cluster, team = stage.cluster, stage.namespace("team")
    user = person(cluster, "mallory")
    cluster.kubectl(
        "create", "rolebinding", "edit", "-n", team, "--clusterrole=edit", "--user=mallory"
    )
    pods = f"/api/v1/namespaces/{team}/pods"
    until("RBAC lets the user in", lambda: user.refused("GET", pods, None) is None)
    stage.apply(team, pod("held", 9))
    until("it is held", lambda: stage.held(team) == ["held"])
    cluster.stop_fairgate("webhook")
    cluster.stop_fairgate("controller")

    cluster.kubectl("delete", KINDS, "--all")
    cluster.kubectl("delete", HOOKS, "--all")
    with pytest.raises(ClusterError, match="not found"):
        cluster.kubectl("delete", "validatingadmissionpolicy", CREATE)

    def refused() -> str:
        return user.refused("POST", f"{pods}?dryRun=All", pod("free")) or ""

    until("only the files are left", lambda: CREATE in refused())
    assert "without the gate fairgate.io/queue" in refused()
    change = [{"op": "remove", "path": "/spec/schedulingGates"}]
    said = user.refused("PATCH", f"{pods}/held", change, "json")
    assert said is not None
    assert "only Fairgate removes the gate" in said
    [stored] = stage.pods(team)
    assert gates(stored) == [GATE]
