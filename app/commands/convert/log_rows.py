"""Rows of a log for `fairgate replay`, made from a published log of another format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

COLUMNS = (
    "submit_s", "tenant", "user", "job_id", "pods", "gpus_per_pod", "cpus_per_pod",
    "mem_gib_per_pod", "gpu_model", "duration_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogJob:
    """One job. `submitted` is in seconds from any zero; `duration` None: it did not end."""

    name: str
    submitted: Fraction
    tenant: str
    user: str
    pods: int
    gpus: Fraction
    duration: Fraction | None
    cpus: Fraction | None = None
    memory_gib: Fraction | None = None
    model: str = ""


class ConvertedLog:
    """The jobs of a log, and the reasons why other jobs were left out."""

    def __init__(self) -> None:
        self._jobs: list[LogJob] = []
        self._left_out: Counter[str] = Counter()

    def add(self, job: LogJob) -> None:
        """Add a job."""
        self._jobs.append(job)

    def leave_out(self, reason: str) -> None:
        """Count a job that is not converted, such as `that request no GPU`."""
        self._left_out[reason] += 1

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each job in order of submission. The first job is at second 0."""
        jobs = sorted(self._jobs, key=lambda job: job.submitted)
        for job in jobs:
            yield (
                number(job.submitted - jobs[0].submitted),
                job.tenant,
                job.user,
                job.name,
                str(job.pods),
                number(job.gpus),
                number(job.cpus),
                number(job.memory_gib),
                job.model,
                number(job.duration),
            )

    def summary(self) -> list[str]:
        """Return sentences about the numbers of jobs."""
        total = len(self._jobs) + self._left_out.total()
        told = [f"{len(self._jobs)} of {total} jobs were converted."]
        return told + [f"{n} jobs {reason} were left out." for reason, n in self._left_out.items()]


def number(value: Fraction | None) -> str:
    """Return a number rounded up to a thousandth; empty string if None."""
    if value is None:
        return ""
    thousandths = math.ceil(value * 1000)
    whole, rest = divmod(thousandths, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def as_pods(gpus_by_node: Sequence[int]) -> tuple[int, int]:
    """Return pods, and GPUs of each pod, for the GPUs that a job had on each node.

    A log has one size for all pods of a job, so the size is the greatest common divisor.
    """
    size = math.gcd(*gpus_by_node)
    return sum(gpus_by_node) // size, size
