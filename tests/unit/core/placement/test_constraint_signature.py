"""Constraints that match the same nodes share a signature; a node that differs separates these."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.model import NodeName, NodeSet, Pool, PoolName
from app.core.placement.node_filter import NodeFilter
from app.core.podspec.constraints import (
    NAME_FIELD,
    NodeConstraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
    first_untolerated_taint,
)
from tests.support.depth import cases
from tests.support.placement_bench import near, node

POOL = PoolName("p")


def made(*names: str) -> NodeFilter:
    reach = NodeFilter()
    reach.reset_pools({POOL: Pool(POOL)})
    for name in names:
        reach.update_node(node(name, zone="x"), POOL)
    return reach


def ways(number: int) -> list[NodeConstraints]:
    """Return constraints of one user that writes a different value into every pod."""
    word = f"odd-{number}"
    return [
        NodeConstraints(tolerations=(Toleration(word, "Exists"),)),
        NodeConstraints(tolerations=(Toleration("", "Exists", "", "NoExecute", number),)),
        NodeConstraints((("zone", word),)),
        NodeConstraints(affinity=near("zone", "NotIn", word)),
        NodeConstraints(affinity=near("zone", "In", "x", word)),
        NodeConstraints(affinity=near(word, "DoesNotExist")),
        NodeConstraints(affinity=near("zone", "Gt", str(number))),
        NodeConstraints(
            affinity=(
                NodeSelectorTerm(fields=(NodeSelectorRequirement(NAME_FIELD, "NotIn", (word,)),)),
            )
        ),
    ]


def test_constraints_that_match_the_same_nodes_share_a_signature() -> None:
    reach = made("a", "b")
    signatures = {reach.signature(terms) for number in range(1000) for terms in ways(number)}
    assert len(signatures) == 3  # any node, no node, and `In` the one existing value
    assert {reach.allowed_nodes(each, None, POOL) for each in signatures} == {None, ()}


def test_values_that_no_node_has_are_not_looked_through_at_every_node() -> None:
    reach = made("a")
    excluded = ("x", *(f"no-{number}" for number in range(1000)))
    [term] = (
        reach.signature(NodeConstraints(affinity=near("zone", "NotIn", *excluded))).affinity or ()
    )
    assert term == NodeSelectorTerm((NodeSelectorRequirement("zone", "NotIn", frozenset({"x"})),))


def test_new_taint_separates_the_constraints_that_tolerate_it() -> None:
    reach = made("a", "b")
    bears, does_not = ways(1)[0], ways(2)[0]
    assert (
        reach.allowed_nodes(bears, None, POOL) is reach.allowed_nodes(does_not, None, POOL) is None
    )
    for name in "ab":
        reach.update_node(node(name, Taint("odd-1"), zone="x"), POOL)
    assert (reach.allowed_nodes(bears, None, POOL), reach.allowed_nodes(does_not, None, POOL)) == (
        None,
        (),
    )
    assert reach.drain_changed_constraints() == {does_not}


def test_new_label_value_separates_the_constraints_that_name_it() -> None:
    reach = made("a", "b")
    named, other = ways(1)[2], ways(2)[2]
    assert reach.allowed_nodes(named, None, POOL) == reach.allowed_nodes(other, None, POOL) == ()
    reach.update_node(node("b", zone="odd-1"), POOL)
    assert (reach.allowed_nodes(named, None, POOL), reach.allowed_nodes(other, None, POOL)) == (
        ("b",),
        (),
    )
    assert reach.drain_changed_constraints() == {named}


def test_terms_that_lose_their_node_are_rerouted_though_others_match_no_node_already() -> None:
    reach = made("a")
    first = NodeConstraints(
        affinity=(
            NodeSelectorTerm(
                (
                    NodeSelectorRequirement("zone", "In", ("2",)),
                    NodeSelectorRequirement("rack", "NotIn", ("1",)),
                )
            ),
        )
    )
    other = NodeConstraints((("zone", "1"),))
    reach.update_node(node("a", zone="2"), POOL)
    assert (reach.allowed_nodes(first, None, POOL), reach.allowed_nodes(other, None, POOL)) == (
        None,
        (),
    )
    reach.drain_changed_constraints()
    reach.update_node(node("a", rack="1"), POOL)
    assert reach.allowed_nodes(first, None, POOL) == reach.allowed_nodes(other, None, POOL) == ()
    assert reach.drain_changed_constraints() == {first}


def test_allocatable_amounts_do_not_change_the_labels_version() -> None:
    reach = made("a")
    before = reach.labels_version
    reach.update_node(node("a", zone="x", gpus=1), POOL)
    assert reach.labels_version == before
    [member] = reach.members(POOL)
    assert member.allocatable["nvidia.com/gpu"] == 1  # type: ignore[index]


values = st.sampled_from(["1", "2", "3"])
labels = st.dictionaries(st.sampled_from(["zone", "rack"]), values)
taints = st.lists(st.builds(Taint, st.sampled_from("tu"), values), max_size=2, unique=True)
requirements = st.builds(
    NodeSelectorRequirement,
    st.sampled_from(["zone", "rack", "none"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    st.lists(values, min_size=1, max_size=2).map(tuple),
)
fields = st.builds(
    NodeSelectorRequirement,
    st.sampled_from([NAME_FIELD, "metadata.other"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple),
)
some_terms = st.builds(
    NodeConstraints,
    st.lists(st.tuples(st.sampled_from(["zone", "rack"]), values), max_size=1).map(tuple),
    st.none()
    | st.lists(
        st.builds(
            NodeSelectorTerm,
            st.lists(requirements, max_size=2).map(tuple),
            st.lists(fields, max_size=1).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    st.lists(
        st.builds(
            Toleration,
            st.sampled_from(["", "t", "u"]),
            st.sampled_from(["Exists", "Equal"]),
            values,
        ),
        max_size=2,
    ).map(tuple),
)
changes = st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans(), labels, taints)


@given(st.lists(some_terms, min_size=1, max_size=6), st.lists(changes, max_size=12))
@settings(max_examples=cases(100, 300))
def test_cached_answer_equals_a_new_computation(
    asked: list[NodeConstraints], script: list[tuple[str, bool, bool, dict[str, str], list[Taint]]]
) -> None:
    reach, there = made(), {}
    for terms in asked:
        reach.allowed_nodes(terms, None, POOL)
    for name, gone, ready, has, keeps_off in script:
        known = {t: reach.allowed_nodes(t, None, POOL) for t in asked}
        served, version = {t: reach.may_have_matching_node(t, POOL) for t in asked}, reach.version
        if gone:
            reach.drop_node(NodeName(name))
            there.pop(name, None)
        else:
            there[name] = node(name, *keeps_off, ready=ready, **has)
            reach.update_node(there[name], POOL)
        rerouted = reach.drain_changed_constraints()
        for terms in asked:
            able = {
                NodeName(each.name)
                for each in there.values()
                if terms.matches_node(each.name, each.labels)
                and first_untolerated_taint(each.taints, terms.tolerations) is None
            }
            every = able and {n for n, each in there.items() if each.ready} <= able
            expected: NodeSet = None if every else tuple(sorted(able))
            assert reach.allowed_nodes(terms, None, POOL) == expected
            assert known[terms] == expected or reach.version > version
            assert (served[terms] != bool(able)) == (terms in rerouted)
