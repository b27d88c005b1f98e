"""The comparison of `placement` in virtual time: many seeds, and nothing but placement counts.

Fairgate is the production engine in the simulator's World, which puts pods where the engine says;
the stock scheduler is a model of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.model import Millis, PoolName, Tenant, TenantName, UserName
from app.core.resources import CPU, PODS, ManagedResources
from app.dev.progress import Told
from app.sim.fleet import Fleet, Machine
from app.sim.traces import DEVICE, MEMORY, NOBODY, WHOLE
from app.sim.work import Step, Work
from app.sim.world import World
from loadtest import openb, placement, stockmodel
from loadtest.figures import Measure
from loadtest.occupancy import Outcome, Seen, sum_up
from loadtest.openb import Arrival
from loadtest.philly import traces

NAME = "virtual"
SEEDS = 10
TITLES = {"stock": "stock (model)", "most": "MostAllocated (model)", "fairgate": "Fairgate"}


def measure(progress: Told, pods: int | None, rounds: int | None) -> list[Measure]:
    """Play `rounds` seeds (None: as usual) of each mix, with `pods` pods at most."""
    fleet = openb.machines(traces() / "openb_nodes.csv", placement.NODES)
    known = openb.templates(traces() / "openb_2023.csv.gz", fleet)
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
        seen = stockmodel.play(load, fleet, most=arm == "most", seed=seed)
    return sum_up(load, seen, fleet, *placement.times_of(load))


def play(load: Sequence[Arrival], machines: Sequence[Machine]) -> list[Seen]:
    """Return what becomes of every pod through the engine, all of one user."""
    fleet = Fleet(tuple(machines))
    everybody = Tenant(TenantName(NOBODY), Millis(0), namespaces=(NOBODY,))
    world = World(ManagedResources((DEVICE,)), fleet.nodes(WHOLE), [everybody], fleet.pools)
    for number, pod in enumerate(load):
        world.add(_work(number, pod, fleet))
    _, horizon = placement.times_of(load)
    world.run(Millis(int(horizon * 1000)))
    seen = [Seen(pod.at) for pod in load]
    for moment in world.timeline:
        one, at = seen[int(moment.work.name)], moment.at / 1000
        if moment.step is Step.RELEASED:
            one.opened = one.bound = at
            one.node = moment.nodes[0]
        elif moment.step is Step.ENDED:
            one.ended = at
    return seen


def _work(number: int, pod: Arrival, fleet: Fleet) -> Work:
    shape, models = pod.shape, fleet.models or ()
    return Work(
        str(number),
        TenantName(NOBODY),
        UserName(NOBODY),
        Millis(int(pod.at * 1000)),
        {DEVICE: shape.gpus, CPU: shape.cpu, MEMORY: shape.memory, PODS: 1},
        duration=Millis(max(1, int(pod.runs * 1000))),
        pools=tuple(PoolName(model) for model in shape.models if model in models),
    )
