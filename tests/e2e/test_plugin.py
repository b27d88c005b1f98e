"""kubectl-fairgate on a real cluster, through the API server, with users of different rights."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import pytest
import yaml

from tests.support.cluster_driver import GPU, Stage, pod, template, until
from tests.support.documented_lines import commands
from tests.support.kubectl_person import Person

TEAMS = itertools.count(1)
SIMULATED = """min the last one after in simulation No pod was seen to end yet each runs for what it
declares or else hour more New pods are left out"""
"""Words about the start of a trial, which depend on the pods that ended before."""


@dataclass(frozen=True)
class People:
    """A tenant with a namespace of the same name, its admin, and its users."""

    team: str
    lead: Person
    alice: Person
    bob: Person


@pytest.fixture
def people(stage: Stage) -> People:
    """A full cluster, the admin of a tenant, and two users with waiting pods."""
    # Each test uses its own team, because rights granted in a team's namespace stay.
    team = f"plugged-{next(TEAMS)}"
    wall, ours = stage.namespace("plug-wall"), stage.namespace(team)
    stage.tenant(team, "1", ours)
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
                "resourceNames": [team],
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
    until("the lead is let in", lambda: lead.fairgate("queue", team)[0] == 0)
    until("the queue shows all", lambda: lead.fairgate("queue", team)[1].count(f"{team}/") == 4)
    return People(team, lead, alice, bob)


def test_team_lead_can_read_the_queue_and_set_user_weights_only(
    stage: Stage, people: People
) -> None:
    team, lead = people.team, people.lead
    code, out, _ = lead.fairgate("queue", team)
    assert (code, "plug-a" in out, "1/2" in out) == (0, True, True)
    code, out, err = lead.fairgate("weights", "set", team, "--user", "plug-b", "2", "--dry-run")
    assert (code, "nothing was changed" in out) == (0, True), err
    assert not stage.get("tenant", team)["spec"].get("users")
    code, out, err = lead.fairgate("weights", "set", team, "--user", "plug-b", "2")
    assert (code, out) == (0, f"User plug-b of tenant {team} weighs 2 from now on.\n"), err
    assert stage.get("tenant", team)["spec"]["users"] == [{"name": "plug-b", "weight": "2"}]

    def shown() -> bool:
        found = lead.json("shares", team)
        assert isinstance(found, dict)
        parts = {each["name"]: (each["weight"], each["fairShare"]) for each in found["items"]}
        (_, first), (weight, second) = parts["plug-a"], parts["plug-b"]
        return bool(weight == "2" and float(second) == pytest.approx(2 * float(first), abs=2e-4))

    until("the weight is shown", shown)
    assert lead.fairgate("shares", team)[1] == lead.fairgate("weights", "--tenant", team)[1]
    code, out, err = lead.fairgate("quotas", team)
    assert (code, "plug-a" in out, "plug-b" in out) == (0, True, True), err
    told = lead.json("version")
    assert isinstance(told, dict)
    assert (told["client"], told["skew"]) == (told["server"], "none")
    code, _, err = lead.fairgate("audit", "--tenant", team)
    assert (code, "get audit" in err) == (1, True)
    code, _, err = lead.fairgate("weights", "set", team, "5")
    assert (code, "tenants" in err) == (1, True)
    code, _, err = lead.fairgate("queue", "ns.plug-wall")
    assert (code, err.count("\n")) == (1, 1)


def test_a_user_learns_why_and_a_stranger_does_not(stage: Stage, people: People) -> None:
    team, alice = people.team, people.alice
    places = {}
    for name in ("a-0", "a-1"):  # the pods have the same age in whole seconds, so uids decide
        told = alice.json("why", name, "-n", team)
        assert isinstance(told, dict)
        assert (told["length"], told["state"]) == (2, "held")
        assert "plug-b" not in json.dumps(told)
        places[told["position"]] = name
    assert places.keys() == {1, 2}
    code, out, _ = alice.fairgate("why", places[1], "-n", team)
    first = f"Pod {team}/{places[1]} waits: 1 of 2 in the queue of "
    assert (code, out.startswith(first)) == (0, True)
    code, _, err = alice.fairgate("queue", team)
    assert (code, "tenants/queue" in err) == (1, True)
    other = Person(stage, "plug-other", stage.namespace("plug-else"))
    assert other.fairgate("why", "a-0", "-n", team)[0] == 1


def test_a_user_without_rights_sees_their_own_pods_and_share(people: People) -> None:
    told = people.alice.json("mine")
    assert isinstance(told, dict)
    assert {each["name"] for each in told["workloads"]} == {"a-0", "a-1"}
    assert [(each["tenant"], each["pending"]) for each in told["tenants"]] == [(people.team, 2)]
    assert "plug-b" not in json.dumps(told)


def test_kubectl_completes_names_of_waiting_pods(stage: Stage, people: People) -> None:
    team, alice = people.team, people.alice
    code, out, _ = alice.run("__complete", "fairgate", "why", "-n", team, "a-")
    assert (code, out.splitlines()[:2]) == (0, ["a-0", "a-1"])


def test_a_manifest_is_tried_before_it_is_submitted(stage: Stage) -> None:
    wall, ours = stage.namespace("try-wall"), stage.namespace("try-team")
    stage.tenant(ours, "1", ours)
    stage.block(wall, 7)  # one node of eight is free
    alice = Person(stage, "try-alice", ours)

    def tried(document: object, *words: str) -> tuple[int, str, str]:
        file = stage.folder / "tried.json"
        file.write_text(json.dumps(document))
        return alice.fairgate("try", "-f", str(file), "-n", ours, *words)

    def fits() -> bool:
        code, out, _ = tried(pod("now", 8))
        return code == 0 and out.startswith(f"Pod {ours}/now is accepted and fits now")

    until("the replica has seen the cluster", fits)

    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "later"},
        "spec": {"parallelism": 3, "completions": 3, "template": template(8)},
    }
    code, out, err = tried(job, "-o", "json")
    assert (code, err) == (0, "")
    [item] = json.loads(out)["items"]
    told = item["trial"]
    assert (item["accepted"], told["tenant"], told["user"]) == (True, ours, "try-alice")
    assert (told["state"], told["pods"], told["startsNow"]) == ("waits", 3, 1)
    assert (told["rule"], told["pools"]) == ("capacity", ["default"])
    assert "waits for 8 nvidia.com/gpu of pool default" in told["reason"]
    assert "more nodes in pool default" in told["remedies"]
    assert told["simulatedSeconds"] > 0
    assert told["assumed"]
    assert (told["estimate"] is None) == bool(told["estimateWithheld"])

    refused = pod("never", 8)
    refused["metadata"]["annotations"] = {"fairgate.io/pools": "no-such-pool"}
    code, out, _ = tried(refused)
    assert (code, out.startswith(f"Pod {ours}/never is refused: ")) == (1, True)
    assert "no-such-pool" in out
    west = stage.namespace("try-west")
    stage.tenant(west, "1", west, quotas=[{"pool": "default", "limit": {GPU: "8"}}])
    file = stage.as_user("try-alice", west).kubeconfig
    config = yaml.safe_load(file.read_text())
    context = config["contexts"][0]["context"]
    config["contexts"] = [
        {"name": name, "context": {**context, "namespace": space}}
        for name, space in (("east", ours), ("west", west))
    ]
    config["current-context"] = "east"
    file.write_text(yaml.safe_dump(config))
    manifest = stage.folder / "job.yaml"
    manifest.write_text(json.dumps(job))

    def compared() -> str:
        code, out, err = alice.fairgate("try", "-f", str(manifest), "--contexts", "east,west")
        assert code == 0, err
        return out

    until("the limit is known", lambda: compared().rstrip().endswith("limit"))
    east_row, west_row = (line.split() for line in compared().splitlines()[1:])
    assert (east_row[0], east_row[-1]) == ("east", "capacity")
    assert west_row[:4] == ["west", f"{west}/later", "yes", west]
    (stage.folder / "pod.yaml").write_text(json.dumps(refused))
    alice.show(*commands("docs/users.md", "## Try before you submit"), varies=SIMULATED)
    alice.show(
        *commands("docs/users.md", "`--contexts east,west` asks several"), varies="about min"
    )
    alice.show(*commands("docs/users.md", "A refused object shows the message"), code=1)
    assert not stage.pods(ours)
