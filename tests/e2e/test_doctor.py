"""`fairgate doctor` on a real API server in use, before and after an installation with its values.

Node agents, an operator and a second scheduler run before Fairgate comes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from app.core.errors import ClusterRefused
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import CHART
from app.devcluster.nodes import KWOK_USER
from tests.support.chart import Chart, of_kind
from tests.support.cluster_driver import (
    GATE,
    Object,
    Stage,
    gates,
    name_of,
    pod,
    until,
)
from tests.support.doctor_cluster import (
    AGENTS,
    BINDER,
    BINDINGS,
    RAY_CLUSTERS,
    ROLES,
    UNKNOWN_KIND,
)
from tests.support.documented_lines import commands

ROLE = CHART.parents[1] / "docs" / "examples" / "doctor-role.yaml"
AGENT_SPACES = sorted(each["metadata"]["namespace"] for each in AGENTS)
CHARTED = ("EXEMPT_NAMESPACES", "MANAGED_RESOURCES", "RULES", "TEMPLATES", "DEVICE_CLASSES", "MODE")
"""Settings that the chart gives to the webhook, and a local process needs too."""

Done = subprocess.CompletedProcess[str]


@dataclass
class InUse:
    """A cluster in use. `doctor` runs the command as a user who may only read."""

    stage: Stage
    chart: Chart
    kubeconfig: Path

    @property
    def cluster(self) -> LocalCluster:
        return self.stage.cluster

    @property
    def values(self) -> Path:
        return self.stage.folder / "values.yaml"

    def doctor(self, *args: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "app", "doctor", *args, "--kubeconfig", str(self.kubeconfig)],
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("FAIRGATE_")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def refused(self) -> set[str]:
        """Return the namespaces in which the pod of an agent is refused, tried as a dry run."""
        found = set()
        with self.stage.api() as api:
            for agent in AGENTS:
                space, template = agent["metadata"]["namespace"], agent["spec"]["template"]
                body = {"metadata": {"name": "again"}, "spec": template["spec"]}
                try:
                    api.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", body)
                except ClusterRefused:
                    found.add(space)
        return found

    def install(self, *values: Path) -> None:
        """Apply the chart with these values in mode Enforce, and start webhook and controller."""
        fairgate = self.cluster.fairgate()
        installation = fairgate.installation()
        assert installation is not None
        local = self.stage.folder / "local.yaml"
        common: Object = {"phaseWriters": [KWOK_USER], "mode": "Enforce"}
        local.write_text(yaml.safe_dump(common))
        named = [f"--values={file}" for file in (*values, local)]
        webhook = of_kind(self.chart.render(*named), "Deployment")["fairgate-webhook"]
        [container] = webhook["spec"]["template"]["spec"]["containers"]
        wanted = {f"FAIRGATE_{name}" for name in CHARTED}
        settings = {e["name"]: e["value"] for e in container["env"] if e["name"] in wanted}
        outside = {"webhookUrl": installation.webhook, "aggregatedPort": 0}
        local.write_text(yaml.safe_dump({**common, "external": outside}))
        self.cluster.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump_all(self.chart.render(*named))
        )
        redis = self.cluster.details().redis
        for role in ("webhook", "controller"):
            self.cluster.stop_fairgate(role)
        fairgate.wait_until_ready(
            [fairgate.start(r, redis, settings) for r in ("webhook", "controller")]
        )


@pytest.fixture(scope="module")
def in_use(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InUse]:
    cluster = LocalCluster(folders.own_folder("doctor"))
    try:
        cluster.up(ClusterOptions(nodes=2, fairgate=False))
        stage = Stage(cluster, folder=tmp_path_factory.mktemp("doctor"))
        for space in (*AGENT_SPACES, "team-a"):
            stage.namespace(space)
        objects = [*AGENTS, *ROLES, *BINDINGS, RAY_CLUSTERS, UNKNOWN_KIND]
        cluster.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))
        stage.apply("team-a", pod("train", 1, schedulerName="volcano"))
        for space in AGENT_SPACES:
            until("agents run", lambda space=space: len(stage.running(space)) == 2)  # type: ignore[misc]
        role = yaml.safe_load(ROLE.read_text())
        role["rules"][-1]["apiGroups"] = ["ray.io", "batch.example.com"]
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(role))
        cluster.kubectl(
            "create", "clusterrolebinding", "inspector", "--clusterrole=fairgate-doctor",
            "--user=inspector",
        )  # fmt: skip
        kubeconfig = stage.folder / "inspector.kubeconfig"
        kubeconfig.write_text(cluster.create_user("inspector"))
        yield InUse(stage, Chart(cluster_tools, stage.folder), kubeconfig)
    finally:
        cluster.down()


@pytest.fixture(scope="module")
def before(in_use: InUse) -> Done:
    """Return the report before the installation. It also writes the values."""
    redis = in_use.cluster.details().redis
    return in_use.doctor("--output=json", f"--write={in_use.values}", f"--redis-url={redis}")


@pytest.fixture(scope="module")
def enforcing(in_use: InUse, before: Done) -> tuple[InUse, set[str]]:
    """Install Fairgate with its defaults, then with the values. Return the refused by default."""
    in_use.cluster.install()
    in_use.install()
    until("the defaults refuse agents", lambda: len(in_use.refused()) == len(AGENTS))
    refused = in_use.refused()
    in_use.install(in_use.values)
    until("the values refuse no agent", lambda: not in_use.refused())
    return in_use, refused


def objects_of(done: Done, check: str) -> set[str]:
    """Return the objects that a check names."""
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == check]
    return {name for each in found for name in each["objects"]}


def test_doctor_names_agents_operators_and_schedulers_before_the_installation(before: Done) -> None:
    assert before.returncode == 1
    assert objects_of(before, "exempt-namespaces") == {
        f"DaemonSet {each['metadata']['namespace']}/{name_of(each)}" for each in AGENTS
    }
    assert objects_of(before, "schedulers") == {"Pod team-a/train", BINDER}
    assert objects_of(before, "operators") == {"trainings.batch.example.com"}
    assert objects_of(before, "rights") == set(), "the documented role suffices"
    redis = [e for e in json.loads(before.stdout)["findings"] if e["check"] == "redis"]
    assert {each["level"] for each in redis} == {"ok"}


def test_the_page_shows_lines_of_this_report(in_use: InUse, before: Done) -> None:
    [shown] = commands("docs/operations.md", "level, its subject, and the action:")
    report = re.sub(r"v1\.\d+\.\d+", "v1.36.3", in_use.doctor().stdout)
    assert set(shown.output.splitlines()) - set(report.splitlines()) == set(), report


def test_the_chart_accepts_the_values_and_no_problem_is_left_with_them(
    in_use: InUse, before: Done
) -> None:
    home = ("--namespace", "fairgate-system")
    values = ("--values", str(in_use.values))
    rendered = in_use.chart.run("template", "fairgate", str(CHART), *home, *values)
    assert "image:" in rendered.stdout, rendered.stderr
    checked = in_use.doctor("--values", str(in_use.values))
    assert checked.returncode == 0, checked.stdout
    # The URL of this Redis has a password, so the values name a Secret.
    assert "warning  rights: the caller may not get secrets" in checked.stdout
    assert "0 problems, 1 warning." in checked.stdout


def test_the_secret_in_a_values_file_must_exist(in_use: InUse, before: Done) -> None:
    planned = in_use.stage.folder / "planned.yaml"
    written = yaml.safe_load(in_use.values.read_text())
    planned.write_text(yaml.safe_dump({**written, "redis": {"existingSecret": "absent"}}))
    unread = in_use.doctor("--values", str(planned))
    assert unread.returncode == 0, "the documented role may not read Secrets"
    assert "may not get secrets" in unread.stdout
    in_use.cluster.kubectl(
        "create", "clusterrole", "reads-secrets", "--verb=get", "--resource=secrets"
    )
    in_use.cluster.kubectl(
        "create", "clusterrolebinding", "reads-secrets", "--clusterrole=reads-secrets",
        "--user=inspector",
    )  # fmt: skip
    done = in_use.doctor("--values", str(planned))
    assert done.returncode == 1
    assert "redis.existingSecret names Secret absent in namespace fairgate-system" in done.stdout


def test_an_installation_with_the_values_refuses_no_agent(
    enforcing: tuple[InUse, set[str]],
) -> None:
    in_use, refused_by_default = enforcing
    assert refused_by_default == set(AGENT_SPACES), "otherwise this test proves little"
    stage = in_use.stage
    earlier = {uid_of(each) for space in AGENT_SPACES for each in stage.pods(space)}
    for space in AGENT_SPACES:
        in_use.cluster.kubectl("delete", "pods", "--all", "-n", space, "--wait=false")
    until("agents run again", lambda: _are_new(stage, earlier))
    body = pod("again", 1, schedulerName="volcano")
    with stage.api() as api:  # a dry run: the pod itself would be released at once
        again = api.call("POST", "/api/v1/namespaces/team-a/pods?dryRun=All", body)
    assert GATE in gates(again), "Fairgate enforces, and allows the second scheduler"


def test_a_missing_right_is_named(in_use: InUse) -> None:
    nobody = in_use.stage.folder / "nobody.kubeconfig"
    nobody.write_text(in_use.cluster.create_user("nobody"))
    done = InUse(in_use.stage, in_use.chart, nobody).doctor()
    assert done.returncode == 1
    assert "Grant the verb list on pods" in done.stdout


def test_wrong_arguments_and_an_absent_cluster_have_their_own_codes(in_use: InUse) -> None:
    assert in_use.doctor("--context", "absent").returncode == 2
    assert in_use.doctor("--redis-url", "http://x").returncode == 2
    assert in_use.doctor("--write", str(in_use.kubeconfig)).returncode == 2
    away = yaml.safe_load(in_use.kubeconfig.read_text())
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = in_use.stage.folder / "away.kubeconfig"
    file.write_text(yaml.safe_dump(away))
    assert InUse(in_use.stage, in_use.chart, file).doctor().returncode == 3


def _are_new(stage: Stage, earlier: set[str]) -> bool:
    running = [
        uid_of(each)
        for space in AGENT_SPACES
        for each in stage.pods(space)
        if each["status"].get("phase") == "Running"
    ]
    return len(running) == 2 * len(AGENTS) and not earlier.intersection(running)


def uid_of(item: Object) -> str:
    return str(item["metadata"]["uid"])
