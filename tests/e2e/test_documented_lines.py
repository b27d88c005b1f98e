"""Runs commands of the pages on a cluster, and compares their output with the pages.

The scene is built once. Its objects have the names that the pages use, where a page names any.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import GATE, Stage, gates, pod, until
from tests.support.documented_lines import Command, commands
from tests.support.manual_release import bind
from tests.support.page_scene import QUICK, TEAM, Scene
from tests.support.terminal import Terminal, missing, terminal_on

pytestmark = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="the pages need curl and jq"
)

CLAIM_IN_USE = "fairgate.io/claim-in-use"
SCORES = "even chance nine ten and are level was served less recently another user"
"""Words of an estimate, which a new cluster does not have yet, and of equal scores."""

TRIAL = """alice capacity more nodes release No was seen to end yet runs what declares else one hour
each pod Too few estimates"""
"""Words of a trial by alice on a cluster on which no pod ended."""


@pytest.fixture(scope="module")
def scene(
    fairgate_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    stage = Stage(fairgate_cluster, folder=tmp_path_factory.mktemp("scene"))
    shell = terminal_on(fairgate_cluster, stage.folder)
    try:
        scene = Scene(stage)
        scene.build(shell)
        yield scene
    finally:
        shell.close()
        stage.clear()


@pytest.fixture
def terminal(scene: Scene, tmp_path: Path) -> Iterator[Terminal]:
    """A shell of the administrator. The time that the pages show is now."""
    found = terminal_on(scene.stage.cluster, tmp_path)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found.replace["2026-11-22T01:37:23Z"] = now
    try:
        yield found
    finally:
        found.close()


def run(terminal: Terminal, lines: tuple[Command, ...], varies: str = "") -> None:
    """Run all commands of a block, and compare their outputs with the page."""
    assert lines
    for line in lines:
        terminal.show(line, varies=varies)


def ask_why(terminal: Terminal, scene: Scene, line: Command) -> None:
    """Ask about a pod that waits behind another user. A release may make its user the next."""

    def is_as_shown() -> bool:
        terminal.replace["train-4hjn2-zq89t"] = scene.waiting(terminal)
        return not missing(line, terminal.run(line), f"{SCORES} alice at")

    until(line.text, is_as_shown)


def be(terminal: Terminal, scene: Scene, name: str, **spaces: str) -> None:
    """Give the shell a user's kubeconfig, with a context for each namespace."""
    config = yaml.safe_load(scene.stage.cluster.create_user(name))
    used = config["contexts"][0]["context"]
    config["contexts"] = [
        {"name": each, "context": {**used, "namespace": space}} for each, space in spaces.items()
    ]
    config["current-context"] = next(iter(spaces))
    (terminal.folder / name).write_text(yaml.safe_dump(config))
    terminal.run(f"export KUBECONFIG=$PWD/{name}")


def test_the_quickstart(terminal: Terminal, scene: Scene) -> None:
    run(terminal, commands("docs/quickstart.md", "The service account `lead`", "export"))
    terminal.run("export COLUMNS=120")
    run(terminal, commands("docs/quickstart.md", "**See the queue.**"))
    ask_why(terminal, scene, *commands("docs/quickstart.md", "**See why a pod waits"))
    run(terminal, commands("README.md", "", "kubectl fairgate weights"))
    run(terminal, commands("docs/quickstart.md", "**Double a user's weight.**"))
    terminal.show(*commands("docs/cli.md", "", "kubectl fairgate audit"), varies="fairgate")
    run(terminal, commands("docs/quickstart.md", "**See the effect**"))
    run(terminal, commands("docs/quickstart.md", "**Export the usage of the last hour**"))
    run(terminal, commands("docs/quickstart.md", "**Verify the audit chain.**"))


def test_reading_commands_of_the_commands_page(terminal: Terminal) -> None:
    terminal.run("export COLUMNS=70")
    run(terminal, commands("docs/cli.md", "", "kubectl fairgate queue"), "vision")
    run(terminal, commands("docs/cli.md", "", "kubectl fairgate shares"))
    run(terminal, commands("docs/cli.md", "", "kubectl fairgate quotas"))


def test_the_page_is_opened_without_a_browser(terminal: Terminal) -> None:
    [line] = commands("docs/cli.md", "", "kubectl fairgate open")
    terminal.run(f"{line.text} >opened 2>&1 & SERVER=$!")
    until("the page is served", lambda: "Ctrl-C" in terminal.run("cat opened || true"))
    assert "http://127.0.0.1:" in terminal.run("kill $SERVER; wait $SERVER; cat opened")


def test_people_ask_why_their_pods_wait(terminal: Terminal, scene: Scene) -> None:
    be(terminal, scene, "alice", east=TEAM, west=QUICK)
    terminal.show(*commands("docs/users.md", "", "kubectl fairgate  "))
    run(terminal, commands("docs/users.md", "`kubectl fairgate mine` needs no right"), "capacity")
    run(terminal, commands("docs/users.md", "`why` also reports"))
    run(terminal, commands("README.md", "", "kubectl describe"), "example com Released to after")
    be(terminal, scene, "bob", east=TEAM)
    run(terminal, commands("docs/users.md", "## Ask why"), f"{SCORES} min")


def test_tenant_admins_weigh_users_and_export_usage(terminal: Terminal, scene: Scene) -> None:
    terminal.replace["-n vision"] = f"-n {TEAM}"
    run(terminal, commands("docs/quickstart.md", "The service account `lead`", "export"))
    run(terminal, commands("docs/tenants.md", "## See who waits"), "capacity")
    run(terminal, commands("docs/tenants.md", "## Weigh your users"))
    [refused] = commands("docs/tenants.md", "is refused and names the right")
    terminal.show(refused, code=1)
    run(terminal, commands("docs/tenants.md", "## Ask what if"), "min")
    run(terminal, commands("docs/tenants.md", "## Export what was used"))
    run(terminal, commands("docs/tenants.md", "## The same over REST"))
    run(terminal, commands("docs/tenants.md", "", "curl ..."))
    assert "user,pool,nvidia.com/gpu" in terminal.run("cat usage.csv")
    terminal.run("unset ${!FAIRGATE_*}")
    run(terminal, commands("docs/tenants.md", "", "kubectl get tenants.fairgate.io"))
    run(terminal, commands("docs/tenants.md", "quotas` shows guarantee, limit"), "language")


def test_programs_ask_over_rest(terminal: Terminal, scene: Scene) -> None:
    run(terminal, commands("docs/api.md", "**Direct**: the Service"))
    run(terminal, commands("docs/api.md", "**Through the API server**"))
    run(terminal, commands("docs/api.md", "neither repeats nor loses another item"))
    run(terminal, commands("docs/api.md", "answers with all rows at once"), "ns")
    run(terminal, commands("docs/api.md", "so `used` and similar fields are null"))
    run(terminal, commands("docs/api.md", "**Audit.** Fetch the head first"))
    run(terminal, commands("docs/api.md", "documents this header and the others"))
    run(terminal, commands("docs/api.md", "`shares` are parts of the cluster by weight alone"))
    run(terminal, commands("docs/api.md", "## What if"))
    ask_why(terminal, scene, *commands("docs/api.md", "## Why"))
    terminal.replace["curl -sN"] = "timeout 5 curl -sN"
    [stream] = commands("docs/api.md", "", "curl -sN")
    terminal.show(stream, code=124)
    terminal.run(f"TOKEN=$(kubectl create token lead -n {TEAM}-admins --audience fairgate)")
    run(terminal, commands("docs/api.md", "with the number of copies"), TRIAL)


def test_auditors_read_and_verify_the_chain(terminal: Terminal, scene: Scene) -> None:
    run(terminal, commands("docs/audit.md", "## Read it"))
    run(terminal, commands("docs/audit.md", "can also export entries"))
    run(terminal, commands("docs/audit.md", "## A month's report"))
    run(terminal, commands("docs/operations.md", "", "fairgate audit"))
    run(terminal, commands("docs/audit.md", "### Pin the key"))
    run(terminal, commands("docs/audit.md", "gives that right, and also lets an auditor read"))
    terminal.run("mkdir copies")
    for log in (scene.stage.cluster.folder / "logs").glob("fairgate-controller*"):
        shutil.copy(log, terminal.folder / "copies" / f"{log.name}.ndjson")
    terminal.replace["/archive/audit"] = "copies"
    terminal.replace["kubectl logs POD -n fairgate-system"] = "cat copies/*"
    run(terminal, commands("docs/audit.md", "## Verify it"))
    run(terminal, commands("docs/audit.md", "[verdicts](#verdicts) of this page."))
    terminal.run("TOKEN=$(kubectl create token lead -n vision-admins --audience fairgate)")
    run(terminal, commands("docs/audit.md", "the ConfigMap or from the REST API:"))
    scene.stage.cluster.kubectl("delete", "clusterrolebinding", "auditors")
    scene.stage.cluster.kubectl("delete", "rolebinding", "auditors", "-n", "fairgate-system")


def test_platform_engineers_check_and_verify(terminal: Terminal) -> None:
    run(terminal, commands("README.md", "", ".venv/bin/fairgate doctor"))
    terminal.run("rm values.yaml")
    secret = "fairgate-redis-url -n fairgate-system"
    terminal.run(f"kubectl create secret generic {secret} --from-literal url=redis://")
    run(terminal, commands("docs/install.md", "", "fairgate doctor"))
    terminal.run(f"rm values.yaml; kubectl delete secret {secret}")
    run(terminal, commands("docs/operations.md", "", "fairgate doctor --write"))
    run(terminal, commands("docs/install.md", "In mode Observe it tests only the leader."))
    run(terminal, commands("docs/operations.md", "", "grep"))
    run(
        terminal, commands("docs/operations.md", "", "kubectl create clusterrolebinding prometheus")
    )
    terminal.run("kubectl delete clusterrolebinding prometheus-reads-fairgate")
    run(terminal, commands("docs/operations.md", "", "kubectl get tenants.fairgate.io"))
    run(terminal, commands("docs/placement.md", "", "kubectl get pods"))
    terminal.replace["/etc/kubernetes/fairgate"] = "manifests"
    run(terminal, commands("docs/security.md", "", "fairgate enforcement --static"))


def test_platform_engineers_prepare_an_installation(terminal: Terminal, scene: Scene) -> None:
    terminal.replace["fairgate-control-plane"] = "gpu-node-0"
    run(terminal, commands("docs/install.md", "", "kubectl patch node"))
    run(terminal, commands("docs/install.md", "Let two teams ask for more than there is."))
    scene.stage.namespaces += ["greedy", "modest"]
    terminal.replace["fairgate-system"] = "docs-install"
    run(terminal, commands("docs/install.md", "", "kubectl create"))
    terminal.run("touch tls.crt tls.key callers-ca.crt")
    run(terminal, commands("certs/README.md", "", "kubectl -n fairgate-system create"))


def test_platform_engineers_upgrade(terminal: Terminal) -> None:
    run(terminal, commands("docs/upgrade.md", "", "kubectl get"))
    for line in commands("docs/upgrade.md", "", "kubectl annotate"):
        terminal.show(line)
        terminal.run(line.text.replace("resource-policy=keep", "resource-policy-"))


def test_documented_release_commands_work_for_operators_only(
    terminal: Terminal, scene: Scene
) -> None:
    terminal.type_yes("fairgate release")
    run(terminal, commands("docs/operations.md", "Bind it in one namespace or in all:", "kubectl"))
    scene.stage.objects.append(("clusterrolebinding", "olga"))
    be(terminal, scene, "olga", east=TEAM)
    [line] = commands("docs/operations.md", "## Break glass: let a held pod go by hand")
    terminal.show(line)
    scene.stage.as_user("ed", TEAM)
    be(terminal, scene, "ed", east=TEAM)
    [line] = commands("docs/operations.md", "Bind it in one namespace or in all:", "fairgate")
    terminal.show(line, code=1)


@pytest.fixture
def enforcing_again(scene: Scene) -> Iterator[None]:
    """Afterwards Fairgate enforces, and there is no Policy."""
    yield
    kubectl = scene.stage.cluster.kubectl
    enforce = json.dumps({"spec": {"mode": "Enforce"}})
    kubectl("patch", "policies.fairgate.io", "default", "--type", "merge", "-p", enforce)

    def denies() -> bool:
        found = scene.stage.get("validatingadmissionpolicybindings")["items"]
        return all(each["spec"]["validationActions"] == ["Deny"] for each in found)

    def holds() -> bool:
        made = ("create", "-n", TEAM, "--dry-run=server", "-o", "json", "-f", "-")
        return GATE in gates(json.loads(kubectl(*made, stdin=json.dumps(pod("dry", 9)))))

    until("all bindings deny", denies)
    until("pods are held", holds)
    kubectl("delete", "policies.fairgate.io", "default")


def test_operators_release_all_pods(
    terminal: Terminal, scene: Scene, enforcing_again: None
) -> None:
    """This test is the last one of the file, because it releases all pods of the scene."""
    terminal.type_yes("fairgate release")
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {}}
    claim["metadata"] = {"name": "old", "finalizers": [CLAIM_IN_USE, "example.com/mine"]}
    scene.stage.apply(TEAM, claim)
    run(
        terminal,
        commands("docs/operations.md", "this line removes all such finalizers:", "kubectl"),
    )
    own = {"schedulingGates": [{"name": "example.com/mine"}]}
    scene.stage.apply(TEAM, *(pod(f"gated-{number}", **own) for number in range(2)))
    run(terminal, commands("docs/operations.md", "Go back at any time, also while Fairgate is in"))
    run(terminal, commands("docs/operations.md", "with `mode=Enforce`. This changes it:"))
    run(terminal, commands("docs/install.md", "overrides the chart. To enforce again, patch it:"))
    bind(scene.stage.cluster, "olga")
    scene.stage.objects.append(("clusterrolebinding", "operator-olga"))
    be(terminal, scene, "olga", east=TEAM)
    [line] = commands("docs/operations.md", "so first release all held pods:")
    terminal.show(line)
    [line] = commands("docs/install.md", "### Uninstall", "fairgate")
    terminal.show(line)
