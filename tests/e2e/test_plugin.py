"""kubectl-fairgate on a real cluster, through the API server, as people with their own rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stage import Stage, pod, until

ROOT = Path(__file__).parents[2]
TEAM = "plugged"

Told = tuple[int, str, str]


class Person:
    """Somebody with kubectl, and the plugin on PATH."""

    def __init__(self, stage: Stage, name: str, namespace: str) -> None:
        self.kubectl = stage.as_user(name, namespace)
        self._folder = stage.folder / f"bin-{name}"
        self._folder.mkdir()
        for program, module in (
            ("kubectl-fairgate", "app.plugin.command"),
            ("kubectl_complete-fairgate", "app.plugin.completing"),
        ):
            file = self._folder / program
            file.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
            file.chmod(0o755)

    def run(self, *words: str) -> Told:
        """Run kubectl; return its code, and what it wrote."""
        done = subprocess.run(
            [str(self.kubectl.program), *words],
            env={
                "PATH": f"{self._folder}:{os.defpath}",
                "HOME": str(self.kubectl.home),
                "KUBECONFIG": str(self.kubectl.kubeconfig),
                "PYTHONPATH": str(ROOT),
                "TZ": "UTC",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def fairgate(self, *words: str) -> Told:
        """Run the plugin through kubectl."""
        return self.run("fairgate", *words)

    def json(self, *words: str) -> object:
        """Return what the plugin answers, as JSON."""
        code, out, err = self.fairgate(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def people(stage: Stage) -> tuple[Person, Person, Person]:
    """A full cluster, a lead of the tenant, and two of its users whose pods wait."""
    wall, ours = stage.namespace("plug-wall"), stage.namespace(TEAM)
    stage.tenant(TEAM, "1", ours)
    stage.block(wall)
    lead, alice, bob = (Person(stage, name, ours) for name in ("plug-lead", "plug-a", "plug-b"))
    rules = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "e2e-plug-lead"},
        "rules": [
            {
                "apiGroups": ["fairgate.io"],
                "resources": resources,
                "verbs": verbs,
                "resourceNames": [TEAM],
            }
            for resources, verbs in (
                (["tenants"], ["get"]),
                (["tenants/users"], ["update"]),
                (["tenants/queue", "tenants/usage"], ["get"]),
            )
        ],
    }
    stage.apply("default", rules)
    binding = ("--clusterrole=e2e-plug-lead", "--user=plug-lead")
    stage.cluster.kubectl("create", "clusterrolebinding", "e2e-plug-lead", *binding)
    stage.objects += [
        ("clusterrole", "e2e-plug-lead"),
        ("clusterrolebinding", "e2e-plug-lead"),
    ]
    for person, name in ((alice, "a"), (bob, "b")):
        person.kubectl.run(
            "apply", "-n", ours, "-f", "-", stdin="\n---\n".join(
                json.dumps(pod(f"{name}-{number}", 8)) for number in range(2)
            )
        )  # fmt: skip
    until("all four wait", lambda: len(stage.held(ours)) == 4)
    until("the lead is let in", lambda: lead.fairgate("queue", TEAM)[0] == 0)
    until("the queue shows all", lambda: lead.fairgate("queue", TEAM)[1].count(f"{TEAM}/") == 4)
    return lead, alice, bob


def test_a_lead_sees_the_queue_and_weighs_users_and_no_more(
    stage: Stage, people: tuple[Person, Person, Person]
) -> None:
    lead, _, _ = people
    code, out, _ = lead.fairgate("queue", TEAM)
    assert (code, "plug-a" in out, "1/2" in out) == (0, True, True)
    code, out, err = lead.fairgate("weights", "set", TEAM, "--user", "plug-b", "2", "--dry-run")
    assert (code, "nothing was changed" in out) == (0, True), err
    assert not stage.get("tenant", TEAM)["spec"].get("users")
    code, out, err = lead.fairgate("weights", "set", TEAM, "--user", "plug-b", "2")
    assert (code, out) == (0, f"User plug-b of tenant {TEAM} weighs 2 from now on.\n"), err
    assert stage.get("tenant", TEAM)["spec"]["users"] == [{"name": "plug-b", "weight": "2"}]

    def shown() -> bool:
        rows = lead.fairgate("weights", "--tenant", TEAM)[1].splitlines()
        return any(row.split()[:3] == ["plug-b", "2", "66.7"] for row in rows)

    until("the weight is shown", shown)
    code, _, err = lead.fairgate("weights", "set", TEAM, "5")
    assert (code, "tenants" in err) == (1, True)
    code, _, err = lead.fairgate("queue", "ns.plug-wall")
    assert (code, err.count("\n")) == (1, 1)


def test_a_user_learns_why_and_a_stranger_does_not(
    stage: Stage, people: tuple[Person, Person, Person]
) -> None:
    _, alice, _ = people
    told = alice.json("why", "a-1", "-n", TEAM)
    assert isinstance(told, dict)
    assert (told["position"], told["length"], told["state"]) == (2, 2, "held")
    assert "plug-b" not in json.dumps(told)
    code, out, _ = alice.fairgate("why", "a-0", "-n", TEAM)
    assert (code, out.startswith(f"Pod {TEAM}/a-0 waits: 1 of 2 in the queue of ")) == (0, True)
    code, _, err = alice.fairgate("queue", TEAM)
    assert (code, "tenants/queue" in err) == (1, True)
    other = Person(stage, "plug-other", stage.namespace("plug-else"))
    assert other.fairgate("why", "a-0", "-n", TEAM)[0] == 1


def test_kubectl_itself_completes_what_waits(
    stage: Stage, people: tuple[Person, Person, Person]
) -> None:
    _, alice, _ = people
    code, out, _ = alice.run("__complete", "fairgate", "why", "-n", TEAM, "a-")
    assert (code, out.splitlines()[:2]) == (0, ["a-0", "a-1"])
