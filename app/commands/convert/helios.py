"""Converts `cluster_log.csv` of SenseTime's Helios traces, a row a job.

Format: README of S-Lab-System-Group/HeliosData.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from pathlib import Path

from app.commands.convert.log_rows import ConvertedLog, LogJob
from app.core.errors import InvalidInput
from app.sim.replay.csv_rows import CsvRow, read_rows

COLUMNS = (
    "job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "submit_time", "duration",
)  # fmt: skip
_EPOCH = datetime(2020, 1, 1)


def convert(path: Path) -> ConvertedLog:
    """Return the jobs of the file. Raises InvalidInput."""
    log = ConvertedLog()
    for row in read_rows(path, COLUMNS):
        gpus = row.whole_number("gpu_num", 0)
        if gpus == 0:
            log.leave_out("that request no GPU")
            continue
        nodes = row.whole_number("node_num", 1)
        pods = nodes if gpus % nodes == 0 else gpus
        log.add(
            LogJob(
                name=row.required_text("job_id"),
                submitted=_submitted(row),
                tenant=row.required_text("vc"),
                user=row.required_text("user"),
                pods=pods,
                gpus=Fraction(gpus, pods),
                cpus=row.number("cpu_num") / pods,
                duration=row.number("duration"),
            )
        )
    return log


def _submitted(row: CsvRow) -> Fraction:
    written = row.required_text("submit_time")
    try:
        return Fraction((datetime.fromisoformat(written) - _EPOCH).total_seconds())
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"{row.origin}: submit_time: {written!r} is no time such as 2020-06-09 18:41:01; "
            "correct that line."
        ) from error
