"""Terms that no node tells apart are one question; a node that tells them apart parts them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.asks.terms import NAME_FIELD, Requirement, Taint, Term, Terms, Toleration, unborne
from app.core.model import NodeName, Pin, Pool, PoolName
from app.core.places.reach import Reach
from tests.unit.test_fit import near, node

POOL = PoolName("p")


def made(*names: str) -> Reach:
    reach = Reach()
    reach.begin({POOL: Pool(POOL)})
    for name in names:
        reach.put(node(name, zone="x"), POOL)
    return reach


def ways(number: int) -> list[Terms]:
    """Return terms of one user who writes something else into every pod."""
    word = f"odd-{number}"
    return [
        Terms(tolerations=(Toleration(word, "Exists"),)),
        Terms(tolerations=(Toleration("", "Exists", "", "NoExecute", number),)),
        Terms((("zone", word),)),
        Terms(affinity=near("zone", "NotIn", word)),
        Terms(affinity=near("zone", "In", "x", word)),
        Terms(affinity=near(word, "DoesNotExist")),
        Terms(affinity=near("zone", "Gt", str(number))),
        Terms(affinity=(Term(fields=(Requirement(NAME_FIELD, "NotIn", (word,)),)),)),
    ]


def test_a_thousand_odd_ways_to_say_the_same_are_one_question() -> None:
    reach = made("a", "b")
    gists = {reach.gist(terms) for number in range(1000) for terms in ways(number)}
    assert len(gists) == 3  # anywhere, nowhere, and In the one value that there is
    assert {reach.pin(each, None, POOL) for each in gists} == {None, ()}


def test_values_that_no_node_has_are_not_looked_through_at_every_node() -> None:
    reach = made("a")
    excluded = ("x", *(f"no-{number}" for number in range(1000)))
    [term] = reach.gist(Terms(affinity=near("zone", "NotIn", *excluded))).affinity or ()
    assert term == Term((Requirement("zone", "NotIn", frozenset({"x"})),))


def test_a_taint_that_comes_parts_those_that_bear_it_from_the_others() -> None:
    reach = made("a", "b")
    bears, does_not = ways(1)[0], ways(2)[0]
    assert reach.pin(bears, None, POOL) is reach.pin(does_not, None, POOL) is None
    for name in "ab":
        reach.put(node(name, Taint("odd-1"), zone="x"), POOL)
    assert (reach.pin(bears, None, POOL), reach.pin(does_not, None, POOL)) == (None, ())
    assert reach.take_rerouted() == {does_not}


def test_a_value_that_comes_parts_those_that_name_it_from_the_others() -> None:
    reach = made("a", "b")
    named, other = ways(1)[2], ways(2)[2]
    assert reach.pin(named, None, POOL) == reach.pin(other, None, POOL) == ()
    reach.put(node("b", zone="odd-1"), POOL)
    assert (reach.pin(named, None, POOL), reach.pin(other, None, POOL)) == (("b",), ())
    assert reach.take_rerouted() == {named}


def test_what_a_node_offers_is_no_matter() -> None:
    reach = made("a")
    before = reach.edition
    reach.put(node("a", zone="x", gpus=1), POOL)
    assert reach.edition == before
    [member] = reach.members(POOL)
    assert member.allocatable["nvidia.com/gpu"] == 1  # type: ignore[index]


values = st.sampled_from(["1", "2", "3"])
labels = st.dictionaries(st.sampled_from(["zone", "rack"]), values)
taints = st.lists(st.builds(Taint, st.sampled_from("tu"), values), max_size=2, unique=True)
requirements = st.builds(
    Requirement,
    st.sampled_from(["zone", "rack", "none"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    st.lists(values, min_size=1, max_size=2).map(tuple),
)
fields = st.builds(
    Requirement,
    st.sampled_from([NAME_FIELD, "metadata.other"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple),
)
some_terms = st.builds(
    Terms,
    st.lists(st.tuples(st.sampled_from(["zone", "rack"]), values), max_size=1).map(tuple),
    st.none()
    | st.lists(
        st.builds(
            Term,
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
@settings(max_examples=300)
def test_an_answer_kept_is_the_answer_found_anew(
    asked: list[Terms], script: list[tuple[str, bool, bool, dict[str, str], list[Taint]]]
) -> None:
    reach, there = made(), {}
    for terms in asked:
        reach.pin(terms, None, POOL)
    for name, gone, ready, has, keeps_off in script:
        known = {t: reach.pin(t, None, POOL) for t in asked}
        served, version = {t: reach.serves(t, POOL) for t in asked}, reach.version
        if gone:
            reach.drop(NodeName(name))
            there.pop(name, None)
        else:
            there[name] = node(name, *keeps_off, ready=ready, **has)
            reach.put(there[name], POOL)
        rerouted = reach.take_rerouted()
        for terms in asked:
            able = {
                NodeName(each.name)
                for each in there.values()
                if terms.suits(each.name, each.labels)
                and unborne(each.taints, terms.tolerations) is None
            }
            every = able and {n for n, each in there.items() if each.ready} <= able
            expected: Pin = None if every else tuple(sorted(able))
            assert reach.pin(terms, None, POOL) == expected
            assert known[terms] == expected or reach.version > version
            assert (served[terms] != bool(able)) == (terms in rerouted)
