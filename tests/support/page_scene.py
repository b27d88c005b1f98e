"""Two teams with running and waiting pods on a cluster, as the pages assume them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from app.devcluster.go_build import SOURCE
from tests.support.cluster_driver import Object, Stage, pod, until
from tests.support.documented_lines import commands
from tests.support.terminal import Terminal

TEAM, QUICK = "team-a", "vision"
WALL = 4
"""Pods of team-a with a whole node each, so that team-a has half of the cluster to the end."""

LIMIT = "quotas: [{pool: default, limit: {nvidia.com/gpu: 64}}]"
EXAMPLE = SOURCE / "docs" / "examples" / "two-people.yaml"


@dataclass
class Scene:
    """The tenants vision and team-a, each with users alice and bob, and a service account lead.

    Each tenant uses half of the GPUs. vision has the lower use when one of its pods ends, so the
    pods of team-a wait as long as vision has waiting pods.
    """

    stage: Stage

    def build(self, terminal: Terminal) -> None:
        """Create the objects. The commands of the quickstart create those of vision."""
        kubectl = self.stage.cluster.kubectl
        users = "users: [{name: alice}, {name: bob}]"
        example = EXAMPLE.read_text().replace(QUICK, TEAM).replace(users, f"{users}\n  {LIMIT}")
        kubectl("apply", "-f", "-", stdin=example)
        lead = f"--serviceaccount={TEAM}-admins:lead"
        kubectl("create", "rolebinding", "lead-edits", "-n", TEAM, "--clusterrole=edit", lead)
        self._created(TEAM)
        for person in ("alice", "bob"):
            self._submit(person, *(pod(f"wall-{person}-{n}", 8) for n in range(WALL // 2)))
        until("team-a uses half", lambda: len(self.stage.running(TEAM)) == WALL)
        for line in commands("docs/quickstart.md", "The service account `lead`", "kubectl"):
            terminal.run(line)
        self._created(QUICK)
        for line in commands("docs/quickstart.md", "The service account `lead`", "for"):
            terminal.run(line)
        until("vision uses the rest", lambda: len(self.stage.running(QUICK)) == 32)
        self._submit("alice", pod("train-0", 4), pod("train-1", 4))
        self._submit("bob", *(pod(f"eval-{n}", 4) for n in range(50, 56)))
        wide = json.dumps(pod("wide", 16))
        kubectl("create", "-n", QUICK, "--as", "alice", "-f", "-", stdin=wide)
        until("pods of team-a wait", lambda: len(self.stage.held(TEAM)) == 8)

    def waiting(self, terminal: Terminal) -> str:
        """Return a pod of vision behind the work of another user: of two users, one is not next."""
        found = json.loads(terminal.run(f"kubectl fairgate queue {QUICK} -o json"))["items"]
        names = [each["name"] for each in found if "another user" in (each["reason"] or "")]
        assert names, found
        return str(names[-1])

    def _submit(self, person: str, *pods: Object) -> None:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        self.stage.cluster.kubectl("create", "-n", TEAM, "--as", person, "-f", "-", stdin=listed)

    def _created(self, team: str) -> None:
        """Note what the example creates, and wait until its account may create pods."""
        self.stage.namespaces += [team, f"{team}-admins"]
        role = f"fairgate-tenant-admin-{team}"
        self.stage.objects += [("tenant", team), ("clusterrole", role)]
        self.stage.objects += [
            ("clusterrolebinding", role),
            ("clusterrolebinding", f"lead-of-{team}-audits"),
        ]
        with self.stage.api() as api:
            account = f"/api/v1/namespaces/{team}/serviceaccounts/default"
            until("the default service account", lambda: api.find(account) is not None)
