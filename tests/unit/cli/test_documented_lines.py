"""The commands of the pages that need no cluster give what the pages show."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster.go_build import SOURCE
from tests.support.documented_lines import Command, commands
from tests.support.terminal import Terminal

MANIFESTS = re.findall(
    r"```yaml\n(.*?)```", (SOURCE / "docs" / "coming-from.md").read_text(), re.DOTALL
)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    try:
        yield found
    finally:
        found.close()


def only(lines: tuple[Command, ...]) -> Command:
    """Return the command of a block that has one."""
    (line,) = lines
    return line


@pytest.mark.parametrize(
    ("line", "manifest"),
    [
        (only(commands("docs/coming-from.md", "An example for [Kueue]")), MANIFESTS[0]),
        (only(commands("docs/coming-from.md", "Accounts of [Slurm]")), MANIFESTS[1]),
    ],
    ids=["kueue", "slurm"],
)
def test_conversion_prints_the_documented_output(
    terminal: Terminal, line: Command, manifest: str
) -> None:
    assert terminal.run(line) == line.output
    assert f"---\n{manifest}" in (terminal.folder / "tenants.yaml").read_text()


def test_queues_are_converted_from_the_programs_that_list_them(terminal: Terminal) -> None:
    examples = SOURCE / "docs" / "examples" / "coming-from"
    terminal.program("sacctmgr", f"cp {examples}/accounts.cfg accounts.cfg")
    file = "$([[ $2 = clusterqueues* ]] && echo kueue || echo volcano).yaml"
    terminal.program("kubectl", f"cat {examples}/{file}")
    for line in commands("docs/coming-from.md", "and changes no cluster:"):
        terminal.run(line)
        assert "kind: Tenant" in (terminal.folder / "tenants.yaml").read_text()


def test_published_logs_are_converted_and_replayed(terminal: Terminal) -> None:
    job = {"vc": "v", "user": "u", "jobid": "j", "status": "Pass", "attempts": []}
    job |= {"submitted_time": "2017-10-07 01:11:30"}
    (terminal.folder / "cluster_job_log").write_text(json.dumps([job]))
    (terminal.folder / "data" / "Venus").mkdir(parents=True)
    (terminal.folder / "data" / "Venus" / "cluster_log.csv").write_text(
        "job_id,user,vc,gpu_num,cpu_num,node_num,submit_time,duration\n"
        "1,u,vc,8,32,1,2020-06-09 18:41:01,60\n"
    )
    (terminal.folder / "pai_task_table.csv").write_text(
        "j,worker,1,Terminated,1,2,600,50,29,V100\n"
    )
    (terminal.folder / "pai_job_table.csv").write_text("j,i,u,Terminated,1,2\n")
    *conversions, replay = commands("docs/benchmarks.md", "`fairgate convert` makes")
    for line in conversions:
        assert "jobs were converted" in terminal.run(line)
    assert "1 workloads, 1 decisions" in terminal.run(replay)


def test_the_log_of_the_page_is_replayed(terminal: Terminal) -> None:
    page = (SOURCE / "docs" / "scenarios.md").read_text()
    (terminal.folder / "log.csv").write_text(page.split("```csv\n")[1].split("```")[0])
    terminal.run(only(commands("docs/scenarios.md", "Other columns are ignored.")))


def test_commands_of_the_measures_play_a_log(terminal: Terminal) -> None:
    """The log has the name, the columns and the time of the one that was measured."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    log = "submit_s,tenant,user,job_id,pods,gpus_per_pod,duration_s\n" + "".join(
        f"{4442219 + 60 * number},v,u{number % 3},j{number},1,8,600\n" for number in range(12)
    )
    (terminal.folder / "philly_2017.csv.gz").write_bytes(gzip.compress(log.encode()))
    for line in commands("docs/fairness.md", "**Fairgate** | **5 / 0 / 0**"):
        assert "12 workloads" in terminal.run(line)
    terminal.run(only(commands("docs/fairness.md", "![Use under both orders")))
    assert (terminal.folder / "philly-users.png").stat().st_size > 10_000
    terminal.replace[" ... "] = " philly_2017.csv.gz --gpus 1600 --flat "
    for line in commands("docs/scenarios.md", "and evictions take more GPU time:"):
        assert "12 workloads" in terminal.run(line)


def test_simulation_prints_the_documented_output(terminal: Terminal) -> None:
    terminal.run("export COLUMNS=80")
    for line in (
        only(commands("docs/fairness.md", "## Two teams, 32 GPUs")),
        only(commands("docs/placement.md", "The other requests whole\nGPUs:")),
    ):
        printed = [text.rstrip().replace("\xa0", " ") for text in terminal.run(line).splitlines()]
        first, *_ = shown = line.output.splitlines()
        assert printed[printed.index(first) :][: len(shown)] == shown


def test_a_simulation_draws_a_picture(terminal: Terminal) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    terminal.run(only(commands("docs/fairness.md", "![Two teams]")))
    assert (terminal.folder / "two-teams.png").stat().st_size > 10_000


def test_certificates_of_the_page_are_valid(terminal: Terminal) -> None:
    terminal.run(only(commands("certs/README.md", "An example with openssl 3")))
    check = only(commands("certs/README.md", "Check the certificate before"))
    assert terminal.run(check) == "tls.crt: OK\n"
    serve = only(commands("certs/README.md", "give the files to the process, all three or none:"))
    assert "tls.crt" in terminal.run(f"{serve.text.strip()} --check-settings")
    terminal.run(only(commands("certs/README.md", "## Who may ask the webhook")))
    client = "openssl verify -x509_strict -purpose sslclient -CAfile callers-ca.crt caller.crt"
    assert terminal.run(client) == "caller.crt: OK\n"
