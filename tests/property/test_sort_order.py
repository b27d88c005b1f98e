"""The fast order equals the exact order if history is off: a million comparisons, many close.

The engine's scores are integers. The test computes them again as fractions from the published
formula and compares every pair in both ways.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from random import Random

import pytest

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode
from app.core.model import (
    Amounts,
    Millis,
    Node,
    NodeName,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.placement.allocations import Allocations
from app.core.placement.pools import Pools
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import ManagedResources

GPU, MEMORY = Resource("nvidia.com/gpu"), Resource("memory")
POOLS = (PoolName("p"), PoolName("q"))
TENANTS = 180
BATCHES = 66
"""180 * 179 / 2 * 66 is a little more than a million."""

Holding = dict[PoolName, dict[Resource, int]]


class Cluster:
    """Two pools of irregular sizes. Tenants with irregular weights have almost equal usage."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.even = seed % 2 == 0
        """Devices alone, in proportion to weights: scores are equal, or hardly differ."""
        self.capacity = {pool: self._some(10**4, 10**13) for pool in POOLS}
        self.worth = {pool: {GPU: self._ratio(), MEMORY: self._ratio()} for pool in POOLS}
        self.tenants = [self._tenant(number) for number in range(TENANTS)]
        self.held: list[Holding] = []
        self.asked = [self._wish(tenant) for tenant in self.tenants]

        tenancy, pools = TenantDirectory(), Pools(ManagedResources([GPU, MEMORY]))
        for pool in POOLS:
            pools.put_pool(Pool(pool, {"pool": pool}, self.worth[pool]))
            pools.put_node(Node(NodeName(pool), {"pool": pool}, self.capacity[pool], True))
        pools.rebuild_if_stale()
        for tenant in self.tenants:
            tenancy.add_tenant(tenant)
        self.usage = LiveUsage(tenancy, Allocations(pools))
        self.usage.rebuild_tree(pools.scale())
        self.branches = [self._seat(tenant) for tenant in self.tenants]

    def _ratio(self) -> Fraction:
        return Fraction(self.random.randint(1, 40), self.random.choice((1, 3, 7, 10)))

    def _some(self, gpus: int, memory: int) -> dict[Resource, int]:
        return {GPU: self.random.randint(1, gpus), MEMORY: self.random.randint(1, memory)}

    def _wish(self, tenant: Tenant) -> dict[Resource, int]:
        if self.even:
            return {GPU: int(tenant.weight * 10) or 1, MEMORY: 0}
        return self._some(64, 10**11)

    def _tenant(self, number: int) -> Tenant:
        """Weights with few digits cause ties, and weights with many digits cause near ties."""
        digits = 1 if self.even else self.random.choice((1, 1, 3, 12))
        weight = Fraction(self.random.randint(1, 10**digits), 10 ** self.random.randint(0, digits))
        quotas = {
            pool: Quota(self._some(500, 10**11)) for pool in POOLS if self.random.random() < 0.3
        }
        quotas = {} if self.even and number % 2 else quotas
        name = TenantName(f"t{number}")
        return Tenant(name, Millis(0), weight, namespaces=(name,), quotas=quotas)

    def _seat(self, tenant: Tenant) -> TenantNode:
        """Give a tenant usage that is about proportional to its weight."""
        leaf = self.usage.get_or_add_user(tenant.name, UserName("u"))
        share = min(tenant.weight, Fraction(1000)) / 5000
        holding: Holding = {}
        for pool in POOLS:
            most = {r: int(self.capacity[pool][r] * share) for r in (GPU, MEMORY)}
            near = {r: max(0, v + self.random.randint(-1, 1)) for r, v in most.items()}
            if self.even:
                near = {GPU: int(tenant.weight * 10) * 20, MEMORY: 0}
            holding[pool] = near if self.random.random() < 0.8 else {GPU: 0, MEMORY: 0}
            self.usage.tree.add_usage(leaf, pool, holding[pool])
        self.held.append(holding)
        return self.usage.tree.tenants[tenant.name]

    def shape(self, number: int) -> EquivalenceClass:
        demand: Amounts = self.asked[number]
        return EquivalenceClass(((demand, 1),), demand, POOLS)

    def exact(self, number: int, pool: PoolName) -> tuple[int, Fraction]:
        """Return band and score by the published formula, in fractions."""
        tenant, held, asked = self.tenants[number], self.held[number], self.asked[number]
        quota = tenant.quotas.get(pool)
        if quota is not None:
            used = {r: held[pool][r] for r in quota.guarantee}
            wanted = [r for r in quota.guarantee if asked[r] > 0]
            if all(used[r] + asked[r] <= quota.guarantee[r] for r in wanted):
                return 0, max(Fraction(used[r], v) for r, v in quota.guarantee.items())
        worst = Fraction(0)
        for r in (GPU, MEMORY):
            size = sum(self.worth[p][r] * self.capacity[p][r] for p in POOLS)
            over = sum(self._over(number, p, r, 0) for p in POOLS)
            more = self._over(number, pool, r, asked[r]) - self._over(number, pool, r, 0)
            worst = max(worst, (over + more / 2) / size)
        return 1, worst / tenant.weight

    def _over(self, number: int, pool: PoolName, r: Resource, more: int) -> Fraction:
        quota = self.tenants[number].quotas.get(pool)
        guaranteed = quota.guarantee[r] if quota else 0
        return self.worth[pool][r] * max(0, self.held[number][pool][r] + more - guaranteed)


def ranks(seed: int) -> tuple[list[tuple[int, float]], list[tuple[int, Fraction]]]:
    """Return the ranks of all tenants of a cluster, by the engine and by the formula."""
    cluster = Cluster(seed)
    pools = [cluster.random.choice(POOLS) for _ in cluster.tenants]
    fast = []
    for number, branch in enumerate(cluster.branches):
        rank = cluster.usage.tree.rank(branch, cluster.shape(number), pools[number])
        fast.append((rank.band, rank.score))
    return fast, [cluster.exact(number, pool) for number, pool in enumerate(pools)]


@pytest.fixture(scope="module")
def batches() -> list[tuple[list[tuple[int, float]], list[tuple[int, Fraction]]]]:
    return [ranks(seed) for seed in range(BATCHES)]


def test_million_comparisons_equal_rational_arithmetic(
    batches: list[tuple[list[tuple[int, float]], list[tuple[int, Fraction]]]],
) -> None:
    compared = close = equal = guaranteed = 0
    for fast, exact in batches:
        # The places of the exact ranks compare like the ranks, in a tenth of the time.
        places = {rank: place for place, rank in enumerate(sorted(set(exact)))}
        rows = [(f, places[e], e[0], float(e[1])) for f, e in zip(fast, exact, strict=True)]
        for (f, e, band, score), (g, h, other_band, other) in combinations(rows, 2):
            compared += 1
            close += abs(score - other) * 1000 < other
            equal += e == h
            guaranteed += band == other_band == 0
            assert (f < g) == (e < h)
            assert (f == g) == (e == h)
    assert compared > 1_000_000
    assert close > 10_000
    assert equal > 1_000
    assert guaranteed > 1_000


def test_equal_shares_are_a_tie_whatever_the_weights() -> None:
    """Three devices at weight 3/10 and ten devices at weight 1 have exactly equal midpoints."""
    tenancy, pools = TenantDirectory(), Pools(ManagedResources([GPU]))
    pools.put_node(Node(NodeName("n"), {}, {GPU: 997}, True))
    pools.rebuild_if_stale()
    weights = {"a": Fraction("0.3"), "b": Fraction(1), "c": Fraction("123456789.012")}
    for name, weight in weights.items():
        tenancy.add_tenant(Tenant(TenantName(name), Millis(0), weight))
    usage = LiveUsage(tenancy, Allocations(pools))
    usage.rebuild_tree(pools.scale())
    default = PoolName("default")
    scores = {}
    for name, held, size in (("a", 3, 3), ("b", 10, 10), ("c", 0, 1)):
        leaf = usage.get_or_add_user(TenantName(name), UserName("u"))
        usage.tree.add_usage(leaf, default, {GPU: held})
        demand: Amounts = {GPU: size}
        shape = EquivalenceClass(((demand, 1),), demand, (default,))
        scores[name] = usage.tree.rank(usage.tree.tenants[TenantName(name)], shape, default).score
    assert scores["a"] == scores["b"]
    assert 0 < scores["c"] < scores["a"]
