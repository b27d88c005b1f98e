"""The reason why a pod waits, on random clusters: always present, anonymous and true.

A reason is true if the pod starts after its object is removed, and not after any other object is
removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule, WaitExplanation
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1000)
TENANTS = ("top", "left", "right", "other")
PARENTS = {"left": "top", "right": "top"}


@dataclass
class State:
    """The state of a cluster."""

    nodes: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    pods: dict[Uid, Pod] = field(default_factory=dict)

    def held(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.gates]

    def engine(self) -> Engine:
        """Return a leading engine with this state."""
        engine = Engine(ManagedResources([GPU]), EngineOptions(evicts=False))
        for name, gpus in self.nodes.items():
            node = Node(NodeName(name), {}, {GPU: gpus, PODS: 1000}, True)
            engine.handle(ev.NodeObserved(NOW, node))
        for tenant in self.tenants.values():
            engine.handle(ev.TenantObserved(NOW, tenant))
        for pod in self.pods.values():
            engine.handle(ev.PodObserved(NOW, pod))
        for source in ev.WatchedSource:
            engine.handle(ev.SourceFresh(NOW, source))
        engine.handle(ev.LeadershipGained(NOW, 2))
        engine.handle(ev.StoreReady(NOW))
        return engine

    def starts(self) -> set[Uid]:
        """Return the pods that an engine releases."""
        effects = self.engine().handle(ev.Pass(NOW))
        return {each.intent.ref.uid for each in effects if isinstance(each, Release)}

    def settled(self) -> State:
        """Return the state after all possible releases."""
        effects = self.engine().handle(ev.Pass(NOW))
        pods = dict(self.pods)
        for each in effects:
            if isinstance(each, Release):
                uid = each.intent.ref.uid
                pods[uid] = replace(
                    pods[uid],
                    gates=(),
                    release_annotation=each.stamp.replace("2.", "1."),
                    pool=each.intent.pool,
                    node=each.node,
                    phase=Phase.RUNNING,
                )
        return replace(self, pods=pods)

    def with_node(self, gpus: int) -> State:
        return replace(self, nodes={**self.nodes, "new": gpus})

    def without(self, those: Iterable[Uid]) -> State:
        gone = set(those)
        return replace(self, pods={u: p for u, p in self.pods.items() if u not in gone})

    def unlimited(self, name: str) -> State:
        quota = replace(self.tenants[name].quotas[DEFAULT_POOL], limit={})
        tenant = replace(self.tenants[name], quotas={DEFAULT_POOL: quota})
        return replace(self, tenants={**self.tenants, name: tenant})


def tenant(name: str, weight: int, guarantee: int | None, limit: int | None) -> Tenant:
    quota = Quota(
        {GPU: guarantee} if guarantee is not None else {},
        {GPU: limit} if limit is not None else {},
    )
    parent = PARENTS.get(name)
    return Tenant(
        TenantName(name),
        Millis(0),
        Fraction(weight),
        TenantName(parent) if parent else None,
        (name,),
        quotas={DEFAULT_POOL: quota},
    )


amounts = st.one_of(st.none(), st.integers(1, 6))
works = st.tuples(st.sampled_from(TENANTS), st.integers(0, 1), st.integers(1, 4), st.integers(0, 1))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Draw a settled state with workloads of two waves, released one after the other."""
    tenants = {
        name: tenant(name, draw(st.integers(1, 3)), draw(amounts), draw(amounts))
        for name in TENANTS
        if draw(st.booleans())
    }
    state = State({"n0": draw(st.integers(1, 6)), "n1": draw(st.integers(0, 6))}, tenants)
    number = 0
    for _ in range(2):
        for where, user, gpus, priority in draw(st.lists(works, max_size=8)):
            name, who = f"canarypod{number}x", f"canaryuser{where}{user}"
            pod = held_pod(name, where, gpus, user=who, priority=priority, since=number)
            state.pods[pod.uid] = pod
            number += 1
        state = state.settled()
    return state


def reasons(state: State) -> dict[Uid, WaitExplanation]:
    """Return why each held pod waits."""
    engine = state.engine()
    engine.handle(ev.Pass(NOW))
    found = {pod.uid: engine.queries.explain_wait(pod.uid) for pod in state.held()}
    return {uid: why for uid, why in found.items() if why is not None}


def told(found: WaitExplanation) -> str:
    """Return all text of the answer."""
    return repr((found.text, dict(found.numbers), found.ahead, found.remedies))


@given(states())
@settings(max_examples=cases(40, 100))
def test_every_held_pod_has_a_wait_reason_that_names_no_other_user(state: State) -> None:
    why = reasons(state)
    for pod in state.held():
        found = why[pod.uid]
        own = told(found).replace(pod.user, "").replace(pod.name, "")
        assert "canary" not in own
        assert found.remedies


@given(states())
@settings(max_examples=cases(40, 100))
def test_pod_that_waits_for_capacity_starts_once_its_requests_are_free(state: State) -> None:
    why = reasons(state)
    for pod in state.held():
        if why[pod.uid].rule is Rule.CAPACITY:
            assert pod.uid in state.with_node(pod.demand[GPU]).starts()


@given(states())
@settings(max_examples=cases(40, 100))
def test_pod_behind_others_in_the_order_starts_once_they_are_gone(state: State) -> None:
    why = reasons(state)
    for pod in state.held():
        if why[pod.uid].rule not in (Rule.ORDER, Rule.GUARANTEE):
            continue
        assert pod.uid not in state.with_node(pod.demand[GPU]).starts()
        others = [each.uid for each in state.held() if each is not pod]
        assert pod.uid in state.without(others).with_node(pod.demand[GPU]).starts()


@given(states())
@settings(max_examples=cases(40, 100))
def test_pod_at_a_limit_does_not_start_until_the_limit_is_raised(state: State) -> None:
    why = reasons(state)
    plenty = state.with_node(1000)
    starts = plenty.starts()
    for pod in state.held():
        found = why[pod.uid]
        if found.rule is not Rule.LIMIT:
            continue
        assert pod.uid not in starts
        raised = plenty.unlimited(found.numbers["tenant"])
        if pod.uid not in raised.starts():
            after = reasons(raised.settled())[pod.uid]
            assert (after.rule, after.numbers["tenant"] != found.numbers["tenant"]) == (
                Rule.LIMIT,
                True,
            )
