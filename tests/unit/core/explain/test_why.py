"""Messages to the owner of a held pod about limits and guarantees."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from app.core import events as ev
from app.core.effects import EmitEvent, EventReason
from app.core.engine import Engine
from app.core.explain.reasons import Rule, WaitExplanation
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.policy import Policy
from app.core.quantities import CPU, PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(0)


def leader(quota: Quota) -> Engine:
    """Return a leader of 8 devices and a tenant `team` with this quota."""
    engine = Engine(ManagedResources([GPU]))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    node = Node(NodeName("n"), {}, {GPU: 8, PODS: 100}, True)
    engine.handle(ev.NodeObserved(NOW, node))
    quotas = {DEFAULT_POOL: quota}
    tenant = Tenant(TenantName("team"), NOW, namespaces=("a",), quotas=quotas)
    engine.handle(ev.TenantObserved(NOW, tenant))
    return engine


def told(engine: Engine, pod: Pod) -> list[str]:
    """Create a pod; return the wait reasons of its Held events."""
    engine.handle(ev.PodObserved(NOW, pod))
    effects = engine.handle(ev.Pass(NOW))
    told = [e for e in effects if isinstance(e, EmitEvent) and e.reason is EventReason.HELD]
    return [engine.queries.wait_reason(e.ref.uid) or "" for e in told]


def test_reason_of_a_pod_at_a_limit_states_the_numbers() -> None:
    engine = leader(Quota(limit={GPU: 3}))
    first, second = held_pod("p0", "a", 2, user="u"), held_pod("p1", "a", 2, user="u")

    assert told(engine, first) == []
    engine.handle(ev.ReleaseAnswered(NOW, first.uid, ReleaseOutcome.RELEASED))

    assert told(engine, second) == [
        "queued: 1 of 1 in team/u; waits for 2 nvidia.com/gpu of pool default; tenant team is at "
        "its limit: 2 nvidia.com/gpu used, 2 nvidia.com/gpu asked, 3 nvidia.com/gpu limit"
    ]
    reason = engine.queries.explain_wait(second.uid)
    assert reason is not None
    assert reason.rule is Rule.LIMIT


def test_reason_of_a_non_preemptible_pod_states_the_guarantee() -> None:
    engine = leader(Quota(guarantee={GPU: 1}))
    stubborn = replace(held_pod("p", "a", 2, user="u"), preemptible=False)

    assert told(engine, stubborn) == [
        "queued: 1 of 1 in team/u; waits for 2 nvidia.com/gpu of pool default; it must not be "
        "evicted, so it starts only within the guarantee of tenant team in pool "
        "default: 0 nvidia.com/gpu used, 2 nvidia.com/gpu asked, 1 nvidia.com/gpu guarantee"
    ]


def test_missing_guarantee_is_reported_with_its_amount_and_a_remedy() -> None:
    engine = leader(Quota())
    stubborn = replace(held_pod("p", "a", 2, user="u"), preemptible=False)

    found = asked(engine, stubborn)

    assert found.rule is Rule.PREEMPTIBLE
    assert found.text.endswith(
        "the guarantee of tenant team in pool default: 0 nvidia.com/gpu used, 2 nvidia.com/gpu "
        "asked, 0 nvidia.com/gpu guarantee"
    )
    assert any("raising the guarantee of tenant team in pool" in each for each in found.remedies)
    assert not any("less than" in each for each in found.remedies)


def test_pool_with_a_guarantee_is_reported_among_several_pools() -> None:
    engine = leader(Quota())
    for name in (PoolName("a100"), PoolName("h100")):
        engine.handle(ev.PoolObserved(NOW, Pool(name, {"pool": name})))
        node = Node(NodeName(name), {"pool": name}, {GPU: 8, PODS: 100}, True)
        engine.handle(ev.NodeObserved(NOW, node))
    quotas = {PoolName("h100"): Quota(guarantee={GPU: 1})}
    team = Tenant(TenantName("team"), NOW, namespaces=("a",), quotas=quotas)
    engine.handle(ev.TenantObserved(NOW, team))
    stubborn = replace(held_pod("p", "a", 2, user="u"), preemptible=False)

    found = asked(engine, stubborn)

    assert "guarantee of tenant team in pool h100: 0 nvidia.com/gpu used" in found.text


def with_pools(quotas: dict[PoolName, Quota], parent: TenantName | None = None) -> Engine:
    """Return a leader with the pools `pb` and `pc` of 8 devices each, and a tenant `team`."""
    engine = leader(Quota())
    for name in (PoolName("pb"), PoolName("pc")):
        engine.handle(ev.PoolObserved(NOW, Pool(name, {"pool": name})))
        node = Node(NodeName(name), {"pool": name}, {GPU: 8, PODS: 100}, True)
        engine.handle(ev.NodeObserved(NOW, node))
    if parent is not None:
        engine.handle(ev.TenantObserved(NOW, Tenant(parent, NOW)))
    team = Tenant(TenantName("team"), NOW, namespaces=("a",), quotas=quotas, parent=parent)
    engine.handle(ev.TenantObserved(NOW, team))
    return engine


def test_pool_with_the_fewest_missing_guarantees_is_reported() -> None:
    """The own guarantee covers the pod in one pool, so only the parent must guarantee more."""
    quotas = {PoolName("pb"): Quota(guarantee={GPU: 2}), PoolName("pc"): Quota(guarantee={GPU: 8})}
    engine = with_pools(quotas, TenantName("parent"))

    found = asked(engine, replace(held_pod("p", "a", 3, user="u"), preemptible=False))

    assert "guarantee of tenant parent in pool pc: 0 nvidia.com/gpu used" in found.text
    assert any("guarantee of tenant parent in pool pc to 3" in each for each in found.remedies)


def test_all_tenants_that_need_a_larger_guarantee_are_reported() -> None:
    engine = with_pools({PoolName("pc"): Quota(guarantee={GPU: 2})}, TenantName("parent"))

    found = asked(engine, replace(held_pod("p", "a", 3, user="u"), preemptible=False))

    assert found.numbers["tenants above with too small a guarantee"] == "parent"
    assert found.text.endswith(
        "2 nvidia.com/gpu guarantee; the guarantee of parent is too small, too"
    )
    [raised] = [each for each in found.remedies if "raising" in each]
    assert raised.endswith(
        "raising the guarantee of tenant team in pool pc to 3 nvidia.com/gpu, and the guarantees "
        "above it, too: parent to 3"
    )


def test_guarantee_of_each_parent_is_raised_by_its_own_usage() -> None:
    engine = leader(Quota())
    parent = None
    for name, amount, namespace in (("top", 5, "t"), ("mid", 5, "m"), ("low", 2, "l")):
        quotas = {DEFAULT_POOL: Quota(guarantee={GPU: amount})}
        tenant = Tenant(
            TenantName(name), NOW, namespaces=(namespace,), quotas=quotas, parent=parent
        )
        engine.handle(ev.TenantObserved(NOW, tenant))
        parent = tenant.name
    beside = replace(held_pod("q", "m", 5, user="v"), uid=Uid("q"))
    engine.handle(ev.PodObserved(NOW, beside))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.ReleaseAnswered(NOW, beside.uid, ReleaseOutcome.RELEASED))

    found = asked(engine, replace(held_pod("p", "l", 3, user="u"), preemptible=False))

    assert found.text.endswith("; the guarantees of mid and top are too small, too")
    assert [each for each in found.remedies if "nvidia.com/gpu" in each] == [
        "an admin of tenant mid raising the guarantee of tenant low in pool default to 3 "
        "nvidia.com/gpu, and the guarantees above it, too: mid to 8, top to 8"
    ]


def test_limit_in_one_pool_does_not_hide_the_missing_guarantee_in_another() -> None:
    engine = with_pools({PoolName("pb"): Quota(guarantee={GPU: 2}, limit={GPU: 2})})

    found = asked(engine, replace(held_pod("p", "a", 3, user="u"), preemptible=False))

    assert found.rule is Rule.PREEMPTIBLE
    assert "guarantee of tenant team in pool pc: " in found.text


def test_device_missing_from_the_guarantee_is_reported() -> None:
    engine = with_pools({PoolName("pc"): Quota(guarantee={CPU: 9})})

    found = asked(engine, replace(held_pod("p", "a", 3, user="u"), preemptible=False))

    assert "in pool pc: " in found.text
    assert "3 nvidia.com/gpu asked, 0 nvidia.com/gpu guarantee" in found.text


def test_reason_of_a_pod_that_lacks_only_capacity_states_no_limits() -> None:
    engine = leader(Quota(limit={GPU: 8}))
    engine.handle(ev.PodObserved(NOW, held_pod("b", "b", 8)))
    engine.handle(ev.Pass(NOW))

    (message,) = told(engine, held_pod("p", "a", 8, user="u"))
    assert message == "queued: 1 of 1 in team/u; waits for 8 nvidia.com/gpu of pool default"


def asked(engine: Engine, pod: Pod) -> WaitExplanation:
    engine.handle(ev.PodObserved(NOW, pod))
    engine.handle(ev.Pass(NOW))
    found = engine.queries.explain_wait(pod.uid)
    assert found is not None
    return found


def test_reason_of_the_first_pod_states_the_capacity_to_free() -> None:
    engine = leader(Quota())
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "b", 6)))
    engine.handle(ev.Pass(NOW))

    found = asked(engine, held_pod("p", "a", 4, user="u"))

    assert found.rule is Rule.CAPACITY
    assert found.numbers == {"nvidia.com/gpu asked": "4", "nvidia.com/gpu free in default": "2"}
    assert found.remedies[0] == "the end of pods that use 2 nvidia.com/gpu in pool default"


def test_reason_states_how_many_pods_of_the_same_user_are_ahead() -> None:
    engine = leader(Quota())
    for name in ("wall", "first", "second"):
        engine.handle(ev.PodObserved(NOW, held_pod(name, "a", 8, user="u")))

    found = asked(engine, held_pod("p", "a", 8, user="u", since=5))

    assert (found.rule, found.position, found.length) == (Rule.ORDER, 3, 3)
    assert found.text.endswith("; 2 of this user's own go first")
    assert found.ahead == ()


def test_another_user_of_the_tenant_has_no_name() -> None:
    engine = leader(Quota())
    wall = held_pod("wall", "a", 8, user="me")
    engine.handle(ev.PodObserved(NOW, wall))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.ReleaseAnswered(NOW, wall.uid, ReleaseOutcome.RELEASED))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 8, user="secret")))

    found = asked(engine, held_pod("p", "a", 8, user="me"))

    (first,) = found.ahead
    assert (found.rule, first.tenant, first.own) == (Rule.ORDER, "another user", "me")
    assert (first.score, first.own_score) == ("0.5000", "1.5000")
    assert first.reason == "another user has the lower score: 0.5 against 1.5 of me"
    assert found.remedies[0] == (
        "a higher weight than 1 for user me, set by an admin of tenant team"
    )
    assert "the end of pods that use 8 nvidia.com/gpu in pool default" in found.remedies
    assert "secret" not in repr(found)


ONLY_LEFTOVERS = "has weight 0, so it gets only what others leave"


def full(tenant: Tenant, weights: dict[TenantName, str]) -> Engine:
    """Return a leader whose devices tenant `c` uses, with a tenant of namespace `a`."""
    engine = leader(Quota())
    engine.handle(ev.TenantObserved(NOW, tenant))
    for name, weight in weights.items():
        engine.handle(ev.TenantObserved(NOW, Tenant(name, NOW, Fraction(weight))))
    wall = held_pod("wall", "c", 8)
    engine.handle(ev.PodObserved(NOW, wall))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.ReleaseAnswered(NOW, wall.uid, ReleaseOutcome.RELEASED))
    return engine


@pytest.mark.parametrize(
    ("user", "word"), [("me", "me"), ("the boss", "'the boss'"), ("o'x", "'o'\"'\"'x'")]
)
def test_weight_0_of_a_user_is_reported_with_the_admin_that_can_change_it(
    user: str, word: str
) -> None:
    weights = {UserName(user): Fraction(0)}
    engine = full(Tenant(TenantName("team"), NOW, namespaces=("a",), user_weights=weights), {})
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 8, user="secret", since=5)))

    found = asked(engine, held_pod("p", "a", 8, user=user))

    assert found.text.endswith(f"; another user comes first; user {user} {ONLY_LEFTOVERS}")
    assert found.remedies[0] == (
        f"a higher weight than 0 for user {user}, set by an admin of tenant team: "
        f"kubectl fairgate weights set team --user {word} 1"
    )
    assert len(set(found.remedies)) == len(found.remedies)


@pytest.mark.parametrize(
    ("parent", "admin"),
    [(None, "a cluster admin"), (TenantName("parent"), "an admin of tenant parent")],
)
def test_weight_0_of_a_tenant_is_reported_with_the_admin_that_can_change_it(
    parent: TenantName | None, admin: str
) -> None:
    team = Tenant(TenantName("team"), NOW, Fraction(0), namespaces=("a",), parent=parent)
    engine = full(team, {parent: "1"} if parent else {})
    sibling = Tenant(TenantName("sibling"), NOW, namespaces=("b",), parent=parent)
    engine.handle(ev.TenantObserved(NOW, sibling))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "b", 8, since=5)))

    found = asked(engine, held_pod("p", "a", 8, user="me"))

    assert found.text.endswith(f"; tenant sibling comes first; tenant team {ONLY_LEFTOVERS}")
    assert found.remedies[0] == (
        f"a higher weight than 0 for tenant team, set by {admin}: "
        "kubectl fairgate weights set team 1"
    )


def test_weight_0_of_a_user_is_reported_even_if_another_tenant_is_first() -> None:
    weights = {UserName("me"): Fraction(0)}
    engine = full(Tenant(TenantName("team"), NOW, namespaces=("a",), user_weights=weights), {})
    other = Tenant(TenantName("other"), NOW, Fraction(2), namespaces=("b",))
    engine.handle(ev.TenantObserved(NOW, other))
    engine.handle(ev.PodObserved(NOW, held_pod("first", "b", 8, since=5)))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 8, user="secret", since=5)))

    found = asked(engine, held_pod("p", "a", 8, user="me"))

    assert found.text.endswith(f"; tenant other comes first; user me {ONLY_LEFTOVERS}")
    assert found.remedies[0].startswith("a higher weight than 1 for tenant team")
    assert any(each.endswith("weights set team --user me 1") for each in found.remedies)


def test_weight_0_is_not_reported_if_it_is_not_the_cause() -> None:
    """Nothing is free and no sibling waits; or a sibling has weight 0, too; or a guarantee."""
    weights = {UserName(name): Fraction(0) for name in ("me", "secret")}
    team = Tenant(TenantName("team"), NOW, Fraction(0), namespaces=("a",), user_weights=weights)
    engine = full(team, {})
    mine = held_pod("p", "a", 8, user="me", since=9)

    alone = asked(engine, mine)
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 8, user="secret")))
    level = asked(engine, mine)
    quotas = {DEFAULT_POOL: Quota(guarantee={GPU: 8})}
    sure = Tenant(TenantName("sure"), NOW, namespaces=("b",), quotas=quotas)
    engine.handle(ev.TenantObserved(NOW, sure))
    engine.handle(ev.PodObserved(NOW, held_pod("first", "b", 8)))
    guaranteed = asked(engine, mine)

    assert alone.rule is Rule.CAPACITY
    assert (level.rule, guaranteed.rule) == (Rule.ORDER, Rule.GUARANTEE)
    assert not any("weight 0" in each.text for each in (alone, level, guaranteed))


def test_reason_states_that_another_tenant_is_within_its_guarantee() -> None:
    engine = leader(Quota(guarantee={GPU: 4}))
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "c", 8)))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 2)))

    found = asked(engine, held_pod("p", "b", 2))

    assert found.rule is Rule.GUARANTEE
    assert found.text.endswith("; tenant team comes first, within its guarantee")
    assert found.ahead[0].score == "0.0000 of its guarantee"
    assert found.ahead[0].reason == (
        "tenant team is within its guarantee (0 of it), which goes before use beyond the guarantee"
    )


@pytest.mark.parametrize(
    ("weight", "guarantee", "reason"),
    [
        ("1", None, "tenant team and other are level (0.125), and tenant team has waited longer"),
        ("0.5", None, "tenant team has the lower score: 0.125 against 0.25 of other"),
        ("0", None, "tenant team has a weight, which goes before weight 0"),
        ("1", 2, "tenant team has the lower used part of its guarantee: 0 against 0.5 of other"),
    ],
)
def test_reason_states_the_rule_that_puts_another_tenant_first(
    weight: str, guarantee: int | None, reason: str
) -> None:
    quota = Quota(guarantee={GPU: guarantee} if guarantee else {})
    engine = leader(quota)
    other = Tenant(TenantName("other"), NOW, Fraction(weight), namespaces=("b",))
    engine.handle(ev.TenantObserved(NOW, replace(other, quotas={DEFAULT_POOL: quota})))
    for wall in ([held_pod("own", "b", 1)] if guarantee else []) + [held_pod("wall", "c", 7)]:
        engine.handle(ev.PodObserved(NOW, wall))
        engine.handle(ev.Pass(NOW))
        engine.handle(ev.ReleaseAnswered(NOW, wall.uid, ReleaseOutcome.RELEASED))
    if not guarantee:
        engine.handle(ev.PodObserved(NOW, held_pod("small", "c", 1)))
        engine.handle(ev.Pass(NOW))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "a", 1 if guarantee else 2)))

    found = asked(engine, held_pod("p", "b", 1 if guarantee else 2, since=5))

    assert [each.reason for each in found.ahead] == [reason]


def test_remedy_for_a_namespace_without_a_tenant_is_a_new_tenant() -> None:
    engine = leader(Quota())
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "ns", 8)))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "other", 2)))

    found = asked(engine, held_pod("p", "mine", 2, since=5))

    assert found.remedies[0] == (
        "a Tenant for namespace mine, created by a cluster admin with a higher weight than 1 for it"
    )


def test_without_backfill_a_small_pod_waits_for_the_first_pod() -> None:
    engine = leader(Quota())
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "c", 6)))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.PolicyObserved(NOW, Policy(backfill=False)))
    engine.handle(ev.PodObserved(NOW, held_pod("large", "a", 4, user="u")))

    found = asked(engine, held_pod("small", "a", 1, user="u", since=5))

    assert found.rule is Rule.ORDER
    assert found.numbers["own before it"] == "1"


def test_event_states_the_first_tenant_or_why_a_pool_is_excluded() -> None:
    engine = leader(Quota())
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "a", 8)))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.PodObserved(NOW, held_pod("theirs", "b", 2)))
    engine.handle(ev.Pass(NOW))

    (first,) = told(engine, held_pod("p", "a", 2, since=5))
    (other,) = told(engine, replace(held_pod("q", "a", 2), selector={"gpu": "a100"}))

    assert first.endswith("; tenant default comes first")
    assert other.endswith(
        "; pool default: its nodes lack the labels of the pod's node selector, gpu=a100"
    )


def test_follower_reports_the_release_time_of_a_pod() -> None:
    follower = Engine(ManagedResources([GPU]))
    pod = held_pod("p", "a", 2)
    follower.handle(ev.PodObserved(NOW, pod))
    follower.handle(ev.Pass(NOW))
    released = replace(pod, gates=(), release_annotation="1.1", node=NodeName("n"))
    follower.handle(ev.PodObserved(Millis(7000), released))
    follower.handle(ev.Pass(Millis(7000)))

    found = follower.queries.released_view(pod.uid)
    assert found is not None
    assert (found.released_at, found.node) == (7000, "n")


def crowded(cpu_of_others: int) -> Engine:
    """Return a leader of two nodes. Pods without devices use cpu on `n`, and `m` has no devices."""
    engine = leader(Quota())
    for name, devices in (("n", 8), ("m", 0)):
        room = {GPU: devices, CPU: 32_000, PODS: 100}
        engine.handle(ev.NodeObserved(NOW, Node(NodeName(name), {}, room, True)))
    uses = {CPU: cpu_of_others, PODS: 1}
    other = UnmanagedPod(Uid("other"), NodeName("n"), uses)
    engine.handle(ev.UnmanagedPodObserved(NOW, other))
    return engine


def wanting(name: str, devices: int, cpu: int) -> Pod:
    made = held_pod(name, "a", devices, user="u")
    return replace(made, demand={**made.demand, CPU: cpu})


def test_the_resource_that_is_short_beside_free_devices_is_named() -> None:
    found = asked(crowded(30_000), wanting("p", 4, 8_000))

    assert found.rule is Rule.CAPACITY
    assert found.text.endswith(
        "; cpu is short on the nodes of pool default with free nvidia.com/gpu: 8 asked by one pod, "
        "at most 2 free on one node"
    )
    assert found.numbers["cpu asked by one pod"] == "8"
    assert found.numbers["most cpu on a node of default with free devices"] == "2"
    assert not any("free together" in each for each in found.numbers.values())
    assert found.remedies[:2] == (
        "8 cpu free on one node of pool default that has free nvidia.com/gpu",
        "less cpu asked for by each pod",
    )
    assert not any("scattered" in each for each in found.remedies)


def test_short_devices_are_not_blamed_on_cpu() -> None:
    engine = crowded(30_000)
    engine.handle(ev.PodObserved(NOW, held_pod("wall", "b", 6)))
    engine.handle(ev.Pass(NOW))

    found = asked(engine, wanting("p", 4, 8_000))

    assert found.rule is Rule.CAPACITY
    assert "cpu is short" not in found.text
    assert found.numbers["nvidia.com/gpu free in default"] == "2"


def test_reason_states_that_a_pod_counts_for_its_controller() -> None:
    engine = leader(Quota(limit={GPU: 0}))
    account = UserName("system:serviceaccount:argo:argo")
    pod = replace(held_pod("p", "a", 2, user=account), owner=Uid("w"))
    [message] = told(engine, pod)
    assert "its submitter is not known, so it counts for its controller" in message
    reason = engine.queries.explain_wait(pod.uid)
    assert reason is not None
    assert "its submitter is not known" in reason.text


def spread_over_zones() -> Engine:
    """Return a leader with a small zone y and a large zone x."""
    engine = leader(Quota())
    for zone, devices in (("x", 8), ("y", 1)):
        node = Node(NodeName(zone), {"zone": zone}, {GPU: devices, PODS: 100}, True)
        engine.handle(ev.NodeObserved(NOW, node))
    gone = Node(NodeName("n"), {}, {GPU: 8, PODS: 100}, False)
    engine.handle(ev.NodeObserved(NOW, gone))
    return engine


def start(engine: Engine, name: str, node: str, *rules: PodDistanceRule) -> None:
    pod = held_pod(name, "a", user="u")
    bound = replace(pod, gates=(), node=NodeName(node), phase=Phase.RUNNING, distance_rules=rules)
    engine.handle(ev.PodObserved(NOW, bound))


def test_topology_spread_that_allows_only_a_full_zone_is_named() -> None:
    engine = spread_over_zones()
    rule = PodDistanceRule(DistanceRuleKind.EVEN, "zone", "web")
    for name, zone in (("p0", "x"), ("p1", "x"), ("p2", "y")):
        start(engine, name, zone, rule)

    found = asked(engine, replace(held_pod("p3", "a", user="u"), distance_rules=(rule,)))

    assert found.rule is Rule.CAPACITY
    assert found.text.endswith(
        "; its topology spread by zone allows only nodes that are full, or waits for the scheduler "
        "to bind other pods of the same spread"
    )
    assert found.remedies[0] == "free capacity in pool default on nodes that its rules allow"
    assert not any("scattered" in each for each in found.remedies)


def test_anti_affinity_that_allows_only_a_full_node_is_named() -> None:
    engine = spread_over_zones()
    rule = PodDistanceRule(DistanceRuleKind.APART, "zone", "web")
    start(engine, "p0", "x", rule)
    start(engine, "p1", "y")

    found = asked(engine, replace(held_pod("p2", "a", user="u"), distance_rules=(rule,)))

    assert found.text.endswith(
        "; its required pod anti-affinity by zone allows only nodes without enough free capacity"
    )
    assert not any("scattered" in each for each in found.remedies)


def test_scattered_capacity_is_not_blamed_on_a_rule() -> None:
    engine = spread_over_zones()
    rule = PodDistanceRule(DistanceRuleKind.APART, "zone", "web")
    for number in range(6):
        start(engine, f"p{number}", "x")

    found = asked(engine, replace(held_pod("p9", "a", 3, user="u"), distance_rules=(rule,)))

    assert "allows only" not in found.text
    assert any("scattered" in each for each in found.remedies)
