"""`fairgate replay --pack`: how full the engine packs a cluster if pods arrive and never end.

The experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), with this engine.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from app.core.model import Millis
from app.core.policy import Policy
from app.core.quantities import CPU, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep
from app.sim.replay.machines import Fleet
from app.sim.replay.trace_files import DEVICE, TraceLog, tenants_of
from app.sim.report.progress import progress

MOST_SEEDS = 1000
NEVER = Millis(10**12)


@dataclass(frozen=True, slots=True)
class PackingOrder:
    """Inputs of the experiment. `any_model`: the log was read without models."""

    fleet: Fleet
    log: TraceLog
    policy: Policy
    seeds: int
    any_model: bool


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of one run: arrived and placed pods, and the part of the devices left over."""

    seed: int
    pods: int
    placed: int
    unallocated_percent: float


def run(order: PackingOrder, *, output: str) -> None:
    """Fill the cluster once for each seed, and print the unallocated devices."""
    with progress("packing", Millis(0), Millis(order.seeds)) as tell:
        runs = []
        for seed in range(order.seeds):
            tell(Millis(seed))
            runs.append(fill(order, seed))
    if output == "json":
        print(json.dumps(_as_data(order, runs), indent=2))
    else:
        _show(order, runs)


def draw(works: tuple[SimulatedWorkload, ...], devices: int, seed: int) -> list[SimulatedWorkload]:
    """Return works drawn with replacement until they request at least that many devices.

    They arrive a millisecond apart, in the order drawn, and never end.
    """
    dice = random.Random(seed)  # noqa: S311 - a repeatable draw, no secret
    drawn: list[SimulatedWorkload] = []
    asked = 0
    while asked < devices:
        work = dice.choice(works)
        number = len(drawn)
        name = f"{work.name}.{number}"
        drawn.append(replace(work, name=name, at=Millis(number), duration=None))
        asked += work.demand.get(DEVICE, 0) * work.pods
    return drawn


def fill(order: PackingOrder, seed: int) -> Filled:
    """Let the engine place one draw. Workloads that do not fit are skipped."""
    scale = order.log.scale
    devices = order.fleet.gpus * scale
    drawn = draw(order.log.works, devices, seed)
    bare = any(not work.demand.get(DEVICE) for work in order.log.works)
    world = VirtualCluster(
        ManagedResources((DEVICE, CPU) if bare else (DEVICE,)),
        order.fleet.nodes(scale),
        tenants_of(order.log.works).values(),
        order.fleet.pools,
        # Workloads never end, so a reservation would only leave capacity unused.
        policy=replace(order.policy, reserve_after=NEVER),
    )
    for work in drawn:
        world.add(work)
    world.advance_to(drawn[-1].at)
    placed = [moment.work for moment in world.timeline if moment.step is TimelineStep.RELEASED]
    given = sum(work.demand.get(DEVICE, 0) * work.pods for work in placed)
    return Filled(seed, len(drawn), len(placed), 100 * (devices - given) / devices)


def _summary(runs: list[Filled]) -> dict[str, float]:
    left = [run.unallocated_percent for run in runs]
    return {"mean": sum(left) / len(left), "min": min(left), "max": max(left)}


def _as_data(order: PackingOrder, runs: list[Filled]) -> dict[str, object]:
    return {
        "nodes": len(order.fleet.machines),
        "gpus": order.fleet.gpus,
        "any_model": order.any_model,
        "unallocated_gpu_percent": _summary(runs),
        "seeds": [
            {
                "seed": run.seed,
                "pods": run.pods,
                "placed": run.placed,
                "unallocated_gpu_percent": run.unallocated_percent,
            }
            for run in runs
        ],
    }


def _show(order: PackingOrder, runs: list[Filled]) -> None:
    models = "any model does" if order.any_model else "on the models they name"
    table = Table(
        title=f"{len(order.fleet.machines)} nodes, {order.fleet.gpus} GPUs; pods arrive until they "
        f"ask for all of them, none leaves; {models}",
        title_justify="left",
    )
    for head in ("seed", "pods", "placed", "GPUs left over"):
        table.add_column(head, justify="right")
    for run in runs:
        left = f"{run.unallocated_percent:.2f} %"
        table.add_row(str(run.seed), str(run.pods), str(run.placed), left)
    found = _summary(runs)
    table.add_section()
    spread = f"{found['min']:.2f} to {found['max']:.2f} %"
    table.add_row("mean", "", "", f"{found['mean']:.2f} %")
    table.add_row("spread", "", "", spread)
    Console().print(table)
