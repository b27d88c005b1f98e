"""The PodGroups below a CompositePodGroup: their minimum starts as one.

The root `t` needs both child groups. The group `a` needs two pods, the group `b` needs three.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.lifecycle.group_tree import GroupTree
from app.core.model import Millis, NodeName, Phase, Pod, Uid, UnmanagedPod
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, UNBOUNDED, GangDeclaration
from tests.support.gang_driver import Lead, member

AT = Millis(1000)
LEAF = GangDeclaration("a", "", UNBOUNDED)
A = replace(LEAF, name="podgroup/a", min_count=2, parent="t")
B = replace(LEAF, name="podgroup/b", min_count=3, parent="t")
ROOT = replace(LEAF, name="compositepodgroup/t", min_count=2)


def of(group: str, *numbers: int, **more: object) -> list[Pod]:
    return [member(n, SIZE_FROM_GROUP, f"podgroup/{group}", **more) for n in numbers]


def stated(*groups: GangDeclaration) -> list[ev.GroupObserved]:
    return [ev.GroupObserved(AT, group) for group in groups]


def outside(number: int, group: str, node: str | None = None) -> ev.UnmanagedPodObserved:
    where = NodeName(node) if node else None
    return ev.UnmanagedPodObserved(
        AT, UnmanagedPod(Uid(f"out{number}"), where, {}, group=("a", f"podgroup/{group}"))
    )


@pytest.mark.parametrize("order", [(ROOT, A, B), (B, A, ROOT), (A, ROOT, B)])
@pytest.mark.parametrize("pods_first", [False, True])
def test_minimum_of_a_group_tree_is_released_together(
    order: tuple[GangDeclaration, ...], pods_first: bool
) -> None:
    lead = Lead()
    early = of("a", 0, 1)
    if pods_first:
        lead.see(*early)
    lead.hear(*stated(*order))
    if not pods_first:
        lead.see(*early)
    lead.see(*of("b", 2, 3))
    assert lead.released == []
    assert "gang compositepodgroup/t is not complete, 4 of 5 pods are there" in lead.text(early[0])
    lead.see(*of("b", 4))
    assert sorted(lead.released) == ["g0", "g1", "g2", "g3", "g4"]


def test_surplus_pods_of_one_group_do_not_count_for_another_group() -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1, 5, 6), *of("b", 2, 3))
    assert lead.released == []
    why = lead.engine.queries.explain_wait(of("a", 0)[0].uid)
    assert why is not None
    assert "too few of its pod groups have enough pods" in why.text
    assert "enough pods in more pod groups of gang compositepodgroup/t" in why.remedies
    lead.see(*of("b", 4))
    assert sorted(lead.released[:5]) == ["g0", "g1", "g2", "g3", "g4"]
    assert lead.released[5:] == ["g5", "g6"]


def test_group_tree_does_not_start_before_its_minimum_fits() -> None:
    lead = Lead(gpus=4)
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    assert lead.released == []
    lead.room(5)
    assert sorted(lead.released) == ["g0", "g1", "g2", "g3", "g4"]


def test_the_tree_starts_with_as_many_groups_as_it_needs() -> None:
    """One of the two groups is enough. The pods of the other one are further pods."""
    lead = Lead(gpus=3)
    lead.hear(*stated(replace(ROOT, min_count=1), A, B))
    lead.see(*of("a", 0), *of("b", 2, 3, 4))
    assert lead.released == ["g2", "g3", "g4"]
    lead.see(*of("a", 1))
    lead.room(4)
    assert lead.released[3:] == ["g0"]


def test_a_group_of_pods_without_devices_is_counted() -> None:
    """kube-scheduler needs two pods of group a. Fairgate holds none of them."""
    lead = Lead()
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("b", 2, 3, 4))
    lead.hear(outside(0, "a"))
    assert lead.released == []
    lead.hear(outside(0, "a"), outside(1, "a", "n0"))
    assert lead.released == ["g2", "g3", "g4"]


def test_a_pod_without_devices_is_counted_until_it_ends() -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, B), outside(0, "a"), outside(1, "a"))
    lead.hear(ev.PodGone(AT, Uid("out0")))
    lead.see(*of("b", 2, 3, 4))
    assert lead.released == []
    lead.hear(outside(2, "a"))
    assert lead.released == ["g2", "g3", "g4"]


def test_pods_without_devices_count_in_a_pod_group_without_a_parent() -> None:
    lead = Lead()
    lead.hear(*stated(replace(B, parent="")), outside(0, "b"))
    lead.see(*of("b", 2))
    assert lead.released == []
    lead.see(*of("b", 3))
    assert lead.released == ["g2", "g3"]


def test_a_tree_waits_for_its_root_to_be_known() -> None:
    lead = Lead()
    lead.hear(*stated(A))
    lead.see(*of("a", 0, 1))
    assert lead.released == []
    assert "no CompositePodGroup t states its size" in lead.text(of("a", 0)[0])


def test_a_group_that_succeeded_is_not_needed_again() -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    lead.finish("a/g0", "a/g1")
    lead.gone("a/g4")
    lead.see(*of("b", 5))
    assert lead.released[5:] == ["g5"]


def test_the_pods_of_a_running_tree_are_not_evicted_by_a_new_leader() -> None:
    first = Lead()
    first.hear(*stated(ROOT, A, B))
    first.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    lead = Lead(8, *first.pods.values())
    lead.hear(*stated(B, ROOT, A))
    lead.wait(3_600_000)
    assert lead.going() == []
    lead.gone("a/g4")
    lead.see(*of("b", 5))
    assert lead.released == ["g5"]


def test_a_deleted_tree_changes_no_gang() -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    for name in (ROOT.name, A.name, B.name):
        lead.hear(ev.GroupGone(AT, "a", name))
    lead.wait(3_600_000)
    assert lead.going() == []


# A tree that needs one of two unlike groups: one pod of group a, or four pods of group b.

ONE = replace(ROOT, min_count=1), replace(A, min_count=1), replace(B, min_count=4)


def test_a_tree_whose_groups_all_lost_pods_waits_until_one_is_complete_again() -> None:
    lead = Lead()
    lead.hear(*stated(*ONE))
    lead.see(*of("b", 0, 1, 2, 3))
    assert lead.released == ["g0", "g1", "g2", "g3"]
    lead.gone("a/g0", "a/g1")
    lead.see(*of("b", 5))
    assert lead.released[4:] == []
    lead.see(*of("b", 6))
    assert lead.released[4:] == ["g5", "g6"]


def test_further_pods_of_a_tree_that_lost_none_of_its_minimum_start_alone() -> None:
    lead = Lead(gpus=4)
    lead.hear(*stated(*ONE))
    lead.see(*of("a", 0), *of("b", 1, 2))
    assert lead.released == ["g0", "g1", "g2"]
    lead.gone("a/g1")
    lead.see(*of("b", 3))
    assert lead.released[3:] == ["g3"]


def half_released() -> Lead:
    """Return a leader that released one pod of group b. There is no place for the other three."""
    lead = Lead(gpus=4)
    lead.hear(*stated(*ONE))
    lead.refused = {"g1", "g2", "g3"}
    lead.see(*of("b", 0, 1, 2, 3))
    lead.room(1)
    return lead


def test_half_of_a_group_gives_its_place_back_although_another_group_needs_less() -> None:
    lead = half_released()
    assert lead.released == ["g0", "g1", "g2", "g3"]
    assert not lead.pods[Uid("a/g0")].gates
    lead.wait(3_600_000)
    assert lead.going() == ["g0"]
    assert "too few pods of the pod groups of its gang" in lead.expelled[0].why


def test_a_part_of_a_tree_restarts_although_another_group_needs_less() -> None:
    lead = Lead()
    lead.runs = False
    lead.hear(*stated(*ONE))
    lead.see(*of("b", 0, 1, 2, 3, restart_gang=True))
    lead.finish("a/g0", failed=True)
    lead.gone("a/g0")
    assert lead.going() == ["g1", "g2", "g3"]


@pytest.mark.parametrize("change", [replace(B, min_count=5), ROOT])
def test_a_larger_tree_evicts_no_released_pod(change: GangDeclaration) -> None:
    lead = Lead()
    lead.runs = False
    lead.hear(*stated(*ONE))
    lead.see(*of("b", 0, 1, 2, 3))
    lead.hear(*stated(change))
    lead.wait(3_600_000)
    assert lead.going() == []


def test_a_tree_that_loses_a_child_group_evicts_no_released_pod() -> None:
    """All its pods are released but do not run yet. A further pod shows the change."""
    lead = Lead()
    lead.runs = False
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    lead.hear(ev.GroupGone(AT, "a", B.name))
    lead.hear(*stated(replace(A, min_count=1)))
    lead.see(*of("a", 5))
    lead.see(*(replace(pod, phase=Phase.RUNNING) for pod in list(lead.pods.values())[:5]))
    lead.wait(3_600_000)
    assert lead.going() == []


# A child group that is deleted and created again.


@pytest.mark.parametrize("parent", ["", "u"])
@pytest.mark.parametrize("later", [(), (7,)])
def test_held_pods_of_a_group_that_is_created_again_elsewhere_follow_it(
    parent: str, later: tuple[int, ...]
) -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, replace(ROOT, name="compositepodgroup/u", min_count=1)))
    lead.see(*of("a", 0, 1))
    lead.hear(ev.GroupGone(AT, "a", A.name))
    lead.see(*of("a", *later))
    lead.hear(*stated(replace(A, parent=parent)))
    assert sorted(lead.released[:2]) == ["g0", "g1"]
    assert len(lead.released) == 2 + len(later)


def test_running_pods_of_a_group_that_is_created_again_are_not_evicted() -> None:
    lead = Lead()
    lead.hear(*stated(ROOT, A, B))
    lead.see(*of("a", 0, 1), *of("b", 2, 3, 4))
    lead.hear(ev.GroupGone(AT, "a", A.name), *stated(A))
    lead.hear(ev.GroupGone(AT, "a", A.name), *stated(replace(A, parent="")))
    lead.wait(3_600_000)
    assert lead.going() == []


@pytest.mark.parametrize("deleted", [False, True])
def test_the_pods_of_a_basic_group_count_when_it_becomes_a_gang(deleted: bool) -> None:
    basic = GangDeclaration("a", "podgroup/b", 1, is_released_singly=True)
    lead = Lead(gpus=1)
    lead.hear(*stated(basic))
    lead.see(*of("b", 0), *of("b", 1))
    assert lead.released == ["g0"]
    if deleted:
        lead.hear(ev.GroupGone(AT, "a", basic.name))
    lead.hear(*stated(replace(B, parent="")))
    lead.room(8)
    assert lead.released == ["g0"]
    assert "2 of 3 pods are there" in lead.text(lead.pods[Uid("a/g1")])
    lead.see(*of("b", 2))
    assert sorted(lead.released) == ["g0", "g1", "g2"]


# Preemption policies, which groups have only behind a feature gate.


@pytest.mark.parametrize(
    "groups",
    [
        (replace(A, parent="", preemption_policy="PreemptLowerPriority"),),
        (replace(ROOT, min_count=1, preemption_policy="PreemptLowerPriority"), A),
    ],
)
def test_a_group_with_another_preemption_policy_than_its_pods_waits(
    groups: tuple[GangDeclaration, ...],
) -> None:
    lead = Lead()
    pods = of("a", 0, 1, preemption_policy="Never")
    lead.hear(*stated(*groups))
    lead.see(*pods)
    lead.wait(3_600_000)
    assert lead.released == []
    assert "has the preemption policy PreemptLowerPriority and its pods have Never" in lead.text(
        pods[0]
    )
    lead.hear(*stated(replace(groups[0], preemption_policy="Never"), *groups[1:]))
    assert lead.released == ["g0", "g1"]


def test_a_group_without_a_preemption_policy_has_that_of_its_pods() -> None:
    lead = Lead()
    lead.hear(*stated(replace(A, parent="")))
    lead.see(*of("a", 0, 1, preemption_policy="Never"))
    assert lead.released == ["g0", "g1"]


# The minimum of a tree, with nested groups.

NESTED = GroupTree(
    "root", 1, (GroupTree("inner", 2, (GroupTree("a", 2), GroupTree("b", 1))), GroupTree("c", 4))
)


@pytest.mark.parametrize(
    ("present", "ready", "expected"),
    [
        ({}, {"a": [1, 2, 3], "b": [9]}, [1, 2, 9]),
        ({}, {"a": [1, 2], "c": [3, 4, 5]}, None),
        ({}, {"a": [5, 6], "b": [7], "c": [1, 2, 3, 4]}, [1, 2, 3, 4]),
        ({"a": 1}, {"a": [1, 2], "b": [9]}, [1, 9]),
        ({"a": 2, "b": 1}, {"c": [1, 2, 3, 4]}, []),
        ({"c": 5}, {}, []),
    ],
)
def test_the_oldest_pods_that_complete_a_tree_start(
    present: dict[str, int], ready: dict[str, list[int]], expected: list[int] | None
) -> None:
    assert NESTED.pods_to_complete(present, ready) == expected


def test_minimum_of_a_tree_counts_each_missing_group_as_one_pod() -> None:
    assert NESTED.min_pods == 3
    assert GroupTree("root", 3, (GroupTree("a", 2),)).min_pods == 4
