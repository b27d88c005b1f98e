"""Every user's head stays what a new computation gives, while usage, queues and capacity change."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

import pytest

from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey, queue_key_of
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, TenantName, Uid, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.policy import Policy
from app.core.pricing.share_units import Scale
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
POOLS = tuple(map(PoolName, "abc"))
STEPS = 150
ONE = (1, 1)


@dataclass
class Forest:
    """A random tree of tenants and users over three pools. Some work is not preemptible."""

    random: Random
    has_limits: bool
    waiting: list[tuple[UserNode, QueueKey, EquivalenceClass]] = field(default_factory=list)
    usage: list[tuple[UserNode, PoolName, Amounts]] = field(default_factory=list)
    fitting: dict[EquivalenceClass, list[PoolName]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scale = Scale({GPU: Fraction(48)}, {pool: {} for pool in POOLS})
        self.tree = ShareTree(scale, Policy(), fitting=lambda shape: self.fitting.get(shape, []))
        self.shapes = [self._shape() for _ in range(4)]
        tenants = []
        for number in range(4):
            parent = self.random.choice([None, *tenants])
            name = TenantName(f"t{number}")
            tenants.append(self.tree.get_or_add_tenant(name, parent, ONE, self._quotas()))
        users = [(tenant, UserName(f"u{number}")) for tenant in tenants for number in range(4)]
        self.leaves = [self.tree.get_or_add_user(*each) for each in users]

    def _shape(self) -> EquivalenceClass:
        demand = {GPU: self.random.randint(1, 4)}
        pools = tuple(sorted(self.random.sample(POOLS, self.random.randint(1, 3))))
        return EquivalenceClass(
            ((demand, 1),), demand, pools, preemptible=self.random.random() < 0.7
        )

    def _quotas(self) -> dict[PoolName, Quota]:
        chosen = [pool for pool in POOLS if self.random.random() < 0.6]
        return {pool: self._quota() for pool in chosen}

    def _quota(self) -> Quota:
        limit = {GPU: self.random.randint(6, 20)} if self.has_limits else {}
        return Quota({GPU: self.random.randint(0, 6)}, limit)

    def change(self, step: int) -> None:
        """Submit or start a workload, or end one that waits or runs."""
        random, dice = self.random, self.random.random()
        leaf = random.choice(self.leaves)
        if dice < 0.35:
            key = queue_key_of(random.randint(0, 2), Millis(step), Uid(f"w{random.random()}"))
            self.waiting.append((leaf, key, random.choice(self.shapes)))
            self.tree.enqueue(*self.waiting[-1])
        elif dice < 0.5 and self.waiting:
            self.tree.dequeue(*self.waiting.pop(random.randrange(len(self.waiting))))
        elif dice < 0.8:
            self.usage.append((leaf, random.choice(POOLS), {GPU: random.randint(1, 3)}))
            self.tree.add_usage(*self.usage[-1])
        elif self.usage:
            self.tree.add_usage(*self.usage.pop(random.randrange(len(self.usage))), -1)
        if random.random() < 0.1:
            shape = random.choice(self.shapes)
            self.fitting[shape] = random.sample(shape.pools, random.randint(0, len(shape.pools)))


@pytest.mark.parametrize("seed", range(cases(12, 150)))
def test_heads_are_the_same_as_after_a_new_computation(seed: int) -> None:
    """A limit at any level may block a head. So may a guarantee, if the head is not preemptible."""
    forest = Forest(Random(seed), has_limits=seed % 2 == 1)
    several = 0
    for step in range(STEPS):
        for _ in range(forest.random.randint(1, 3)):
            forest.change(step)
        forest.tree.update_order()
        for leaf in forest.leaves:
            if leaf.queue:
                assert leaf.head == forest.tree._head_of(leaf)
                several += leaf.head is not None and len(leaf.head[1].pools) > 1
    # Not empty: some head had a choice of pools.
    assert several or all(len(shape.pools) == 1 for shape in forest.shapes)
