"""Finds the cause of an unschedulable pod from the scheduler's message: its own spec or others."""

from __future__ import annotations

import pytest

from app.core.lifecycle.unschedulable_cause import UnschedulableCause, unschedulable_cause_of
from app.core.model import SchedulerCondition

TAIL = (
    " preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
    " no new claims to deallocate, 4 node(s) didn't have free ports for the requested pod ports."
)


@pytest.mark.parametrize(
    "reasons",
    [
        "4 node(s) didn't have free ports for the requested pod ports.",
        "1 node(s) had untolerated taint(s), 3 node(s) didn't match pod anti-affinity rules.",
        "2 Insufficient nvidia.com/gpu, 2 node(s) had volume node affinity conflict.",
        "4 node(s) didn't match pod topology spread constraints (missing required label).",
        'persistentvolumeclaim "nowhere" not found.',
        "pod has unbound immediate PersistentVolumeClaims.",
    ],
)
def test_reasons_from_the_pod_spec_are_attributed_to_the_pod(reasons: str) -> None:
    assert unschedulable_cause_of(said(reasons)) is UnschedulableCause.POD


@pytest.mark.parametrize(
    "reasons",
    [
        "4 node(s) didn't satisfy existing pods anti-affinity rules.",
        "1 node(s) didn't match pod affinity rules, "
        "3 node(s) didn't satisfy existing pods anti-affinity rules.",
        "4 node(s) had untolerated taint {rack: closed}.",
        "4 node(s) had untolerated taint(s).",
        "4 Insufficient nvidia.com/gpu.",
        "4 cannot allocate all claims.",
        "4 node(s) exceed max volume count.",
        "4 node(s) didn't match Pod's node affinity/selector.",
        "4 a reason that no scheduler gave before.",
        "",
    ],
)
def test_other_and_unknown_reasons_are_not_attributed_to_the_pod(reasons: str) -> None:
    assert unschedulable_cause_of(said(reasons)) is UnschedulableCause.OTHERS


def test_an_error_of_the_scheduler_is_never_the_fault_of_the_pod() -> None:
    text = 'persistentvolumeclaim "nowhere" not found.'
    assert (
        unschedulable_cause_of(SchedulerCondition("SchedulerError", text))
        is UnschedulableCause.OTHERS
    )
    assert unschedulable_cause_of(None) is UnschedulableCause.OTHERS


def said(reasons: str) -> SchedulerCondition:
    return SchedulerCondition("Unschedulable", f"0/4 nodes are available: {reasons}{TAIL}")
