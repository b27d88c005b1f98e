"""Helm upgrades, uninstalls and installs Fairgate by the lines of the pages."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import NAMESPACE
from tests.support.chart import ROLES
from tests.support.cluster_driver import GATE, Stage, gates, name_of, pod, until
from tests.support.documented_lines import commands, run_documented
from tests.support.terminal import Terminal, missing

KEPT = (
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
LABEL = "app.kubernetes.io/name=fairgate"


class Site:
    """A cluster with Fairgate installed by helm. The Fairgate processes run outside the cluster."""

    def __init__(self, cluster: LocalCluster, tools: Tools, folder: Path) -> None:
        self.cluster = cluster
        self.stage = Stage(cluster, folder=folder)
        programs = {"kubectl": Path(tools.kubectl), "helm": Path(tools.helm)}
        self.terminal = Terminal(folder, cluster.kubeconfig, **programs)
        values = cluster.folder / "fairgate" / "values.json"
        shutil.copy(values, self.terminal.folder / "values.yaml")
        self._tools = tools

    def mode(self) -> str:
        """Return the mode of the installed values."""
        values = self.terminal.run(f"helm get values fairgate --all -o json -n {NAMESPACE}")
        return str(json.loads(values)["mode"])

    def enforcing(self) -> list[str]:
        """Return the names of the Fairgate objects that the API server still enforces."""
        return [
            name_of(each) for kind in KEPT for each in self.stage.get(kind, "-l", LABEL)["items"]
        ]

    def start(self) -> None:
        for role in ROLES:
            self.cluster.start_fairgate(role)

    def documented(self, page: str, after: str) -> None:
        run_documented(page, after, self._tools.kubectl, self.cluster.kubeconfig)


@pytest.fixture(scope="module")
def site(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster = LocalCluster(folders.own_folder("uninstall"))
    drains = {"FAIRGATE_DRAIN_SECONDS": "20"}
    try:
        cluster.up(ClusterOptions(nodes=1, gpus=4, environment=drains))
        site = Site(cluster, cluster_tools, tmp_path_factory.mktemp("uninstall"))
        [install] = commands("docs/install.md", "### 2. Install in mode Observe")
        # kubectl created the objects of a local cluster.
        site.terminal.run(f"{install.text} --take-ownership --force-conflicts")
        yield site
        site.terminal.close()
    finally:
        cluster.down()


def created(site: Site, space: str, name: str) -> bool:
    """Create a pod; False if refused. An API server drops a policy a moment after its deletion."""
    with contextlib.suppress(ClusterError):
        site.stage.apply(space, pod(name))
        return True
    return False


def end(site: Site, how: str) -> None:
    """Stop the webhook's processes, by a kill or by a signal that lets them drain."""
    for child in site.cluster.processes.alive("fairgate-webhook"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL if how == "killed" else signal.SIGTERM)


UNINSTALLS = [
    *commands("docs/operations.md", "", "helm uninstall"),
    *commands("docs/install.md", "### Uninstall", "helm"),
]
INSTALLS = [
    commands("docs/install.md", "### 2. Install in mode Observe"),
    commands("README.md", "the last command, which begins to hold pods:", "helm"),
]


@pytest.mark.parametrize(("how", "page"), [("alive", 0), ("killed", 1), ("draining", 0)])
def test_uninstalled_fairgate_is_gone_and_can_be_installed_again(
    site: Site, how: str, page: int
) -> None:
    stage, space = site.stage, site.stage.namespace(f"uninstall-{how}")
    stage.apply(space, pod("held", 9))
    until("a pod is held", lambda: stage.held(space) == ["held"])
    if how != "alive":
        end(site, how)
    uninstall = UNINSTALLS[page]
    assert not missing(uninstall, site.terminal.run(uninstall))

    until("no policy and no webhook is left", lambda: site.enforcing() == [])
    until("GPU pods may be created", lambda: created(site, space, "free"))
    until("a new pod runs", lambda: stage.running(space) == ["free"])
    assert site.enforcing() == []
    assert stage.held(space) == ["held"]
    site.documented("docs/operations.md", "Pods that are still held then keep their gate")
    until("no gate is left", lambda: not any(gates(each) for each in stage.pods(space)))

    for line in INSTALLS[page]:
        site.terminal.run(line)
    for role in ROLES:
        site.cluster.stop_fairgate(role, signal.SIGKILL)
    site.start()
    stage.apply(space, pod("again", 9))
    until("pods are held again", lambda: stage.held(space) == ["again"])
    stage.delete(space, "held", "free", "again")


UPGRADES = {
    "Enforce": [
        *commands("docs/install.md", "### 4. Enforce"),
        *commands("docs/operations.md", "how to read the numbers. Then enforce:"),
        *commands("docs/upgrade.md", "## Upgrade", "helm upgrade"),
        *commands("certs/README.md", "", "helm"),
    ],
    "Observe": commands("docs/install.md", "### Go back to Observe"),
}
ROLLBACK = commands("docs/upgrade.md", "## Rollback")


def test_documented_lines_upgrade_and_roll_back(site: Site) -> None:
    """It runs after a new installation, because helm then owns all fields."""
    for mode, lines in UPGRADES.items():
        for line in lines:
            site.terminal.run(line)
        assert site.mode() == mode
    for line in ROLLBACK:
        site.terminal.run(line)
    assert site.mode() == "Enforce", "as before the last upgrade"


def test_a_documented_line_repairs_a_cluster_without_fairgate(site: Site) -> None:
    """If the namespace was deleted first, helm has no release record."""
    stage, space = site.stage, site.stage.namespace("uninstall-broken")
    for role in ROLES:
        site.cluster.stop_fairgate(role, signal.SIGKILL)
    with pytest.raises(ClusterError, match="fairgate"):
        stage.apply(space, pod("refused"))
    site.documented("docs/operations.md", "removes what the API server still enforces")
    assert site.enforcing() == []
    until("GPU pods may be created", lambda: created(site, space, "free"))
    until("a pod runs", lambda: stage.running(space) == ["free"])
    site.start()
    until("everything is back", lambda: set(site.enforcing()) >= {"fairgate", "fairgate-create"})

    def held() -> bool:
        made = json.dumps(pod("dry", 9))
        said = site.cluster.kubectl(
            "create", "-n", space, "--dry-run=server", "-o", "json", "-f", "-", stdin=made
        )
        return GATE in gates(json.loads(said))

    until("pods are held", held)
