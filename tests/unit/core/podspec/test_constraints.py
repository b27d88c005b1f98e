"""Node constraints are evaluated like in kube-scheduler: every rule of its documentation."""

from __future__ import annotations

import pytest

from app.core.podspec.constraints import (
    ALL_READINESS_TAINTS,
    NodeConstraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
    first_untolerated_taint,
    relevant_tolerations,
    tolerated_readiness_taints,
)

LABELS = {"zone": "a", "cores": "64", "empty": "", "odd": "1_0"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ("a", "b"), True),
        ("zone", "In", ("b",), False),
        ("none", "In", ("a",), False),
        ("zone", "In", (), False),
        ("empty", "In", ("",), True),
        ("none", "In", ("",), False),
        ("zone", "NotIn", ("a",), False),
        ("zone", "NotIn", ("b",), True),
        ("none", "NotIn", ("a",), True),  # a node without the label matches
        ("zone", "Exists", (), True),
        ("empty", "Exists", (), True),
        ("none", "Exists", (), False),
        ("zone", "DoesNotExist", (), False),
        ("none", "DoesNotExist", (), True),
        ("cores", "Gt", ("63",), True),
        ("cores", "Gt", ("64",), False),
        ("cores", "Gt", ("-1",), True),
        ("cores", "Gt", ("0" * 30 + "63",), True),
        ("cores", "Gt", ("-" + "0" * 5000 + "1",), True),
        ("cores", "Gt", ("1" * 5000,), False),
        ("cores", "Lt", ("+" + "0" * 30 + "64",), False),
        ("cores", "Lt", ("65",), True),
        ("cores", "Lt", ("9",), False),  # compared as numbers, not as text
        ("zone", "Gt", ("1",), False),
        ("none", "Lt", ("1",), False),
        ("cores", "Gt", ("x",), False),
        ("cores", "Gt", ("1", "2"), False),
        ("cores", "Gt", (str(2**63),), False),
        ("odd", "Gt", ("1",), False),
        ("zone", "Near", ("a",), False),
    ],
)
def test_a_requirement_reads_labels_as_the_scheduler_does(
    key: str, operator: str, values: tuple[str, ...], holds: bool
) -> None:
    assert NodeSelectorRequirement(key, operator, values).matches(LABELS) is holds


@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        (Toleration("gpu", "Equal", "yes", "NoSchedule"), True),
        (Toleration("gpu", "Equal", "no", "NoSchedule"), False),
        (Toleration("gpu", "Equal", "yes", "NoExecute"), False),
        (Toleration("gpu", "Equal", "yes"), True),  # no effect: every effect
        (Toleration("gpu", "Exists"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Exists"), True),  # no key: every taint
        (Toleration("", "Exists", "", "NoExecute"), False),
        (Toleration("gpu", "", "yes"), True),  # no operator: Equal
        (Toleration("gpu", "Equal"), False),
        (Toleration("gpu", "Near", "yes"), False),
        (Toleration("gpu", "Gt", "1"), False),  # the taint's value is not a number
    ],
)
def test_toleration_matches_taints_as_in_kube_scheduler(
    toleration: Toleration, bears: bool
) -> None:
    assert toleration.tolerates(Taint("gpu", "yes", "NoSchedule")) is bears


@pytest.mark.parametrize(
    ("operator", "value", "bears"),
    [("Gt", "900", True), ("Gt", "950", False), ("Lt", "951", True), ("Lt", "0951", False)],
)
def test_a_threshold_compares_the_value_of_the_taint(
    operator: str, value: str, bears: bool
) -> None:
    assert Toleration("sla", operator, value).tolerates(Taint("sla", "950")) is bears


def test_every_barring_taint_must_be_borne_and_others_do_not_matter() -> None:
    soft = Taint("a", "", "PreferNoSchedule")
    hard, harder = Taint("b"), Taint("c", "", "NoExecute")
    assert first_untolerated_taint((soft,), ()) is None
    assert first_untolerated_taint((soft, hard), ()) == hard
    assert first_untolerated_taint((hard, harder), (Toleration("b", "Exists"),)) == harder
    assert first_untolerated_taint((hard, harder), (Toleration("", "Exists"),)) is None


def term(
    *expressions: NodeSelectorRequirement, fields: tuple[NodeSelectorRequirement, ...] = ()
) -> NodeSelectorTerm:
    return NodeSelectorTerm(expressions, fields)


ZONE_A, ZONE_B = (
    NodeSelectorRequirement("zone", "In", ("a",)),
    NodeSelectorRequirement("zone", "In", ("b",)),
)
NODE_N = NodeSelectorRequirement("metadata.name", "In", ("n",))
NOT_N = NodeSelectorRequirement("metadata.name", "NotIn", ("n",))


@pytest.mark.parametrize(
    ("affinity", "suits"),
    [
        (None, True),
        ((), False),
        ((term(),), False),  # an empty term matches no node
        ((term(ZONE_A),), True),
        ((term(ZONE_B),), False),
        ((term(ZONE_B), term(ZONE_A)), True),  # terms are alternatives
        ((term(ZONE_A, ZONE_B),), False),  # expressions are not
        ((term(ZONE_A, fields=(NODE_N,)),), True),
        ((term(ZONE_A, fields=(NOT_N,)),), False),
        ((term(ZONE_B, fields=(NODE_N,)),), False),
    ],
)
def test_one_affinity_term_is_enough_and_all_its_expressions_must_match(
    affinity: tuple[NodeSelectorTerm, ...] | None, suits: bool
) -> None:
    assert NodeConstraints(affinity=affinity).matches_node("n", LABELS) is suits


def test_node_selector_and_affinity_must_both_hold() -> None:
    assert NodeConstraints((("zone", "a"),), (term(ZONE_A),)).matches_node("n", LABELS)
    assert not NodeConstraints((("zone", "b"),), (term(ZONE_A),)).matches_node("n", LABELS)
    assert not NodeConstraints((("zone", "a"),), (term(ZONE_B),)).matches_node("n", LABELS)


def test_tolerations_that_every_pod_is_given_make_no_pod_unlike_another() -> None:
    given = tuple(
        Toleration(f"node.kubernetes.io/{word}", "Exists", "", "NoExecute", 300)
        for word in ("not-ready", "unreachable")
    )
    soft = Toleration("x", "Exists", "", "PreferNoSchedule")
    own = Toleration("gpu", "Exists")
    assert relevant_tolerations((*given, soft)) == ()
    assert relevant_tolerations((own, *given)) == (own,)
    tolerated = tolerated_readiness_taints((own, *given, soft))
    assert tolerated == tuple(Taint(each.key, "", "NoExecute") for each in given)
    assert tolerated_readiness_taints((Toleration("", "Exists"),)) == ALL_READINESS_TAINTS
