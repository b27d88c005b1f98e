"""Nodes and pods sampled from Alibaba's openb log, scaled down: the input of every arm.

Sampling is repeatable by a seed. Only pods that request whole GPUs are sampled, because the
default scheduler does not support parts of one. Only nodes with GPUs are used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.sim.replay.csv_rows import CsvRow, read_rows
from app.sim.replay.machines import Machine, read_fleet
from loadtest.load import BenchFailed

GIB = 1024**3
MODEL = "gpu_model"
LONGEST = 3600.0
"""Longest run time in seconds of the log. Longer ones, up to months, are cut."""

FASTER = 60.0
"""Seconds of the log per second of the benchmark."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Request of one pod: devices, millicores, bytes, and the allowed models (empty: any)."""

    gpus: int
    cpu: int
    memory: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod: arrival `at`, and run time after binding, in seconds of the benchmark."""

    shape: Shape
    runs: float
    at: float = 0.0


def machines(path: Path, count: int) -> tuple[Machine, ...]:
    """Return `count` GPU machines in the proportions of a file, by largest remainder.

    Their names are openb-KIND-NUMBER.
    """
    kinds = Counter(replace(each, name="") for each in read_fleet(path).machines if each.gpus)
    exact = {kind: number * count / kinds.total() for kind, number in kinds.items()}
    whole = {kind: int(number) for kind, number in exact.items()}
    by_rest = sorted(exact, key=lambda kind: (whole[kind] - exact[kind], repr(kind)))
    for kind in by_rest[: count - sum(whole.values())]:
        whole[kind] += 1
    return tuple(
        replace(kind, name=f"openb-{number}-{which}")
        for number, kind in enumerate(sorted(whole, key=repr))
        for which in range(whole[kind])
    )


def templates(path: Path, fleet: Sequence[Machine]) -> list[Arrival]:
    """Return the pods of a log that request whole GPUs and fit an empty machine of `fleet`.

    Models that do not exist in `fleet` are removed.
    """
    found = []
    known = {machine.model for machine in fleet}
    for row in read_rows(path, ("gpus_per_pod", "duration_s")):
        gpus = row.number("gpus_per_pod")
        if gpus < 1 or gpus.denominator != 1:
            continue
        shape = _shape(row, int(gpus))
        runs = min(float(row.number("duration_s", 0)), LONGEST) / FASTER
        if runs > 0 and any(fits(shape, machine) for machine in fleet):
            there = tuple(model for model in shape.models if model in known)
            found.append(Arrival(replace(shape, models=there), runs))
    return found


def fits(shape: Shape, machine: Machine) -> bool:
    """Return whether a pod fits this machine if it is empty."""
    return times(shape, machine, machine.gpus, machine.cpu, machine.memory) > 0


def times(shape: Shape, machine: Machine, gpus: int, cpu: int, memory: int) -> int:
    """Return how many pods of this shape fit into the free capacity of a machine."""
    if shape.models and machine.model not in shape.models:
        return 0
    most = gpus // shape.gpus
    if shape.cpu:
        most = min(most, cpu // shape.cpu)
    return min(most, memory // shape.memory) if shape.memory else most


def draw(
    pods: Sequence[Arrival],
    work: float,
    seed: int,
    *,
    several: float | None = None,
    most: int | None = None,
) -> list[Arrival]:
    """Sample pods with replacement until they request `work` device-seconds, or are `most`.

    `several` is the part of all requested GPUs that belongs to multi-GPU pods; None means the
    mix of the log. The pods have no arrival times yet. Raises BenchFailed.
    """
    dice = random.Random(seed)
    many = [pod for pod in pods if pod.shape.gpus > 1]
    single = [pod for pod in pods if pod.shape.gpus == 1]
    if not many or not single:
        raise BenchFailed("The log has no pods of one GPU, or none of several that fit the nodes.")
    chance = len(many) / len(pods)
    if several is not None:
        size = sum(pod.shape.gpus for pod in many) / len(many)
        chance = several / (several + size * (1 - several))
    drawn: list[Arrival] = []
    while work > 0 and (most is None or len(drawn) < most):
        drawn.append(dice.choice(many if dice.random() < chance else single))
        work -= drawn[-1].shape.gpus * drawn[-1].runs
    return drawn


def spread(pods: Sequence[Arrival], devices: int, load: float, seed: int) -> list[Arrival]:
    """Return the pods with random arrival times, in order.

    The period is chosen so that they request `load` times the device-seconds available in it.
    """
    work = sum(pod.shape.gpus * pod.runs for pod in pods)
    span = work / (load * devices)
    dice = random.Random(seed)
    moments = sorted(dice.uniform(0, span) for _ in pods)
    return [replace(pod, at=at) for pod, at in zip(pods, moments, strict=True)]


def _shape(row: CsvRow, gpus: int) -> Shape:
    written = (model.strip().lower() for model in row.text(MODEL).split("|"))
    return Shape(
        gpus,
        row.scaled_number("cpus_per_pod", 1000, 0),
        row.scaled_number("mem_gib_per_pod", GIB, 0),
        tuple(sorted({model for model in written if model})),
    )
