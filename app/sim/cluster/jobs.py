"""State of a workload in the virtual cluster: the pods of its current attempt."""

from __future__ import annotations

from collections.abc import Collection

from app.core.model import Millis, NodeName, Phase, Pod, PoolName, Uid
from app.core.well_known import GATE, HELD
from app.sim.cluster.workload import SimulatedWorkload

PREDECESSOR = 1
"""Epoch of the leader that released the workloads that run at the start."""

KEPT = {"budget": "kept"}
"""Labels of the pods that a disruption budget protects."""


class SimulatedJob:
    """A workload and its pods. Every attempt has new pods; `ordinal` breaks ties.

    `released` counts the released pods of the current attempt, `nodes` lists their nodes.
    """

    __slots__ = ("attempt", "nodes", "ordinal", "pods", "released", "work")

    def __init__(self, work: SimulatedWorkload, ordinal: int) -> None:
        self.work = work
        self.ordinal = ordinal
        self.attempt = 0
        self.pods: dict[Uid, Pod] = {}
        self.nodes: list[NodeName] = []
        self.released = 0

    def attempt_at(self, since: Millis) -> Collection[Pod]:
        """Begin a new attempt; return its pods as the webhook creates them."""
        self.attempt += 1
        self.nodes = []
        self.released = 0
        self.pods = {pod.uid: pod for pod in (self._pod(i, since) for i in self._each())}
        return self.pods.values()

    def in_place(
        self, released: Millis, pool: PoolName, nodes: tuple[NodeName, ...]
    ) -> Collection[Pod]:
        """Begin with pods that were released before the start; return them."""
        self.attempt += 1
        self.nodes = list(nodes)
        self.released = len(nodes)
        stamp = f"{PREDECESSOR}.{self.ordinal}"
        self.pods = {}
        for index, node in enumerate(nodes):
            pod = self._pod(index, released, (), stamp, pool, node, Phase.RUNNING, released)
            self.pods[pod.uid] = pod
        return self.pods.values()

    def _each(self) -> range:
        return range(self.work.pods)

    def _pod(
        self,
        index: int,
        since: Millis,
        gates: tuple[str, ...] = (GATE,),
        release: str = HELD,
        pool: PoolName | None = None,
        node: NodeName | None = None,
        phase: Phase = Phase.PENDING,
        started: Millis | None = None,
    ) -> Pod:
        work = self.work
        alone = work.pods == 1
        return Pod(
            # Text order is the order of the ordinals, for every attempt.
            uid=Uid(f"{self.ordinal:08}.{self.attempt:05}.{index:05}"),
            namespace=work.tenant,
            name=work.name if alone else f"{work.name}-{index}",
            user=work.user,
            priority=work.priority,
            since=since,
            demand=work.demand,
            gates=gates,
            release=release,
            node=node,
            pool=pool,
            pools=work.pools,
            phase=phase,
            gang="" if alone else f"{work.name}.{self.ordinal}.{self.attempt}",
            gang_size=work.pods,
            started=started,
            max_runtime=work.max_runtime,
            preemptible=work.preemptible,
            labels=KEPT if work.kept else {},
            style=work.manner.style,
            near=work.manner.near,
            reclaim=work.reclaim,
        )
