"""The cost of a pod is linear in its size, for any legal size, and its memory is returned.

The tests count calls and bytes, never time. The largest pods per field come from `largest_pods`.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.engine import Engine
from app.core.model import Millis, NodeName, Pod, Pool, PoolName, Uid
from app.core.placement.node_filter import NodeFilter
from app.core.podspec.constraints import (
    NAME_FIELD,
    NodeConstraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from app.core.podspec.size_limits import BOUNDS
from app.core.quantities import ManagedResources
from app.core.well_known import GATE
from app.k8s_types import objects
from app.kube.convert import Pods
from tests.support import largest_pods
from tests.support.call_counts import calls_of
from tests.support.depth import cases
from tests.support.placement_bench import node

GPU = "nvidia.com/gpu"
MANAGED = ManagedResources([GPU])
POOL = PoolName("p")
AT = Millis(1_800_000_000_000)
NODES = [node(f"n{i}", number=str(i), zone="abc"[i % 3]) for i in range(20)]
WITHIN = 40
"""Entries of a list within most bounds."""
MANY = 2000
"""Entries of a list far beyond its bound."""


def raw(field: str, size: int, salt: str, *, held: bool = True) -> bytes:
    """Return a pod as the API server sends it."""
    made = largest_pods.FIELDS[field](size, salt)
    made["metadata"] |= {"name": f"large-{salt}", "uid": f"uid-{salt}"}
    made["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    gates = made["spec"].pop("schedulingGates", [])
    if held:  # and for ever, because it fits no node
        made["spec"]["schedulingGates"] = [{"name": GATE}, *gates]
        made["spec"]["containers"][0]["resources"]["requests"][GPU] = "9"
    made["spec"]["nodeName"] = "" if held else "n1"
    return msgspec.json.encode(made)


def engine(*pools: Pool) -> Engine:
    """Return a leading engine with 20 nodes."""
    made = Engine(MANAGED)
    for pool in pools:
        made.handle(ev.PoolObserved(AT, pool))
    for each in NODES:
        made.handle(ev.NodeObserved(AT, each))
    for source in ev.WatchedSource:
        made.handle(ev.SourceFresh(AT, source))
    made.handle(ev.LeadershipGained(AT, 1))
    made.handle(ev.StoreReady(AT))
    made.handle(ev.Pass(AT))
    return made


def life(engine: Engine, pods: Pods, written: bytes) -> None:
    """Add a pod, query it, change a node, and remove the pod."""
    seen = pods.read(msgspec.json.decode(written, type=objects.PodObject), AT)
    assert seen is not None
    engine.handle(seen)
    engine.handle(ev.Pass(AT))
    if isinstance(seen, ev.PodObserved):
        uid = seen.pod.uid
        assert engine.queries.explain_wait(uid) is not None or not seen.pod.gates
        engine.handle(ev.NodeObserved(AT, node("n1", number="100", zone="d")))
        engine.handle(ev.NodeObserved(AT, NODES[1]))
        engine.handle(ev.Pass(AT))
        engine.handle(ev.PodGone(AT, uid))
    else:
        assert isinstance(seen, ev.UnmanagedPodObserved)
        engine.handle(ev.PodGone(AT, seen.unmanaged_pod.uid))
    engine.handle(ev.Pass(AT))


@pytest.mark.parametrize("held", [True, False], ids=["held", "running"])
@pytest.mark.parametrize("size", [WITHIN, MANY])
@pytest.mark.parametrize("field", largest_pods.FIELDS)
def test_twice_the_size_costs_at_most_twice_the_calls(field: str, size: int, held: bool) -> None:
    found, pods = engine(), Pods(MANAGED, frozenset())
    life(found, pods, raw(field, size, "0", held=held))

    def cost(size: int, salt: str) -> int:
        written = raw(field, size, salt, held=held)
        return calls_of(lambda: life(found, pods, written))

    empty = cost(1, "1")
    once, twice = cost(size, "2"), cost(2 * size, "3")
    assert twice <= 2.2 * once + empty
    # Required anti-affinity terms (at most 50 per pod) are also compared with other pods.
    assert once <= 3 * empty + 60 * size + 500 * min(size, BOUNDS.pod_terms)


# --- constraints of a pod, with any bound ---


class Word(str):
    """A string that counts how often it is hashed."""

    __slots__ = ()
    hashed = 0

    def __hash__(self) -> int:
        Word.hashed += 1
        return super().__hash__()


def reach() -> NodeFilter:
    made = NodeFilter()
    made.reset_pools({POOL: Pool(POOL)})
    for each in NODES:
        made.update_node(each, POOL)
    return made


def selector(size: int, salt: str) -> NodeConstraints:
    return NodeConstraints(tuple((Word(f"k{salt}{i}"), "v") for i in range(size)))


def alternatives(size: int, salt: str) -> NodeConstraints:
    each = (NodeSelectorRequirement(Word(f"k{salt}{i}"), "DoesNotExist") for i in range(size))
    return NodeConstraints(affinity=tuple(NodeSelectorTerm((one,)) for one in each))


def impossible(size: int, salt: str) -> NodeConstraints:
    each = (NodeSelectorRequirement("zone", "In", (Word(f"v{salt}{i}"), "a")) for i in range(size))
    both = tuple(
        NodeSelectorTerm((one, NodeSelectorRequirement("zone", "In", ("b",)))) for one in each
    )
    return NodeConstraints(affinity=both)


def expressions(size: int, salt: str) -> NodeConstraints:
    each = (NodeSelectorRequirement(Word(f"k{salt}{i}"), "DoesNotExist") for i in range(size))
    return NodeConstraints(affinity=(NodeSelectorTerm(tuple(each)),))


def values(size: int, salt: str) -> NodeConstraints:
    each = tuple(Word(f"v{salt}{i}") for i in range(size))
    return NodeConstraints(
        affinity=(NodeSelectorTerm((NodeSelectorRequirement("zone", "NotIn", (*each, "a")),)),)
    )


def numbers(size: int, salt: str) -> NodeConstraints:
    each = (NodeSelectorRequirement("number", "Gt", (Word(f"{i + 30}"),)) for i in range(size))
    own = NodeSelectorRequirement("zone", "NotIn", (Word(salt),))
    return NodeConstraints(affinity=tuple(NodeSelectorTerm((one, own)) for one in each))


def names(size: int, salt: str) -> NodeConstraints:
    each = (NodeSelectorRequirement(NAME_FIELD, "In", (Word(f"v{salt}{i}"),)) for i in range(size))
    return NodeConstraints(affinity=tuple(NodeSelectorTerm((), (one,)) for one in each))


def tolerations(size: int, salt: str) -> NodeConstraints:
    return NodeConstraints(
        tolerations=tuple(Toleration(Word(f"k{salt}{i}"), "Exists") for i in range(size))
    )


BUILDS = [selector, alternatives, impossible, expressions, values, numbers, names, tolerations]


def judge(found: NodeFilter, terms: NodeConstraints) -> None:
    """Evaluate every constraint of the pod while nodes come and go."""
    for _ in range(3):
        found.signature(terms)
        found.allowed_nodes(terms, None, POOL)
        found.may_have_matching_node(terms, POOL)
        found.is_node_allowed(terms, NodeName("n1"))
        assert {terms: 1}[terms] == 1
    found.update_node(node("n1", Taint("new"), number="100", zone="d"), POOL)
    found.allowed_nodes(terms, None, POOL)
    found.update_node(node("new", number="7", zone="e"), POOL)
    found.drop_node(NodeName("new"))
    found.update_node(NODES[1], POOL)
    found.drain_changed_constraints()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_rules_are_hashed_and_evaluated_in_proportion_to_their_size(
    build: Callable[[int, str], NodeConstraints],
) -> None:
    found = reach()

    def cost(size: int, salt: str) -> tuple[int, int]:
        before = Word.hashed
        calls = calls_of(lambda: judge(found, build(size, salt)))
        return calls, Word.hashed - before

    cost(500, "0")
    calls, hashed = cost(500, "1")
    more_calls, more_hashed = cost(1000, "2")
    assert more_calls <= 2.2 * calls + 1000
    assert more_hashed <= 2.2 * hashed + 1000
    assert hashed <= 60 * 500


@contextmanager
def retained() -> Iterator[list[int]]:
    """Count the bytes that are allocated here and still in use at the end."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield found
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        found.append(after - before)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_constraints_are_freed_with_their_last_pod(
    build: Callable[[int, str], NodeConstraints],
) -> None:
    found = reach()
    judge(found, build(100, "warm"))
    with retained() as left:
        for number in range(6):
            judge(found, build(2000, str(number)))
        found.signature(NodeConstraints())
    assert left[0] < 20_000  # one has at least 200 kB


LEGAL = {
    "nodeSelector": 50,
    "node affinity terms": 50,
    "node affinity expressions": 100,
    "node affinity values": 250,
    "node affinity numbers": 50,
    "node affinity fields": 50,
    "tolerations": 50,
    "pod anti-affinity terms": 50,
    "pod anti-affinity expressions": 100,
    "pod anti-affinity values": 199,
    "topology spread": 20,
    "resource names": 148,
    "sidecars": 98,
    "resource claims": 50,
    "scheduling gates": 19,
    "labels": 5000,
    "pool names": 600,
    "owner name": 500_000,
}
"""Entries of the largest pod that Fairgate accepts, and of some lists without a bound."""


@pytest.mark.parametrize("field", LEGAL)
def test_memory_returns_when_the_largest_pods_are_gone(field: str) -> None:
    found, pods = engine(Pool(POOL)), Pods(MANAGED, frozenset())
    count = cases(30, 150)
    for number in range(count):
        life(found, pods, raw(field, 1, f"1{number}"))
    with retained() as left:
        for number in range(2, count + 2):
            life(found, pods, raw(field, LEGAL[field], f"{number}"))
    # Bounded caches remain. Here they take less memory than the pods.
    written = len(raw(field, LEGAL[field], "1"))
    assert left[0] < max(cases(2_400_000, 6_000_000), cases(20, 50) * written)


def held(number: int, **stated: Any) -> Pod:
    """Return a held pod with constraints beyond every bound, unlike pods from the converter."""
    return Pod(
        Uid(f"u{number}"),
        "team",
        f"p{number}",
        "alice",  # type: ignore[arg-type]
        0,
        AT,
        {GPU: 8},  # type: ignore[dict-item]
        gates=(GATE,),
        **stated,
    )


def test_memory_returns_after_pods_with_thousands_of_tolerations() -> None:
    found = engine(Pool(POOL))

    def come_and_go(number: int) -> None:
        borne = tuple(Toleration(f"k{number}-{i}", "Exists") for i in range(8000))
        found.handle(ev.PodObserved(AT, held(number, tolerations=borne)))
        found.handle(ev.Pass(AT))
        found.handle(ev.PodGone(AT, Uid(f"u{number}")))

    come_and_go(0)
    with retained() as left:
        for number in range(1, 11):
            come_and_go(number)
        found.handle(ev.Pass(AT))
    assert left[0] < 1_000_000  # each has about 1.5 MB
