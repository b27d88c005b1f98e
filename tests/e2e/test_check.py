"""`fairgate check` on a real API server, with the account and the rights of `helm test`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import NAMESPACE
from tests.support.chart import Chart, of_kind

ACCOUNT = "fairgate-test"


@pytest.fixture
def kubeconfig(fairgate_cluster: LocalCluster, cluster_tools: Tools, tmp_path: Path) -> Path:
    """The kubeconfig of the account that `helm test` creates."""
    documents = Chart(cluster_tools, tmp_path).render("--show-only=templates/helm-test.yaml")
    accounts = [each for each in documents if each["kind"] != "Pod"]
    fairgate_cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(accounts))
    token = fairgate_cluster.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE).strip()
    config = yaml.safe_load(fairgate_cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_account_of_helm_test_may_run_every_check(
    fairgate_cluster: LocalCluster, cluster_tools: Tools, kubeconfig: Path, tmp_path: Path
) -> None:
    [pod] = of_kind(
        Chart(cluster_tools, tmp_path).render("--show-only=templates/helm-test.yaml"), "Pod"
    ).values()
    [container] = pod["spec"]["containers"]
    variables = {each["name"]: each.get("value", NAMESPACE) for each in container["env"]}
    program, *arguments = container["command"]
    assert program == "fairgate"
    done = subprocess.run(
        [sys.executable, "-m", "app", *arguments, "--output", "json"],
        env={"PATH": os.defpath, "HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)["checks"]
    names = ["mode", "objects", "hold", "create", "release", "leader"]
    assert [each["check"] for each in checks] == names
    assert all(each["passed"] for each in checks)
