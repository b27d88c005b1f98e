"""Effect of placement: the same load on a cluster with the default scheduler and with Fairgate.

Runs the arms and builds the tables. `openb` samples the load, `occupancy` computes the figures.
Load, nodes, client and pods are the same for every arm.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import GPU, NodeGroup
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.kube.client import Client
from app.sim.replay.machines import Machine
from loadtest import load, openb_sample, profiles
from loadtest.bench_cluster import API
from loadtest.figures import Compared, Measure, Series, Target, columns, ratio, turns
from loadtest.occupancy import Outcome, Seen, averages, sum_up
from loadtest.openb_sample import MODEL, Arrival
from loadtest.philly import traces
from loadtest.timed_pods import play, until_it_binds

NAME = "placement"
NODES, ROUNDS = 48, 1
SPAN = 90.0
"""Seconds over which pods arrive."""

LOAD = 1.2
"""Ratio of requested to available device-seconds while pods arrive."""

HALF = 0.5
TAIL = 0.5
"""Further observation of an arm, as a part of its arrival time."""

STOCK, FAIRGATE = "bench-stock", "bench-fairgate"
"""Namespaces; the first is exempt from Fairgate."""


@dataclass(frozen=True, slots=True)
class Arm:
    """How pods are placed: the scheduler profile, and whether Fairgate holds them first."""

    title: str
    profile: str
    fair: bool


ARMS = {
    "stock": Arm("stock", "default", False),
    "most": Arm("stock, MostAllocated", "most", False),
    "fairgate": Arm("Fairgate", "default", True),
    "both": Arm("Fairgate, MostAllocated", "most", True),
}
MIXES = {None: "pods as in the log", HALF: "pods of several GPUs ask for half of all"}

FIGURES = (
    # field, title, unit, factor for display, target relative to the default scheduler
    ("used", "use", "%", 100.0, Target(least=1.3)),
    ("wait", "mean wait", "s", 1.0, Target(most=0.8)),
    ("wait_several", "of several GPUs", "s", 1.0, None),
    ("after_gate", "of it without a gate", "s", 1.0, None),
    ("completed", "ended a minute", "", 1.0, Target(least=1.4)),
    ("unusable", "unusable", "%", 100.0, None),
    ("never_bound", "not bound", "", 1.0, None),
)
COMPARED = ("used", "wait", "completed", "unusable")


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> list[Measure]:
    """Run every arm `rounds` times (None means the default) per mix, with at most `pods` pods."""
    fleet = openb_sample.machines(traces() / "openb_nodes.csv", NODES)
    known = openb_sample.templates(traces() / "openb_2023.csv.gz", fleet)
    cluster = LocalCluster(folders.own_folder("bench"))
    with signals_as_interrupt():
        try:
            cluster.up(ClusterOptions(groups=_groups(fleet), exempt=(STOCK,)), progress)
            run = _Run(cluster, fleet, known, pods, rounds or ROUNDS, progress)
            return uvloop.run(run.measure())
        finally:
            with progress.step("Taking the cluster down"):
                cluster.down()


class _Run:
    """All arms on a running cluster."""

    def __init__(
        self,
        cluster: LocalCluster,
        fleet: Sequence[Machine],
        known: Sequence[Arrival],
        pods: int | None,
        rounds: int,
        progress: ConsoleProgress,
    ) -> None:
        self._cluster, self._fleet, self._known = cluster, fleet, known
        self._pods, self._rounds, self._progress = pods, rounds, progress

    async def measure(self) -> list[Measure]:
        """Prepare the cluster, run every arm, and return a table for each mix."""
        client = await Client.connect(self._cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
        try:
            for namespace in (STOCK, FAIRGATE):
                await load.create_namespace(client, namespace)
            for model in sorted({machine.model for machine in self._fleet}):
                await load.create(client, f"{API}/pools", _pool(model))
            return [await self._mix(client, several) for several in MIXES]
        finally:
            await client.close()

    async def _mix(self, client: Client, several: float | None) -> Measure:
        outcomes: dict[str, list[Outcome]] = {arm: [] for arm in ARMS}
        for number, arm in turns(list(ARMS), self._rounds):
            pods = arrivals(self._known, self._fleet, several, number, self._pods)
            step = f"placement, {MIXES[several]}, round {number}, {ARMS[arm].title}"
            with self._progress.step(step):
                outcomes[arm].append(await self._arm(client, ARMS[arm], pods))
        titles = {name: arm.title for name, arm in ARMS.items()}
        return table(NAME, f"Placement: {MIXES[several]}", self._fleet, titles, outcomes)

    async def _arm(self, client: Client, arm: Arm, pods: Sequence[Arrival]) -> Outcome:
        namespace = FAIRGATE if arm.fair else STOCK
        await asyncio.to_thread(self._cluster.stop_fairgate, "controller")
        if arm.fair:
            await asyncio.to_thread(self._cluster.start_fairgate, "controller")
        await asyncio.to_thread(profiles.restart, self._cluster, arm.profile)
        await until_it_binds(client, namespace)
        seen = [Seen() for _ in pods]
        span, horizon = times_of(pods)
        await play(client, namespace, pods, seen, horizon)
        await load.clear(client, [namespace])
        return sum_up(pods, seen, self._fleet, span, horizon)


def arrivals(
    known: Sequence[Arrival],
    fleet: Sequence[Machine],
    several: float | None,
    seed: int,
    most: int | None,
) -> list[Arrival]:
    """Return the load of one round of a mix, with at most `most` pods."""
    devices = sum(machine.gpus for machine in fleet)
    drawn = openb_sample.draw(known, LOAD * devices * SPAN, seed, several=several, most=most)
    return openb_sample.spread(drawn, devices, LOAD, seed)


def times_of(pods: Sequence[Arrival]) -> tuple[float, float]:
    """Return the end of the arrivals and the end of the observation, in seconds."""
    return pods[-1].at, pods[-1].at * (1 + TAIL)


def _pool(model: str) -> dict[str, Any]:
    spec = {"nodeSelector": {MODEL: model}, "placement": "pack"}
    about = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Pool", "metadata": {"name": model}}
    return {**about, "spec": spec}


def _groups(fleet: Sequence[Machine]) -> tuple[NodeGroup, ...]:
    """Return one node group per kind of machine, so that nodes have the names of the machines."""
    kinds = {machine.name.rpartition("-")[0]: machine for machine in fleet}
    count = Counter(machine.name.rpartition("-")[0] for machine in fleet)
    return tuple(
        NodeGroup(
            name,
            count[name],
            {
                "cpu": f"{kind.cpu}m",
                "memory": str(kind.memory),
                "pods": "110",
                GPU: str(kind.gpus),
            },
            {MODEL: kind.model},
        )
        for name, kind in kinds.items()
    )


def table(
    name: str,
    title: str,
    fleet: Sequence[Machine],
    titles: Mapping[str, str],
    outcomes: Mapping[str, Sequence[Outcome]],
) -> Measure:
    """Return the figures of all arms, and the ratios of Fairgate to the other arms."""
    figures: list[Series] = []
    ratios: list[Compared] = []
    for field, what, unit, shown, promised in FIGURES:
        taken = {arm: [v * shown for v in of] for arm, of in averages(outcomes, field).items()}
        named = {arm: f"{what}: {called}" for arm, called in titles.items()}
        series = columns(named, unit, taken)
        if any(any(one.values) for one in series.values()):
            figures += series.values()
        for over, under in (("fairgate", "stock"), ("fairgate", "most"), ("both", "most")):
            if field in COMPARED and over in series and all(series[under].values):
                target = promised if under == "stock" else None
                told = f"{what}: {titles[over]} / {titles[under]}"
                ratios.append(ratio(told, series[over], series[under], target))
    devices = sum(machine.gpus for machine in fleet)
    how = (
        f"{len(fleet)} nodes in openb's mix, {devices} GPUs; pods drawn from its log, runs / "
        f"{openb_sample.FASTER:g} (an hour of it at most), that arrive over {SPAN:g} s and ask for "
        f"{LOAD:g} of what there is meanwhile; the same in every arm.",
        "Use: device-seconds bound, of those there were and somebody asked for, while pods arrive. "
        "Unusable: devices free that a random pod of the load could not use, of all. Waits end "
        "when a pod is bound; not bound: pods that never were.",
        "Targets are what other products promise over the stock scheduler; none is ours. In "
        "virtual time: `--only virtual`; on all of openb, where no pod ends: `--only packing`.",
    )
    return Measure(name, title, how, tuple(figures), tuple(ratios))
