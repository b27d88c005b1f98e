"""Prices of fractions are exact and additive: any combination of pods has the same total price."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from app.core.fairshare.tree_node import TenantNode, dominant_usage_share
from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource, TenantName
from app.core.placement.pools import Pools
from app.core.podspec.device_fractions import CORES, MEMORY, SHARED, WHOLE
from app.core.pricing.share_units import Scale
from app.core.quantities import ManagedResources

ONE, HALF = Resource("nvidia.com/mig-1g.5gb"), Resource("nvidia.com/mig-3g.20gb")
PLAIN, HAMI = PoolName("plain"), PoolName("hami")
DEVICE = 40960
PRICES = {WHOLE: Fraction(1), ONE: Fraction(1, 7), HALF: Fraction(1, 2), SHARED: Fraction(1, 3)}

pods = st.one_of(
    st.tuples(st.just(PLAIN), st.dictionaries(st.sampled_from(sorted(PRICES)), st.integers(1, 9),
                                              min_size=1)),
    st.tuples(
        st.just(HAMI),
        st.fixed_dictionaries(
            {WHOLE: st.integers(1, 4)},
            optional={CORES: st.integers(1, 400), MEMORY: st.integers(1, 4 * DEVICE)},
        ),
    ),
)  # fmt: skip


def scale() -> Scale:
    pools = Pools(ManagedResources(["nvidia.com/*"]))
    for pool in (PLAIN, HAMI):
        pools.put_pool(Pool(pool, {"pool": pool}))
    plain = {WHOLE: 64, ONE: 70, HALF: 12, SHARED: 30}
    labels = {"pool": "plain", "nvidia.com/mig-1g.5gb.count": "10"}
    pools.put_node(Node(NodeName("p"), labels, {WHOLE: 64, ONE: 70, HALF: 12}, True))
    shared = {"pool": "plain", "nvidia.com/gpu.replicas": "3"}
    pools.put_node(Node(NodeName("s"), shared, {SHARED: plain[SHARED]}, True))
    hami = {WHOLE: 80, CORES: 800, MEMORY: 8 * DEVICE}
    pools.put_node(Node(NodeName("h"), {"pool": "hami"}, hami, True))
    pools.rebuild_if_stale()
    return pools.scale()


SCALE = scale()
DEVICES = 64 + 10 + 6 + 10 + 8


def by_hand(pool: PoolName, pod: Amounts) -> tuple[Fraction, Fraction, Fraction]:
    """Return a pod's devices by its shares, its compute and its memory."""
    if pool == PLAIN:
        cost = sum((PRICES[r] * count for r, count in pod.items()), Fraction(0))
        return cost, cost, cost
    seats = pod[WHOLE]
    silent = CORES not in pod and MEMORY not in pod
    cores = 100 * seats if silent else pod.get(CORES, 0)
    memory = DEVICE * seats if silent else pod.get(MEMORY, 0)
    return Fraction(seats, 10), Fraction(cores, 100), Fraction(memory, DEVICE)


@given(st.lists(pods, min_size=1, max_size=12))
def test_share_is_the_sum_of_used_devices_over_all_devices(
    held: list[tuple[PoolName, dict[Resource, int]]],
) -> None:
    branch = TenantNode(TenantName("a"), None, (1, 1), {})
    for pool, pod in held:
        branch.add_usage(pool, SCALE.cost(pool, pod), 1)
    columns = zip(*(by_hand(pool, pod) for pool, pod in held), strict=True)
    expected = max(sum(column, Fraction(0)) for column in columns) / DEVICES
    assert Fraction(max(branch.borrowed_grains.values()), SCALE.total_grains) == expected
    assert Fraction(*dominant_usage_share(branch, SCALE)) == expected


@given(st.lists(pods, min_size=1, max_size=12))
def test_gang_costs_the_sum_of_its_pods_and_refunds_all_of_it(
    held: list[tuple[PoolName, dict[Resource, int]]],
) -> None:
    apart, together = (TenantNode(TenantName(n), None, (1, 1), {}) for n in "ab")
    for pool in (PLAIN, HAMI):
        parts = [(pod, 2) for where, pod in held if where == pool]
        total: dict[Resource, int] = {}
        for pod, count in parts:
            for resource, value in pod.items():
                total[resource] = total.get(resource, 0) + count * value
            for _ in range(count):
                apart.add_usage(pool, SCALE.cost(pool, pod), 1)
        together.add_usage(pool, SCALE.cost_of_all(pool, parts, total), 1)
    assert apart.borrowed_grains == together.borrowed_grains
    for pool, pod in held:
        for _ in range(2):
            together.add_usage(pool, SCALE.cost(pool, pod), -1)
    assert not any(together.borrowed_grains.values())
