"""State of a workload in the virtual cluster: the pods of its current attempt."""

from __future__ import annotations

from collections.abc import Collection

from app.core.model import Millis, NodeName, Phase, Pod, PoolName, Uid
from app.core.well_known import GATE, RELEASE_HELD
from app.sim.cluster.workload import SimulatedWorkload

PREDECESSOR = 1
"""Epoch of the leader that released the workloads that run at the start."""

KEPT = {"budget": "kept"}
"""Labels of the pods that a disruption budget protects."""


class SimulatedJob:
    """A workload and its pods. Every attempt has new pods; `ordinal` breaks ties.

    `running` are the released pods of the current attempt, each with its node. `plan` changes with
    each new end of the attempt. `is_started`: all pods that it needs were released.
    """

    __slots__ = (
        "_count",
        "_done",
        "_since",
        "attempt",
        "is_started",
        "ordinal",
        "plan",
        "pods",
        "running",
        "work",
    )

    def __init__(self, work: SimulatedWorkload, ordinal: int) -> None:
        self.work = work
        self.ordinal = ordinal
        self.attempt = -1
        self.plan = 0
        self.pods: dict[Uid, Pod] = {}
        self._reset_attempt()

    @property
    def needed(self) -> int:
        """Number of pods that it needs to start."""
        return self.work.min_pods if self.work.is_elastic else self.work.pods

    def begin_attempt(self, since: Millis) -> Collection[Pod]:
        """Begin a new attempt; return its pods as the webhook creates them."""
        self._reset_attempt()
        self.pods = {
            pod.uid: pod for pod in (self._create_pod(since) for _ in range(self.work.pods))
        }
        return self.pods.values()

    def start_running(
        self, released: Millis, pool: PoolName, nodes: tuple[NodeName, ...]
    ) -> Collection[Pod]:
        """Begin with pods that were released before the start; return them."""
        self._reset_attempt()
        stamp = f"{PREDECESSOR}.{self.ordinal}"
        self.pods = {}
        for index, node in enumerate(nodes):
            pod = self._build_pod(index, released, (), stamp, pool, node, Phase.RUNNING, released)
            self.pods[pod.uid] = pod
            self.start_pod(pod.uid, node, released)
        self._count, self.is_started = len(nodes), True
        return self.pods.values()

    def start_pod(self, uid: Uid, node: NodeName | None, at: Millis) -> None:
        """Record that a pod runs from now on."""
        self._advance(at)
        self.running[uid] = node

    def replace_pod(self, uid: Uid, at: Millis) -> Pod:
        """Replace a running pod by a new one, which waits; return the new one."""
        self._advance(at)
        del self.running[uid], self.pods[uid]
        pod = self._create_pod(at)
        self.pods[pod.uid] = pod
        return pod

    def plan_end(self, at: Millis) -> Millis | None:
        """Return when it ends if its number of pods stays the same; None if it never ends."""
        self._advance(at)
        self.plan += 1
        if self.work.duration is None:
            return None
        left = self.work.duration * self.work.pods - self._done
        return Millis(at + max(0, -(-left // len(self.running))))

    def _reset_attempt(self) -> None:
        self.attempt += 1
        self.plan += 1
        self.running: dict[Uid, NodeName | None] = {}
        self.is_started = False
        self._count = self._done = 0
        self._since = Millis(0)

    def _advance(self, at: Millis) -> None:
        self._done += (at - self._since) * len(self.running)
        self._since = at

    def _create_pod(self, since: Millis) -> Pod:
        self._count += 1
        return self._build_pod(self._count - 1, since)

    def _build_pod(
        self,
        index: int,
        since: Millis,
        gates: tuple[str, ...] = (GATE,),
        release: str = RELEASE_HELD,
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
            created_at=since,
            demand=work.demand,
            gates=gates,
            release_annotation=release,
            node=node,
            pool=pool,
            pools=work.pools,
            phase=phase,
            gang="" if alone else f"{work.name}.{self.ordinal}.{self.attempt}",
            gang_size=work.pods,
            gang_min_count=work.min_pods if work.is_elastic else 0,
            started_at=started,
            max_runtime=work.max_runtime,
            preemptible=work.preemptible,
            labels=KEPT if work.kept_by_budget else {},
            placement_strategy=work.layout.placement_strategy,
            topology=work.layout.topology,
            reclaim_terms=work.reclaim,
        )
