"""No order of changes of Tenants lets a pod past a limit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.lifecycle.tenant_gaps import GAP_MS
from app.core.model import Millis, Node, NodeName, PoolName, Quota, Tenant, TenantName, Uid
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases
from tests.support.engine_bench import GPU, Bench

POOL = PoolName("default")
TOP, NAMES, SPACES = TenantName("top"), ("a", "b", "c"), ("x", "y")
LIMITS = {"top": 3, "a": 2, "b": 1, "c": 4}

spaces = st.lists(st.sampled_from(SPACES), unique=True, max_size=2)
parents = st.sampled_from([None, "top", "a", "b", "missing"])
changes = st.tuples(
    st.sampled_from(NAMES),
    st.none() | st.tuples(spaces, parents),
    st.integers(0, GAP_MS // 20),
)


def tenant(name: str, namespaces: tuple[str, ...] = (), parent: str | None = "top") -> Tenant:
    return Tenant(
        TenantName(name),
        Millis(ord(name[0])),
        namespaces=namespaces,
        parent=TenantName(parent) if parent and name != "top" and parent != name else None,
        quotas={POOL: Quota({}, {GPU: LIMITS[name]})},
    )


@settings(max_examples=cases(150, 1000))
@given(st.lists(changes, max_size=15))
def test_no_change_of_tenants_lets_pods_past_a_limit(
    steps: list[tuple[str, tuple[list[str], str | None] | None, int]],
) -> None:
    bench = Bench(Node(NodeName("n"), {}, {GPU: 64, CPU: 640_000, PODS: 110}, ready=True))
    known = {name: tenant(name) for name in ("top", *NAMES)}
    known["a"] = tenant("a", SPACES)
    bench.hear(*(ev.TenantObserved(Millis(1), each) for each in known.values()))
    for number in range(12):
        pod = held_pod(f"p{number}", SPACES[number % 2])
        bench.see(replace(pod, uid=Uid(pod.name)))
    at = 1
    for name, change, pause in steps:
        at, before = at + pause, set(bench.orders)
        if change is None:
            known.pop(name, None)
            bench.hear(ev.TenantGone(Millis(at), TenantName(name)))
        else:
            known[name] = tenant(name, tuple(change[0]), change[1])
            bench.hear(ev.TenantObserved(Millis(at), known[name]))
        used = bench.engine.queries.view().tenants
        for released in bench.orders.keys() - before:
            at_last = bench.orders[released].intent.tenant
            above, passed = str(at_last), list[str]()
            while above is not None:
                assert above in known, f"{released} was released without the tenant {above}"
                assert above not in passed, f"{released} was released below a circle"
                passed.append(above)
                amount = used[TenantName(above)].used.get(POOL, {}).get(GPU, 0)
                assert amount <= LIMITS[above], f"{released} went past the limit of {above}"
                above = known[above].parent
