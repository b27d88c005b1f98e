"""`why` of a workload object and of labels: the pods come from the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.well_known import ANNOTATION_RELEASE, GATE
from app.kubectl.cli import COMPLETE, cli, outcome
from tests.support import kubectl_answers as answers
from tests.support.rest_server import Reply, Rest, serving

PODS = "GET /api/v1/namespaces/team-a/pods"
JOB = "GET /apis/batch/v1/namespaces/team-a/jobs/train"


def a_pod(name: str, state: str) -> dict[str, Any]:
    gates = [{"name": GATE}] if state == "held" else []
    stamp = {ANNOTATION_RELEASE: "1-1"} if state in ("released", "finished") else {}
    phase = "Succeeded" if state == "finished" else "Pending"
    return {
        "metadata": {"namespace": "team-a", "name": name, "annotations": stamp},
        "spec": {"schedulingGates": gates},
        "status": {"phase": phase},
    }


@pytest.fixture
def rest() -> Iterator[Rest]:
    """A Job with three held pods that wait for two reasons, a released and a finished pod."""
    names = (("a", "held"), ("b", "held"), ("c", "held"), ("d", "released"), ("e", "finished"))
    server = Rest(
        {
            f"GET /workloads/team-a/{name}": answers.workload(name=name, rule=rule)
            for name, rule in (("a", "limit"), ("b", "limit"), ("c", "fair order"))
        },
        raw={
            PODS: {"metadata": {}, "items": [a_pod(*each) for each in names]},
            JOB: {"spec": {"selector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}}}},
        },
    )
    with serving(server):
        yield server


Told = tuple[int, str, str]


def run(rest: Rest, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Told:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": rest.url}}],
        "users": [{"name": "u", "user": {"token": "alices"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = folder / "config"
    file.write_text(json.dumps(config), encoding="utf-8")
    scope = () if {"-n", "-A"} & {*words} else ("-n", "team-a")
    line = [*words, *scope, "--kubeconfig", str(file)]
    code = outcome(lambda: cli(line, prog_name="kubectl fairgate", complete_var=COMPLETE))
    return code, *capsys.readouterr()


def test_why_of_a_job_counts_its_pods_and_explains_each_reason_once(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(rest, tmp_path, capsys, "why", "job/train")
    assert (code, err) == (0, "")
    assert out.startswith(
        "Pods of job/train in namespace team-a: 3 held, 1 released, 1 finished.\n"
    )
    told = [f"Pod team-a/{name} waits" in out for name in "abc"]
    assert told == [True, False, True]
    asked = next(each for each in rest.asked if each.path.endswith("/pods"))
    assert asked.query["labelSelector"] == "batch.kubernetes.io/job-name=train"
    assert asked.headers["authorization"] == "Bearer alices"


def test_labels_are_sent_as_written_and_json_has_the_counts(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(rest, tmp_path, capsys, "why", "-l", "app=train", "-o", "json")
    found = json.loads(out)
    assert (code, found["held"], found["released"], found["finished"]) == (0, 3, 1, 1)
    assert [each["name"] for each in found["items"]] == ["a", "c"]
    asked = next(each for each in rest.asked if each.path.endswith("/pods"))
    assert asked.query["labelSelector"] == "app=train"


@pytest.mark.parametrize("kind", ["deployment", "deploy", "sts", "jobset"])
def test_each_kind_finds_its_pods(
    kind: str, rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}
    for path in ("deployments", "statefulsets"):
        rest.raw[f"GET /apis/apps/v1/namespaces/team-a/{path}/web"] = {
            "spec": {"selector": selector}
        }
    assert run(rest, tmp_path, capsys, "why", f"{kind}/web")[0] == 0
    asked = next(each for each in rest.asked if each.path.endswith("/pods"))
    own = "jobset.sigs.k8s.io/jobset-name=web"
    assert asked.query["labelSelector"] == (own if kind == "jobset" else "app in (x,y)")


def test_other_pods_of_a_gang_are_not_named_as_left_out(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"p{number}" for number in range(50)]
    rest.raw[PODS] = {"metadata": {}, "items": [a_pod(name, "held") for name in names]}
    for name in names:
        rest.answers[f"GET /workloads/team-a/{name}"] = answers.workload(
            name=name, gang="job/train", pods=50
        )
    code, out, _ = run(rest, tmp_path, capsys, "why", "job/train")
    assert (code, "did not look at" in out) == (0, False)
    for name in names:
        rest.answers[f"GET /workloads/team-a/{name}"] = answers.workload(name=name, gang=None)
    out = run(rest, tmp_path, capsys, "why", "job/train")[1]
    assert out.endswith("\nFairgate did not look at 20 more held pods.\n")


def test_without_pods_the_command_that_shows_their_refusal_is_named(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest.raw[PODS] = {"metadata": {}, "items": []}
    job, jobset, labels = (
        " ".join(run(rest, tmp_path, capsys, "why", *words)[1].split())
        for words in (("job/train",), ("jobset/web",), ("-l", "app/x=y"))
    )
    assert job == (
        "There are no pods of job/train in namespace team-a: it created none yet, or they were "
        "deleted; if they were refused, kubectl describe job train -n team-a shows the reason."
    )
    assert jobset.startswith(
        "There are no pods of jobset/web in namespace team-a: it does not exist there (check the "
        "name and -n NAMESPACE), it created none yet, "
    )
    assert "kubectl describe job -l jobset.sigs.k8s.io/jobset-name=web -n team-a" in jobset
    assert labels == "There are no pods of -l app/x=y in namespace team-a."


def test_unmanaged_pods_are_explained(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest.raw[PODS] = {"metadata": {}, "items": [a_pod("a", "unmanaged")]}
    out = " ".join(run(rest, tmp_path, capsys, "why", "job/train")[1].split())
    assert out.startswith("Pods of job/train in namespace team-a: 1 unmanaged. Fairgate does not")
    assert "the unmanaged pods: they request no managed resource" in out


@pytest.mark.parametrize("typed", ["job/other", "jobs/other", "deploy/web", "statefulset/web"])
def test_missing_object_is_reported_as_typed_with_its_namespace(
    typed: str, rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(rest, tmp_path, capsys, "why", typed)
    sentence = f"There is no {typed} in namespace team-a: check the name and the namespace (-n "
    assert (code, err.startswith(f"fairgate: {sentence}NAMESPACE)")) == (2, True)
    assert ("a Job may be deleted after it finished" in err) is typed.startswith("job")


def test_missing_right_to_read_pods_is_reported_with_the_object_as_typed(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "GET /apis/apps/v1/namespaces/team-a/deployments/web"
    rest.answers[path] = Reply(403, "{}", "application/json")
    code, _, err = run(rest, tmp_path, capsys, "why", "deploy/web")
    assert (code, "You may not read the pods of deploy/web: you need" in err) == (1, True)


@pytest.mark.parametrize(("words", "part"), [((), "Usage"), (("--version",), "kubectl-fairgate")])
def test_the_program_by_itself_prints_help_or_its_version(
    words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(lambda: cli(list(words), prog_name="kubectl fairgate")) == 0
    assert part in capsys.readouterr().out


def test_labels_are_looked_up_in_all_namespaces_by_A(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest.raw["GET /api/v1/pods"] = rest.raw[PODS]
    code, out, _ = run(rest, tmp_path, capsys, "why", "-A", "-l", "app=train")
    assert (code, out.splitlines()[0]) == (
        0,
        "Pods of -l app=train in all namespaces: 3 held, 1 released, 1 finished.",
    )


def test_a_name_is_not_looked_up_in_all_namespaces(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(rest, tmp_path, capsys, "why", "train-7", "-A")
    assert (code, "write -n, or -A with -l" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("-l", "app=train"), "/api/v1/namespaces/team-a/pods"),
        (("-l", "app=train", "-A"), "/api/v1/pods"),
        (("-l", "app=train", "-n", "other", "-A"), "/api/v1/pods"),
    ],
)
@pytest.mark.parametrize("command", [("queue", "team-a"), ("queue",), ("mine",)])
def test_lists_show_only_pods_with_the_labels(
    command: tuple[str, ...],
    words: tuple[str, ...],
    path: str,
    rest: Rest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rest.answers |= {
        "GET /tenants": answers.tenants(),
        "GET /tenants/team-a/queue": answers.queue(),
        "GET /tenants/research/queue": answers.queue().model_copy(update={"items": []}),
        "GET /me": answers.mine(),
    }
    found = {"metadata": {}, "items": [a_pod("train-7", "held")]}
    rest.raw |= {PODS: found, "GET /api/v1/pods": found}
    code, out, err = run(rest, tmp_path, capsys, *command, *words, "-o", "name")
    assert (code, out, err) == (0, "pod/train-7\n", "")
    assert [each.path for each in rest.asked if each.path.endswith("/pods")] == [path]


def test_the_right_that_is_missing_for_all_namespaces_is_named(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest.answers["GET /api/v1/pods"] = Reply(403, "{}", "application/json")
    code, _, err = run(rest, tmp_path, capsys, "why", "-A", "-l", "app=train")
    assert code == 1
    assert "you need the right to list pods of all namespaces; or name one by -n" in err


def test_a_selector_that_cannot_be_parsed_is_named(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest.raw.pop(PODS)
    rest.answers[PODS] = Reply(400, '{"message": "unable to parse"}', "application/json")
    code, _, err = run(rest, tmp_path, capsys, "why", "-l", "app=(")
    sentence = "-l app=( is not a label selector such as app=train (unable to parse)."
    assert (code, err) == (2, f"fairgate: {sentence}\n")
