"""Converts `cluster_job_log` of Microsoft's Philly traces.

A job may have several scheduling attempts. Its duration is the sum of their run times, and its
GPUs are those of the last attempt that lists any. Format: README of msr-fiddle/philly-traces.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any
from zlib import error as BrokenGzip

from app.commands.convert.log_rows import ConvertedLog, LogJob, as_pods
from app.core.errors import InvalidInput

_EPOCH = datetime(2017, 1, 1)
_UNKNOWN = (None, "", "None")


def convert(path: Path) -> ConvertedLog:
    """Return the jobs of the file. Raises InvalidInput."""
    log = ConvertedLog()
    for number, entry in enumerate(_entries(path), 1):
        try:
            _add(log, entry)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{path}: job {number} is not as in the published log "
                f"({type(error).__name__}: {error}); give cluster_job_log."
            ) from error
    return log


def _entries(path: Path) -> list[Any]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            found = json.load(file)
    except (gzip.BadGzipFile, EOFError, BrokenGzip) as error:
        raise InvalidInput(f"{path} is not a whole gzip file; fetch it again.") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}; check the path.") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON ({error}); give cluster_job_log.") from error
    except RecursionError as error:
        raise InvalidInput(f"{path} is nested too deeply; give cluster_job_log.") from error
    if not isinstance(found, list):
        raise InvalidInput(f"{path} is no list of jobs; give cluster_job_log.")
    return found


def _add(log: ConvertedLog, entry: Mapping[str, Any]) -> None:
    attempts: Sequence[Mapping[str, Any]] = entry["attempts"]
    gpus = _gpus(attempts)
    if entry["submitted_time"] in _UNKNOWN:
        log.leave_out("without a time of submission")
    elif not attempts:
        log.leave_out("without an attempt")
    elif not gpus:
        log.leave_out("without GPUs")
    else:
        spans = [(_time(each["start_time"]), _time(each["end_time"])) for each in attempts]
        if spans[-1][0] is None:
            log.leave_out("without a start")
            return
        pods, size = as_pods(gpus)
        log.add(
            LogJob(
                name=entry["jobid"],
                submitted=_time(entry["submitted_time"]) or Fraction(0),
                tenant=entry["vc"],
                user=entry["user"],
                pods=pods,
                gpus=Fraction(size),
                duration=_duration(spans),
            )
        )


def _gpus(attempts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the GPUs on each server in the last attempt that lists any."""
    for attempt in reversed(attempts):
        found = [len(server["gpus"]) for server in attempt["detail"] if server["gpus"]]
        if found:
            return found
    return []


def _duration(spans: Sequence[tuple[Fraction | None, Fraction | None]]) -> Fraction | None:
    """Return the run time of all attempts; None if the job was still running."""
    if spans[-1][1] is None:
        return None
    known = [end - start for start, end in spans if start is not None and end is not None]
    return sum((max(Fraction(0), each) for each in known), Fraction(0))


def _time(written: str | None) -> Fraction | None:
    if written is None or written in _UNKNOWN:
        return None
    return Fraction((datetime.fromisoformat(written) - _EPOCH).total_seconds())
