"""Charges of resource claims, and the pod that is charged for a shared claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import (
    ClaimAddress,
    EmitEvent,
    EventReason,
    EvictForReclaim,
    ProtectClaim,
    Release,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import (
    Amounts,
    ClaimRef,
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
)
from app.core.podspec.devices import DeviceId
from app.core.podspec.disruption_budget import DisruptionBudget
from app.core.podspec.resource_claims import (
    IMPLICIT,
    AllocatedDevice,
    Alternatives,
    Classes,
    DeviceAsk,
    DeviceClass,
    ResourceClaim,
)
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.well_known import GATE
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.device_slices import DRIVER, published
from tests.support.device_slices import gpus as device_gpus

GPU = Resource("nvidia.com/gpu")
AMD = Resource("amd.com/gpu")
MANAGED = ManagedResources([GPU, AMD])
CLASSES = {"gpu.nvidia.com": GPU, "gpu.amd.com": AMD, "tpu": Resource("example.com/tpu")}
BY_NAME = Resource("deviceclass.resource.kubernetes.io/gpu.nvidia.com")
NIC_BY_NAME = Resource("deviceclass.resource.kubernetes.io/nic")
AT = Millis(1000)


def gpus(count: int | None = 1) -> Alternatives:
    return (DeviceAsk("gpu.nvidia.com", count),)


def claim(name: str, *requests: Alternatives, owner: str | None = None) -> ResourceClaim:
    return ResourceClaim("a", name, requests, Uid(owner) if owner else None)


def counted(*requests: Alternatives) -> Amounts:
    return Classes(MANAGED, CLASSES).count_amounts(claim("c", *requests))


# --- the charge of a claim ---


@pytest.mark.parametrize(
    ("requests", "amounts"),
    [
        ((gpus(),), {GPU: 1}),
        ((gpus(3),), {GPU: 3}),
        ((gpus(3), gpus(2)), {GPU: 5}),
        ((gpus(None),), {GPU: 32}),
        ((gpus(2), (DeviceAsk("gpu.amd.com", 1),)), {GPU: 2, AMD: 1}),
        (((DeviceAsk("gpu.nvidia.com", 1), DeviceAsk("gpu.nvidia.com", 4)),), {GPU: 4}),
        (((DeviceAsk("gpu.nvidia.com", 1), DeviceAsk("gpu.amd.com", 2)),), {GPU: 1, AMD: 2}),
        (((DeviceAsk("nic", 8), DeviceAsk("gpu.nvidia.com", 2)),), {GPU: 2}),
        (((DeviceAsk("gpu.nvidia.com", 2), DeviceAsk("gpu.nvidia.com", None)),), {GPU: 32}),
        ((gpus(0),), {}),
        (((DeviceAsk("nic", 4),),), {}),
        ((), {}),
    ],
    ids=[
        "one", "exact", "two requests", "all", "two classes", "first available of one class",
        "first available of two", "a cheaper choice", "all as a choice", "none", "not managed",
        "empty",
    ],
)  # fmt: skip
def test_a_claim_counts_as_the_most_it_can_be_given(
    requests: tuple[Alternatives, ...], amounts: Amounts
) -> None:
    assert counted(*requests) == amounts


@pytest.mark.parametrize("requests", [(gpus(2**62),), (gpus(None), gpus(None)), (gpus(40),)])
def test_claim_counts_as_at_most_the_devices_that_the_api_can_allocate(
    requests: tuple[Alternatives, ...],
) -> None:
    assert counted(*requests) == {GPU: 32}


def test_class_counts_as_its_configured_or_stated_managed_resource() -> None:
    classes = Classes(MANAGED, CLASSES)
    classes.store_class(DeviceClass("h100", GPU))
    classes.store_class(DeviceClass("gpu.nvidia.com", AMD))
    classes.store_class(DeviceClass("odd", Resource("example.com/odd")))

    assert classes.resource_of("h100") == GPU
    assert classes.resource_of("gpu.nvidia.com") == GPU
    assert classes.resource_of("odd") is None
    assert classes.resource_of("tpu") is None
    assert classes.store_class(DeviceClass("h100"))
    assert classes.resource_of("h100") is None


def test_device_classes_requested_by_name_count_as_their_resource() -> None:
    asked = {CPU: 1000, GPU: 1, BY_NAME: 2, NIC_BY_NAME: 9}
    assert Classes(MANAGED, CLASSES).replace_classes(asked) == {CPU: 1000, GPU: 3}


# --- the leader ---


class Bench:
    """A leader of one node of 8 devices, and its pods."""

    def __init__(self, devices: int = 8, *more: Node) -> None:
        self.engine = Engine(MANAGED, EngineOptions(resource_by_device_class=CLASSES))
        self.pods: dict[Uid, Pod] = {}
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.at = AT
        self.told: list[EmitEvent] = []
        room = {GPU: devices, CPU: 64_000, PODS: 100}
        for node in (Node(NodeName("n"), {"pool": "p"}, room, True), *more):
            self.engine.handle(ev.NodeObserved(AT, node))
        self.engine.handle(ev.ClassObserved(AT, DeviceClass("nic")))
        for source in ev.WatchedSource:
            self.engine.handle(ev.SourceFresh(AT, source))
        self.engine.handle(ev.Installed(AT, Millis(0)))
        self.engine.handle(ev.LeadershipGained(AT, 7))
        self.engine.handle(ev.StoreReady(AT))

    def hear(self, *news: ev.NewsEvent) -> list[Release]:
        """Send events; return all resulting releases. Each release succeeds.

        Claims get their finalizers, and the time passes in which they are secured.
        """
        done: list[Release] = []
        queue, waits = list(news), True
        while True:
            for event in queue:
                if isinstance(event, ev.ClaimObserved):
                    self.claims[event.claim.key] = event.claim
            effects = [e for event in queue for e in self.engine.handle(event)]
            effects += self.engine.handle(ev.Pass(self.at))
            assert not any(isinstance(e, EvictForReclaim) for e in effects)
            self.told += [e for e in effects if isinstance(e, EmitEvent)]
            orders = [e for e in effects if isinstance(e, Release)]
            done += orders
            queue = [event for order in orders for event in self._released(order)]
            queue += [self._protected(e.ref) for e in effects if isinstance(e, ProtectClaim)]
            if not (queue or waits):
                return done
            waits = bool(queue)
            if not queue:
                self.at = Millis(self.at + SECURE_MS)

    def _protected(self, ref: ClaimAddress) -> ev.NewsEvent:
        claim = self.claims[ref.namespace, ref.name]
        return ev.ClaimObserved(self.at, replace(claim, has_finalizer=True))

    def _released(self, order: Release) -> list[ev.NewsEvent]:
        uid = order.intent.ref.uid
        self.pods[uid] = replace(
            self.pods[uid], gates=(), release_annotation=order.stamp, pool=order.intent.pool or None
        )
        answered = ev.ReleaseAnswered(AT, uid, ReleaseOutcome.RELEASED)
        return [answered, ev.PodObserved(AT, self.pods[uid])]

    def see(self, *pods: Pod) -> list[str]:
        """Return the names of the pods released after these pods were observed."""
        self.pods |= {pod.uid: pod for pod in pods}
        return names(self.hear(*(ev.PodObserved(AT, pod) for pod in pods)))

    def put(self, *claims: ResourceClaim) -> list[str]:
        return names(self.hear(*(ev.ClaimObserved(AT, each) for each in claims)))

    def end(self, name: str) -> list[str]:
        del self.pods[Uid(f"a/{name}")]
        return names(self.hear(ev.PodGone(AT, Uid(f"a/{name}"))))

    @property
    def used(self) -> Amounts:
        used = self.engine.queries.view().pools[PoolName("default")].used
        return {r: v for r, v in used.items() if v}

    def charged(self) -> dict[str, int]:
        """Return the number of devices charged to each pod, by name."""
        found = {}
        for write in self.engine.store_writes():
            demand = getattr(write, "demand", {})
            uid = getattr(write, "uid", None)
            if uid is not None and demand.get(GPU):
                found[uid.partition("/")[2]] = demand[GPU]
        return found

    def rule(self, name: str) -> Rule:
        found = self.engine.queries.explain_wait(Uid(f"a/{name}"))
        assert found is not None
        return found.rule


def names(orders: list[Release]) -> list[str]:
    return [order.intent.ref.name for order in orders]


def pod(name: str, *claims: str, made: str = "", **more: object) -> Pod:
    """Return a held pod of namespace a with these claims; `made` is its generated claim."""
    refs = [ClaimRef(each, each) for each in claims]
    refs += [ClaimRef("made", made if made != "?" else "", True)] if made else []
    plain = {CPU: 1000, PODS: 1}
    fields = {"demand": plain, "container_requests": plain, "claims": tuple(refs), **more}
    return replace(held_pod(name, "a"), **fields)  # type: ignore[arg-type]


def test_pod_is_charged_the_request_of_its_claim() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(3)))
    assert bench.see(pod("p", "c")) == ["p"]
    assert bench.used == {GPU: 3}


def test_container_requests_are_charged_in_addition_to_claims() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(3)))
    plain = {GPU: 2, BY_NAME: 1, PODS: 1}
    bench.see(pod("p", "c", container_requests=plain))
    assert bench.used == {GPU: 6}


def test_a_claim_named_twice_by_one_pod_counts_once() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(3)))
    refs = (ClaimRef("one", "c"), ClaimRef("two", "c"))
    bench.see(pod("p", claims=refs))
    assert bench.used == {GPU: 3}


def test_pod_waits_for_the_capacity_of_its_claims() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(5)), claim("d", gpus(4)))
    assert bench.see(pod("p", "c"), pod("q", "d")) == ["p"]
    assert bench.rule("q") is Rule.CAPACITY
    assert bench.end("p") == ["q"]
    assert bench.used == {GPU: 4}


def test_pod_waits_for_a_missing_claim_and_reports_it() -> None:
    bench = Bench()
    assert bench.see(pod("p", "c", "d")) == []
    assert bench.rule("p") is Rule.CLAIM
    [told] = [each.ref.uid for each in bench.told if each.reason is EventReason.HELD]
    assert "no resource claim for c, d yet" in (bench.engine.queries.wait_reason(told) or "")
    assert bench.put(claim("c", gpus())) == []
    assert bench.put(claim("d", gpus())) == ["p"]


@pytest.mark.parametrize("owner", [None, "a/other"])
def test_generated_claim_must_be_owned_by_its_pod(owner: str | None) -> None:
    bench = Bench()
    bench.put(claim("p-made-x", gpus(1), owner=owner))
    assert bench.see(pod("p", made="?")) == []
    assert bench.see(pod("p", made="p-made-x")) == []
    assert bench.rule("p") is Rule.CLAIM
    assert bench.put(claim("p-made-x", gpus(2), owner="a/p")) == ["p"]
    assert bench.used == {GPU: 2}


def test_claim_of_a_pod_group_serves_all_its_pods() -> None:
    bench = Bench()
    bench.put(replace(claim("group", gpus(2)), is_of_group=True))
    assert bench.see(pod("p", made="group"), pod("q", made="group")) == ["p", "q"]
    assert bench.used == {GPU: 2}


def test_pod_with_only_unmanaged_claims_is_released_at_once_without_charge() -> None:
    bench = Bench(0)
    bench.put(claim("net", (DeviceAsk("nic"),)))
    [order] = bench.hear(*_seen(bench, pod("p", "net")))
    assert order.selector == {}
    assert set(order.labels) == {"fairgate.io/tenant", "fairgate.io/user"}
    assert order.intent.demand == {}
    assert bench.used == {}
    assert not list(bench.engine.store_writes())


def _seen(bench: Bench, one: Pod) -> list[ev.NewsEvent]:
    bench.pods[one.uid] = one
    return [ev.PodObserved(AT, one)]


def test_pod_with_an_unmanaged_device_class_name_is_released_at_once() -> None:
    bench = Bench(0)
    assert bench.see(pod("p", container_requests={NIC_BY_NAME: 4, PODS: 1})) == ["p"]
    assert bench.used == {}


def test_pod_with_unmanaged_claims_still_waits_for_other_gates() -> None:
    bench = Bench(0)
    bench.put(claim("net", (DeviceAsk("nic"),)))
    assert bench.see(pod("p", "net", gates=(GATE, "other"))) == []
    assert bench.rule("p") is Rule.OTHER_GATE
    assert bench.see(pod("p", "net")) == ["p"]


def test_pod_with_unmanaged_claims_uses_capacity_of_its_node() -> None:
    bench = Bench()
    bench.put(claim("net", (DeviceAsk("nic"),)), claim("c", gpus()))
    plain = {CPU: 64_000, PODS: 1}
    bench.see(pod("p", "net", container_requests=plain))
    bench.see(replace(bench.pods[Uid("a/p")], node=NodeName("n"), phase=Phase.RUNNING))
    assert bench.see(pod("q", "c")) == []
    assert bench.rule("q") is Rule.CAPACITY
    assert bench.end("p") == ["q"]


def test_refused_release_of_a_pod_with_unmanaged_claims_is_retried() -> None:
    bench = Bench()
    bench.put(claim("net", (DeviceAsk("nic"),)))
    bench.see(pod("p", "net", gates=(GATE, "example.com/own")))
    at, one = bench.at, pod("p", "net")
    bench.engine.handle(ev.PodObserved(at, one))
    assert len(_releases(bench, at)) == 1
    bench.engine.handle(ev.ReleaseAnswered(at, one.uid, ReleaseOutcome.HELD))
    assert _releases(bench, at) == []
    assert len(_releases(bench, Millis(at + 2000))) == 1


def _releases(bench: Bench, at: Millis) -> list[Release]:
    return [e for e in bench.engine.handle(ev.Pass(at)) if isinstance(e, Release)]


def test_pod_with_unmanaged_claims_does_not_block_its_gang() -> None:
    bench = Bench()
    bench.put(claim("net", (DeviceAsk("nic"),)), claim("c", gpus(2)))
    gang = {"gang": "g", "gang_size": 2}
    assert bench.see(pod("launcher", "net", **gang)) == ["launcher"]
    assert bench.see(pod("worker", "c", **gang)) == ["worker"]


# --- shared claims ---


def test_a_shared_claim_is_charged_to_the_first_released_and_passes_on_when_it_ends() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(6)))
    assert bench.see(pod("p", "c"), pod("q", "c"), pod("r", "c")) == ["p", "q", "r"]
    assert bench.charged() == {"p": 6}
    bench.end("q")
    assert bench.charged() == {"p": 6}
    bench.end("p")
    assert bench.charged() == {"r": 6}
    assert bench.used == {GPU: 6}
    bench.end("r")
    assert bench.used == {}


def test_pod_that_shares_a_claim_is_released_to_the_pool_of_the_claim() -> None:
    room = {GPU: 8, CPU: 64_000, PODS: 100}
    bench = Bench(8, Node(NodeName("m"), {"pool": "q"}, room, True))
    pools = [Pool(PoolName(each), {"pool": each}) for each in ("p", "q")]
    bench.hear(*(ev.PoolObserved(AT, pool) for pool in pools))
    bench.put(claim("c", gpus(2)))
    bench.see(pod("first", "c", pools=(PoolName("q"),)))
    [order] = bench.hear(*_seen(bench, pod("second", "c")))
    assert order.selector == {"pool": "q"}


def test_gang_that_shares_a_claim_needs_its_capacity_once() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(8)))
    gang = [pod(f"p{i}", "c", gang="g", gang_size=4) for i in range(4)]
    assert sorted(bench.see(*gang)) == ["p0", "p1", "p2", "p3"]
    assert bench.charged() == {"p0": 8}
    bench.end("p0")
    assert bench.used == {GPU: 8}


def test_workloads_that_share_an_unused_claim_each_need_its_full_capacity() -> None:
    bench = Bench()
    bench.put(claim("big", gpus(8)), claim("c", gpus(6)))
    bench.see(pod("wall", "big"))
    assert bench.see(pod("p", "c"), pod("q", "c")) == []
    assert [bench.rule("p"), bench.rule("q")] == [Rule.CAPACITY, Rule.ORDER]
    assert bench.end("wall") == ["p", "q"]
    assert bench.used == {GPU: 6}


def some_or_one(name: str, count: int, allocated: int | None = None) -> ResourceClaim:
    """Return a claim of `count` GPUs, or else of one, with as many allocated ones."""
    asks = (DeviceAsk("gpu.nvidia.com", count, "r/some"), DeviceAsk("gpu.nvidia.com", 1, "r/one"))
    part = "r/one" if allocated == 1 else "r/some"
    devices = [DeviceId("gpu.nvidia.com", "n", f"{name}-{i}") for i in range(allocated or 0)]
    got = tuple(AllocatedDevice(part, each) for each in devices)
    return replace(claim(name, asks), allocated_devices=None if allocated is None else got)


def test_pod_that_joins_a_claim_needs_the_maximum_of_its_next_allocation() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 5), claim("rest", gpus(4)))
    bench.see(pod("p", "c"))
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/p")], node=NodeName("n"))))
    bench.put(some_or_one("c", 5, allocated=1))
    assert bench.charged() == {"p": 1}
    assert bench.see(pod("other", "rest"), pod("q", "c")) == ["other"]
    assert bench.rule("q") is Rule.CAPACITY
    assert bench.end("other") == ["q"]
    assert bench.used == {GPU: 5}


def test_a_gang_that_joins_an_allocated_claim_expects_its_growth_once() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 5))
    bench.see(pod("p", "c"))
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/p")], node=NodeName("n"))))
    bench.put(some_or_one("c", 5, allocated=1))
    gang = [pod(f"q{i}", "c", gang="g", gang_size=3) for i in range(3)]
    assert sorted(bench.see(*gang)) == ["q0", "q1", "q2"]


def test_a_claim_counts_as_its_most_while_an_unbound_pod_uses_it() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 7))
    bench.see(pod("p", "c"), pod("q", "c"))
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/p")], node=NodeName("n"))))
    bench.put(some_or_one("c", 7, allocated=1))
    assert bench.used == {GPU: 7}
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/q")], node=NodeName("n"))))
    assert bench.used == {GPU: 1}


def test_a_pod_that_waits_for_an_allocated_claim_without_users_expects_its_most() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 7, allocated=1), claim("rest", gpus(4)))
    assert bench.see(pod("other", "rest"), pod("q", "c")) == ["other"]
    assert bench.rule("q") is Rule.CAPACITY


def bound(bench: Bench, name: str) -> list[str]:
    """Bind a pod to the node. Return the released pods."""
    return names(
        bench.hear(*_seen(bench, replace(bench.pods[Uid(f"a/{name}")], node=NodeName("n"))))
    )


def elsewhere(known: ResourceClaim) -> ResourceClaim:
    """Return a claim with other devices."""
    devices = known.allocated_devices or ()
    return replace(
        known,
        allocated_devices=tuple(
            each._replace(device=each.device._replace(device=f"other-{i}"))
            for i, each in enumerate(devices)
        ),
    )


def test_a_claim_that_loses_its_allocation_in_use_is_charged_again_for_the_next_pod() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 5), claim("rest", gpus(3)))
    bench.see(pod("p", "c"))
    bound(bench, "p")
    bench.put(some_or_one("c", 5, allocated=5))
    bench.put(some_or_one("c", 5))
    assert bench.charged() == {"p": 5}
    assert bench.see(pod("q", "c")) == []
    assert bench.rule("q") is Rule.CAPACITY
    assert bench.see(pod("other", "rest")) == ["other"]


def test_a_pod_keeps_the_devices_that_its_claim_lost() -> None:
    bench = Bench(16)
    bench.put(some_or_one("c", 5))
    bench.see(pod("p", "c"))
    bound(bench, "p")
    bench.put(some_or_one("c", 5, allocated=5))
    bench.put(some_or_one("c", 5))
    assert bench.see(pod("q", "c")) == ["q"]
    assert bench.charged() == {"p": 10}
    bench.put(elsewhere(some_or_one("c", 5, allocated=5)))
    bound(bench, "q")
    assert bench.charged() == {"p": 10}
    bench.end("p")
    assert bench.charged() == {"q": 5}
    bench.end("q")
    assert bench.used == {}


def test_a_claim_that_gets_its_devices_back_is_charged_once() -> None:
    bench = Bench()
    bench.put(some_or_one("c", 5))
    bench.see(pod("p", "c"))
    bound(bench, "p")
    bench.put(some_or_one("c", 5, allocated=5))
    bench.put(some_or_one("c", 5))
    bench.put(some_or_one("c", 5, allocated=5))
    assert bench.see(pod("q", "c")) == ["q"]
    assert bench.charged() == {"p": 5}


@pytest.mark.parametrize("first", [True, False])
def test_a_pod_that_is_not_preemptible_joins_no_claim_of_a_preemptible_pod(first: bool) -> None:
    bench = Bench()
    quota = {PoolName("default"): Quota(guarantee={GPU: 8})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota)
    bench.hear(ev.TenantObserved(AT, tenant))
    bench.put(claim("c", gpus(5)))
    assert bench.see(pod("p", "c", preemptible=first)) == ["p"]
    own = {CPU: 1000, PODS: 1, GPU: 1}
    released = bench.see(pod("q", "c", preemptible=False, container_requests=own))
    assert released == ([] if first else ["q"])
    if first:
        assert bench.rule("q") is Rule.CLAIM
        assert bench.end("p") == ["q"]
    assert bench.used == {GPU: 6}


def test_a_borrowed_claim_does_not_pass_to_a_pod_that_no_reclaim_takes() -> None:
    room = {AMD: 8, CPU: 64_000, PODS: 100}
    bench = Bench(8, Node(NodeName("m"), {"pool": "p"}, room, True))
    quota = {PoolName("default"): Quota(guarantee={GPU: 4, AMD: 8})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota)
    bench.hear(ev.TenantObserved(AT, tenant))
    bench.put(claim("c", gpus(5)))
    assert bench.see(pod("p", "c")) == ["p"]
    own = {CPU: 1000, PODS: 1, AMD: 1}
    assert bench.see(pod("q", "c", preemptible=False, container_requests=own)) == []
    bench.end("p")
    assert bench.used == {}


def test_a_gang_that_is_not_preemptible_joins_no_claim_of_a_preemptible_pod() -> None:
    bench = Bench()
    quota = {PoolName("default"): Quota(guarantee={GPU: 8})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota)
    bench.hear(ev.TenantObserved(AT, tenant))
    bench.put(claim("c", gpus(5)), claim("d", gpus(1)))
    assert bench.see(pod("p", "c")) == ["p"]
    gang = {"gang": "g", "gang_size": 2}
    assert bench.see(pod("q0", "c", **gang), pod("q1", "d", preemptible=False, **gang)) == []
    assert sorted(bench.end("p")) == ["q0", "q1"]


def guaranteed(bench: Bench, **amounts: int) -> None:
    """Give the tenant a guarantee for both kinds of GPUs."""
    quota = Quota(guarantee={GPU: amounts["gpu"], AMD: amounts.get("amd", 0)})
    quotas = {PoolName("default"): quota}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quotas)
    bench.hear(ev.TenantObserved(AT, tenant))


def budget(allowed: int) -> ev.BudgetObserved:
    """Return a budget for all pods of namespace a that permits this number of disruptions."""
    known = DisruptionBudget(
        "a",
        "budget",
        (),
        max_unavailable=1,
        is_observed=True,
        expected_pods=9,
        disruptions_allowed=allowed,
    )
    return ev.BudgetObserved(AT, known)


def test_a_replica_joins_a_claim_while_a_budget_forbids_its_eviction() -> None:
    """The budget allows evictions again only once the replica runs."""
    bench = Bench()
    guaranteed(bench, gpu=8)
    bench.hear(budget(1))
    bench.put(claim("c", gpus(5)))
    assert bench.see(pod("p", "c"), pod("q", "c")) == ["p", "q"]
    bench.hear(budget(0))
    bench.end("q")
    assert bench.see(pod("r", "c")) == ["r"]


def test_a_budget_does_not_let_a_pod_that_no_reclaim_takes_join_a_borrowed_claim() -> None:
    room = {AMD: 8, CPU: 64_000, PODS: 100}
    bench = Bench(8, Node(NodeName("m"), {"pool": "p"}, room, True))
    guaranteed(bench, gpu=4, amd=8)
    bench.put(claim("c", gpus(5)))
    assert bench.see(pod("p", "c")) == ["p"]
    bench.hear(budget(0))
    bound(bench, "p")
    own = {CPU: 1000, PODS: 1, AMD: 1}
    assert bench.see(pod("q", "c", preemptible=False, container_requests=own)) == []


def test_pods_that_are_not_preemptible_share_a_claim_within_the_guarantee() -> None:
    bench = Bench()
    guaranteed(bench, gpu=8)
    bench.put(claim("c", gpus(5)))
    assert bench.see(pod("p", "c", preemptible=False)) == ["p"]
    assert bench.see(pod("q", "c", preemptible=False)) == ["q"]


def test_a_gang_joins_a_claim_once_it_is_preemptible() -> None:
    bench = Bench()
    guaranteed(bench, gpu=8)
    bench.put(claim("c", gpus(5)), claim("d", gpus(1)))
    assert bench.see(pod("p", "c")) == ["p"]
    gang = {"gang": "g", "gang_size": 2}
    assert bench.see(pod("q0", "c", **gang), pod("q1", "d", preemptible=False, **gang)) == []
    bench.end("q1")
    assert sorted(bench.see(pod("q2", "d", **gang))) == ["q0", "q2"]


def on_node(count: int) -> ev.SliceObserved:
    """Return the slice of node n with so many devices."""
    return ev.SliceObserved(AT, published("n", *device_gpus(count), generation=count))


def test_a_claim_for_all_devices_counts_as_those_of_the_largest_node() -> None:
    bench = Bench()
    bench.hear(on_node(4))
    bench.put(claim("c", gpus(None)))
    assert bench.see(pod("p", "c")) == ["p"]
    assert bench.used == {GPU: 4}
    bench.hear(on_node(7))
    assert bench.used == {GPU: 7}


def test_an_allocated_claim_for_all_devices_may_get_those_of_a_node_that_grew() -> None:
    bench = Bench()
    bench.hear(on_node(4))
    every = claim("c", (DeviceAsk("gpu.nvidia.com", None, "r"),))
    bench.put(every)
    bench.see(pod("p", "c"))
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/p")], node=NodeName("n"))))
    got = tuple(AllocatedDevice("r", DeviceId(DRIVER, "n", f"gpu-{i}")) for i in range(4))
    bench.put(replace(every, allocated_devices=got))
    assert bench.see(pod("q", "c")) == ["q"]
    assert bench.used == {GPU: 4}
    bench.hear(on_node(7))
    assert bench.used == {GPU: 7}, "the scheduler may allocate the claim again for q"
    bench.hear(*_seen(bench, replace(bench.pods[Uid("a/q")], node=NodeName("n"))))
    assert bench.used == {GPU: 4}


# --- claims that change ---


def test_claim_replaced_after_the_release_is_charged_its_new_amount() -> None:
    bench = Bench()
    bench.put(claim("made-1", gpus(1), owner="a/p"))
    assert bench.see(pod("p", made="made-1")) == ["p"]
    swapped = claim("made-2", gpus(7), owner="a/p")
    bench.hear(ev.ClaimGone(AT, "a", "made-1"), ev.ClaimObserved(AT, swapped))
    assert bench.used == {GPU: 1}
    status = (ClaimRef("made", "made-2", True),)
    bench.see(replace(bench.pods[Uid("a/p")], claims=status))
    assert bench.used == {GPU: 7}


def test_claim_recreated_while_its_pod_waits_is_evaluated_again() -> None:
    bench = Bench()
    bench.put(claim("big", gpus(8)), claim("c", gpus(1)))
    bench.see(pod("wall", "big"))
    bench.see(pod("p", "c"))
    bench.hear(ev.ClaimGone(AT, "a", "c"))
    assert bench.rule("p") is Rule.CLAIM
    bench.put(claim("c", gpus(5)))
    assert bench.end("wall") == ["p"]
    assert bench.used == {GPU: 5}


def test_an_unmanaged_claim_that_becomes_a_managed_one_is_charged() -> None:
    bench = Bench()
    bench.put(claim("c", (DeviceAsk("nic"),)))
    assert bench.see(pod("p", "c")) == ["p"]
    bench.put(claim("c", gpus(4)))
    assert bench.used == {GPU: 4}


def test_a_claim_that_vanishes_under_a_released_pod_is_charged_until_the_pod_ends() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(4)))
    bench.see(pod("p", "c"))
    bench.hear(ev.ClaimGone(AT, "a", "c"))
    assert bench.used == {GPU: 4}
    assert bench.see(pod("q", "c")) == []
    assert bench.rule("q") is Rule.CLAIM
    bench.end("p")
    assert bench.used == {}


def test_a_smaller_claim_of_the_same_name_counts_once_the_larger_is_out_of_use() -> None:
    bench = Bench()
    bench.put(claim("c", gpus(7)))
    bench.see(pod("p", "c"))
    bench.hear(ev.ClaimGone(AT, "a", "c"))
    bench.put(claim("c", gpus(1)))
    assert bench.used == {GPU: 7}
    bench.end("p")
    assert bench.see(pod("q", "c")) == ["q"]
    assert bench.used == {GPU: 1}


def test_claim_in_use_stays_charged_if_its_owner_is_removed() -> None:
    bench = Bench()
    bench.put(claim("made", gpus(4), owner="a/p"))
    bench.see(pod("p", made="made"))
    bench.put(claim("made", gpus(4)))
    assert bench.used == {GPU: 4}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_pod_waits_for_a_device_class_that_does_not_exist(by_name: bool) -> None:
    """The class may count as devices once it exists."""
    bench = Bench()
    bench.put(claim("c", (DeviceAsk("nic"), DeviceAsk("h100", 9))))
    plain = {Resource(IMPLICIT + "h100"): 9, PODS: 1}
    held = pod("p", container_requests=plain) if by_name else pod("p", "c")
    assert bench.see(held) == []
    found = bench.engine.queries.explain_wait(held.uid)
    assert found is not None
    assert found.rule is Rule.CLAIM
    assert "device class h100 does not exist" in found.text
    bench.hear(ev.ClassObserved(AT, DeviceClass("h100", GPU)))
    assert bench.rule("p") is not Rule.CLAIM
    assert bench.used == {}
    [order] = bench.hear(ev.ClassObserved(AT, DeviceClass("h100")))
    assert order.intent.demand == {}


def test_devices_in_use_are_charged_while_their_class_is_deleted() -> None:
    bench = Bench()
    bench.hear(ev.ClassObserved(AT, DeviceClass("h100", GPU)))
    bench.put(claim("c", (DeviceAsk("h100", 6),)), claim("d", (DeviceAsk("h100", 6),)))
    [order] = bench.hear(*_seen(bench, pod("p", "c")))
    released = replace(bench.pods[Uid("a/p")], granted_claims=order.claims)
    bench.see(released)
    bench.hear(ev.ClassGone(AT, "h100"))
    assert bench.used == {GPU: 6}
    assert bench.see(pod("q", "d")) == []
    assert bench.used == {GPU: 6}


def test_a_class_that_becomes_managed_is_charged_from_then_on() -> None:
    bench = Bench()
    bench.hear(ev.ClassObserved(AT, DeviceClass("h100")))
    bench.put(claim("c", (DeviceAsk("h100", 2),)))
    assert bench.see(pod("p", "c")) == ["p"]
    bench.hear(ev.ClassObserved(AT, DeviceClass("h100", GPU)))
    assert bench.used == {GPU: 2}
    bench.hear(ev.ClassGone(AT, "h100"))
    assert bench.used == {}


def test_reservation_does_not_apply_to_a_claim_that_grew() -> None:
    bench = Bench()
    bench.put(*(claim(name, gpus(n)) for name, n in (("six", 6), ("one", 1), ("two", 2))))
    bench.see(pod("wall", "six"))
    bench.see(pod("brick", "one"))
    assert bench.see(pod("p", "two")) == []  # it is next, so its timer runs
    later = Millis(AT + 10 * 60_000)
    assert _releases(bench, later) == []
    bench.put(claim("eight", gpus(8)), claim("last", gpus(1)))
    bench.engine.handle(ev.PodObserved(later, pod("before", "eight", priority=1)))
    bench.engine.handle(ev.PodObserved(later, pod("z", "last")))
    bench.engine.handle(ev.ClaimObserved(later, claim("two", gpus(8))))
    bench.engine.handle(ev.PodGone(later, Uid("a/brick")))
    assert "p" not in names(_releases(bench, later))
