"""Reclaim takes the further pods of an elastic gang before any minimum, and minimums whole."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import Effect, EvictForReclaim
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Pod,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, UNBOUNDED, GangDeclaration
from app.core.policy import Policy, Reclaim, WithinQueue
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod

GPU = Resource("nvidia.com/gpu")
OWED = Policy(reclaim=Reclaim.GUARANTEE, min_runtime=Millis(0))


class World(VirtualCluster):
    """Tenant a has a guarantee, tenant b borrows. Records the evicted pods; they do not return."""

    def __init__(self, gpus: int, guarantee: int, policy: Policy = OWED) -> None:
        self.evicted: list[list[str]] = []
        node = Node(NodeName("n0"), {}, {GPU: gpus, PODS: 1000}, True)
        quota = {DEFAULT_POOL: Quota({GPU: guarantee})}
        tenants = [
            Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota),
            Tenant(TenantName("b"), Millis(0), namespaces=("b",)),
        ]
        super().__init__(ManagedResources([GPU]), [node], tenants, policy=policy)

    def pods(self, *pods: Pod) -> None:
        """Submit pods that run for ever, one second after the last event."""
        self.advance_to(Millis(self.now + 1000))
        for pod in pods:
            self.submit(replace(pod, created_at=self.now), self.now, None)
        self.evicted.append([])
        self.advance_to(self.now)

    def _apply_effect(self, effect: Effect):  # type: ignore[no-untyped-def]
        if isinstance(effect, EvictForReclaim):
            self.evicted[-1].append(effect.ref.name)
        return super()._apply_effect(effect)


def elastic(count: int, least: int, name: str = "g", **more: object) -> list[Pod]:
    made = [held_pod(f"{name}{n}", "b") for n in range(count)]
    return [
        replace(each, gang=name, gang_size=count, gang_min_count=least, **more)  # type: ignore[arg-type]
        for each in made
    ]


def owed(count: int, name: str = "x") -> list[Pod]:
    """Return one gang of tenant a that needs this many devices."""
    made = [held_pod(f"{name}{n}", "a") for n in range(count)]
    return [replace(each, gang=name if count > 1 else "", gang_size=count) for each in made]


def test_further_pod_that_was_released_last_is_evicted_first() -> None:
    world = World(8, 4)
    world.pods(*elastic(8, 2))
    world.pods(*owed(1))
    assert world.evicted[-1] == ["g7"]
    world.pods(*owed(2, "y"))
    assert sorted(world.evicted[-1]) == ["g5", "g6"]


def test_further_pods_are_evicted_before_other_pods_of_the_tenant() -> None:
    """The single pod has a lower priority, and was released later."""
    world = World(6, 2)
    world.pods(*elastic(5, 2))
    world.pods(replace(held_pod("single", "b"), priority=-5))
    world.pods(*owed(2))
    assert sorted(world.evicted[-1]) == ["g3", "g4"]


def test_minimum_is_evicted_whole_together_with_all_further_pods() -> None:
    world = World(6, 4)
    world.pods(*elastic(6, 3))
    world.pods(*owed(4))
    assert sorted(world.evicted[-1]) == [f"g{n}" for n in range(6)]


def test_no_minimum_is_broken_for_a_single_device() -> None:
    """Two gangs: one has a further pod, the other runs with its minimum only."""
    world = World(7, 2)
    world.pods(*elastic(3, 3, "m"))
    world.pods(*elastic(4, 3))
    world.pods(*owed(1))
    assert world.evicted[-1] == ["g3"]
    world.pods(*owed(1, "y"))
    assert sorted(world.evicted[-1]) == ["g0", "g1", "g2"]


def test_further_pod_within_min_runtime_does_not_protect_the_minimum() -> None:
    """Otherwise a gang that gets a new pod again and again could never be evicted."""
    world = World(4, 2, replace(OWED, min_runtime=Millis(60_000)))
    world.pods(*elastic(3, 2)[:2])
    world.advance_to(Millis(90_000))
    world.pods(replace(held_pod("young", "b"), user=UserName("other")))
    world.pods(elastic(3, 2)[2])
    world.pods(*owed(2))
    assert sorted(world.evicted[-1]) == ["g0", "g1", "g2"]


def test_own_further_pod_of_lower_priority_is_evicted_before_the_minimum() -> None:
    policy = replace(OWED, within_queue=WithinQueue.LOWER_PRIORITY)
    world = World(4, 0, policy)
    world.pods(*elastic(4, 2))
    world.pods(replace(held_pod("urgent", "b"), priority=9))
    assert world.evicted[-1] == ["g3"]


def test_reclaim_takes_no_part_of_the_only_complete_group_of_a_tree() -> None:
    """The tree needs one pod of group p, or three pods of group q. Pods of q run."""
    world = World(5, 3)
    leaf = GangDeclaration("b", "", UNBOUNDED, parent="t")
    for group in (
        GangDeclaration("b", "compositepodgroup/t", UNBOUNDED, min_count=1),
        replace(leaf, name="podgroup/p", min_count=1),
        replace(leaf, name="podgroup/q", min_count=3),
    ):
        world.engine.handle(ev.GroupObserved(world.now, group))
    pods = [held_pod(f"g{n}", "b") for n in range(5)]
    world.pods(*(replace(p, gang="podgroup/q", gang_size=SIZE_FROM_GROUP) for p in pods))
    world.pods(*owed(1))
    assert world.evicted[-1] == ["g4"]
    world.pods(*owed(1, "y"))
    assert world.evicted[-1] == ["g3"]
    world.pods(*owed(1, "z"))
    assert sorted(world.evicted[-1]) == ["g0", "g1", "g2"]
