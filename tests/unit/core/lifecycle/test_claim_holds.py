"""Release and charge on devices that exist only in ResourceSlices, and claims without pods."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import (
    Bypassed,
    ClaimAddress,
    Effect,
    EvictPod,
    ProtectClaim,
    Release,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.lifecycle.claim_joins import LEFTOVER_MS
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import (
    ClaimRef,
    Millis,
    Node,
    NodeName,
    Pod,
    PoolName,
    Quota,
    ReleaseOutcome,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.podspec.resource_claims import AllocatedDevice, DeviceAsk, ResourceClaim
from app.core.policy import Policy
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.well_known import GATE
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.device_slices import GPU, GPUS, Words, allocated, gpus, published

AT = Millis(1000)
N1 = NodeName("n1")


class Yard:
    """A leader of one node with GPUs in a slice only."""

    def __init__(self, devices: int = 8) -> None:
        self.engine = Engine(
            ManagedResources([GPU]),
            EngineOptions(
                resource_by_device_class={GPUS.name: GPU},
                selector_evaluator=Words(),
                follows_binding_rate=False,
            ),
        )
        self.pods: dict[str, Pod] = {}
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.at = AT
        self.effects: list[Effect] = []
        room = {CPU: 64_000, PODS: 100}
        self.hear(
            ev.NodeObserved(AT, Node(N1, {}, room, True)),
            ev.ClassObserved(AT, replace(GPUS, extended_resource=GPU)),
            ev.SliceObserved(AT, published("n1", *gpus(devices))),
            *(ev.SourceFresh(AT, source) for source in ev.WatchedSource),
            ev.Installed(AT, AT),
            ev.LeadershipGained(AT, 7),
            ev.StoreReady(AT),
        )

    def hear(self, *news: ev.NewsEvent) -> list[str]:
        """Send events. Return the names of released pods, each bound to the node at once.

        Claims get their finalizers, and the time passes in which they are secured.
        """
        done: list[str] = []
        queue, waits = list(news), True
        while queue or waits:
            for event in queue:
                if isinstance(event, ev.ClaimObserved):
                    self.claims[event.claim.key] = event.claim
            waits = bool(queue)
            if not queue:
                self.at = Millis(self.at + SECURE_MS)
            effects = [e for event in queue for e in self.engine.handle(event)]
            effects += self.engine.handle(ev.Pass(self.at))
            self.effects += effects
            queue = [self._protected(e.ref) for e in effects if isinstance(e, ProtectClaim)]
            for order in [e for e in effects if isinstance(e, Release)]:
                name = order.intent.ref.name
                done.append(name)
                pod = self.pods[name] = replace(
                    self.pods[name],
                    gates=(),
                    release_annotation=order.stamp,
                    pool=order.intent.pool,
                    granted_claims=order.claims,
                    node=N1,
                )
                answer = ev.ReleaseAnswered(AT, pod.uid, ReleaseOutcome.RELEASED)
                queue += [answer, ev.PodObserved(AT, pod)]
        return done

    def _protected(self, ref: ClaimAddress) -> ev.NewsEvent:
        claim = self.claims[ref.namespace, ref.name]
        return ev.ClaimObserved(self.at, replace(claim, has_finalizer=True))

    def see(self, *pods: Pod) -> list[str]:
        self.pods |= {pod.name: pod for pod in pods}
        return self.hear(*(ev.PodObserved(AT, pod) for pod in pods))

    def put(self, *claims: ResourceClaim) -> list[str]:
        return self.hear(*(ev.ClaimObserved(AT, each) for each in claims))

    def end(self, name: str) -> list[str]:
        return self.hear(ev.PodGone(AT, self.pods.pop(name).uid))

    @property
    def free(self) -> int:
        pool = self.engine.queries.view().pools[PoolName("default")]
        return pool.capacity.get(GPU, 0) - pool.used.get(GPU, 0)

    @property
    def used(self) -> int:
        return self.engine.queries.view().pools[PoolName("default")].used.get(GPU, 0)

    @property
    def used_by_tenant(self) -> dict[str, int]:
        """Return the devices that each tenant is charged for."""
        tenants, pool = self.engine.queries.view().tenants, PoolName("default")
        return {str(n): t.used.get(pool, {}).get(GPU, 0) for n, t in tenants.items()}

    def complaints(self) -> list[Effect]:
        return [e for e in self.effects if isinstance(e, Bypassed | EvictPod)]


def user_of(name: str, claim: str) -> Pod:
    plain = {CPU: 1000, PODS: 1}
    return replace(
        held_pod(name, "a"), demand=plain, container_requests=plain, claims=(ClaimRef("c", claim),)
    )


def plain(name: str, devices: int) -> Pod:
    return held_pod(name, "a", devices)


def waiting(name: str, count: int | None = 1) -> ResourceClaim:
    return replace(allocated(name, "n1"), requests=((DeviceAsk(GPUS.name, count, "r"),),))


def test_pods_start_on_devices_that_exist_only_in_slices() -> None:
    yard = Yard()
    assert yard.see(plain("p", 5), plain("q", 4)) == ["p"]
    assert yard.free == 3
    assert yard.end("p") == ["q"]


def test_pod_with_a_claim_starts_on_devices_that_exist_only_in_slices() -> None:
    yard = Yard()
    yard.put(waiting("c", 6), waiting("d", 3))
    assert yard.see(user_of("p", "c"), user_of("q", "d")) == ["p"]
    assert yard.used == 6


def test_capacity_follows_the_slices() -> None:
    yard = Yard(4)
    assert yard.see(plain("p", 8)) == []
    assert yard.hear(ev.SliceObserved(AT, published("n1", *gpus(8)))) == ["p"]
    yard.hear(ev.SliceGone(AT, "n1-1"))
    assert yard.free == -8
    assert yard.used == 8


def test_scheduler_claim_for_an_extended_resource_is_not_charged() -> None:
    yard = Yard()
    yard.see(plain("p", 2))
    own = replace(
        allocated("p-extended", "n1", "gpu-0", "gpu-1"),
        owner=yard.pods["p"].uid,
        is_of_extended_resources=True,
    )
    yard.put(own)
    assert (yard.used, yard.free) == (2, 6)
    assert yard.complaints() == []
    assert yard.see(plain("q", 6)) == ["q"]


def test_a_claim_that_no_managed_pod_uses_takes_its_devices() -> None:
    yard = Yard()
    yard.put(allocated("c", "n1", "gpu-0", "gpu-1", namespace="kube-system"))
    assert (yard.used, yard.free) == (0, 6)
    assert yard.see(plain("p", 7)) == []
    assert yard.hear(ev.ClaimGone(AT, "kube-system", "c")) == ["p"]


def left_by_its_pod(yard: Yard, count: int = 3) -> ResourceClaim:
    """Let a pod p with a claim end, and return the claim, which stays allocated."""
    yard.put(waiting("c", count))
    yard.see(user_of("p", "c"))
    held = allocated("c", "n1", *(f"gpu-{i}" for i in range(count)), count=count)
    yard.put(held)
    assert (yard.used, yard.free) == (count, 8 - count)
    yard.end("p")
    return held


def test_claim_of_an_ended_pod_is_charged_to_its_user_until_deallocated() -> None:
    yard = Yard()
    held = left_by_its_pod(yard)
    assert (yard.used, yard.free) == (3, 5)
    assert yard.used_by_tenant["ns.a"] == 3
    yard.put(replace(held, allocated_devices=None))
    assert (yard.used, yard.free) == (0, 8)


def test_a_claim_left_by_an_ended_pod_counts_for_the_limit_of_its_tenant() -> None:
    yard = Yard()
    quota = {PoolName("default"): Quota(limit={GPU: 4})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota)
    yard.hear(ev.TenantObserved(AT, tenant))
    held = left_by_its_pod(yard)
    assert yard.see(plain("q", 2)) == []
    assert yard.put(replace(held, allocated_devices=None)) == ["q"]


def test_a_claim_left_by_an_ended_pod_is_charged_after_a_recount() -> None:
    yard = Yard()
    held = left_by_its_pod(yard)
    yard.hear(ev.PolicyObserved(AT, Policy(backfill=False)))
    assert (yard.used, yard.free) == (3, 5)
    node = Node(N1, {}, {CPU: 64_000, PODS: 100}, True)
    yard.hear(ev.NodeGone(AT, N1))
    assert yard.used == 0
    yard.hear(ev.NodeObserved(AT, node))
    assert (yard.used, yard.free) == (3, 5)
    yard.put(replace(held, allocated_devices=None))
    assert (yard.used, yard.free) == (0, 8)


def test_devices_of_a_claim_stay_in_use_while_a_pod_waits_for_it() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    yard.see(replace(user_of("w", "c"), gates=(GATE, "example.com/hold")))
    assert yard.free == 5
    assert yard.see(plain("q", 6)) == []


def test_an_unknown_claim_is_charged_while_a_pod_waits_for_it() -> None:
    yard = Yard()
    yard.put(allocated("c", "n1", "gpu-0", "gpu-1"))
    assert (yard.used, yard.free) == (0, 6)
    assert yard.see(user_of("w", "c")) == []
    assert (yard.used, yard.free) == (2, 6)
    yard.end("w")
    assert (yard.used, yard.free) == (0, 6)


def test_a_waiting_pod_gets_a_claim_that_stays_allocated_after_a_minute() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    assert yard.see(plain("q", 5), user_of("w", "c")) == ["q"]
    found = yard.engine.queries.explain_wait(Uid("a/w"))
    assert found is not None
    assert "still allocated" in found.text
    yard.at = Millis(yard.at + LEFTOVER_MS)
    assert yard.hear() == ["w"]
    assert (yard.used, yard.free) == (8, 0)
    yard.end("w")
    assert (yard.used, yard.free) == (8, 0)


def test_a_pod_that_joins_a_leftover_claim_is_charged_once_in_the_cycle() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    assert yard.see(user_of("w", "c")) == []
    yard.at = Millis(yard.at + LEFTOVER_MS)
    effects = yard.engine.handle(ev.Pass(yard.at))
    assert [e.intent.ref.name for e in effects if isinstance(e, Release)] == ["w"]
    assert yard.used == 3


def test_a_leftover_claim_is_charged_again_when_its_slice_returns() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    yard.hear(ev.SliceGone(AT, "n1-1"))
    yard.hear(ev.SliceObserved(AT, published("n1", *gpus(8))))
    assert (yard.used, yard.free) == (3, 5)


def test_a_simulation_counts_a_leftover_claim_and_ignores_its_rules() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    assert yard.see(user_of("w", "c")) == []
    found = yard.engine.queries.snapshot(AT)
    assert [(each.node, dict(each.demand)) for each in found.unmanaged_pods] == [(N1, {GPU: 3})]
    assert [(each.claims, each.claim_refusal) for each in found.held] == [((), "")]


def test_a_claim_of_nobody_is_charged_to_the_waiting_pod_with_the_smallest_uid() -> None:
    yard = Yard()
    yard.put(allocated("c", "n1", "gpu-0", "gpu-1"))
    waits = [replace(user_of(name, "c"), user=UserName(f"user-{name}")) for name in ("z", "a")]
    yard.see(*waits)
    pool = PoolName("default")
    users = yard.engine.queries.user_views(TenantName("ns.a"))
    assert [each.name for each in users if each.used.get(pool, {}).get(GPU)] == ["user-a"]


def test_a_claim_is_charged_if_its_pod_ended_before_the_allocation_was_observed() -> None:
    yard = Yard()
    yard.put(waiting("c", 3))
    yard.see(user_of("p", "c"))
    yard.end("p")
    yard.put(allocated("c", "n1", "gpu-0", "gpu-1", "gpu-2", count=3))
    assert (yard.used, yard.free) == (3, 5)


def test_a_waiting_pod_does_not_take_devices_that_are_about_to_be_freed() -> None:
    """They belong to the next workload, for example one that reclaimed them."""
    yard = Yard()
    held = left_by_its_pod(yard, 8)
    first = replace(plain("first", 8), priority=1)
    assert yard.see(first, user_of("w", "c")) == []
    assert yard.put(replace(held, allocated_devices=None)) == ["first"]
    assert yard.end("first") == ["w"]


def test_admin_access_is_not_charged_and_takes_no_device() -> None:
    yard = Yard()
    ask = DeviceAsk(GPUS.name, 2, "r", is_admin=True)
    yard.put(replace(waiting("c"), requests=((ask,),)))
    assert yard.see(user_of("p", "c")) == ["p"]
    yard.put(replace(allocated("c", "n1", "gpu-0", admin=True), requests=((ask,),)))
    assert (yard.used, yard.free) == (0, 8)


def test_an_allocated_claim_counts_as_the_devices_that_it_has() -> None:
    yard = Yard()
    asks = (DeviceAsk(GPUS.name, 4, "r/large"), DeviceAsk(GPUS.name, 1, "r/small"))
    yard.put(replace(waiting("c"), requests=(asks,)))
    yard.see(user_of("p", "c"))
    assert yard.used == 4
    device = allocated("c", "n1", "gpu-0").allocated_devices
    assert device is not None
    got = AllocatedDevice("r/small", device[0].device)
    yard.put(replace(waiting("c"), requests=(asks,), allocated_devices=(got,)))
    assert yard.used == 1
    assert yard.complaints() == []


def test_request_for_all_devices_is_charged_the_devices_of_the_node() -> None:
    yard = Yard(4)
    yard.put(waiting("c", None))
    assert yard.see(user_of("p", "c")) == ["p"]
    assert yard.used == 4


def test_a_pod_for_all_devices_is_counted_again_when_nodes_change() -> None:
    yard = Yard(4)
    yard.see(plain("first", 1))
    yard.put(waiting("c", None))
    assert yard.see(user_of("p", "c")) == []
    yard.hear(ev.SliceObserved(AT, published("n1", *gpus(2))))
    assert yard.end("first") == ["p"]
    assert yard.used == 2


def test_a_claim_of_a_pod_group_is_charged_to_one_of_its_pods() -> None:
    yard = Yard()
    yard.put(replace(waiting("shared", 3), is_of_group=True))
    refs = (ClaimRef("c", "shared", True),)
    pods = [replace(user_of(f"p{i}", "shared"), claims=refs) for i in range(3)]
    assert yard.see(*pods) == ["p0", "p1", "p2"]
    assert yard.used == 3


def test_uids_of_claims_do_not_meet_those_of_pods() -> None:
    yard = Yard()
    yard.put(replace(allocated("c", "n1", "gpu-0"), uid=Uid("a/p")))
    assert yard.see(plain("p", 7)) == ["p"]
    assert (yard.used, yard.free) == (7, 0)


def test_a_trial_of_a_pod_with_a_leftover_claim_counts_its_devices_once() -> None:
    yard = Yard()
    left_by_its_pod(yard)
    proposed = yard.engine.charge_proposed(user_of("w", "c"), {}, set())
    assert proposed.demand == {CPU: 1000, PODS: 1}
    assert proposed.needs_managed


def test_a_pod_does_not_take_a_leftover_claim_beyond_the_limit_of_its_tenant() -> None:
    """A new leader does not know who left the claim, so other pods may fill the limit meanwhile."""
    yard = Yard()
    quota = {PoolName("default"): Quota(limit={GPU: 4})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quota)
    yard.hear(ev.TenantObserved(AT, tenant))
    yard.put(allocated("c", "n1", "gpu-0", "gpu-1", "gpu-2", count=3))
    assert yard.see(plain("q", 4)) == ["q"]
    assert yard.see(user_of("w", "c")) == []
    yard.at = Millis(yard.at + LEFTOVER_MS)
    assert yard.hear() == []
    found = yard.engine.queries.explain_wait(Uid("a/w"))
    assert found is not None
    assert "beyond a limit of the tenant" in found.text
    assert yard.end("q") == ["w"]
    assert yard.used == 3
