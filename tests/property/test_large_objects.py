"""The cost of objects other than pods is linear in their size, and their memory is returned.

The tests count calls and bytes, never time.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.fairshare.checkpoint import MAX_STORED_USERS
from app.core.lifecycle.tenant_gaps import GAP_MS
from app.core.model import ClaimRef, Millis, Pod, ReleaseOutcome, Resource, Uid
from app.core.podspec.resource_claims import DeviceClass
from app.core.quantities import ManagedResources
from app.kube import convert_groups
from app.kube.informer import sources
from app.kube.informer.watched_kind import WatchedKind
from app.sim.cluster.virtual_cluster import held_pod
from tests.support import largest_pods
from tests.support.call_counts import calls_of

MANAGED = ManagedResources([largest_pods.GPU])
INTERNED = {
    "Node resources",
    "Node taints",
    "Pool tolerations",
    "ResourceClaim requests",
    "ResourceSlice counters",
    "ResourceSlice devices",
}
"""Names in these objects outlive them. The names of device classes go to a table of at most 20 000
names (`app.kube.interning`). Kubelets and administrators write the others; tenants cannot.
"""

AT = Millis(1_800_000_000_000)
KINDS: dict[ev.WatchedSource, WatchedKind[Any]] = {
    kind.source: kind
    for kind in (
        sources.NODES,
        sources.TENANTS,
        sources.POOLS,
        sources.CLAIMS,
        sources.CLASSES,
        sources.SLICES,
        *convert_groups.gang_size_kinds(MANAGED),
    )
}


def leading() -> Engine:
    """Return a leading engine with a node and waiting pods of five users."""
    engine = Engine(MANAGED)
    node = msgspec.json.encode(largest_pods.node_labels(0, "own"))
    engine.handle(read(KINDS[ev.WatchedSource.NODES], node))
    engine.handle(ev.ClassObserved(AT, DeviceClass("any", Resource(largest_pods.GPU))))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(AT, source))
    engine.handle(ev.LeadershipGained(AT, 1))
    engine.handle(ev.StoreReady(AT))
    for i in range(5):
        engine.handle(ev.PodObserved(AT, held_pod(f"p{i}", "default", 9, user=f"user{i}")))
    engine.handle(ev.Pass(AT))
    return engine


def read(kind: WatchedKind[Any], written: bytes) -> ev.ClusterEvent:
    found = kind.read(kind.item.decode(written), AT)
    assert found is not None
    return found


def life(engine: Engine, field: str, size: int, salt: str) -> None:
    """Add and remove an object."""
    source, build, _ = largest_pods.OTHERS[field]
    kind, written = KINDS[source], msgspec.json.encode(build(size, salt))
    engine.handle(read(kind, written))
    engine.handle(ev.Pass(AT))
    key = kind.key(kind.item.decode(written).metadata)
    engine.handle(kind.deletion_event(key, AT))
    engine.handle(ev.Pass(AT))


@pytest.mark.parametrize("field", sorted(largest_pods.OTHERS.keys() - {"Node resources"}))
def test_twice_the_size_costs_at_most_twice_the_calls(field: str) -> None:
    engine, most = leading(), largest_pods.OTHERS[field][2]
    life(engine, field, most, "0")

    def cost(size: int, salt: str) -> int:
        return calls_of(lambda: life(engine, field, size, salt))

    least = cost(1, "1")
    half, whole = cost(most // 2, "2"), cost(most, "3")
    assert whole - least <= 2.2 * (half - least) + 200


@pytest.mark.parametrize("field", sorted(largest_pods.OTHERS.keys() - INTERNED))
def test_memory_returns_when_objects_are_gone(field: str) -> None:
    engine, most = leading(), min(500, largest_pods.OTHERS[field][2])

    def lives(first: int, number: int) -> int:
        for i in range(first, first + number):
            life(engine, field, most, str(i))
        # The engine keeps some facts of a removed object for a time, which ends here.
        later = Millis(AT + GAP_MS * (first + number))
        engine.handle(ev.Pass(later))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few, many = lives(0, 5), lives(5, 20)
        if many - few >= 20 * 2_000:  # something else in this process may allocate memory once
            few, many = many, lives(25, 20)
    finally:
        tracemalloc.stop()
    assert many - few < 20 * 2_000


@pytest.mark.parametrize("field", ["ResourceSlice counters", "ResourceSlice devices"])
def test_memory_of_devices_returns_when_slices_are_gone(field: str) -> None:
    """Their names and values are in tables of bounded size: the slices repeat them here."""
    engine, most = leading(), largest_pods.OTHERS[field][2]

    def lives(number: int) -> int:
        for _ in range(number):
            life(engine, field, most, "same")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = lives(3)
        many = lives(10)
    finally:
        tracemalloc.stop()
    assert many - few < 10 * 2_000


def test_ten_thousand_basic_groups_cost_under_5_mib_and_no_call_of_a_pass() -> None:
    """The Job controller of Kubernetes 1.37 can create one for each Job."""
    engine, kind = leading(), KINDS[ev.WatchedSource.NATIVE_GROUPS]
    known: set[str] = set()
    """As in the reflector."""

    def one_pod(name: str) -> None:
        engine.handle(ev.PodObserved(AT, held_pod(name, "default", 9, user="user0")))
        engine.handle(ev.Pass(AT))

    one_pod("first")
    without = calls_of(lambda: one_pod("second"))
    gc.collect()
    tracemalloc.start()
    try:
        for i in range(10_000):
            meta = {"name": f"training-job-{i}-a1b2c", "namespace": f"team-{i % 50}"}
            group = {"metadata": meta, "spec": {"schedulingPolicy": {"basic": {}}}}
            event = read(kind, msgspec.json.encode(group))
            known.add(kind.key(kind.item.decode(msgspec.json.encode(group)).metadata))
            engine.handle(event)
        engine.handle(ev.Pass(AT))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 5 * 2**20
    assert calls_of(lambda: one_pod("third")) <= 1.02 * without


def test_simulated_users_are_all_remembered() -> None:
    """A simulation reports the usage of every user."""
    engine = Engine(MANAGED, EngineOptions(emits_audit_records=False, emits_store_writes=False))
    engine.handle(
        read(KINDS[ev.WatchedSource.NODES], msgspec.json.encode(largest_pods.node_labels(0, "n")))
    )
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(AT, source))
    engine.handle(ev.LeadershipGained(AT, 1))
    engine.handle(ev.StoreReady(AT))
    users = [f"user{i}" for i in range(3 * MAX_STORED_USERS)]
    at = AT
    for user in users:
        pod = held_pod(f"pod-of-{user}", "default", 1, user=user)
        engine.handle(ev.PodObserved(at, pod))
        engine.handle(ev.Pass(at))
        engine.handle(ev.ReleaseAnswered(at, pod.uid, ReleaseOutcome.RELEASED))
        at = Millis(at + 1000)
        engine.handle(ev.PodGone(at, pod.uid))
    charged = {
        user for (_, user, _), spent in engine.queries.usage_totals(at).items() if any(spent)
    }
    assert charged == set(users)


def test_memory_returns_when_users_are_gone() -> None:
    """Each user submits one pod and deletes it. The number of service accounts is unlimited."""
    engine = leading()

    def lives(first: int, number: int) -> int:
        for i in range(first, first + number):
            pod = held_pod(f"once{i}", "default", 9, user=f"system:serviceaccount:default:{i}")
            engine.handle(ev.PodObserved(AT, pod))
            engine.handle(ev.Pass(AT))
            engine.handle(ev.PodGone(AT, pod.uid))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = lives(0, 400)
        many = lives(400, 400)
    finally:
        tracemalloc.stop()
    assert many - few < 400 * 100


class Compared(str):
    """A uid that counts how often it is compared with another."""

    __slots__ = ()
    times = 0

    def __lt__(self, other: str) -> bool:
        Compared.times += 1
        return str.__lt__(self, other)


def test_gang_that_shares_a_claim_costs_its_size() -> None:
    """Each pod of the gang must receive the pod that pays for the claim."""

    def cost(size: int, salt: str) -> int:
        engine, before = leading(), Compared.times
        for i in range(size):
            engine.handle(ev.PodObserved(AT, shared(f"p{salt}-{i}", f"g{salt}", size)))
        claim = msgspec.json.encode(largest_pods.claim_requests(1, "s"))
        engine.handle(read(KINDS[ev.WatchedSource.CLAIMS], claim))
        engine.handle(ev.Pass(AT))
        return Compared.times - before

    assert cost(400, "2") <= 2.5 * cost(200, "1")


def shared(name: str, gang: str, size: int) -> Pod:
    """Return a pod of a gang that shares one claim."""
    pod = held_pod(name, "default", 9, user="shares")
    claims = (ClaimRef("devices", "cs"),)
    uid = Uid(Compared(name))
    return replace(
        pod, uid=uid, gang=gang, gang_size=size, claims=claims, container_requests=pod.demand
    )
