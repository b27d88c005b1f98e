"""The comparison of `placement` in virtual time: many seeds, and only placement matters.

Fairgate is the production engine in a simulated `VirtualCluster`, which uses the nodes that the
engine chooses. The default scheduler is `stockmodel`.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.model import Millis, PoolName, Tenant, TenantName, UserName
from app.core.quantities import CPU, PODS, ManagedResources
from app.devcluster.progress import ConsoleProgress
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep
from app.sim.replay.machines import Fleet, Machine
from app.sim.replay.trace_files import DEVICE, MEMORY, NOBODY, WHOLE
from loadtest import default_scheduler_model, openb_sample, placement
from loadtest.figures import Measure
from loadtest.occupancy import Outcome, Seen, sum_up
from loadtest.openb_sample import Arrival
from loadtest.philly import traces

NAME = "virtual"
SEEDS = 10
TITLES = {"stock": "stock (model)", "most": "MostAllocated (model)", "fairgate": "Fairgate"}


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> list[Measure]:
    """Play `rounds` seeds (None means the default) of each mix, with at most `pods` pods."""
    fleet = openb_sample.machines(traces() / "openb_nodes.csv", placement.NODES)
    known = openb_sample.templates(traces() / "openb_2023.csv.gz", fleet)
    tables = []
    for several, mix in placement.MIXES.items():
        outcomes: dict[str, list[Outcome]] = {arm: [] for arm in TITLES}
        for seed in range(1, (rounds or SEEDS) + 1):
            with progress.step(f"virtual, {mix}, seed {seed}"):
                load = placement.arrivals(known, fleet, several, seed, pods)
                for arm in TITLES:
                    outcomes[arm].append(_outcome(arm, load, fleet, seed))
        tables.append(
            placement.table(NAME, f"Placement in virtual time: {mix}", fleet, TITLES, outcomes)
        )
    return tables


def _outcome(arm: str, load: Sequence[Arrival], fleet: Sequence[Machine], seed: int) -> Outcome:
    if arm == "fairgate":
        seen = play(load, fleet)
    else:
        seen = default_scheduler_model.play(load, fleet, most=arm == "most", seed=seed)
    return sum_up(load, seen, fleet, *placement.times_of(load))


def play(load: Sequence[Arrival], machines: Sequence[Machine]) -> list[Seen]:
    """Return the times and node of every pod with the engine. All pods have one user."""
    fleet = Fleet(tuple(machines))
    everybody = Tenant(TenantName(NOBODY), Millis(0), namespaces=(NOBODY,))
    world = VirtualCluster(
        ManagedResources((DEVICE,)), fleet.nodes(WHOLE), [everybody], fleet.pools
    )
    for number, pod in enumerate(load):
        world.add_workload(_work(number, pod, fleet))
    _, horizon = placement.times_of(load)
    world.advance_to(Millis(int(horizon * 1000)))
    seen = [Seen(pod.at) for pod in load]
    for moment in world.timeline:
        one, at = seen[int(moment.work.name)], moment.at / 1000
        if moment.step is TimelineStep.RELEASED:
            one.opened = one.bound = at
            one.node = moment.nodes[0]
        elif moment.step is TimelineStep.ENDED:
            one.ended = at
    return seen


def _work(number: int, pod: Arrival, fleet: Fleet) -> SimulatedWorkload:
    shape, models = pod.shape, fleet.models or ()
    return SimulatedWorkload(
        str(number),
        TenantName(NOBODY),
        UserName(NOBODY),
        Millis(int(pod.at * 1000)),
        {DEVICE: shape.gpus, CPU: shape.cpu, MEMORY: shape.memory, PODS: 1},
        duration=Millis(max(1, int(pod.runs * 1000))),
        pools=tuple(PoolName(model) for model in shape.models if model in models),
    )
