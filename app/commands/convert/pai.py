"""Converts Alibaba's PAI traces (cluster-trace-gpu-v2020): a row for each task with GPUs.

The tasks of one job, such as `ps` and `worker`, have different sizes, and a row has one size. So
each task is a job of its own. Format: README of cluster-trace-gpu-v2020 in alibaba/clusterdata.
The published files have no line with the column names.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from app.commands.convert.log_rows import ConvertedLog, LogJob
from app.sim.replay.csv_rows import CsvRow, read_rows

TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu",
    "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
PERCENT = 100


def convert(tasks: Path, jobs: Path) -> ConvertedLog:
    """Return the tasks with GPUs. Users and times of submission are in `jobs`."""
    submitted = {
        row.text("job_name"): (row.text("user"), row.number("start_time"))
        for row in read_rows(jobs, JOB_COLUMNS, header=JOB_COLUMNS)
        if row.text("start_time")
    }
    log = ConvertedLog()
    for row in read_rows(tasks, TASK_COLUMNS, header=TASK_COLUMNS):
        _add(log, row, submitted)
    return log


def _add(log: ConvertedLog, row: CsvRow, submitted: dict[str, tuple[str, Fraction]]) -> None:
    job = row.required_text("job_name")
    gpus = row.number("plan_gpu", 0) / PERCENT
    if gpus == 0:
        log.leave_out("that request no GPU")
    elif job not in submitted:
        log.leave_out("without a time of submission")
    elif not row.text("start_time"):
        log.leave_out("without a start")
    else:
        user, at = submitted[job]
        cpus, memory = row.text("plan_cpu"), row.text("plan_mem")
        log.add(
            LogJob(
                name=f"{job}/{row.required_text('task_name')}",
                submitted=at,
                tenant="",
                user=user,
                pods=row.whole_number("inst_num", 1, 1),
                gpus=gpus,
                cpus=row.number("plan_cpu") / PERCENT if cpus else None,
                memory_gib=row.number("plan_mem") if memory else None,
                model=row.text("gpu_type"),
                duration=_duration(row),
            )
        )


def _duration(row: CsvRow) -> Fraction | None:
    """Return the run time; None if the task was still running."""
    if not row.text("end_time"):
        return None
    return max(Fraction(0), row.number("end_time") - row.number("start_time"))
