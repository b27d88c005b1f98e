"""`try`: dry runs at the API server, then a simulation by Fairgate."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.errors import InvalidInput
from app.kubectl import manifests
from app.kubectl.cli import COMPLETE, cli, outcome
from tests.support import kubectl_answers as answers
from tests.support.rest_server import Reply, Rest, serving

PODS = "/api/v1/namespaces/team-a/pods"
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"

CONTAINERS = [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train-0"},
    "spec": {"containers": CONTAINERS},
}
TEMPLATE = {
    "metadata": {"labels": {"app": "train"}, "annotations": {"fairgate.io/submitter": "x"}},
    "spec": {"containers": CONTAINERS},
}


def an_object(kind: str, version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


JOB = an_object("Job", "batch/v1", parallelism=4, completions=8, template=TEMPLATE)


def refusal(status: int, message: str) -> Reply:
    body = {"kind": "Status", "message": message, "code": status}
    return Reply(status, json.dumps(body), "application/json")


@pytest.fixture
def rest() -> Iterator[Rest]:
    """A cluster that accepts the pod and the Job."""
    stored = {**POD, "spec": {**POD["spec"], "priority": 7}, "status": {"qosClass": "Burstable"}}  # type: ignore[dict-item]
    server = Rest(
        {"POST /trials": answers.trial()},
        raw={f"POST {PODS}": stored, f"POST {JOBS}": JOB},
    )
    with serving(server):
        yield server


Told = tuple[int, str, str]


class Shell:
    """Runs `try` on a manifest, with the contexts `here` and `there` of a kubeconfig."""

    def __init__(self, rest: Rest, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.clusters = {"here": rest.url, "there": rest.url}

    def run(self, *objects: Any, words: tuple[str, ...] = ()) -> Told:
        config = {
            "clusters": [{"name": n, "cluster": {"server": u}} for n, u in self.clusters.items()],
            "users": [{"name": "u", "user": {"token": "alices"}}],
            "contexts": [
                {"name": n, "context": {"cluster": n, "user": "u", "namespace": "team-a"}}
                for n in self.clusters
            ],
            "current-context": "here",
        }
        (self.folder / "config").write_text(json.dumps(config), encoding="utf-8")
        (self.folder / "m.yaml").write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        line = ["try", "-f", str(self.folder / "m.yaml"), *words]
        return self.tell([*line, "--kubeconfig", str(self.folder / "config")])

    def tell(self, line: list[str]) -> Told:
        code = outcome(lambda: cli(line, prog_name="kubectl fairgate", complete_var=COMPLETE))
        return code, *self.capsys.readouterr()


@pytest.fixture
def shell(
    rest: Rest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(rest, tmp_path, capsys)


def test_a_job_is_tested_with_a_pod_of_its_template(rest: Rest, shell: Shell) -> None:
    code, out, err = shell.run(JOB)
    assert (code, err) == (0, "")
    job, pod, trial = rest.asked
    assert [each.path for each in (job, pod)] == [JOBS, PODS]
    assert job.query["dryRun"] == pod.query["dryRun"] == "All"
    assert pod.body["metadata"]["annotations"] == {}
    assert pod.body["metadata"]["labels"] == {"app": "train"}
    [part] = trial.body["pods"]
    assert (trial.body["kind"], trial.body["name"], part["count"]) == ("Job", "train", 4)
    assert part["pod"]["spec"]["priority"] == 7  # as the API server would store the pod
    first = "Job team-a/train is accepted and would wait: 1 of its 4 pods would start at once."
    assert out.splitlines()[0] == first
    assert "the last one after 90 min in a simulation." in " ".join(out.split())
    assert "  * more nodes in pool h100\n" in out


def test_pod_that_fits_is_reported_in_one_line_with_its_pool(rest: Rest, shell: Shell) -> None:
    rest.answers["POST /trials"] = answers.trial(
        state="fits", pods=1, starts_now=1, rule=None, remedies=[], reason="", numbers={}
    )
    code, out, _ = shell.run(POD)
    assert (code, len(rest.asked)) == (0, 2)
    assert out.startswith("Pod team-a/train-0 is accepted and fits now: it would start at once.\n")
    assert "of pool h100" in out


def test_a_start_that_took_too_long_to_simulate_is_not_known(rest: Rest, shell: Shell) -> None:
    withheld = "The simulation took more than 20 s and was stopped."
    rest.answers["POST /trials"] = answers.trial(simulated_seconds=None, estimate_withheld=withheld)
    code, out, _ = shell.run(JOB)
    assert code == 0
    assert f"starts not known: {withheld}" in " ".join(out.split())
    assert "waits for 8 nvidia.com/gpu of pool h100" in " ".join(out.split())


def test_an_estimate_is_preferred_to_the_simulation(rest: Rest, shell: Shell) -> None:
    rest.answers["POST /trials"] = answers.trial(
        estimate=answers.estimate(), estimate_withheld=None
    )
    out = shell.run(POD)[1]
    assert "even chance by" in out
    assert "in a simulation" not in out


def test_a_refused_object_gives_the_message_and_exit_code_1(rest: Rest, shell: Shell) -> None:
    message = 'admission webhook "fairgate.io" denied the request: at most 4 pods may wait'
    rest.raw.pop(f"POST {PODS}")
    rest.answers[f"POST {PODS}"] = refusal(403, message)
    code, out, _ = shell.run(POD)
    assert (code, out) == (1, f"Pod team-a/train-0 is refused: {message}\n")
    code, out, _ = shell.run(JOB)
    assert (code, f"refused: its pods would be refused: {message}" in out) == (1, True)
    assert not [each for each in rest.asked if each.path.endswith("/trials")]


def test_without_the_right_to_create_pods_the_template_is_tried(rest: Rest, shell: Shell) -> None:
    rest.raw.pop(f"POST {PODS}")
    message = 'pods is forbidden: User "alice" cannot create resource "pods" in API group ""'
    rest.answers[f"POST {PODS}"] = refusal(403, message)
    code, out, _ = shell.run(JOB)
    assert (code, "the admission of its pods was not tested" in out) == (0, True)
    assert rest.asked[-1].body["pods"][0]["pod"]["spec"]["containers"] == CONTAINERS


def test_an_object_that_exists_is_tested_under_another_name(rest: Rest, shell: Shell) -> None:
    stored = rest.raw.pop(f"POST {PODS}")
    exists = refusal(409, 'pods "train-0" already exists')
    rest.answers[f"POST {PODS}"] = [exists, Reply(200, json.dumps(stored), "application/json")]
    code, out, _ = shell.run(POD)
    assert (code, "An object of this name exists." in out) == (0, True)
    assert rest.asked[1].body["metadata"] == {"generateName": "train-0-"}


def test_warnings_of_the_api_server_are_shown_once(rest: Rest, shell: Shell) -> None:
    rest.headers["Warning"] = '299 - "fairgate.io/poools is not known; use fairgate.io/pools"'
    for document in (JOB, POD):
        out = shell.run(document)[1]
        assert out.count("Note: fairgate.io/poools is not known; use fairgate.io/pools") == 1


def test_refused_trial_is_shown_as_a_note(rest: Rest, shell: Shell) -> None:
    rest.refuse("POST /trials", 422, "A pod with resource claims cannot be tried.")
    code, out, _ = shell.run(POD)
    assert code == 0
    assert out == (
        "Pod team-a/train-0 is accepted; its start is not known.\n"
        "Note: A pod with resource claims cannot be tried.\n"
    )


COUNTS = [
    (an_object("Deployment", "apps/v1", replicas=3, template=TEMPLATE), [3]),
    (an_object("StatefulSet", "apps/v1", template=TEMPLATE), [1]),
    (an_object("Job", "batch/v1", parallelism=4, completions=2, template=TEMPLATE), [2]),
    (
        an_object(
            "JobSet",
            "jobset.x-k8s.io/v1alpha2",
            replicatedJobs=[
                {"replicas": 2, "template": {"spec": {"parallelism": 3, "template": TEMPLATE}}},
                {"template": {"spec": {"template": TEMPLATE}}},
            ],
        ),
        [6, 1],
    ),
]


@pytest.mark.parametrize(("document", "counts"), COUNTS)
def test_each_kind_states_its_pods(
    document: dict[str, Any], counts: list[int], rest: Rest, shell: Shell
) -> None:
    resource = f"{document['kind'].lower()}s"
    path = f"/apis/{document['apiVersion']}/namespaces/team-a/{resource}"
    rest.raw[f"POST {path}"] = document
    assert shell.run(document)[0] == 0
    assert [each["count"] for each in rest.asked[-1].body["pods"]] == counts


@pytest.mark.parametrize(
    ("order", "in_order"),
    [
        ({}, None),
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, True),
        ({"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}, None),
    ],
)
def test_a_jobset_names_its_replicated_jobs_and_their_order(
    order: dict[str, Any], in_order: bool | None, rest: Rest, shell: Shell
) -> None:
    jobs = [{"name": n, "template": {"spec": {"template": TEMPLATE}}} for n in ("driver", "worker")]
    version = "jobset.x-k8s.io/v1alpha2"
    document = an_object("JobSet", version, replicatedJobs=jobs, **order)
    rest.raw[f"POST /apis/{version}/namespaces/team-a/jobsets"] = document
    assert shell.run(document)[0] == 0
    made = [each.body for each in rest.asked if each.path == PODS]
    labels = [each["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] for each in made]
    assert labels == ["driver", "worker"]
    assert rest.asked[-1].body.get("inOrder") == in_order


def test_claims_of_templates_are_part_of_the_trial(rest: Rest, shell: Shell) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    entries = [
        {"name": "own", "resourceClaimTemplateName": "mine"},
        {"name": "theirs", "resourceClaimTemplateName": "theirs"},
        {"name": "old", "resourceClaimName": "exists"},
    ]
    document = {**POD, "spec": {**POD["spec"], "resourceClaims": entries}}
    template = {"kind": "ResourceClaimTemplate", "apiVersion": "resource.k8s.io/v1"}
    mine = {**template, "metadata": {"name": "mine"}, "spec": {"spec": spec}}
    root = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
    rest.raw |= {f"POST {PODS}": document, f"GET {root}/theirs": {**mine, "metadata": {}}}
    assert shell.run(document, mine)[0] == 0
    assert rest.asked[-1].body["pods"][0]["claims"] == {"own": spec, "theirs": spec}
    code, out, _ = shell.run(document)
    assert (code, "there is no ResourceClaimTemplate team-a/mine" in out) == (1, True)


def test_a_claim_template_that_the_caller_may_not_read_is_a_note(rest: Rest, shell: Shell) -> None:
    entries = [
        {"name": "own", "resourceClaimTemplateName": "a?b"},
        {"name": "old", "resourceClaimName": "exists"},
    ]
    document = {**POD, "spec": {**POD["spec"], "resourceClaims": entries}}
    root = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
    rest.raw[f"POST {PODS}"] = document
    message = 'resourceclaimtemplates is forbidden: User "alice" cannot get resource'
    rest.answers[f"GET {root}/a?b"] = refusal(403, message)
    code, out, _ = shell.run(document)
    note = "You may not read ResourceClaimTemplate a?b, so its devices are not counted."
    assert (code, note in out) == (0, True)
    [part] = rest.asked[-1].body["pods"]
    assert (part["pod"]["spec"]["resourceClaims"], "claims" in part) == (entries[1:], False)


def test_object_of_another_namespace_than_the_given_one_is_refused(shell: Shell) -> None:
    document = {**POD, "metadata": {**POD["metadata"], "namespace": "team-b"}}
    code, _, err = shell.run(document, words=("-n", "team-a"))
    assert (code, "is in namespace team-b, and -n names team-a" in err) == (2, True)


def test_a_statefulset_gets_the_volumes_of_its_claims(rest: Rest, shell: Shell) -> None:
    claims = [{"metadata": {"name": "data"}, "spec": {}}]
    made = an_object("StatefulSet", "apps/v1", template=TEMPLATE, volumeClaimTemplates=claims)
    rest.raw["POST /apis/apps/v1/namespaces/team-a/statefulsets"] = made
    assert shell.run(made)[0] == 0
    claim = {"claimName": "data"}
    volumes = [{"name": "data", "persistentVolumeClaim": claim}]
    assert rest.asked[1].body["spec"]["volumes"] == volumes


def test_an_object_without_pods_is_not_simulated(rest: Rest, shell: Shell) -> None:
    empty = an_object("Deployment", "apps/v1", replicas=0, template=TEMPLATE)
    rest.raw["POST /apis/apps/v1/namespaces/team-a/deployments"] = empty
    code, out, _ = shell.run(empty)
    assert (code, "It creates no pods." in out, len(rest.asked)) == (0, True, 1)


def test_other_kinds_are_counted_and_a_list_is_unfolded(rest: Rest, shell: Shell) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    code, out, _ = shell.run({"apiVersion": "v1", "kind": "List", "items": [POD, other]}, POD)
    assert (code, out.count("Pod team-a/train-0 is accepted")) == (0, 2)
    assert out.endswith("1 object of other kinds: not tested.\n")


def test_each_context_has_one_row(rest: Rest, shell: Shell) -> None:
    with serving(Rest({f"POST {PODS}": refusal(403, "the quota is used up")})) as there:
        shell.clusters["there"] = there.url
        words = ("--contexts", "here,there")
        code, out, _ = shell.run(POD, words=words)
        rows = [line.split() for line in out.splitlines()]
        found = json.loads(shell.run(POD, words=(*words, "-o", "json"))[1])
        refused = shell.run(POD, words=("--contexts", "there"))[0]
    assert (code, refused) == (0, 1)
    here = ["here", "team-a/train-0", "yes", "team-a", "h100", "1/4", "about", "90", "min"]
    assert rows[1] == [*here, "capacity"]
    assert rows[2][:3] == ["there", "team-a/train-0", "no"]
    assert "there: the quota is used up" in out
    assert [each["context"] for each in found["items"]] == ["here", "there"]


def test_a_context_that_is_unreachable_has_its_error(rest: Rest, shell: Shell) -> None:
    shell.clusters["there"] = "http://127.0.0.1:1"
    code, out, _ = shell.run(POD, words=("--contexts", "here,there"))
    assert (code, "there: http://127.0.0.1:1 does not answer" in out) == (0, True)


def test_json_has_the_answer_of_the_api(rest: Rest, shell: Shell) -> None:
    found = json.loads(shell.run(POD, words=("-o", "json"))[1])
    [item] = found["items"]
    assert (item["object"], item["accepted"]) == ("Pod team-a/train-0", True)
    assert item["trial"] == answers.trial().model_dump(mode="json", by_alias=True)


def test_standard_input_is_read(rest: Rest, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run(POD)
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(POD)))
    line = ["try", "-f", "-", "--kubeconfig", str(shell.folder / "config")]
    assert shell.tell(line)[0] == 0


@pytest.mark.parametrize(
    ("objects", "part"),
    [
        ([], "no Kubernetes object"),
        (["text"], "not a Kubernetes object"),
        ([{"kind": "Pod"}], "no kind or apiVersion"),
        ([{"kind": "Pod", "apiVersion": "v1"}], "has no name"),
        ([{"kind": "ConfigMap", "apiVersion": "v1"}], "no object of a known kind"),
    ],
)
def test_a_file_without_work_is_wrong_input(objects: list[Any], part: str, shell: Shell) -> None:
    code, _, err = shell.run(*objects)
    assert (code, part in err, err.count("\n")) == (2, True, 1)


def nested(form: str) -> str:
    """Return YAML in which each line contains the line before nine times, as aliases."""
    lines = ["a: &a {x: y}"]
    for before, key in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{key}: &{key} " + form.format(", ".join([f"*{before}"] * 9)))
    return "\n".join(lines)


@pytest.mark.parametrize("text", [nested("[{}]"), nested("{{<<: [{}]}}"), "a: &a {b: *a}"])
def test_aliases_that_expand_without_bound_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="too many YAML aliases"):
        manifests.parse(f"kind: Pod\n{text}")


def test_aliases_are_read() -> None:
    [found] = manifests.parse("kind: Pod\na: &a {b: [1]}\nc: *a\nd: {<<: *a, e: 2}\n")
    assert (found["c"], found["d"]) == ({"b": [1]}, {"b": [1], "e": 2})


def test_the_direct_address_cannot_make_dry_runs(rest: Rest, shell: Shell) -> None:
    shell.run(POD)
    words = ["--server", rest.url, "--token", "alices"]
    code, _, err = shell.tell(["try", "-f", str(shell.folder / "m.yaml"), *words])
    assert (code, "use a kubeconfig" in err) == (2, True)


def test_values_are_read_as_kubectl_reads_them() -> None:
    text = "kind: Pod\nday: 2026-01-31\nargs: [12:30:45, 1:30.5, 2020-13-45, 0x10, 1.5, 7, true]\n"
    (found,) = manifests.parse(text)
    assert found["day"] == "2026-01-31"
    assert found["args"] == ["12:30:45", "1:30.5", "2020-13-45", 16, 1.5, 7, True]


@pytest.mark.parametrize("value", [".nan", "!!binary aGk=", "!!timestamp 2020-12-31", "!!set {a}"])
def test_a_value_without_a_form_in_json_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match="a value that JSON cannot express"):
        manifests.parse(f"kind: Pod\nvalue: {value}\n")


@pytest.mark.parametrize("namespace", ["team-a/pods#", "team-a/pods?x=", "../x", "Team", "-a"])
def test_a_namespace_that_cannot_exist_is_wrong_input(
    rest: Rest, shell: Shell, namespace: str
) -> None:
    outcomes = [
        shell.run(POD, words=("-n", namespace)),
        shell.run({**POD, "metadata": {"name": "p", "namespace": namespace}}),
    ]
    for code, _, err in outcomes:
        assert code == 2
        assert f"{namespace!r} is not the name of a namespace" in err
    assert rest.asked == []


def test_a_dry_run_has_its_option_whatever_the_version(rest: Rest, shell: Shell) -> None:
    shell.run({**POD, "apiVersion": "v1?x="})
    (asked,) = rest.asked
    assert asked.query["dryRun"] == "All"
