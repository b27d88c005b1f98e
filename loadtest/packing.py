"""Unallocated GPUs on a heterogeneous cluster if pods arrive and never end: packing only.

The experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), with the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.model import Millis
from app.core.policy import Policy
from app.core.quantities import CPU, ManagedResources
from app.devcluster.progress import ConsoleProgress
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep
from app.sim.replay.machines import Fleet, read_fleet
from app.sim.replay.trace_files import DEVICE, TraceLog, read_log, tenants_of
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.philly import traces

NAME = "packing"
SEEDS = 10
MOST = Target(most=5.5)
NEVER = Millis(10**12)


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of one draw: arrived and placed pods, and the part of the devices left over."""

    pods: int
    placed: int
    unallocated_percent: float


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> Measure:
    """Fill the openb cluster with pods sampled from its log, once for each seed."""
    seeds = rounds or SEEDS
    folder = traces()
    fleet = read_fleet(folder / "openb_nodes.csv")
    left = {}
    for any_model in (False, True):
        log = openb_log(folder, fleet, any_model=any_model)
        on = "any model" if any_model else "the models they name"
        with progress.step(f"packing, pods on {on}, {seeds} seeds"):
            left[on] = tuple(fill(fleet, log, seed).unallocated_percent for seed in range(seeds))
    named, anywhere = left.values()
    return Measure(
        NAME,
        "GPUs left unallocated on the nodes of openb",
        (
            "Pods are drawn from the log until they request all GPUs. Pods do not end.",
            "Published for pods that may use any model: best fit 7.14 %, fragmentation gradient "
            "descent 4.77 % (Weng et al., USENIX ATC 2023).",
        ),
        (
            Series("a seed each, on the models that pods name", "%", named),
            Series("a seed each, on any model", "%", anywhere),
        ),
        (
            Compared(_mean("mean of the seeds, on the models that pods name", named), MOST),
            Compared(_mean("mean of the seeds, on any model", anywhere)),
        ),
    )


def openb_log(folder: Path, fleet: Fleet, *, any_model: bool) -> TraceLog:
    """Read the pods of openb. With `any_model` the models that they request are ignored."""
    return read_log(folder / "openb_2023.csv.gz", models=None if any_model else fleet.models)


def draw(works: tuple[SimulatedWorkload, ...], devices: int, seed: int) -> list[SimulatedWorkload]:
    """Return works drawn with replacement until they request at least that many devices.

    They arrive a millisecond apart, in the order drawn, and never end.
    """
    dice = random.Random(seed)
    drawn: list[SimulatedWorkload] = []
    asked = 0
    while asked < devices:
        work = dice.choice(works)
        number = len(drawn)
        name = f"{work.name}.{number}"
        drawn.append(replace(work, name=name, at=Millis(number), duration=None))
        asked += work.demand.get(DEVICE, 0) * work.pods
    return drawn


def fill(fleet: Fleet, log: TraceLog, seed: int) -> Filled:
    """Let the engine place one draw. Workloads that do not fit are skipped."""
    devices = fleet.gpus * log.scale
    drawn = draw(log.works, devices, seed)
    bare = any(not work.demand.get(DEVICE) for work in log.works)
    world = VirtualCluster(
        ManagedResources((DEVICE, CPU) if bare else (DEVICE,)),
        fleet.nodes(log.scale),
        tenants_of(log.works).values(),
        fleet.pools,
        # Workloads never end, so a reservation would only leave capacity unused.
        policy=replace(Policy(), reserve_after=NEVER),
    )
    for work in drawn:
        world.add_workload(work)
    world.advance_to(drawn[-1].at)
    placed = [moment.work for moment in world.timeline if moment.step is TimelineStep.RELEASED]
    given = sum(work.demand.get(DEVICE, 0) * work.pods for work in placed)
    return Filled(len(drawn), len(placed), 100 * (devices - given) / devices)


def _mean(title: str, values: tuple[float, ...]) -> Series:
    return Series(title, "%", (sum(values) / len(values),))
