"""A new user with a tenant admin's token does every admin task with public commands only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from app.devcluster.kubectl import Kubectl
from tests.support.cluster_driver import Stage, name_of, next_second, pod, until
from tests.support.kubectl_person import ROOT, Person
from tests.support.rest_doors import Callers

TEAM = "walked"
RULES = (
    f"get tenants {TEAM}",
    f"update tenants/users {TEAM}",
    f"get tenants/queue {TEAM}",
    f"get tenants/usage {TEAM}",
    "get audit",
)
"""The rights of a tenant admin in the chart, and those of an auditor for the last step."""


def with_token(stage: Stage, token: str) -> Kubectl:
    """Return kubectl with a token and the address of the cluster."""
    document = yaml.safe_load(stage.cluster.kubeconfig.read_text())
    document["users"] = [{"name": document["users"][0]["name"], "user": {"token": token}}]
    kubeconfig = stage.folder / "token.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    return Kubectl(Path(stage.cluster.details().kubectl), kubeconfig, stage.folder)


@pytest.fixture
def stranger(stage: Stage) -> Person:
    """A user with the token of a tenant's admin. The tenant's users have waiting pods."""
    ours = stage.namespace(TEAM)
    stage.tenant(TEAM, "1", ours)
    stage.block(stage.namespace("walk-wall"))
    callers = Callers(stage, stage.namespace("walk-lead"))
    callers.add("lead", *RULES)
    account = f"--serviceaccount={callers.namespace}:lead"
    look = ("rolebinding", "walk-look", "-n", ours, "--clusterrole=view", account)
    stage.cluster.kubectl("create", *look)
    for user in ("walk-a", "walk-b"):
        pods = "\n---\n".join(json.dumps(pod(f"{user}-{number}", 8)) for number in range(3))
        stage.as_user(user, ours).run("apply", "-n", ours, "-f", "-", stdin=pods)
        next_second()
    until("all wait", lambda: len(stage.held(ours)) == 6)
    lead = Person(stage, "lead", ours, with_token(stage, callers.token("lead")))
    until("all are shown", lambda: lead.fairgate("queue", TEAM)[1].count(f"{TEAM}/") == 6)
    return lead


def test_tenant_admin_can_do_every_task_with_a_token_only(
    stage: Stage, stranger: Person, tmp_path: Path
) -> None:
    def next_is(user: str) -> bool:
        """Return whether the first waiting pod of a user waits for capacity, not for its turn."""
        for line in stranger.fairgate("queue", TEAM, "--user", user)[1].splitlines():
            if f"{TEAM}/{user}-" in line:
                return "capacity" in line
        return False

    def make_room() -> str:
        """End one blocking pod; return the user of the pod released in its place."""
        before = {name_of(each) for each in stage.using(TEAM)}
        stage.delete("walk-wall", blockers.pop())
        until("one is released", lambda: len(stage.using(TEAM)) > len(before))
        (released,) = {name_of(each) for each in stage.using(TEAM)} - before
        return released.rpartition("-")[0]

    blockers = [f"blocker-{number}" for number in range(8)]
    assert make_room() == "walk-a"  # the first among equals
    until("it is the turn of the other", lambda: next_is("walk-b") and not next_is("walk-a"))

    waiting = next(name for name in stage.held(TEAM) if name.startswith("walk-a"))
    code, out, err = stranger.fairgate("why", waiting, "-n", TEAM)
    assert (code, "fair order" in out) == (0, True), err

    began = time.monotonic()
    code, out, err = stranger.fairgate("weights", "set", TEAM, "--user", "walk-a", "4")
    assert (code, out) == (0, f"User walk-a of tenant {TEAM} weighs 4 from now on.\n"), err
    written = time.monotonic()
    until("the turn is another's", lambda: next_is("walk-a") and not next_is("walk-b"))
    print(
        f"set in {written - began:.2f} s, seen in the queue {time.monotonic() - written:.2f} s on"
    )
    assert make_room() == "walk-a"

    code, out, err = stranger.fairgate("usage", "--tenant", TEAM, "--by", "user", "-o", "csv")
    assert code == 0, err
    heading, *rows = out.splitlines()
    assert (heading.split(",")[0], [row.split(",")[0] for row in rows]) == ("user", ["walk-a"])
    assert float(rows[0].split(",")[heading.split(",").index("nvidia.com/gpu")]) > 0

    chain = tmp_path / "audit.ndjson"
    code, out, err = stranger.run("get", "--raw", "/apis/api.fairgate.io/v1/audit")
    assert code == 0, err
    chain.write_text(out)
    done = subprocess.run(
        [sys.executable, "-m", "app", "audit", "verify", str(chain)],
        cwd=ROOT, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, "entries hold" in done.stdout) == (0, True), done.stderr
    print(done.stdout)
