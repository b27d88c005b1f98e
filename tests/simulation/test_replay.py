"""The command `replay` on small synthetic logs, from end to end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.policy import Policy, Reclaim, WithinQueue
from app.sim.replay.command import ReplayOptions, run
from app.sim.replay.replay_flags import policy_with
from app.sim.replay.trace_files import COLUMNS
from app.sim.report import plot
from app.terminal.output import OutputFormat, OutputOptions
from tests.simulation.logs import log_file

HEAD = (
    "submit_s,tenant,user,job_id,pods,gpus_per_pod,cpus_per_pod,mem_gib_per_pod,"
    "gpu_model,duration_s,priority"
)


TABLE, JSON = OutputOptions(), OutputOptions(OutputFormat.JSON)


def log(folder: Path, *rows: str) -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    return path


def nodes(folder: Path, *rows: str) -> Path:
    path = folder / "nodes.csv"
    path.write_text("\n".join(("node,gpus,gpu_model,cpus,mem_gib", *rows)) + "\n")
    return path


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Ann submits twenty jobs for two devices before Bob's first. Each job runs for 100 s."""
    ann = (f"0,lab,ann,a{number:02},1,1,,,,100," for number in range(20))
    return log(tmp_path, *ann, "10,lab,bob,b,1,1,,,,100,")


def asked(capsys: pytest.CaptureFixture[str], trace: Path, **options: Any) -> dict[str, Any]:
    run(ReplayOptions(trace, output=JSON, **options))
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_fair_policy_starts_the_second_user_next_and_fifo_does_not(
    crowded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = {
        policy: asked(capsys, crowded, gpus=2, policy=policy)["users"]["bob"]["mean"]
        for policy in ("fair", "fifo", "backfill")
    }
    assert waits == {"fair": 90, "fifo": 990, "backfill": 990}


def test_replay_reports_metrics_of_its_window_and_waits_of_its_users(
    crowded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, crowded, gpus=2, start="0", span="100")
    assert (found["from"], found["for"]) == (0, 100)
    assert found["workloads"] == {"submitted": 21, "released": 21, "never_started": 0}
    assert found["users"].keys() == {"ann", "bob"}
    assert found["users"]["bob"] == {"mean": 90, "p50": 90, "p95": 90, "jobs": 1}
    metrics = found["metrics"]
    assert metrics["utilisation"] == {"nvidia.com/gpu": 1}
    assert metrics["starved_users"] == {"1h": 0, "4h": 0, "12h": 0}
    assert metrics["wait_seconds"].keys() == {"mean", "p50", "p95", "max"}
    assert metrics["decisions"] == 21
    assert metrics["events"] >= 42
    assert metrics["drift_pairs"] > 0
    assert metrics["drift_over_bound_max"] <= 1


def test_the_whole_log_is_played_whatever_the_window(
    crowded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = asked(capsys, crowded, gpus=2, start="10", span="1s")
    assert late["users"] == {"bob": {"mean": 90, "p50": 90, "p95": 90, "jobs": 1}}


def test_large_gang_with_the_longest_wait_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("0,t,ann,a,2,8,,,,60,", "0,t,ann,b,2,8,,,,60,", "0,t,bob,c,2,8,,,,60,")
    found = asked(capsys, log(tmp_path, *rows), gpus=16, policy="fifo")
    gangs = found["metrics"]["large_gang_wait_seconds"]
    assert (gangs["mean"], gangs["max"], gangs["jobs"]) == (60, 120, 3)
    assert gangs["longest"] == {"user": "bob", "tenant": "t", "job": "c", "seconds": 120}
    assert gangs["longest_of_others"] == {"user": "ann", "tenant": "t", "job": "b", "seconds": 60}
    small = asked(capsys, log(tmp_path, *rows), gpus=16, policy="fifo", large_gang=17)
    assert small["metrics"]["large_gang_wait_seconds"]["longest"] is None


def test_gang_starts_as_a_unit_and_only_on_nodes_that_fit_its_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("0,t,u,pair,2,8,,,,60,", "0,t,u,four,1,4,,,,60,", "1,t,u,wide,1,12,,,,60,")
    cluster = nodes(tmp_path, "n1,8,V100,64,256", "n2,8,V100,64,256")
    found = asked(capsys, log(tmp_path, *rows), nodes=cluster)
    assert found["workloads"] == {"submitted": 3, "released": 2, "never_started": 1}
    assert found["users"]["u"]["jobs"] == 3


def test_weights_and_limits_come_from_the_tenants_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"0,{t},{t},{t}{number},1,1,,,,1000," for number in range(8) for t in "ab"]
    trace = log(tmp_path, *rows)
    tenants = tmp_path / "tenants.csv"
    tenants.write_text("tenant,weight,guarantee_gpus,limit_gpus\na,1,,2\nb,1,,\n")
    found = asked(capsys, trace, gpus=8, tenants=tenants, span="999")
    waits = found["metrics"]["waits_by_tenant"]
    assert waits["a"]["mean"] > waits["b"]["mean"]
    assert found["metrics"]["jain"] == pytest.approx(64 / (2 * (36 + 4)))


def test_the_same_seed_gives_the_same_replay(
    crowded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, again, other = (
        asked(capsys, crowded, gpus=2, jitter="9s", seed=seed, span="9999") for seed in (4, 4, 5)
    )
    assert one == again
    assert one["users"] != other["users"]


def test_no_user_of_a_real_log_starves_beside_one_that_fills_the_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One user has 77 % in order of arrival, and four of six users starve for 12 h."""
    window = {"gpus": 320, "tenant": "vcb436b2", "start": "4204619", "span": "96h"}
    trace = log_file("philly_2017.csv.gz")
    fair = asked(capsys, trace, **window)["metrics"]
    fifo = asked(capsys, trace, policy="fifo", **window)["metrics"]
    assert fifo["starved_users"] == {"1h": 4, "4h": 4, "12h": 4}
    assert fair["starved_users"]["4h"] == fair["starved_users"]["12h"] == 0
    assert fair["starved_users"]["1h"] <= 1
    assert fair["users_mean_wait_seconds"]["mean"] < fifo["users_mean_wait_seconds"]["mean"] / 4
    assert fair["utilisation"]["nvidia.com/gpu"] >= fifo["utilisation"]["nvidia.com/gpu"]


@pytest.mark.parametrize("output", [TABLE, JSON])
def test_text_and_json_report_workloads_that_can_never_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: OutputOptions
) -> None:
    trace = log(tmp_path, "0,t,u,huge,1,9,,,,60,", "0,t,u,b,1,1,,,,60,")
    run(ReplayOptions(trace, gpus=8, output=output))
    told = capsys.readouterr().out
    assert ('"never_started": 1' if output is JSON else "1 workload could never start") in told


def test_the_text_names_the_figures_a_person_looks_for(
    crowded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ReplayOptions(crowded, gpus=2))
    told = capsys.readouterr().out
    for words in (
        "users starved",
        "users' mean wait",
        "utilisation",
        "100.0 %",
        "drift over bound",
    ):
        assert words in told
    assert "ann" in told
    assert "bob" in told


def test_policy_fields_are_set_with_and_without_their_prefix() -> None:
    assert policy_with([]) == Policy()
    pairs = "policy.history=0.5 halfLife=1h30m backfill=false reclaim=fair"
    found = policy_with([*pairs.split(), "policy.withinQueue=LowerPriority"])
    assert (found.history * 2, found.half_life) == (1, 5_400_000)
    assert (found.backfill, found.reclaim) == (False, Reclaim.FAIR)
    assert found.within_queue is WithinQueue.LOWER_PRIORITY


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "either --gpus N or --nodes FILE.csv"),
        ({"gpus": 1, "nodes": Path("n.csv")}, "either --gpus N or --nodes FILE.csv"),
        ({"gpus": 0}, "--gpus 0 is no cluster"),
        ({"gpus": 1, "policy": "best"}, "--policy best is not valid; use fair, fifo"),
        ({"gpus": 1, "policy": "fifo", "settings": ("history=1",)}, "heeds neither --set nor"),
        ({"nodes": Path("n.csv"), "policy": "fifo"}, "--policy fifo knows no nodes"),
        ({"gpus": 1, "large_gang": 0}, "--large-gang 0 is not valid"),
        ({"gpus": 1, "jitter": "30"}, "--jitter: '30' has no unit; write 30s"),
        ({"gpus": 1, "start": "soon"}, "--from: 'soon' is no length of time"),
        ({"gpus": 1, "span": "-5"}, "--for: -5 is negative"),
        ({"gpus": 1, "start": "99"}, "--from 99 is after the last job, at 10"),
        ({"gpus": 1, "settings": ("history",)}, "--set history: there is no value"),
        ({"gpus": 1, "settings": ("histroy=1",)}, "(did you mean history?)"),
        ({"gpus": 1, "settings": ("history=-1",)}, "--set history=-1: -1 is negative"),
        ({"gpus": 1, "settings": ("halfLife=0s",)}, "is no time at all"),
        ({"gpus": 1, "settings": ("history=1", "policy.history=2")}, "history is set twice"),
        ({"gpus": 1, "tenant": "labb"}, "has no tenant labb (did you mean lab?)"),
    ],
)
def test_command_line_mistake_gives_one_sentence_with_a_remedy(
    crowded: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        run(ReplayOptions(crowded, **options))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_matplotlib_a_picture_is_refused_with_how_to_install_it(
    crowded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=r"pip install '\.\[plot\]' in the source"):
        run(ReplayOptions(crowded, gpus=2, policy="fifo", plot=tmp_path / "held.png"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no/held.png", r"there is no folder .*no; create it"),
        ("held.txt", r"no picture has such a name; write one that ends in .png"),
        ("held", r"no picture has such a name"),
    ],
)
def test_a_picture_that_cannot_be_written_is_known_before_anything_is_played(
    crowded: Path, tmp_path: Path, name: str, told: str
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    with pytest.raises(InvalidInput, match=told):
        plot.check(tmp_path / name, Millis(0), Millis(1))
    with pytest.raises(InvalidInput, match=told):
        run(ReplayOptions(crowded, gpus=2, policy="fifo", plot=tmp_path / name))


def test_a_picture_shows_the_timeline(crowded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "held.png"
    run(ReplayOptions(crowded, gpus=2, policy="fifo", plot=picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    folder = tmp_path / "taken.png"
    folder.mkdir()
    with pytest.raises(InvalidInput, match=r"cannot be written \(is a directory\); write another"):
        run(ReplayOptions(crowded, gpus=2, policy="fifo", plot=folder))


def test_plot_compares_user_waits_with_fifo_for_the_fair_policy_only(
    crowded: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "fair.svg"
    run(ReplayOptions(crowded, gpus=2, plot=picture))
    words = re.findall(r"<!-- (.*) -->", picture.read_text())
    assert words.count("Mean wait of each user") == 1
    assert {"fifo", "fair"} <= set(words)
    run(ReplayOptions(crowded, gpus=2, policy="backfill", plot=picture))
    assert "fifo" not in re.findall(r"<!-- (.*) -->", picture.read_text())


def test_the_log_in_the_docs_is_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    trace = tmp_path / "log.csv"
    trace.write_text(page.split("```csv\n")[1].split("```")[0])
    found = asked(capsys, trace, gpus=8)
    assert found["workloads"] == {"submitted": 2, "released": 2, "never_started": 0}
    for column in (*COLUMNS, "cpus_per_pod", "mem_gib_per_pod", "gpu_model", "priority"):
        assert f"`{column}`" in page


def test_times_of_the_policy_are_written_as_a_cluster_takes_them() -> None:
    with pytest.raises(InvalidInput, match="--set halfLife=2d: '2d' is no length of time to a"):
        policy_with(["halfLife=2d"])
