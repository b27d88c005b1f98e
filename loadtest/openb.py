"""Nodes and pods after Alibaba's openb log, scaled down: what every arm of a comparison is given.

Reads the log and draws from it, by a seed; knows no cluster. Only pods that ask for whole GPUs are
drawn, for the stock scheduler knows no parts of one, and so only nodes that have GPUs are used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.sim.fleet import Machine, read_fleet
from app.sim.rows import Row, read_rows
from loadtest.load import BenchFailed

GIB = 1024**3
MODEL = "gpu_model"
LONGEST = 3600.0
"""Runs are cut to so many seconds of the log: it holds some of months, which no bench waits for."""

FASTER = 60.0
"""Seconds of the log in one of the bench."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one pod asks for: devices, millicores, bytes; on one of these models, or any."""

    gpus: int
    cpu: int
    memory: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod: when it comes, and how long it runs once it is bound, in seconds of the bench."""

    shape: Shape
    runs: float
    at: float = 0.0


def machines(path: Path, count: int) -> tuple[Machine, ...]:
    """Return `count` machines in the mix of a file, by largest remainder; only those with GPUs.

    They are called openb-KIND-NUMBER.
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
    """Return the pods of a log that ask for whole GPUs and fit an empty machine of these.

    They name only models that there are.
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
    """Tell whether a pod fits this machine while it is empty."""
    return times(shape, machine, machine.gpus, machine.cpu, machine.memory) > 0


def times(shape: Shape, machine: Machine, gpus: int, cpu: int, memory: int) -> int:
    """Return how many such pods fit into what is free of a machine."""
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
    """Draw pods with replacement until they ask for `work` device-seconds, or are `most`; no times.

    `several`: the part of all GPUs that pods of more than one GPU ask for; None: as in the log.
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
    """Return the pods with random times of arrival, in order.

    They arrive over so long that they ask for `load` times the device-seconds there are meanwhile.
    """
    work = sum(pod.shape.gpus * pod.runs for pod in pods)
    span = work / (load * devices)
    dice = random.Random(seed)
    moments = sorted(dice.uniform(0, span) for _ in pods)
    return [replace(pod, at=at) for pod, at in zip(pods, moments, strict=True)]


def _shape(row: Row, gpus: int) -> Shape:
    written = (model.strip().lower() for model in row.text(MODEL).split("|"))
    return Shape(
        gpus,
        row.units("cpus_per_pod", 1000, 0),
        row.units("mem_gib_per_pod", GIB, 0),
        tuple(sorted({model for model in written if model})),
    )
