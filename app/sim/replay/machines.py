"""Machines of a replay: one pool with a number of devices, or nodes read from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource
from app.core.quantities import CPU, PODS, add_amounts
from app.sim.replay.csv_rows import CsvRow, read_rows
from app.sim.replay.trace_files import DEVICE, GIB, MEMORY, WHOLE

MAIN = PoolName("main")
MODEL = "gpu_model"
NO_DEVICES = "none"
"""`MODEL` label of nodes without devices, and name of their pool if there are several pools."""

PLENTY = 10**15
"""Amount of a resource that the file does not specify: always enough."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One node. `model` is the model of its devices in lower case."""

    name: str
    gpus: int
    model: str
    cpu: int = PLENTY
    memory: int = PLENTY


@dataclass(frozen=True, slots=True)
class Fleet:
    """All machines. One model forms the pool `main`; several models form one pool each."""

    machines: tuple[Machine, ...]

    @property
    def gpus(self) -> int:
        """Whole devices in all."""
        return sum(machine.gpus for machine in self.machines)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """One pool per device model, named after the model; or only `main`."""
        kinds = list(dict.fromkeys(machine.model for machine in self.machines))
        if len(kinds) == 1:
            return (Pool(MAIN),)
        return tuple(Pool(PoolName(kind), selector={MODEL: kind}) for kind in kinds)

    @property
    def models(self) -> Mapping[str, PoolName] | None:
        """The pool of each device model; None if there is only one pool."""
        pools = self.pools
        return {str(pool.name): pool.name for pool in pools} if len(pools) > 1 else None

    def nodes(self, scale: int) -> list[Node]:
        """Return the nodes; one device is `scale` units."""
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
                device_sizes={} if scale == WHOLE else {DEVICE: scale},
            )
            for machine in self.machines
        ]

    def capacity(self, scale: int, resources: Iterable[Resource]) -> Amounts:
        """Return the capacity of some resources; one device is `scale` units."""
        total: dict[Resource, int] = {}
        for node in self.nodes(scale):
            total = add_amounts(total, {r: node.allocatable[r] for r in resources})
        return total


def one_pool(gpus: int) -> Fleet:
    """Return a cluster of one large machine, limited only by its devices. Raises InvalidInput."""
    if gpus < 1:
        raise InvalidInput(f"--gpus {gpus} is no cluster; write 1 or more.")
    return Fleet((Machine(str(MAIN), gpus, str(MAIN)),))


def read_fleet(path: Path) -> Fleet:
    """Read a file of nodes: `node,gpus,gpu_model,cpus,mem_gib`. Raises InvalidInput."""
    machines: dict[str, Machine] = {}
    for row in read_rows(path, ("node", "gpus", MODEL)):
        name = row.required_text("node")
        if name in machines:
            raise InvalidInput(f"{row.origin}: node: {name} is there twice; keep one row of it.")
        machines[name] = _machine(row, name)
    if not any(machine.gpus for machine in machines.values()):
        raise InvalidInput(f"{path} has no node with a GPU; give a file with at least one.")
    return Fleet(tuple(machines.values()))


def _machine(row: CsvRow, name: str) -> Machine:
    gpus = row.whole_number("gpus", 0)
    model = row.text(MODEL).lower() if gpus else ""
    return Machine(
        name=name,
        gpus=gpus,
        model=model or ("gpu" if gpus else NO_DEVICES),
        cpu=row.scaled_number("cpus", 1000) if row.text("cpus") else PLENTY,
        memory=row.scaled_number("mem_gib", GIB) if row.text("mem_gib") else PLENTY,
    )
