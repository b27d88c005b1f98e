"""The machines of a replay: one pool of so many devices, or real nodes from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource
from app.core.resources import CPU, PODS, add
from app.sim.rows import Row, read_rows
from app.sim.traces import DEVICE, GIB, MEMORY, WHOLE

MAIN = PoolName("main")
MODEL = "gpu_model"
NO_DEVICES = "none"
"""Label of nodes without devices, and their pool where there are several."""

PLENTY = 10**15
"""Of what a file says nothing about, there is always enough."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One node. `model` is the kind of its devices, lower case."""

    name: str
    gpus: int
    model: str
    cpu: int = PLENTY
    memory: int = PLENTY


@dataclass(frozen=True, slots=True)
class Fleet:
    """All machines. Nodes of one kind are one pool `main`; of several kinds, a pool each."""

    machines: tuple[Machine, ...]

    @property
    def gpus(self) -> int:
        """Whole devices in all."""
        return sum(machine.gpus for machine in self.machines)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """One for each kind of device, named like it; or only `main`."""
        kinds = list(dict.fromkeys(machine.model for machine in self.machines))
        if len(kinds) == 1:
            return (Pool(MAIN),)
        return tuple(Pool(PoolName(kind), selector={MODEL: kind}) for kind in kinds)

    @property
    def models(self) -> Mapping[str, PoolName] | None:
        """Which pool has the devices of a model; None: there is only one pool, for everything."""
        pools = self.pools
        return {str(pool.name): pool.name for pool in pools} if len(pools) > 1 else None

    def nodes(self, scale: int) -> list[Node]:
        """Return the nodes, with `scale` parts to a device."""
        return [
            Node(
                NodeName(machine.name),
                labels={MODEL: machine.model},
                allocatable={
                    DEVICE: machine.gpus * scale,
                    CPU: machine.cpu,
                    MEMORY: machine.memory,
                    PODS: PLENTY,
                },
                ready=True,
                fractions={} if scale == WHOLE else {DEVICE: scale},
            )
            for machine in self.machines
        ]

    def capacity(self, scale: int, resources: Iterable[Resource]) -> Amounts:
        """Return how much there is of some resources, with `scale` parts to a device."""
        total: dict[Resource, int] = {}
        for node in self.nodes(scale):
            total = add(total, {r: node.allocatable[r] for r in resources})
        return total


def one_pool(gpus: int) -> Fleet:
    """Return a cluster that is one large machine: nothing but the number of devices matters."""
    if gpus < 1:
        raise InvalidInput(f"--gpus {gpus} is no cluster; write 1 or more.")
    return Fleet((Machine(str(MAIN), gpus, str(MAIN)),))


def read_fleet(path: Path) -> Fleet:
    """Read a file of nodes: `node,gpus,gpu_model,cpus,mem_gib`. Raises InvalidInput."""
    machines: dict[str, Machine] = {}
    for row in read_rows(path, ("node", "gpus", MODEL)):
        name = row.needed("node")
        if name in machines:
            raise InvalidInput(f"{row.where}: node: {name} is there twice; keep one row of it.")
        machines[name] = _machine(row, name)
    if not any(machine.gpus for machine in machines.values()):
        raise InvalidInput(f"{path} has no node with a GPU; give a file with at least one.")
    return Fleet(tuple(machines.values()))


def _machine(row: Row, name: str) -> Machine:
    gpus = row.whole("gpus", 0)
    model = row.text(MODEL).lower() if gpus else ""
    return Machine(
        name=name,
        gpus=gpus,
        model=model or ("gpu" if gpus else NO_DEVICES),
        cpu=row.units("cpus", 1000) if row.text("cpus") else PLENTY,
        memory=row.units("mem_gib", GIB) if row.text("mem_gib") else PLENTY,
    )
