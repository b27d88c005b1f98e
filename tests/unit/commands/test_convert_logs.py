"""Published logs, in their published formats, become logs that `fairgate replay` reads."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from app.commands.convert import helios, pai, philly
from app.commands.convert.log_rows import COLUMNS, ConvertedLog, as_pods
from app.core.errors import InvalidInput
from app.sim.cluster.workload import SimulatedWorkload
from app.sim.replay.trace_files import DEVICE, read_log


def replayable(log: ConvertedLog, folder: Path) -> dict[str, SimulatedWorkload]:
    """Return the jobs as `fairgate replay` reads them."""
    path = folder / "log.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *log.rows()])
    return {work.name: work for work in read_log(path).works}


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    servers = [
        {"ip": f"m{n}", "gpus": [f"gpu{each}" for each in range(many)]}
        for n, many in enumerate(gpus)
    ]
    return {"start_time": start, "end_time": end, "detail": servers}


def job(name: str, submitted: str, *attempts: dict[str, object]) -> dict[str, object]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": submitted,
        "user": "ce2f4c",
    }


@pytest.fixture
def philly_log(tmp_path: Path) -> Path:
    jobs = [
        job(
            "late",
            "2017-10-07 01:11:39",
            attempt("2017-10-07 01:12:09", "2017-10-07 01:13:09", 8),
            attempt("2017-10-07 01:13:30", "2017-10-07 01:14:30", 8, 4),
        ),
        job("first", "2017-10-07 01:11:30", attempt("2017-10-07 01:11:40", None, 1)),
        job("none", "2017-10-07 01:11:30"),
        job("cpu", "2017-10-07 01:11:30", attempt("2017-10-07 01:11:40", None)),
        job("lost", "2017-10-07 01:11:30", attempt(None, None, 1)),
    ]
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(jobs))
    return path


def test_attempts_of_a_philly_job_are_one_job(philly_log: Path, tmp_path: Path) -> None:
    late = replayable(philly.convert(philly_log), tmp_path)["late"]
    assert (late.at, late.duration) == (9_000, 120_000)
    assert (late.pods, late.demand[DEVICE]) == (3, 4)
    assert (late.tenant, late.user) == ("ee9e8c", "ce2f4c")


def test_a_philly_job_that_still_runs_does_not_end(philly_log: Path, tmp_path: Path) -> None:
    assert replayable(philly.convert(philly_log), tmp_path)["first"].duration is None


def test_philly_jobs_without_a_run_are_counted(philly_log: Path) -> None:
    assert philly.convert(philly_log).summary() == [
        "2 of 5 jobs were converted.",
        "1 jobs without an attempt were left out.",
        "1 jobs without GPUs were left out.",
        "1 jobs without a start were left out.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "no list"),
        ("[{}]", "job 1 is not as in"),
    ],
)
def test_another_file_is_no_philly_log(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        philly.convert(path)


def test_a_cut_philly_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log.gz"
    path.write_bytes(gzip.compress(b"[]")[:-4])
    with pytest.raises(InvalidInput, match="not a whole gzip file"):
        philly.convert(path)


HELIOS_JOBS = (
    ("1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27", 249),
    ("1425511,uXBbc,vcJkd,16,64,2,COMPLETED,2020-06-09 18:41:01", 36848),
    ("1425514,uXBbc,vcJkd,0,4,1,COMPLETED,2020-06-09 18:41:02", 10),
    ("1425515,uXBbc,vcJkd,9,9,2,TIMEOUT,2020-06-09 18:41:03", 10),
)
HELIOS = "\n".join(
    (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
        *(f"{job},2020-06-10 00:00:00,2020-06-17 14:15:21,{s},0" for job, s in HELIOS_JOBS),
    )
)


def test_nodes_of_a_helios_job_are_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    log = helios.convert(path)
    found = replayable(log, tmp_path)
    large = found["1425511"]
    assert (large.at, large.duration) == (0, 36_848_000)
    assert (large.pods, large.demand[DEVICE], large.demand["cpu"]) == (2, 8, 32_000)
    assert (large.tenant, large.user) == ("vcJkd", "uXBbc")
    assert (found["1425512"].at, found["1425512"].demand[DEVICE]) == (26_000, 4)
    assert (found["1425515"].pods, found["1425515"].demand[DEVICE]) == (9, 1)
    assert log.summary()[1:] == ["1 jobs that request no GPU were left out."]


def test_a_helios_time_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS.replace("2020-06-09 18:41:27", "soon", 1))
    with pytest.raises(InvalidInput, match=r"cluster_log.csv:2: submit_time: 'soon'"):
        helios.convert(path)


TASKS = """\
4f057009a5d481acec67b088,worker,2.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,T4
4f057009a5d481acec67b088,ps,1.0,Terminated,1739162.0,1739200.0,400.0,10.0,,MISC
af724763f4f5d0beef445849,tensorflow,1.0,Running,1739150.0,,600.0,29.296875,200.0,V100
unknown,tensorflow,1.0,Running,1739150.0,,600.0,29.296875,100.0,V100
"""
JOBS = """\
4f057009a5d481acec67b088,8cb3bec2,58540f191766,Terminated,1739160.0,1739201.0
af724763f4f5d0beef445849,e387fbc1,d2d3b77d342e,Running,1739140.0,
"""


@pytest.mark.parametrize("headed", [False, True], ids=["as published", "with column names"])
def test_a_pai_task_with_gpus_is_a_job(tmp_path: Path, headed: bool) -> None:
    tasks, jobs = tmp_path / "pai_task_table.csv", tmp_path / "pai_job_table.csv"
    tasks.write_text((",".join(pai.TASK_COLUMNS) + "\n" if headed else "") + TASKS)
    jobs.write_text((",".join(pai.JOB_COLUMNS) + "\n" if headed else "") + JOBS)
    log = pai.convert(tasks, jobs)
    found = replayable(log, tmp_path)
    worker = found["4f057009a5d481acec67b088/worker"]
    assert (worker.at, worker.duration, worker.pods) == (20_000, 38_000, 2)
    assert (worker.demand[DEVICE], worker.demand["cpu"]) == (500, 6_000)
    assert worker.user == "58540f191766"
    assert found["af724763f4f5d0beef445849/tensorflow"].duration is None
    assert log.summary() == [
        "2 of 4 jobs were converted.",
        "1 jobs that request no GPU were left out.",
        "1 jobs without a time of submission were left out.",
    ]


@pytest.mark.parametrize(
    ("nodes", "pods"), [((8, 8), (2, 8)), ((8, 4), (3, 4)), ((3, 2), (5, 1)), ((6,), (1, 6))]
)
def test_pods_of_one_job_have_equal_sizes(nodes: tuple[int, ...], pods: tuple[int, int]) -> None:
    assert as_pods(nodes) == pods
