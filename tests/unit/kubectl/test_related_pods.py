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
from tests.support.rest_server import Rest, serving

PODS = "GET /api/v1/namespaces/team-a/pods"
JOB = "GET /apis/batch/v1/namespaces/team-a/jobs/train"


def a_pod(name: str, state: str) -> dict[str, Any]:
    gates = [{"name": GATE}] if state == "held" else []
    stamp = {ANNOTATION_RELEASE: "1-1"} if state in ("released", "finished") else {}
    phase = "Succeeded" if state == "finished" else "Pending"
    return {
        "metadata": {"name": name, "annotations": stamp},
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
    line = [*words, "-n", "team-a", "--kubeconfig", str(file)]
    code = outcome(lambda: cli(line, prog_name="kubectl fairgate", complete_var=COMPLETE))
    return code, *capsys.readouterr()


def test_a_job_is_summed_up_and_each_reason_is_told_once(
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


def test_an_object_that_is_not_there_is_told(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(rest, tmp_path, capsys, "why", "job/other")
    assert (code, "There is no job/other" in err) == (2, True)


@pytest.mark.parametrize(("words", "part"), [((), "Usage"), (("--version",), "kubectl-fairgate")])
def test_the_program_by_itself_prints_help_or_its_version(
    words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(lambda: cli(list(words), prog_name="kubectl fairgate")) == 0
    assert part in capsys.readouterr().out
