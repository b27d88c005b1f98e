"""CPU per pod from create to Running, by program, without and with Fairgate in turns.

Two local clusters run side by side: one without Fairgate, and one with it. In a turn, only one of
them gets pods. Use while no pod is created is measured before each turn, and subtracted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import uvloop

from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.progress import ConsoleProgress, SetupProgress
from app.devcluster.signals import signals_as_interrupt
from app.kube.client import Client
from loadtest import load
from loadtest.bench_cluster import NODES
from loadtest.cpu import read_cpu, subtract
from loadtest.figures import Compared, Measure, Series, Target, turns
from loadtest.gate_watch import gates

NAME = "cost"
PODS = 500
ROUNDS = 3
WARM_UP = 100
IDLE_SECONDS = 5.0
RUNNING_SECONDS = 300.0
RUNNING = "status.phase=Running"
"""Selects the pods that run. A watch costs both clusters the same for each pod; polls do not."""

GPU_NAMESPACE, PLAIN_NAMESPACE = "cost-gpu", "cost-plain"
BARE, FAIRGATE = "bare", "fairgate"
API_SERVER = "kube-apiserver"
CLUSTER = (API_SERVER, "etcd", "kube-scheduler", "kube-controller-manager", "kwok")
OWN = ("fairgate-webhook", "fairgate-controller", "fairgate-api", "redis")
MOST, MOST_WITHOUT_GPU = Target(most=1.6), Target(most=1.05)

ARMS = {
    (BARE, 1): "bare cluster",
    (FAIRGATE, 1): "with Fairgate",
    (BARE, 0): "bare cluster, no GPU",
    (FAIRGATE, 0): "with Fairgate, no GPU",
}
"""Titles by cluster and GPUs of a pod."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: CPU milliseconds per pod by program, and the seconds until all pods ran.

    `idle` has CPU milliseconds per second by program while no pod was created.
    """

    per_pod: Mapping[str, float]
    seconds: float
    idle: Mapping[str, float]

    def sum(self) -> float:
        """Return the CPU per pod of all programs."""
        return sum(self.per_pod.values())


def turn_of(
    used: Mapping[str, float], idle: Mapping[str, float], seconds: float, pods: int
) -> Turn:
    """Return the turn with this use in milliseconds, and this idle use a second."""
    per_pod = {name: max(0.0, ms - idle[name] * seconds) / pods for name, ms in used.items()}
    return Turn(per_pod, seconds, idle)


class Side:
    """One of the clusters, with an administrator's client."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def prepare(self) -> None:
        """Create the namespaces of the pods."""
        for namespace in (GPU_NAMESPACE, PLAIN_NAMESPACE):
            await load.create_namespace(self.client, namespace)

    async def turn(self, pods: int, gpus: int) -> Turn:
        """Create pods, wait until all run, and delete them."""
        namespace = GPU_NAMESPACE if gpus else PLAIN_NAMESPACE
        children = self.cluster.processes.alive()
        before = read_cpu(children)
        await asyncio.sleep(IDLE_SECONDS)
        started, began = read_cpu(children), time.monotonic()
        idle = {name: ms / IDLE_SECONDS for name, ms in subtract(started, before).items()}
        bodies = [load.pod(name, gated=False, gpus=gpus) for name in load.names(pods)]
        create = partial(load.create_pod, self.client, namespace)
        async with gates(self.client, namespace, selector=RUNNING) as watch:
            await load.over(bodies, create, RUNNING_SECONDS)
            seconds = await watch.wait(pods, RUNNING_SECONDS) - began
        used = subtract(read_cpu(children), started)
        await load.clear(self.client, [namespace])
        return turn_of(used, idle, seconds, pods)


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> list[Measure]:
    """Measure `pods` pods in each arm and round; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    with signals_as_interrupt(), clusters(progress, (BARE, FAIRGATE)) as up:
        taken = uvloop.run(_measure(up, pods, rounds, progress))
    how = (
        f"{pods} pods a turn over {load.CONNECTIONS} connections, {rounds} rounds in turns; "
        f"{NODES.count} KWOK nodes, room for all; two clusters, one of them with Fairgate.",
        f"From the first create until all pods run. Use of {IDLE_SECONDS:.0f} s before each turn, "
        "while no pod is created, is subtracted.",
    )
    return [
        _table("CPU per one-GPU pod, create to Running", how, taken, 1, MOST),
        _table("CPU per pod without GPUs", how, taken, 0, MOST_WITHOUT_GPU),
    ]


@contextmanager
def clusters(progress: SetupProgress, names: Sequence[str]) -> Iterator[dict[str, LocalCluster]]:
    """Bring up these clusters, and remove them completely at the end."""
    up = {name: LocalCluster(folders.own_folder(f"cost-{name}")) for name in names}
    with ExitStack() as stack:
        for name, cluster in up.items():
            stack.callback(cluster.down)
            options = ClusterOptions(groups=(NODES,), fairgate=name == FAIRGATE)
            cluster.up(options, progress)
        yield up


async def _measure(
    up: dict[str, LocalCluster], pods: int, rounds: int, progress: SetupProgress
) -> dict[tuple[str, int], list[Turn]]:
    sides = {name: await connected(cluster) for name, cluster in up.items()}
    arms = {f"{name} {gpus}": (name, gpus) for name, gpus in ARMS}
    try:
        with progress.step("cost: warming up"):
            for name, gpus in ARMS:
                await sides[name].turn(min(pods, WARM_UP), gpus)
        taken: dict[tuple[str, int], list[Turn]] = {arm: [] for arm in ARMS}
        for number, word in turns(list(arms), rounds):
            name, gpus = arm = arms[word]
            with progress.step(f"cost, round {number} of {rounds}: {ARMS[arm]}"):
                taken[arm].append(await sides[name].turn(pods, gpus))
        return taken
    finally:
        for side in sides.values():
            await side.client.close()


async def connected(cluster: LocalCluster) -> Side:
    """Connect a client to a cluster, and create the namespaces."""
    client = await Client.connect(cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
    side = Side(cluster, client)
    await side.prepare()
    return side


def _table(
    title: str,
    how: tuple[str, ...],
    taken: Mapping[tuple[str, int], Sequence[Turn]],
    gpus: int,
    most: Target,
) -> Measure:
    bare, ours = taken[BARE, gpus], taken[FAIRGATE, gpus]
    figures = [*_figures("bare: ", CLUSTER, bare), *_figures("", CLUSTER + OWN, ours)]
    return Measure(
        f"{NAME}-{'gpu' if gpus else 'plain'}",
        title,
        how,
        tuple(figures),
        (
            _compared(
                f"{API_SERVER}, with / without", _of(API_SERVER, ours), _of(API_SERVER, bare), most
            ),
            _compared(
                "all programs, with / without", _sums(ours), _sums(bare), MOST if gpus else None
            ),
            _compared("time, without / with", _seconds(bare), _seconds(ours)),
        ),
    )


def _figures(prefix: str, programs: Sequence[str], taken: Sequence[Turn]) -> list[Series]:
    found = [Series(prefix + name, "ms", _of(name, taken)) for name in programs]
    idle = tuple(turn.idle[API_SERVER] for turn in taken)
    return [
        *found,
        Series(prefix + "sum", "ms", _sums(taken)),
        Series(prefix + f"idle {API_SERVER}, a second", "ms", idle),
    ]


def _of(program: str, taken: Sequence[Turn]) -> tuple[float, ...]:
    return tuple(turn.per_pod.get(program, 0.0) for turn in taken)


def _sums(taken: Sequence[Turn]) -> tuple[float, ...]:
    return tuple(turn.sum() for turn in taken)


def _seconds(taken: Sequence[Turn]) -> tuple[float, ...]:
    return tuple(turn.seconds for turn in taken)


def _compared(
    title: str, over: Sequence[float], under: Sequence[float], target: Target | None = None
) -> Compared:
    values = tuple(a / b for a, b in zip(over, under, strict=True))
    return Compared(Series(title, "", values), target)
