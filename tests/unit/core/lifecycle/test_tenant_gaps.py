"""Pods wait while their namespace, or a tenant above it, moves from one Tenant to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.controller.status_conditions import tenant_status
from app.core import events as ev
from app.core.fairshare.tenants import MAX_DEPTH
from app.core.lifecycle.tenant_gaps import GAP_MS
from app.core.model import Millis, Node, NodeName, Pod, Tenant, TenantName, Uid
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.engine_bench import GPU, NOW, Bench

OLD, NEW = TenantName("old"), TenantName("new")


def tenant(name: TenantName, *namespaces: str, parent: TenantName | None = None) -> Tenant:
    return Tenant(name, Millis(0), namespaces=namespaces, parent=parent)


@pytest.fixture
def bench() -> Bench:
    return Bench(Node(NodeName("n"), {}, {GPU: 8, CPU: 64_000, PODS: 110}, ready=True))


def put(bench: Bench, *tenants: Tenant, at: Millis = NOW) -> None:
    bench.hear(*(ev.TenantObserved(at, each) for each in tenants))


def late(name: str, namespace: str = "x") -> Pod:
    return replace(held_pod(name, namespace), uid=Uid(name))


def test_pods_of_a_namespace_that_lost_its_tenant_wait_for_the_next(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"), tenant(NEW))
    put(bench, tenant(OLD))
    pod = late("p")
    bench.see(pod)
    assert bench.released == {}
    assert "tenant old no longer lists namespace x" in bench.text(pod)
    put(bench, tenant(NEW, "x"))
    assert set(bench.released) == {"p"}


def test_they_wait_also_after_their_tenant_was_deleted(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"))
    bench.hear(ev.TenantGone(NOW, OLD))
    pod = late("p")
    bench.see(pod)
    assert bench.released == {}
    assert "tenant old was deleted" in bench.text(pod)


def test_they_wait_for_the_gap_and_not_longer(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"))
    put(bench, tenant(OLD))
    bench.see(late("p"))
    bench.hear(ev.SourceFresh(Millis(NOW + GAP_MS - 1), ev.WatchedSource.PODS))
    assert bench.released == {}
    bench.hear(ev.SourceFresh(Millis(NOW + GAP_MS), ev.WatchedSource.PODS))
    assert set(bench.released) == {"p"}


def test_a_second_loss_begins_a_new_gap(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"))
    put(bench, tenant(OLD))
    put(bench, tenant(OLD, "x"), at=Millis(NOW + GAP_MS - 2))
    put(bench, tenant(OLD), at=Millis(NOW + GAP_MS - 1))
    bench.hear(ev.PodObserved(Millis(NOW + GAP_MS), late("p")))
    assert bench.released == {}


def test_a_namespace_that_never_had_a_tenant_does_not_wait(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"))
    put(bench, tenant(OLD))
    bench.see(late("p", "y"))
    assert set(bench.released) == {"p"}


def test_engine_requests_a_wakeup_at_the_end_of_the_gap(bench: Bench) -> None:
    put(bench, tenant(OLD, "x"))
    bench.engine.handle(ev.TenantObserved(NOW, tenant(OLD)))
    wakes = [each.at for each in bench.engine.handle(ev.Pass(NOW)) if hasattr(each, "at")]
    assert wakes == [NOW + GAP_MS]


def test_a_tenant_whose_parent_is_deleted_releases_nothing(bench: Bench) -> None:
    above = tenant(OLD)
    put(bench, above, tenant(NEW, "x", parent=OLD))
    bench.hear(ev.TenantGone(NOW, OLD))
    pod = late("p")
    bench.see(pod)
    assert bench.released == {}
    assert "the parent old of tenant new does not exist," in bench.text(pod)
    put(bench, above)
    assert set(bench.released) == {"p"}


def test_condition_of_each_tenant_below_a_missing_parent_names_the_parent(bench: Bench) -> None:
    put(bench, tenant(NEW, parent=OLD), tenant(TenantName("below"), "x", parent=NEW))
    tenants = bench.engine.queries.view().tenants
    for name in (NEW, TenantName("below")):
        [ready, *_] = tenant_status(tenants[name], set()).conditions
        assert (ready.is_true, ready.reason) == (False, "ParentMissing")
        assert "the parent old of tenant new does not exist" in ready.message


def test_tenants_in_a_circle_release_nothing(bench: Bench) -> None:
    put(bench, tenant(OLD, "x", parent=NEW), tenant(NEW, "y", parent=OLD))
    put(bench, tenant(TenantName("below"), "z", parent=NEW))
    for namespace in "xyz":
        bench.see(late(namespace, namespace))
    assert bench.released == {}
    for namespace in "xyz":
        assert "form a circle" in bench.text(late(namespace, namespace))
    put(bench, tenant(OLD, "x"))
    assert set(bench.released) == {"x", "y", "z"}


@pytest.mark.parametrize("order", [1, -1])
def test_tenants_deeper_than_the_bound_release_nothing(bench: Bench, order: int) -> None:
    names = [TenantName(f"t{number}") for number in range(3000)]
    parents = [None, *names]
    chain = [
        tenant(name, f"s{number}", parent=parents[number]) for number, name in enumerate(names)
    ]
    put(bench, *chain[::order])
    for number in (MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 2999):
        bench.see(late(f"p{number}", f"s{number}"))
    assert set(bench.released) == {f"p{MAX_DEPTH - 1}"}
    assert "more than 49 tenants are above tenant t50" in bench.text(late("p50", "s50"))
