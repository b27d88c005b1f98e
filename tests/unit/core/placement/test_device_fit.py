"""Pods are not released to nodes whose devices do not match their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import ClaimAddress, ProtectClaim, Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import ClaimRef, Millis, Node, NodeName, Pod, ReleaseOutcome, Resource, Uid
from app.core.placement import device_fit
from app.core.podspec.constraints import Toleration
from app.core.podspec.devices import CounterUse, ResourceSlice, ShareLimit
from app.core.podspec.resource_claims import DeviceAsk, DeviceClass, ResourceClaim
from app.core.quantities import CPU, PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.device_slices import GPU, GPUS, SICK, Words, allocated, device, published

AT = Millis(1000)
BIG, SMALL = "type == big", "type == small"
ANY = DeviceClass(GPUS.name, None)


class Yard:
    """A leader of two nodes: n1 has four small devices, n2 two small and two big ones."""

    def __init__(self, *more: ev.NewsEvent, managed: Sequence[Resource] = (GPU,)) -> None:
        self.engine = Engine(
            ManagedResources(managed),
            EngineOptions(
                resource_by_device_class={GPUS.name: GPU},
                selector_evaluator=Words(),
                follows_binding_rate=False,
            ),
        )
        self.pods: dict[str, Pod] = {}
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.at = AT
        small = [device(f"gpu-{i}", "small") for i in range(4)]
        mixed = [device(f"gpu-{i}", "small" if i < 2 else "big") for i in range(4)]
        self.hear(
            *(ev.NodeObserved(AT, node(f"n{i}")) for i in (1, 2)),
            ev.ClassObserved(AT, ANY),
            ev.SliceObserved(AT, published("n1", *small)),
            ev.SliceObserved(AT, published("n2", *mixed)),
            *(ev.SourceFresh(AT, source) for source in ev.WatchedSource),
            ev.Installed(AT, AT),
            ev.LeadershipGained(AT, 7),
            ev.StoreReady(AT),
            *more,
        )

    def hear(self, *news: ev.NewsEvent) -> dict[str, NodeName | None]:
        """Send events. Return the node that each release is for.

        Claims get their finalizers, and the time passes in which they are secured.
        """
        done: dict[str, NodeName | None] = {}
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
            queue = [self._protected(e.ref) for e in effects if isinstance(e, ProtectClaim)]
            for order in [e for e in effects if isinstance(e, Release)]:
                name = order.intent.ref.name
                done[name] = order.node
                self.pods[name] = replace(
                    self.pods[name],
                    gates=(),
                    release_annotation=order.stamp,
                    pool=order.intent.pool,
                    granted_claims=order.claims,
                    node=order.node,
                )
                answer = ev.ReleaseAnswered(AT, order.intent.ref.uid, ReleaseOutcome.RELEASED)
                queue += [answer, ev.PodObserved(AT, self.pods[name])]
        return done

    def _protected(self, ref: ClaimAddress) -> ev.NewsEvent:
        claim = self.claims[ref.namespace, ref.name]
        return ev.ClaimObserved(self.at, replace(claim, has_finalizer=True))

    def see(self, *pods: Pod) -> dict[str, NodeName | None]:
        self.pods |= {pod.name: pod for pod in pods}
        return self.hear(*(ev.PodObserved(AT, pod) for pod in pods))

    def put(self, *claims: ResourceClaim) -> dict[str, NodeName | None]:
        return self.hear(*(ev.ClaimObserved(AT, each) for each in claims))

    def why(self, name: str) -> tuple[Rule, str]:
        found = self.engine.queries.explain_wait(self.pods[name].uid)
        assert found is not None
        return found.rule, found.text


def node(name: str, **devices: int) -> Node:
    room = {CPU: 64_000, PODS: 100, **{Resource(r): v for r, v in devices.items()}}
    return Node(NodeName(name), {}, room, True)


def user_of(name: str, claim: str) -> Pod:
    plain = {CPU: 1000, PODS: 1}
    return replace(
        held_pod(name, "a"), demand=plain, container_requests=plain, claims=(ClaimRef("c", claim),)
    )


def waiting(name: str, *asks: DeviceAsk) -> ResourceClaim:
    return ResourceClaim("a", name, (asks,), uid=Uid(f"uid-{name}"))


def ask(count: int | None, *selectors: str, **more: object) -> DeviceAsk:
    return DeviceAsk(GPUS.name, count, "r", selectors, **more)  # type: ignore[arg-type]


def test_pod_is_released_to_a_node_with_enough_matching_devices() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(2, BIG)))
    assert yard.see(user_of("p", "c")) == {"p": "n2"}


def test_pod_waits_if_too_few_devices_match_and_reports_the_matches() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(3, BIG)))
    assert yard.see(user_of("p", "c")) == {}
    rule, text = yard.why("p")
    assert rule is Rule.CAPACITY
    assert "2 of 4 devices on n2 match; 2 of these are free" in text


def test_a_pod_waits_while_all_matching_devices_are_allocated() -> None:
    yard = Yard()
    taken = allocated("other", "n2", "gpu-2", "gpu-3", namespace="kube-system")
    yard.put(taken, waiting("c", ask(1, BIG)))
    assert yard.see(user_of("p", "c")) == {}
    assert "2 of 4 devices on n2 match; all are allocated" in yard.why("p")[1]
    assert yard.hear(ev.ClaimGone(AT, "kube-system", "other")) == {"p": "n2"}


def test_a_pod_waits_if_no_device_matches() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(1, "type == huge")))
    assert yard.see(user_of("p", "c")) == {}
    assert "no device of any node matches its r" in yard.why("p")[1]
    huge = ev.SliceObserved(AT, published("n1", device("gpu-0", "huge"), generation=2))
    assert yard.hear(huge) == {"p": "n1"}


def test_reason_of_a_waiting_pod_states_the_incomplete_pool() -> None:
    yard = Yard()
    for name in ("n1", "n2"):
        half = published(name, device("gpu-0", "small"), generation=2, count=2)
        yard.hear(ev.SliceObserved(AT, half))
    yard.put(waiting("c", ask(4)))
    assert yard.see(user_of("p", "c")) == {}
    words = "pool n1 of gpu.example.com: 1 of 2 slices of generation 2 exist and 1 more"
    assert words in yard.why("p")[1]


def test_one_alternative_that_matches_is_enough() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(3, BIG), ask(2, BIG)))
    assert yard.see(user_of("p", "c")) == {"p": "n2"}


def test_an_expression_without_an_answer_closes_no_node() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(4, "unknown()")))
    assert set(yard.see(user_of("p", "c"))) == {"p"}


def test_pod_that_shares_an_allocated_claim_is_released_to_its_node() -> None:
    yard = Yard()
    yard.put(waiting("c", ask(1)))
    first = yard.see(user_of("p", "c"))["p"]
    other = "n2" if first == "n1" else "n1"
    yard.put(allocated("c", other, "gpu-0"))
    assert yard.see(user_of("q", "c")) == {"q": other}


def test_a_claim_is_not_served_by_the_device_plugin_of_another_node() -> None:
    plugin = ev.NodeObserved(AT, node("a-plugin", **{GPU: 8}))
    yard = Yard(plugin)
    yard.put(waiting("c", ask(4)))
    assert yard.see(user_of("p", "c"))["p"] in ("n1", "n2")


@pytest.mark.parametrize(("stated", "released"), [(None, {}), (GPU, {"p"})])
def test_a_plain_request_needs_a_class_with_that_extended_resource_name(
    stated: Resource | None, released: set[str]
) -> None:
    yard = Yard(ev.ClassObserved(AT, replace(ANY, extended_resource=stated)))
    assert set(yard.see(held_pod("p", "a", 2))) == set(released)


def test_a_tainted_device_may_be_tolerated() -> None:
    sick = [device(f"gpu-{i}", "big", SICK) for i in range(2)]
    well = [device(f"gpu-{i}", "small") for i in range(2, 6)]
    yard = Yard(ev.SliceObserved(AT, published("n2", *sick, *well, generation=2)))
    tolerant = ask(2, BIG, tolerations=(Toleration("sick", "Exists"),))
    yard.put(waiting("c", ask(2, BIG)), waiting("d", tolerant))
    assert yard.see(user_of("p", "c"), user_of("q", "d")) == {"q": "n2"}


def partitioned(name: str) -> ResourceSlice:
    """Return a device of 7 slices on a node: whole, or as partitions of 4, 2 and 1 slices."""
    sizes = {
        "p7": 7,
        "p4": 4,
        **{f"p2-{i}": 2 for i in range(3)},
        **{f"p1-{i}": 1 for i in range(7)},
    }
    parts = [
        device(part, f"{size}g", uses=[CounterUse("set", "slices", size)])
        for part, size in sizes.items()
    ]
    whole = [CounterUse("set", "slices", 7)]
    return published(name, *parts, counters=whole, generation=2)


@pytest.mark.parametrize(("wanted", "node"), [("2g", None), ("1g", "n2")])
def test_a_pod_waits_while_no_partition_that_matches_is_free(wanted: str, node: str | None) -> None:
    """Partitions of 4 and 2 slices are allocated, so one slice is left."""
    yard = Yard(ev.SliceGone(AT, "n1-1"), ev.SliceObserved(AT, partitioned("n2")))
    yard.put(allocated("other", "n2", "p4", "p2-0", namespace="kube-system"))
    yard.put(waiting("c", ask(1, f"type == {wanted}")))
    assert yard.see(user_of("p", "c")).get("p") == node


def test_a_node_with_all_partitions_in_use_stays_open_for_a_reclaim() -> None:
    """Two partitions use one counter. The capacity of the node keeps the second pod away."""
    parts = [device(f"p{i}", uses=[CounterUse("set", "slices", 1)]) for i in range(2)]
    whole = published("n2", *parts, counters=[CounterUse("set", "slices", 1)], generation=2)
    yard = Yard(ev.SliceGone(AT, "n1-1"), ev.SliceObserved(AT, whole))
    yard.put(waiting("c", ask(1)), waiting("d", ask(1)))
    assert yard.see(user_of("p", "c")) == {"p": "n2"}
    yard.put(allocated("c", "n2", "p0"))
    assert yard.see(user_of("q", "d")) == {}
    assert yard.why("q")[0] is Rule.CAPACITY


def test_all_devices_must_be_free_for_a_request_of_all() -> None:
    yard = Yard()
    yard.put(
        allocated("other", "n2", "gpu-2", namespace="kube-system"), waiting("c", ask(None, BIG))
    )
    assert yard.see(user_of("p", "c")) == {}
    assert yard.hear(ev.ClaimGone(AT, "kube-system", "other")) == {"p": "n2"}


def test_the_number_of_kinds_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_fit, "MOST_KINDS", 2)
    yard = Yard()
    for i in range(5):
        yard.put(waiting(f"c{i}", ask(1, f"type == none-{i}")))
        yard.see(user_of(f"p{i}", f"c{i}"))
    assert yard.see(held_pod("free", "b")) is not None


@pytest.mark.parametrize(("selectors", "node"), [(7, None), (8, "n1")])
def test_requests_with_many_selectors_close_no_node(selectors: int, node: str | None) -> None:
    """Each selector would be evaluated for every device of the cluster."""
    yard = Yard()
    yard.put(waiting("c", ask(1, *["type == huge"] * selectors)))
    assert yard.see(user_of("p", "c")).get("p") == node


def test_a_cluster_without_slices_has_no_such_rules() -> None:
    yard = Yard(ev.SliceGone(AT, "n1-1"), ev.SliceGone(AT, "n2-1"))
    yard.hear(ev.NodeObserved(AT, node("n1", **{GPU: 8})))
    yard.put(waiting("c", ask(1, "type == huge")))
    assert yard.see(user_of("p", "c")) == {"p": "n1"}


def test_admin_access_needs_a_node_with_a_device_of_the_class() -> None:
    cards = Resource("example.com/card")
    yard = Yard(ev.NodeObserved(AT, node("bare", **{cards: 1})), managed=[GPU, cards])
    yard.put(waiting("c", ask(1, is_admin=True)))
    pod = user_of("p", "c")
    needed = {**pod.demand, cards: 1}
    assert yard.see(replace(pod, demand=needed, container_requests=needed)) == {}


@pytest.mark.parametrize(
    ("shares", "released"),
    [((), False), ((("memory", 31),), False), ((("memory", 30),), True)],
)
def test_a_pod_waits_while_a_shared_device_has_too_little_left(
    shares: tuple[tuple[str, int], ...], released: bool
) -> None:
    """Claims use 50 of 80. A request that names no amount takes 40."""
    shared = device("gpu-0", shared=True, limits=[ShareLimit("memory", 80, 40)])
    only = published("n2", shared, generation=2)
    yard = Yard(ev.SliceGone(AT, "n1-1"), ev.SliceObserved(AT, only))
    yard.put(allocated("other", "n2", "gpu-0", namespace="sys", consumed=(("memory", 50),)))
    yard.put(waiting("c", ask(1, shares=shares)))
    assert ("p" in yard.see(user_of("p", "c"))) is released


def test_a_share_may_be_larger_than_an_idle_device() -> None:
    shared = device("gpu-0", shared=True, limits=[ShareLimit("memory", 80, 40)])
    only = published("n2", shared, generation=2)
    yard = Yard(ev.SliceGone(AT, "n1-1"), ev.SliceObserved(AT, only))
    yard.put(waiting("c", ask(1, shares=(("memory", 81),))))
    assert yard.see(user_of("p", "c")) == {}


def test_reason_of_a_pod_states_that_all_devices_count_as_those_of_the_largest_node() -> None:
    large = published("n2", *[device(f"gpu-{i}", "small") for i in range(8)], generation=2)
    yard = Yard(ev.SliceObserved(AT, large))
    yard.put(waiting("c", ask(None)))
    assert yard.see(replace(user_of("p", "c"), node_names=(NodeName("n1"),))) == {}
    assert "all devices count as 8, those of the largest node" in yard.why("p")[1]


def test_reason_of_a_pod_states_that_its_alternatives_count_together() -> None:
    cards = Resource("example.com/card")
    yard = Yard(
        ev.ClassObserved(AT, DeviceClass("card", cards, ("type == card",))), managed=[GPU, cards]
    )
    yard.put(waiting("c", ask(1), DeviceAsk("card", 1, "r/card")))
    assert yard.see(user_of("p", "c")) == {}
    words = "its alternatives count together, so the node must have example.com/card and"
    assert words in yard.why("p")[1]
