"""The command line: exit codes, messages, and a fast help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from app.cli.main import _outcome, cli
from app.core.errors import (
    ClusterRefused,
    ClusterUnavailable,
    FairgateError,
    InvalidQuantity,
    StoreUnavailable,
    ToolMissing,
)
from app.kubectl.cli import cli as plugin
from app.sim.replay.command import ReplayOptions
from app.sim.replay.trace_files import COLUMNS
from app.terminal.output import OutputFormat, OutputOptions
from tests.support.command_line import fairgate


def new_process(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        input=stdin,
    )


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(0), 0),
        (SystemExit(None), 0),
        (SystemExit(1), 1),
        (InvalidQuantity("x"), 2),
        (ToolMissing("x"), 3),
        (ClusterUnavailable("x"), 3),
        (ClusterRefused("x", 403), 1),
        (ClusterRefused("x", 409), 3),
        (StoreUnavailable("x"), 3),
        (KeyError("x"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code_reflects_the_outcome(error: BaseException, code: int) -> None:
    assert _outcome(raising(error)) == code


def test_an_error_is_one_sentence_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    _outcome(raising(FairgateError("Redis at redis:6379 does not answer; start it.")))

    assert capsys.readouterr() == ("", "fairgate: Redis at redis:6379 does not answer; start it.\n")


def test_hidden_characters_of_an_error_are_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    _outcome(raising(FairgateError("no job of \x1b]0;x\x07\u202e\nlog:\tend")))

    lines = ["no job of \\u001b]0;x\\u0007\\u202e", "log:    end"]
    assert capsys.readouterr().err.splitlines() == [f"fairgate: {line}" for line in lines]


def test_defect_names_the_variable_that_enables_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logging.root.handlers", [])
    _outcome(raising(ValueError("odd")))
    told = capsys.readouterr().err
    assert "ValueError: odd" in told
    assert "FAIRGATE_DEBUG=1" in told
    assert "Traceback" not in told

    monkeypatch.setenv("FAIRGATE_DEBUG", "1")
    _outcome(raising(ValueError("odd")))
    assert "Traceback" in capsys.readouterr().err


def test_help_does_not_wait_for_heavy_imports() -> None:
    script = (
        "import sys, app.cli.main; "
        "heavy = {'fastapi', 'kubernetes', 'redis', 'cryptography', 'uvicorn', 'msgspec', "
        "'yaml', 'matplotlib', 'app.core.engine', 'app.sim.cluster.virtual_cluster'}; "
        "print(*(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

    assert done.stdout == b"\n"


def test_help_lists_every_command() -> None:
    done = new_process("--help")

    assert done.returncode == 0
    for command in ("serve", "simulate", "replay", "release", "audit", "dev"):
        assert command in done.stdout


def test_check_settings_prints_them_all_without_a_password() -> None:
    done = fairgate("serve", "--check-settings", FAIRGATE_REDIS_URL="redis://:s3cret@h:1/0")

    assert done.returncode == 0
    assert "FAIRGATE_MANAGED_RESOURCES" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_roles_may_be_repeated_or_separated_by_commas() -> None:
    for arguments in (["--role", "webhook", "--role", "api"], ["--role", "api,webhook"]):
        done = fairgate("serve", "--check-settings", *arguments, "--redis-url", "redis://h:1/0")

        assert done.stdout.splitlines()[0].split()[-1] == "webhook,api"


def test_all_invalid_settings_are_reported_at_once() -> None:
    done = fairgate("serve", "--lease-seconds", "soon", FAIRGATE_LOG_LEVEL="loud")

    assert done.returncode == 2
    assert done.stdout == ""
    for named in ("--lease-seconds", "FAIRGATE_LOG_LEVEL", "--redis-url"):
        assert named in done.stderr


def test_wrong_usage_exits_with_2() -> None:
    assert fairgate("serve", "--no-such-flag").returncode == 2
    assert new_process("no-such-command").returncode == 2


SCENARIO = """\
pools: [{name: main, capacity: {nvidia.com/gpu: 4}}]
tenants: [{name: a}, {name: b, weight: 3}]
workloads:
  - {name: w, tenant: a, count: 4, request: {nvidia.com/gpu: 1}}
  - {name: v, tenant: b, count: 4, request: {nvidia.com/gpu: 1}}
until: 1h
"""


def test_simulate_prints_json_that_is_stable(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    done = fairgate("simulate", file, "--output", "json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["tenants"]["b"]["used"] == {"nvidia.com/gpu": 3}
    assert new_process("simulate", str(file), "-o", "json").stdout == done.stdout
    as_yaml = fairgate("simulate", file, "-o", "yaml").stdout
    assert yaml.safe_load(as_yaml) == json.loads(done.stdout)


def test_simulate_reads_standard_input_and_prints_tables() -> None:
    done = new_process("simulate", "-", stdin=SCENARIO)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Share of the cluster over time" in done.stdout


def test_invalid_scenario_exits_with_2_and_names_the_location() -> None:
    done = fairgate("simulate", "-", stdin=SCENARIO.replace("weight: 3", "weight: -3"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fairgate: standard input:2: tenants[1].weight: -3 is negative; write 0 or more.\n"
    )


def test_simulate_needs_a_scenario_and_a_form_that_exists() -> None:
    assert fairgate("simulate").returncode == 2
    for form in ("csv", "name", "xml"):
        assert fairgate("simulate", "-", "-o", form, stdin=SCENARIO).returncode == 2
    assert fairgate("simulate", "no-such-file.yaml").returncode == 2


def test_a_release_prints_no_list() -> None:
    done = fairgate("release", "train-0", "--yes", "-o", "csv")
    assert done.returncode == 2
    assert "'csv' is not one of 'table', 'wide', 'json', 'yaml'." in done.stderr


@pytest.mark.parametrize("pod", ["train-0", "po/train-0", "pod/train-0", "pods/train-0"])
def test_a_pod_to_release_is_written_as_for_why(pod: str) -> None:
    done = fairgate("release", pod, "--yes", "--kubeconfig", "/nowhere/config")
    assert "There is no kubeconfig /nowhere/config" in done.stderr


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ("", "'' is not the name of a pod; write it, or set the variable that should contain it."),
        ("pod/", "pod/ is not a pod; write its name, and its namespace by -n."),
        ("job/train", "job/train is not a pod; write its name, and its namespace by -n."),
    ],
)
def test_a_release_of_no_pod_is_wrong_input(pod: str, sentence: str) -> None:
    done = fairgate("release", pod, "--yes")
    assert (done.returncode, done.stderr) == (2, f"fairgate: {sentence}\n")


FORMATS = "'table', 'wide', 'json', 'yaml'"
LIST_FORMATS = f"{FORMATS}, 'csv', 'name'"


def options(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each visible command of a program with its option for the format, if it has one."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from options(command.get_command(None, name), (*words, name))
    for each in command.params:
        if "-o" in each.opts and each.metavar == "FORMAT" and not command.hidden:
            yield words, each


@pytest.mark.parametrize("program", [cli, plugin])
def test_invalid_output_format_is_reported_with_the_valid_ones(
    program: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dict(options(typer.main.get_command(program)))
    assert len(found) > 10
    for words, option in found.items():
        with pytest.raises(SystemExit):
            program([*words, "-o", "xml"])
        told = capsys.readouterr().err
        legal = FORMATS if "name" not in option.help else LIST_FORMATS
        legal += ", 'values'" if words == ("doctor",) else ""
        ending = f"Invalid value for '--output' / '-o': 'xml' is not one of {legal}.\n"
        assert told.endswith(ending), words


@pytest.mark.parametrize("command", ["simulate", "replay"])
def test_help_gives_examples(command: str) -> None:
    done = fairgate(command, "--help")

    assert done.returncode == 0
    assert f"fairgate {command}" in done.stdout.split("Examples")[1]


def test_help_names_the_columns_of_a_log_and_the_defaults_that_are_not_a_clusters() -> None:
    replay = " ".join(fairgate("replay", "--help", COLUMNS="400").stdout.split())
    simulate = " ".join(fairgate("simulate", "--help", COLUMNS="400").stdout.split())

    for column in COLUMNS:
        assert column in replay
    assert "reclaim is off and minRuntime is 0s" in simulate


def test_unsatisfiable_guarantee_is_a_warning_on_standard_error() -> None:
    text = SCENARIO.replace("{name: a}", "{name: a, guarantee: {nvidia.com/gpu: 5}}")
    done = fairgate("simulate", "-", "--output", "json", stdin=text)

    assert done.returncode == 0
    assert json.loads(done.stdout)["until"] == 3600
    assert done.stderr == (
        "fairgate: standard input: tenant a is guaranteed 5 nvidia.com/gpu of pool main, which has "
        "4, so it can never have them all; lower the guarantee or make the pool larger.\n"
    )


def test_a_picture_of_no_time_is_refused_and_a_scenario_of_no_time_is_not() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    instant = SCENARIO.replace("until: 1h", "until: 0s")
    done = fairgate("simulate", "-", "--plot", "p.png", stdin=instant)

    assert fairgate("simulate", "-", stdin=instant).returncode == 0
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to draw" in done.stderr


def test_hidden_characters_of_a_log_are_escapes(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(f"{','.join(COLUMNS)}\n0,team,\x1b]0;x\x07,job,1,1,1\n")
    done = fairgate("replay", log, "--gpus", "8")
    assert "\x1b" not in done.stdout
    assert "\\u001b]0;x\\u0007" in done.stdout


def test_replay_hands_over_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[ReplayOptions] = []
    monkeypatch.setattr("app.sim.replay.command.run", taken.append)
    line = (
        "fairgate replay log.csv --gpus 8 --nodes n.csv --flat --tenant t --tenants w.csv "
        "--set history=1 --set policy.halfLife=2h --from 5 --for 2d --jitter 30s --seed 7 "
        "--policy fifo --large-gang 9 --output json --plot p.png"
    )
    monkeypatch.setattr("sys.argv", line.split())

    assert _outcome(cli) == 0
    assert taken == [
        ReplayOptions(
            trace=Path("log.csv"),
            gpus=8,
            nodes=Path("n.csv"),
            flat=True,
            tenant="t",
            tenants=Path("w.csv"),
            settings=("history=1", "policy.halfLife=2h"),
            start="5",
            span="2d",
            jitter="30s",
            seed=7,
            policy="fifo",
            large_gang=9,
            output=OutputOptions(OutputFormat.JSON),
            plot=Path("p.png"),
        )
    ]


def test_the_shell_completes_commands_and_words() -> None:
    script = "import sys; sys.argv = ['fairgate']; from app.cli.main import main; main()"

    def completed(words: str) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | asked | {"_FAIRGATE_COMPLETE": "complete_bash"},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.split()

    assert completed("fairgate sim") == ["simulate"]
    assert completed("fairgate nodes ") == ["check", "label"]
    formats = ["table", "wide", "json", "yaml", "csv", "name"]
    assert completed("fairgate nodes check --output ") == formats
    assert completed("fairgate simulate x.yaml --output ") == formats[:4]  # a report
    assert completed("fairgate replay x.csv --policy ") == ["fair", "fifo", "backfill"]


def test_nodes_check_without_a_reachable_cluster_exits_with_2_or_3(tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    done = fairgate("nodes", "check", "--kubeconfig", nowhere)
    assert done.returncode == 2
    assert f"There is no kubeconfig {nowhere}" in done.stderr
    nowhere.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )
    assert fairgate("nodes", "check", "--kubeconfig", nowhere).returncode == 3
